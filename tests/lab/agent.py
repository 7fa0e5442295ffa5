"""A process on a host of the lab that does what the test tells it: a command a line, as JSON.

reflect PORTS            listen there, tell each caller the address that is seen
listen PORT              as a node does: a puncher first, else a word of welcome
observe PORT, ADDRESSES  connect from that port; what the reflectors see
punch PLAN               carry it out, exchange a word; the address of the other side
map PORT, METHODS        ask the router until ``unmap``; the mapping, or why there is none
refresh                  ask it again; what there is then
unmap                    give the port back
lie GATEWAY_ADDRESS      play the router towards every host on the LAN; see ``asked``
asked                    how often a host searched, and how often a host fell for it
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import DialFailed, TransportError
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.gateway.methods import METHODS
from swarmnode.net.gateway.portmap import PortMapper
from swarmnode.net.punch import Appointment, Puncher, dial_from
from swarmnode.net.tcp import TcpChannel, TcpTransport, format_address
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat import igd
from swarmnode.protocol.nat.punch import PunchPlan, Start

WELCOME = b"welcome"
_OBSERVE_S = 0.6
_METHODS = dict(zip(("PCP", "NAT-PMP", "UPnP"), METHODS, strict=True))


class Agent:
    """What one host does."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._env = Env(trio.current_time, trio.current_time, random.Random())
        self._punchers: dict[int, Puncher] = {}
        self._appointment: Appointment | None = None
        self._appointed = contextlib.ExitStack()
        self._mapper: PortMapper | None = None
        self._mapping = trio.CancelScope()
        self._unmapped = trio.Event()
        self._searches = 0
        self._connections = 0

    async def do(self, command: str, arguments: dict[str, Any]) -> Any:
        return await getattr(self, f"do_{command}")(**arguments)

    # --- punching -----------------------------------------------------------------------------

    async def do_reflect(self, ports: list[int]) -> None:
        async def handle(channel: Channel) -> None:
            assert isinstance(channel, TcpChannel)
            assert channel.remote is not None
            await channel.send_all(memoryview(format_address(*channel.remote).encode("ascii")))

        for port in ports:
            await self._nursery.start(TcpTransport().serve, f"*:{port}", handle)

    async def do_listen(self, port: int) -> None:
        puncher = self._punchers[port] = Puncher(port, env=self._env)

        async def handle(channel: Channel) -> None:
            assert isinstance(channel, TcpChannel)
            if not puncher.claim(channel):
                await channel.send_all(memoryview(WELCOME))

        await self._nursery.start(TcpTransport().serve, f"*:{port}", handle)

    async def do_observe(self, port: int, addresses: list[str]) -> list[str | None]:
        return [await self._observe(port, address) for address in addresses]

    async def _observe(self, port: int, address: str) -> str | None:
        with trio.move_on_after(_OBSERVE_S):
            try:
                channel = await dial_from(port, address)
            except DialFailed:
                return None
            try:
                return (await _read(channel)).decode("ascii")
            finally:
                await aclose_forcefully(channel)
        return None

    async def do_appoint(self, port: int, targets: list[tuple[str, int]], choose: bool) -> None:
        await trio.lowlevel.checkpoint()
        plan = PunchPlan(
            tuple((host, port) for host, port in targets), limits.PUNCH_ATTEMPT_S, choose
        )
        self._appointment = self._appointed.enter_context(self._punchers[port].appoint(plan))

    async def do_punch(self, at: float, give_up_s: float) -> dict[str, Any]:
        """``at`` is on the clock that all processes of a machine share."""
        assert self._appointment is not None
        plan, began_at = self._appointment.plan, at - time.monotonic() + trio.current_time()
        with self._appointed, trio.CancelScope(deadline=began_at + give_up_s):
            try:
                channel = await self._appointment.keep(Start(plan, began_at))
            except DialFailed as error:
                return {"remote": None, "why": str(error)}
            took_s = trio.current_time() - began_at
            try:
                word = await _exchange(channel, is_first=plan.we_choose)
            finally:
                await aclose_forcefully(channel)
            return {"remote": channel.remote, "word": word, "took_s": took_s}
        return {"remote": None, "why": f"no connection in {give_up_s} s"}

    # --- mapping ------------------------------------------------------------------------------

    async def do_map(self, port: int, methods: list[str]) -> dict[str, Any]:
        self._mapper = PortMapper(
            port,
            identity=Identity.from_seed(bytes(32)),
            env=self._env,
            methods=[_METHODS[name] for name in methods],
        )
        self._mapping, self._unmapped = trio.CancelScope(), trio.Event()
        await self._nursery.start(self._hold)
        return self._shown()

    async def _hold(self, task_status: trio.TaskStatus[None]) -> None:
        assert self._mapper is not None
        with self._mapping:
            await self._mapper.run(task_status=task_status)
        self._unmapped.set()

    def _shown(self) -> dict[str, Any]:
        assert self._mapper is not None
        mapping = self._mapper.mapping
        return {"mapping": mapping and asdict(mapping), "why": self._mapper.why}

    async def do_refresh(self) -> dict[str, Any]:
        assert self._mapper is not None
        self._mapper.refresh()
        with trio.move_on_after(1.0):
            await self._mapper.wait_changed(self._mapper.mapping)
        return self._shown()

    async def do_unmap(self) -> None:
        self._mapping.cancel()
        await self._unmapped.wait()

    async def do_lie(self, gateway: str) -> None:
        own = await self._nursery.start(self._play_router)
        await self._nursery.start(self._answer_searches, own, gateway)

    async def _play_router(self, task_status: trio.TaskStatus[int]) -> None:
        async def count(stream: trio.SocketStream) -> None:
            self._connections += 1
            await stream.aclose()

        listeners = await trio.open_tcp_listeners(0)
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, count, listeners)
            task_status.started(listeners[0].socket.getsockname()[1])

    async def _answer_searches(
        self, http_port: int, gateway: str, task_status: trio.TaskStatus[None]
    ) -> None:
        """Answer before the router does, once with our address and once with the router's."""
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await sock.bind(("", igd.SSDP_PORT))
            request = socket.inet_aton(igd.SSDP_GROUP) + socket.inet_aton("0.0.0.0")
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
            task_status.started()
            while True:
                _, source = await sock.recvfrom(2048)
                self._searches += 1
                with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as probe:
                    await probe.connect(source)
                    own = probe.getsockname()[0]
                for host in (own, gateway):
                    await sock.sendto(_announcement(host, http_port), source)

    async def do_asked(self) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        return {"searches": self._searches, "connections": self._connections}


def _announcement(host: str, port: int) -> bytes:
    return (
        "HTTP/1.1 200 OK\r\nST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n"
        f"LOCATION: http://{host}:{port}/root.xml\r\n\r\n"
    ).encode("ascii")


async def _read(channel: Channel) -> bytes:
    buffer = memoryview(bytearray(64))
    return bytes(buffer[: await channel.receive_into(buffer)])


async def _exchange(channel: Channel, *, is_first: bool) -> str:
    """Say a word, hear one: the connection carries bytes both ways."""
    if is_first:
        await channel.send_all(memoryview(b"ping"))
        return (await _read(channel)).decode("ascii")
    word = (await _read(channel)).decode("ascii")
    await channel.send_all(memoryview(b"pong"))
    return word


async def _main() -> None:
    source = trio.lowlevel.FdStream(0)
    rest = b""
    async with trio.open_nursery() as nursery:
        agent = Agent(nursery)
        async for piece in source:
            *lines, rest = (rest + bytes(piece)).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                try:
                    answer: Any = {"result": await agent.do(asked["do"], asked["with"])}
                except (TransportError, OSError) as error:
                    answer = {"error": repr(error)}
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main)
