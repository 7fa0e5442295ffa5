"""PCP, NAT-PMP and UPnP over real sockets, with a router on loopback, and a host that lies."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import DeadlineExceeded, LimitExceeded, Refused, TransportError
from swarmnode.net.gateway.mapping import Granted
from swarmnode.net.gateway.methods import (
    PORTMAP_ASK_S_MIN,
    PORTMAP_PORTS_TRIED_MAX,
    NatPmpMethod,
    PcpMethod,
    UpnpMethod,
)
from swarmnode.protocol.nat import igd
from tests.unit.net.gateway.router_kit import (
    EXTERNAL,
    PCP_PORT,
    PORT,
    SSDP_PORT,
    answer_datagrams,
    fresh_address,
    map_request_of,
    pcp_answer,
    search_answer,
    serve_http,
)

SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
LIAR = "6.6.6.6"


def natpmp_answer(request: bytes) -> bytes:
    if request == bytes(2):
        return struct.pack("!BBHI4s", 0, 128, 0, 77, EXTERNAL.packed)
    internal, external, lease_s = struct.unpack_from("!HHI", request, 4)
    return struct.pack("!BBHIHHI", 0, 130, 0, 77, internal, external, lease_s)


async def test_pcp_asks_and_takes_back(nursery: trio.Nursery) -> None:
    gateway = fresh_address()
    seen: list[bytes] = []

    def answer(request: bytes) -> bytes:
        seen.append(request)
        return pcp_answer(request)

    await nursery.start(answer_datagrams, gateway, PCP_PORT, answer)
    method = PcpMethod(map_request_of(gateway))
    assert await method.map(PORT) == Granted(EXTERNAL, PORT, 3600)
    await method.release(Granted(EXTERNAL, PORT, 3600))
    assert [int.from_bytes(request[4:8], "big") for request in seen] == [3600, 0]
    nursery.cancel_scope.cancel()


async def test_nat_pmp_asks_and_takes_back(nursery: trio.Nursery) -> None:
    gateway = fresh_address()
    await nursery.start(answer_datagrams, gateway, PCP_PORT, natpmp_answer)
    method = NatPmpMethod(map_request_of(gateway))
    assert await method.map(40_000) == Granted(EXTERNAL, 40_000, 3600)
    await method.release(Granted(EXTERNAL, 40_000, 3600))
    nursery.cancel_scope.cancel()


async def test_a_lost_question_is_asked_again(nursery: trio.Nursery) -> None:
    gateway = fresh_address()
    seen: list[bytes] = []

    def answer(request: bytes) -> bytes | None:
        seen.append(request)
        return pcp_answer(request) if len(seen) == 2 else None

    await nursery.start(answer_datagrams, gateway, PCP_PORT, answer)
    assert await PcpMethod(map_request_of(gateway)).map(PORT) == Granted(EXTERNAL, PORT, 3600)
    nursery.cancel_scope.cancel()


async def test_a_router_that_says_nothing(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    gateway = fresh_address()
    await nursery.start(answer_datagrams, gateway, PCP_PORT, lambda _: None)
    with pytest.raises(DeadlineExceeded, match=rf"an answer of the router {gateway}: .* 1.75 s"):
        await PcpMethod(map_request_of(gateway)).map(PORT)
    nursery.cancel_scope.cancel()


async def test_a_router_that_does_not_speak_it() -> None:
    gateway = fresh_address()  # nothing listens there: the kernel says so at once
    with trio.fail_after(PORTMAP_ASK_S_MIN):
        with pytest.raises(TransportError, match="does not speak it"):
            await PcpMethod(map_request_of(gateway)).map(PORT)
        with pytest.raises(TransportError, match="does not speak it"):
            await NatPmpMethod(map_request_of(gateway)).map(PORT)


@pytest.mark.parametrize("same_port", [True, False])
async def test_an_answer_from_another_host_is_not_heard(
    nursery: trio.Nursery, same_port: bool
) -> None:
    """A forger that even knows our port and our nonce, and is faster than the router."""
    gateway, liar = fresh_address(), fresh_address()
    forger = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
    with forger:
        await forger.bind((liar, PCP_PORT if same_port else 0))
        lie = partial(pcp_answer, external=type(EXTERNAL)(LIAR))
        await nursery.start(
            partial(answer_datagrams, gateway, PCP_PORT, pcp_answer, forger=forger, forged=lie)
        )
        assert (await PcpMethod(map_request_of(gateway)).map(PORT)).external == EXTERNAL
    nursery.cancel_scope.cancel()


async def test_a_flood_of_nonsense_ends(nursery: trio.Nursery) -> None:
    gateway = fresh_address()
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as flooder:
        await flooder.bind((gateway, PCP_PORT))

        async def flood() -> None:
            _, source = await flooder.recvfrom(2048)
            for _ in range(2 * limits.PORTMAP_DATAGRAMS_MAX):
                await flooder.sendto(b"nonsense", source)

        nursery.start_soon(flood)
        with pytest.raises(LimitExceeded, match="datagrams"):
            await PcpMethod(map_request_of(gateway)).map(PORT)


# --- UPnP -----------------------------------------------------------------------------------------


@dataclass
class Igd:
    """A router's UPnP: what it was asked to map, and the errors that it answers with first."""

    address: str
    errors: list[int] = field(default_factory=list)
    mapped: dict[str, str] = field(default_factory=dict)  # external port -> lease
    asked: list[str] = field(default_factory=list)

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve; report the URL of the description."""
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(serve_http, self.address, self.answer)
            url = f"http://{self.address}:{port}/root.xml"
            await nursery.start(
                answer_datagrams, self.address, SSDP_PORT, lambda _: search_answer(url)
            )
            task_status.started(url)

    def answer(self, request: bytes) -> bytes:
        first = request.partition(b"\r\n")[0].decode()
        self.asked.append(first.rpartition(" ")[0])
        if first.startswith("GET"):
            return ok(
                "<root><device><service><serviceType>"
                f"{SERVICE}</serviceType><controlURL>/ctl</controlURL></service></device></root>"
            )
        action = (
            request.partition(b"SOAPAction: ")[2].partition(b"#")[2].partition(b'"')[0].decode()
        )
        return self.act(action, request.partition(b"\r\n\r\n")[2].decode())

    def act(self, action: str, body: str) -> bytes:
        if action == "GetExternalIPAddress":
            return said(action, f"<NewExternalIPAddress>{EXTERNAL}</NewExternalIPAddress>")
        if self.errors:
            code = self.errors.pop(0)
            return ok(f"<e><errorCode>{code}</errorCode></e>", status="500 Internal Server Error")
        port = text_of(body, "NewExternalPort")
        if action == "AddPortMapping":
            assert text_of(body, "NewInternalClient") == "127.0.0.1"
            self.mapped[port] = text_of(body, "NewLeaseDuration")
        else:
            del self.mapped[port]
        return said(action, "")


def text_of(body: str, name: str) -> str:
    return body.partition(f"<{name}>")[2].partition(f"</{name}>")[0]


def said(action: str, inner: str) -> bytes:
    return ok(f"<E><B><u:{action}Response>{inner}</u:{action}Response></B></E>")


def ok(body: str, *, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def test_upnp_finds_asks_and_takes_back(nursery: trio.Nursery) -> None:
    router = Igd(fresh_address())
    await nursery.start(router.run)
    method = UpnpMethod(map_request_of(router.address))
    granted = await method.map(PORT)
    assert granted == Granted(EXTERNAL, PORT, limits.PORTMAP_LEASE_S)
    assert router.mapped == {"7337": "3600"}
    await method.map(PORT)  # a renewal does not search again
    await method.release(granted)
    assert router.mapped == {}
    assert router.asked == ["GET /root.xml"] + ["POST /ctl"] * 5
    nursery.cancel_scope.cancel()


async def test_upnp_takes_another_port_where_this_one_is_taken(nursery: trio.Nursery) -> None:
    router = Igd(fresh_address(), errors=[igd.CONFLICT, igd.CONFLICT])
    await nursery.start(router.run)
    granted = await UpnpMethod(map_request_of(router.address)).map(PORT)
    assert granted.port != PORT
    assert router.mapped == {str(granted.port): "3600"}
    router.errors = [igd.CONFLICT] * PORTMAP_PORTS_TRIED_MAX
    with pytest.raises(Refused, match="gave this port to another machine"):
        await UpnpMethod(map_request_of(router.address)).map(PORT)
    nursery.cancel_scope.cancel()


async def test_upnp_takes_a_permanent_mapping_where_there_is_no_other(
    nursery: trio.Nursery,
) -> None:
    router = Igd(fresh_address(), errors=[igd.ONLY_PERMANENT])
    await nursery.start(router.run)
    granted = await UpnpMethod(map_request_of(router.address)).map(PORT)
    assert router.mapped == {"7337": "0"}
    assert granted.lease_s == limits.PORTMAP_LEASE_S  # it is renewed all the same
    nursery.cancel_scope.cancel()


async def test_a_router_leads_no_node_elsewhere(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """That a neighbour's answer to the search is not heard, the lab shows with real multicast."""
    router, other = fresh_address(), Igd(fresh_address())
    url = await nursery.start(other.run)
    await nursery.start(answer_datagrams, router, SSDP_PORT, lambda _: search_answer(url))
    with pytest.raises((DeadlineExceeded, LimitExceeded)):
        await UpnpMethod(map_request_of(router)).map(PORT)
    assert other.asked == []
    nursery.cancel_scope.cancel()


async def test_a_router_that_hangs_is_not_waited_for(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    gateway = fresh_address()

    async def hang(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n<root>")
        async with stream:
            await stream.receive_some(65536)
            await stream.receive_some(1)

    listeners = await trio.open_tcp_listeners(0, host=gateway)
    port = listeners[0].socket.getsockname()[1]
    nursery.start_soon(trio.serve_listeners, hang, listeners)
    url = f"http://{gateway}:{port}/root.xml"
    await nursery.start(answer_datagrams, gateway, SSDP_PORT, lambda _: search_answer(url))
    with pytest.raises(DeadlineExceeded, match=rf"UPnP: an answer of {gateway}:{port}: .* 5 s"):
        await UpnpMethod(map_request_of(gateway)).map(PORT)
    nursery.cancel_scope.cancel()


async def test_a_router_without_upnp(autojump_clock: MockClock) -> None:
    gateway = fresh_address()
    with pytest.raises(DeadlineExceeded, match=rf"the router {gateway} to a search: .* 2 s"):
        await UpnpMethod(map_request_of(gateway)).map(PORT)
