"""STUN over real sockets: responders on several addresses of the loopback."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio

from swarmnode import limits
from swarmnode.errors import ConfigError, Overloaded, Refused
from swarmnode.ids import PeerId
from swarmnode.net.nat_survey import survey_nat
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stun import (
    StunResponder,
    add_probe_service,
    request_probe,
)
from swarmnode.protocol.nat.behaviour import Dependence
from swarmnode.protocol.nat.stun import (
    Answer,
    Endpoint,
    Indication,
    Question,
    decode_stun,
    encode_question,
)
from tests.conftest import HANGS_S
from tests.kits.session_kit import session_pair

TRANSACTION = bytes(range(12))


@asynccontextmanager
async def responders(*hosts: str) -> AsyncIterator[list[tuple[str, StunResponder]]]:
    """Give (address, responder) on each host."""
    async with trio.open_nursery() as nursery:
        running = []
        for host in hosts:
            responder = StunResponder()
            running.append((await nursery.start(responder.run, f"{host}:0"), responder))
        yield running
        nursery.cancel_scope.cancel()


async def ask(server: str, sock: socket.socket | None = None) -> Answer:
    """Ask one responder where we come from; only an answer from there counts."""
    host, port = server.rsplit(":", 1)
    with ExitStack() as sockets:
        if sock is None:
            sock = sockets.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            sock.setblocking(False)
        sock.sendto(encode_question(Question(TRANSACTION)), (host, int(port)))
        with trio.fail_after(HANGS_S):
            await trio.lowlevel.wait_readable(sock)
        data, source = sock.recvfrom(600)
    assert source == (host, int(port))
    answer = decode_stun(data)
    assert isinstance(answer, Answer)
    return answer


async def test_a_peer_tells_where_a_question_came_from() -> None:
    async with responders("127.0.0.1") as ((address, responder),):
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0))
            answer = await ask(address, sock)
            assert answer.mapped == sock.getsockname()
            assert answer.other_port
            # Its second port answers too, and names the first one.
            again = await ask(f"127.0.0.1:{answer.other_port}", sock)
        assert address == f"127.0.0.1:{again.other_port}"
        assert (await ask(address)).mapped.host == "127.0.0.1"
        assert responder.statistics().answered_total == 3


async def test_on_every_address_the_one_that_was_asked_answers() -> None:
    async with responders("*") as ((address, _),):
        port = address.rpartition(":")[2]
        for host in ("127.0.0.1", "127.0.0.2", "127.1.2.3"):
            # An answer from any other address would not count.
            assert (await ask(f"{host}:{port}")).mapped.host.startswith("127.")


async def test_a_silent_server_is_asked_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STUN_ASK_S", 0.3)
    monkeypatch.setattr(limits, "STUN_RETRY_S", 0.05)
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.setblocking(False)
        silent.bind(("127.0.0.1", 0))
        await survey_nat(["{}:{}".format(*silent.getsockname())])
        questions = [silent.recv(600) for _ in range(3)]
    assert len(set(questions)) == 1
    assert len(questions[0]) == limits.STUN_QUESTION_BYTES


async def test_what_is_no_address_of_ours_is_said_in_one_line() -> None:
    for address in ("[::1]:1", "name.example:1"):
        with pytest.raises(ConfigError, match="expected IPV4:PORT"):
            await survey_nat([address])
        with pytest.raises(ConfigError, match="expected IPV4:PORT or"):
            await StunResponder().run(address)
    with pytest.raises(ConfigError, match="got none"):
        await survey_nat([])
    async with responders("127.0.0.1") as ((address, _),):
        with pytest.raises(ConfigError, match="choose another port"):
            await StunResponder().run(address)


async def test_a_survey_on_loopback_finds_no_nat() -> None:
    async with responders("127.0.0.1", "127.0.0.2", "127.0.0.3") as running:
        asked = []

        async def ask_probe(server: int, port: int, transaction: bytes) -> None:
            asked.append(server)
            running[server][1].send_probe("127.0.0.1", port, transaction)
            await trio.lowlevel.checkpoint()

        with trio.fail_after(2 * limits.STUN_ASK_S + HANGS_S):
            found = await survey_nat([address for address, _ in running], ask_probe)
    # Each host of the loopback sees its own address as the source: a translation of a kind.
    assert found.answers == 3
    assert asked
    assert found.filtering is Dependence.NONE


async def test_a_probe_goes_to_the_host_of_the_session_only() -> None:
    hosts: dict[PeerId, str] = {}
    async with responders("127.0.0.1") as ((address, responder),):
        services = Services()
        add_probe_service(services, responder, lambda peer: hosts.get(peer, ""))
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            sock.setblocking(False)
            port = sock.getsockname()[1]
            async with session_pair(services) as (alice, bob):
                with pytest.raises(Refused, match="this one has none"):
                    await request_probe(alice, port, TRANSACTION)
                hosts[bob.peer] = "::1"
                with pytest.raises(Refused, match="this one has none"):
                    await request_probe(alice, port, TRANSACTION)
                hosts[bob.peer] = "127.0.0.1"
                await request_probe(alice, port, TRANSACTION)
                await trio.lowlevel.wait_readable(sock)
                data, source = sock.recvfrom(600)
                assert decode_stun(data) == Indication(TRANSACTION)
                assert address == "{}:{}".format(*Endpoint(*source))
                with pytest.raises(Overloaded, match=r"too many probes to 127\.0\.0\.1"):
                    await request_many(alice, port)


async def request_many(session: Session, port: int) -> None:
    for _ in range(3 * limits.STUN_ANSWERS_PER_HOST_PER_S_MAX):
        await request_probe(session, port, TRANSACTION)


async def test_without_a_responder_there_is_no_probe() -> None:
    with pytest.raises(Refused, match="no STUN responder runs here"):
        StunResponder().send_probe("127.0.0.1", 5000, TRANSACTION)
