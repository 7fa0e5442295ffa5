"""How fast a session through a relay is, against the direct one of the same two nodes.

Three processes on loopback: this one sends, one helper relays and another one receives (this module
run as a program). Both ways take turns within every round.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from swarmnode.bench.link import (
    link_services,
    measure_rate,
    request_p50_ms,
    send_bulk,
    stdin_closed,
)
from swarmnode.daemon.transport.relay import RelayService
from swarmnode.env import real_env
from swarmnode.ids import PeerId
from swarmnode.ipc.spawn import worker_command
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.peering import run_session
from swarmnode.net.relays.address import RelayAddress
from swarmnode.net.relays.relay import Relays
from swarmnode.net.relays.wrapped import receive_wrapped
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpTransport
from swarmnode.processes.children import child
from swarmnode.processes.stopping import run_async
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.relay.accounts import Quota
from swarmnode.protocol.session.records import Role
from swarmnode.wire.connect.relay import LEG_AS_TLS, LEG_MAGIC

_NETWORK_ID = bytes(32)
_LISTEN = "127.0.0.1:0"
_FIRST_BYTES = 5
_UNLIMITED = Quota(
    bytes_per_s=None, peer_bytes_per_s=None, bytes_per_day=None, peer_bytes_per_day=None
)


def run_relay_bench(
    *, rounds: int = 5, bytes_per_round: int = 512_000_000, requests: int = 300
) -> dict[str, float]:
    """Measure and return figures; MB are 1e6 bytes.

    Returns:
        ``direct_mbps``, ``relay_mbps``, and ``relay_share``, the median of their quotients;
        ``request_p50_ms_direct`` and ``request_p50_ms_relay`` for 128 bytes there and back;
        ``relay_cpu_s_per_gb`` of the relay's process alone.
    """
    with _helper("relay") as relay, _helper("receiver", json.dumps(relay)) as receiver:
        return run_async(_measure, relay, receiver, rounds, bytes_per_round, requests)


def format_relay_bench(result: dict[str, float]) -> str:
    """Return the figures as lines for a person."""
    return "\n".join(
        [
            f"direct session         {result['direct_mbps']:8.0f} MB/s  "
            f"request {result['request_p50_ms_direct']:.2f} ms",
            f"through a relay        {result['relay_mbps']:8.0f} MB/s  "
            f"request {result['request_p50_ms_relay']:.2f} ms  "
            f"({result['relay_share']:.0%} of the direct one)",
            f"the relay itself       {result['relay_cpu_s_per_gb']:8.2f} CPU s/GB",
        ]
    )


@contextmanager
def _helper(role: str, argument: str = "") -> Iterator[dict[str, str]]:
    """Run this module as a program; give what it says of itself."""
    command = worker_command("swarmnode.bench.relay", role, argument)
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()  # tells it to end


# --- the sending side ----------------------------------------------------------------------


async def _measure(
    relay: dict[str, str], receiver: dict[str, str], rounds: int, n_bytes: int, requests: int
) -> dict[str, float]:
    async with trio.open_nursery() as nursery:
        node = _Node(nursery)
        target = PeerId.parse(receiver["peer"])
        to_relay = await node.connect(PeerId.parse(relay["peer"]), (relay["address"],))
        direct = await node.connect(target, (receiver["address"],))
        way = RelayAddress(to_relay.peer, relay["address"], target)
        relayed = await node.session_on(await node.relays.dial(str(way)), target)
        assert direct.channel_description != relayed.channel_description
        rates: dict[str, list[float]] = {"direct": [], "relay": []}
        cpu_s_per_gb = []
        for _ in range(rounds):
            rates["direct"].append(await _bulk_rate(direct, n_bytes))
            cpu_before_s = await _cpu_s_of(to_relay)
            rates["relay"].append(await _bulk_rate(relayed, n_bytes))
            cpu_s_per_gb.append((await _cpu_s_of(to_relay) - cpu_before_s) / n_bytes * 1e9)
        direct_ms = await request_p50_ms(direct, requests)
        relay_ms = await request_p50_ms(relayed, requests)
        nursery.cancel_scope.cancel()
    shares = [one / other for one, other in zip(rates["relay"], rates["direct"], strict=True)]
    return {
        "direct_mbps": statistics.median(rates["direct"]),
        "relay_mbps": statistics.median(rates["relay"]),
        "relay_share": statistics.median(shares),
        "request_p50_ms_direct": direct_ms,
        "request_p50_ms_relay": relay_ms,
        "relay_cpu_s_per_gb": statistics.median(cpu_s_per_gb),
    }


async def _cpu_s_of(session: Session) -> float:
    """Return the CPU seconds that the peer's process used so far."""
    return float(await session.request("cpu", b"", deadline_s=10))


async def _bulk_rate(session: Session, n_bytes: int) -> float:
    return await measure_rate(n_bytes, functools.partial(send_bulk, session))


# --- all three --------------------------------------------------------------------------------


class _Node:
    """A node without swarm or table of peers: dials, listens, relays, is relayed."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.identity = Identity.generate()
        self.services = link_services()
        self._nursery = nursery
        self._transport = TcpTransport()
        self._sessions: dict[PeerId, Session] = {}
        self.relays = Relays(self.services, self.connect, self._transport.dial)
        self.relay = RelayService(
            self.services,
            real_env(trio.current_time),
            quota=_UNLIMITED,
            sessions=self._sessions,
            host_of=lambda _peer: "",
        )

    async def listen(self) -> str:
        """Accept sessions and legs; return the address."""
        await self._nursery.start(self.relay.run)
        address: str = await self._nursery.start(self._transport.serve, _LISTEN, self._sort)
        return address

    async def be_relayed(self, relay: PeerId, address: str) -> None:
        """Be reached through a relay."""
        await self._nursery.start(self.relays.run, self._accept)
        await self._nursery.start(self.relays.keep, relay, address)

    async def connect(self, peer: PeerId, addresses: tuple[str, ...]) -> Session:
        """Return the session with a peer; it is dialled if there is none."""
        known = self._sessions.get(peer)
        if known is not None:
            return known
        return await self.session_on(await self._transport.dial(addresses[0]), peer)

    async def session_on(self, channel: Channel, peer: PeerId) -> Session:
        """Return the session with the peer that we have dialled."""
        return await self._start(channel, Role.CLIENT, peer)

    async def _sort(self, channel: Channel) -> None:
        first = bytearray(_FIRST_BYTES)
        await receive_exactly(channel, memoryview(first))
        if first.startswith(LEG_AS_TLS):
            await self.relay.serve_leg(channel, await receive_wrapped(channel, bytes(first)))
        elif LEG_MAGIC.startswith(first):
            await self.relay.serve_leg(channel, bytes(first))
        else:
            await self._accept(channel, bytes(first))

    async def _accept(self, channel: Channel, first_bytes: bytes = b"") -> None:
        await (await self._start(channel, Role.SERVER, None, first_bytes)).wait_closed()

    async def _start(
        self, channel: Channel, role: Role, expected: PeerId | None, first_bytes: bytes = b""
    ) -> Session:
        session: Session = await self._nursery.start(
            functools.partial(
                run_session,
                channel,
                identity=self.identity,
                network_id=_NETWORK_ID,
                services=self.services,
                role=role,
                expected=expected,
                first_bytes=first_bytes,
            )
        )
        self._sessions[session.peer] = session
        return session


async def _help(role: str, argument: str) -> None:
    async with trio.open_nursery() as nursery:
        node = _Node(nursery)
        address = await node.listen()
        if role == "receiver":
            relay = json.loads(argument)
            await node.be_relayed(PeerId.parse(relay["peer"]), relay["address"])
        sys.stdout.write(json.dumps({"peer": str(node.identity.peer_id), "address": address}))
        sys.stdout.write("\n")
        sys.stdout.flush()
        await stdin_closed()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_help, sys.argv[1], sys.argv[2])
