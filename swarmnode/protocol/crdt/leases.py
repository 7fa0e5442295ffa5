"""Sets of texts with leases: members, roles, versions, addresses, claims of data shards.

An add-wins set whose elements last as long as one of their authors is heard of. Any record
of an author renews all its leases, and a lease ends its ``ttl_s`` after the last one was
received: durations on the reader's own clock, so no wall clock decides who is alive.
When something was received is not part of the state: two replicas with equal states may for
a while differ on what has expired, and never on what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Actor, Dot
from swarmnode.protocol.crdt.cells import Cells

SetKey = tuple[str, str]  # (name of the set, element)
HeardAt = Callable[[Actor], float]


class LeaseSet(Cells[SetKey, int]):
    """(set, element) -> seconds that it outlives the last word of its author."""

    _cells_type = list[tuple[tuple[str, str], int, int | None]]

    @classmethod
    def write(cls, dot: Dot, leases: dict[SetKey, int]) -> LeaseSet:
        """Return the delta of one write; 0 seconds remove an element."""
        return cls.delta(dot.actor, dot.sequence, {key: ttl or None for key, ttl in leases.items()})

    def value(self, heard_at: HeardAt, now: float) -> dict[str, dict[str, frozenset[PeerId]]]:
        """Return set -> element -> who says so, of all that has not expired."""
        sets: dict[str, dict[str, set[PeerId]]] = {}
        for actor, (name, element) in self._live(heard_at, now):
            sets.setdefault(name, {}).setdefault(element, set()).add(actor.peer)
        return {
            name: {element: frozenset(peers) for element, peers in elements.items()}
            for name, elements in sets.items()
        }

    def said(self) -> Iterator[tuple[Actor, SetKey]]:
        """Yield all that was said and not taken back, whether it has expired or not."""
        for actor, key, _ in self._present():
            yield actor, key

    def _live(self, heard_at: HeardAt, now: float) -> Iterator[tuple[Actor, SetKey]]:
        for actor, key, ttl_s in self._present():
            if now < heard_at(actor) + ttl_s:
                yield actor, key
