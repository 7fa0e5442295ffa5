"""Holding as many relays as a node that cannot be dialled should have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.relays.address import RelayAddress
from swarmnode.net.relays.relay import Relays

# Between two tries to reserve a place; longer each time, and not for ever.
_RELAY_RETRY_S_MIN = 2.0
_RELAY_RETRY_S_MAX = 120.0

Candidates = Callable[[], Sequence[tuple[PeerId, str]]]


@dataclass(slots=True)
class _Rest:
    """A relay that said no, or went away."""

    until: float
    pause_s: float
    why: str


class RelayHolder:
    """Keeps RELAYS_HELD reservations with relays of ``candidates``, the first ones preferred.

    ``candidates`` gives public peers and where they are dialled; empty while no relay is needed.
    ``on_change`` hears whenever :meth:`addresses` gives something else.
    """

    def __init__(
        self,
        relays: Relays,
        candidates: Candidates,
        env: Env,
        *,
        own_id: PeerId,
        on_change: Callable[[], None],
    ) -> None:
        self._relays = relays
        self._candidates = candidates
        self._env = env
        self._own_id = own_id
        self._on_change = on_change
        self._active: set[PeerId] = set()
        self._resting: dict[PeerId, _Rest] = {}
        self._ended = trio.Event()

    def addresses(self) -> tuple[str, ...]:
        """Return under which addresses others reach us through relays."""
        held = self._relays.held.items()
        return tuple(str(RelayAddress(relay, at, self._own_id)) for relay, at in held)

    def refusals(self) -> dict[PeerId, str]:
        """Return why some relays are not used just now."""
        return {relay: rest.why for relay, rest in self._resting.items()}

    def look_again(self) -> None:
        """There may be other candidates now."""
        self._ended.set()

    async def run(self) -> None:
        """Look for relays until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._ended = trio.Event()
                for relay, address in self._choose():
                    self._active.add(relay)
                    nursery.start_soon(self._hold, relay, address)
                with trio.move_on_after(_RELAY_RETRY_S_MIN):
                    await self._ended.wait()

    def _choose(self) -> list[tuple[PeerId, str]]:
        now = self._env.monotonic()
        known = self._candidates()
        names = {relay for relay, _ in known}
        self._resting = {relay: rest for relay, rest in self._resting.items() if relay in names}
        free = [
            (relay, address)
            for relay, address in known
            if relay not in self._active
            and (relay not in self._resting or self._resting[relay].until <= now)
        ]
        return free[: max(0, limits.RELAYS_HELD - len(self._active))]

    async def _hold(self, relay: PeerId, address: str) -> None:
        began_at = self._env.monotonic()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._relays.keep, relay, address)
                self._resting.pop(relay, None)
                self._on_change()
        except* SwarmNodeError as group:
            self._rest(relay, str(group.exceptions[0]), self._env.monotonic() - began_at)
        finally:
            self._active.discard(relay)
            self._ended.set()
        self._on_change()

    def _rest(self, relay: PeerId, why: str, held_s: float) -> None:
        """Leave a relay alone for a while, longer each time that it did not last."""
        known = self._resting.get(relay)
        pause_s = _RELAY_RETRY_S_MIN
        if known is not None and held_s < _RELAY_RETRY_S_MAX:
            pause_s = min(_RELAY_RETRY_S_MAX, known.pause_s * 2)
        until = self._env.monotonic() + pause_s * self._env.rng.uniform(0.5, 1.0)
        self._resting[relay] = _Rest(until, pause_s, why)
