"""Where members of one swarm find each other: in the link, on the LAN and in the DHT.

A peer that is found is a hint: that it is of our swarm it says itself, on a session that proves
who it is.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import name_key, swarm_key_key
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import dht as wire

_log = get_logger("swarmnode.daemon.discovery")


class SwarmRendezvous:
    """Looks for peers of one swarm for as long as the node runs.

    Args:
        is_lonely: whether too few of them are connected: then the DHT is asked more often.

    Attributes:
        candidates: where peers of the swarm may be dialled, newest last.
        on_found: told of each of them, again when it is seen again.
    """

    def __init__(
        self,
        link: SwarmLink,
        *,
        discovery: Discovery,
        self_id: PeerId,
        env: Env,
        is_lonely: Callable[[], bool],
    ) -> None:
        self.candidates: dict[PeerId, tuple[str, ...]] = {}
        self.on_found: Callable[[PeerId, tuple[str, ...]], None] = lambda _peer, _addresses: None
        self.lookups = 0
        self._link = link
        self._discovery = discovery
        self._self_id = self_id
        self._env = env
        self._is_lonely = is_lonely
        for hint in link.hints:
            held = self.candidates.get(hint.peer, ())
            self.candidates[hint.peer] = (*held, hint.address)
        self.candidates.pop(self_id, None)
        for peer, addresses in self.candidates.items():
            discovery.discovered(peer, addresses)

    async def run(self) -> None:
        """Ask the DHT now and then, soon while no peer is there."""
        pause_s = limits.SWARM_LOOKUP_S_MIN
        while True:
            await self._look_up()
            await self._pause(pause_s * self._env.rng.uniform(0.75, 1.25))
            pause_s = min(2 * pause_s, limits.SWARM_LOOKUP_S)

    async def _pause(self, longest_s: float) -> None:
        """Wait; not so long for a node that is lonely, or becomes so meanwhile."""
        until = trio.current_time() + longest_s
        while True:
            await trio.sleep(min(limits.SWARM_LOOKUP_S_LONELY, until - trio.current_time()))
            if trio.current_time() >= until or self._is_lonely():
                return

    def found(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A node says that this peer is of our swarm."""
        if peer == self._self_id or not addresses:
            return
        self.candidates.pop(peer, None)
        self.candidates[peer] = addresses
        while len(self.candidates) > limits.SWARM_CANDIDATES_MAX:
            del self.candidates[next(iter(self.candidates))]
        self.on_found(peer, addresses)

    async def publish(self, addresses: tuple[str, ...], members: int, created_at: int) -> None:
        """Let others find us under the swarm's key and under its name; the core repeats it.

        Raises:
            SwarmNodeError: the DHT does not answer.
        """
        draft = wire.SwarmRecord(
            sequence=0,
            issued_at=0,
            ttl_s=limits.DHT_RECORD_TTL_S,
            addresses=addresses[: limits.DHT_ADDRESSES_MAX],
            swarm_key=self._link.swarm_key,
            name=self._link.name,
            members=members,
            created_at=created_at,
        )
        # Both at once: each takes as long as the slowest who is asked, and the dead are slow.
        failures: list[SwarmNodeError] = []

        async def publish(key: bytes) -> None:
            try:
                await self._discovery.publish(key, draft)
            except SwarmNodeError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for key in (swarm_key_key(self._link.swarm_key), name_key(self._link.name)):
                nursery.start_soon(publish, key)
        if failures:
            raise failures[0]

    def withdraw(self) -> None:
        """We leave: publish nothing more."""
        self._discovery.withdraw(swarm_key_key(self._link.swarm_key))
        self._discovery.withdraw(name_key(self._link.name))

    async def _look_up(self) -> None:
        try:
            answer = await self._discovery.get(swarm_key_key(self._link.swarm_key))
        except SwarmNodeError as error:
            _log.debug("the DHT does not answer", why=str(error))
            return
        self.lookups += 1
        for opened in answer.records:
            self.found(opened.author, opened.record.addresses)
