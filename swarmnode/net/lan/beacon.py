"""Beacons on the LAN under Trio: two nodes on one LAN meet with no address known to either."""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.net.lan.datagrams import DatagramNet, UdpNet
from swarmnode.net.lan.interfaces import Address
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.lan import (
    Announce,
    Event,
    Heard,
    LanCore,
    LanPeer,
    LanStatistics,
    LinkAdded,
    Met,
)
from swarmnode.wire.connect.beacon import LanSwarm

__all__ = ["LanBeacon", "LanPeer", "LanStatistics", "LanSwarm"]


class LanBeacon:
    """Says that we are here, and tells which other nodes are.

    Args:
        network_id: 32 bytes; nodes of other networks are not heard.
        port: gives the TCP port that we listen on; 0: no node can dial us, we only ask which
            nodes are there.
        swarms: gives the swarms that we are in; the first LAN_SWARMS_MAX are named.
        on_peer: called with a peer that is new, heard again after silence, at a new
            address or in other swarms. It must not wait. A link-local address
            (``[fe80::…%eth0]:PORT``) is good on this machine only.
        net: the LAN; tests pass one in memory.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        network_id: bytes,
        port: Callable[[], int],
        swarms: Callable[[], tuple[LanSwarm, ...]],
        on_peer: Callable[[LanPeer], None],
        env: Env,
        net: DatagramNet | None = None,
    ) -> None:
        self._port = port
        self._swarms = swarms
        self._on_peer = on_peer
        self._env = env
        self._net = net or UdpNet()
        self._wake = trio.Event()
        self._core = LanCore(
            identity=identity,
            network_id=network_id,
            boot=int(env.wall() * 1000),
            rng=env.rng,
            now=env.monotonic(),
        )
        self.interfaces: tuple[str, ...] = ()
        """Names of the interfaces in use; empty: no node can be heard."""
        self._places: set[tuple[int, Address]] = set()

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Announce and listen until cancelled; started with the names of the interfaces."""
        self._net.open()
        try:
            self._rescan()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._net.listen, self._hear)
                nursery.start_soon(self._keep_time)
                nursery.start_soon(self._keep_interfaces)
                task_status.started(self.interfaces)
        finally:
            self._net.close()

    def peers(self, now: float) -> tuple[LanPeer, ...]:
        """Return peers heard of lately that can be dialled, with the address to try first."""
        return self._core.peers(now)

    def statistics(self) -> LanStatistics:
        """Return a frozen record of counters."""
        return self._core.statistics()

    def _hear(self, data: bytes, host: str, is_on_link: bool) -> None:
        self._feed(Heard(data, host, is_on_link))

    def _feed(self, event: Event) -> None:
        deadline = self._core.next_deadline()
        self._core.handle(event, self._env.monotonic())
        self._carry_out()
        if self._core.next_deadline() != deadline:
            self._wake.set()

    def _carry_out(self) -> None:
        for effect in self._core.poll_effects():
            match effect:
                case Announce():
                    port = self._port()
                    self._net.send(self._core.sign(port, self._swarms() if port else ()))
                case Met(peer=peer):
                    self._on_peer(peer)

    async def _keep_time(self) -> None:
        while True:
            with trio.move_on_after(max(0.0, self._core.next_deadline() - self._env.monotonic())):
                await self._wake.wait()
            self._wake = trio.Event()
            self._core.handle_deadline(self._env.monotonic())
            self._carry_out()

    async def _keep_interfaces(self) -> None:
        while True:
            await trio.sleep(limits.LAN_RESCAN_S)
            if self._rescan():
                self._feed(LinkAdded())

    def _rescan(self) -> bool:
        """Return whether there is an interface or an address that was not there before."""
        used = self._net.rescan()
        self.interfaces = tuple(interface.name for interface in used)
        before = self._places
        self._places = {(one.index, address) for one in used for address in one.addresses}
        return not self._places <= before
