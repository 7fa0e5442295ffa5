"""The types of the shared state, and the document: one state of each, fed with records in order.

What they have in common is in ``cells.py``: each cell has one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgpack

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Actor, Dot
from swarmnode.protocol.crdt.cells import Cell, Cells, CellStatistics, DeltaState
from swarmnode.wire.crdt import SnapshotClaim, StateRecord

VERDICTS = "verdicts"  # among the names of what has changed


class Counters(Cells[str, int]):
    """name -> the author's own total; a smaller one never takes the place of a greater.

    Steps, tokens, bytes, seconds of work: each author counts its own, all are summed. A peer
    that starts again writes its old totals into its new life, so only the newest life of a peer
    is summed and a restart costs no memory for ever (a grow-only counter by boot epoch would
    keep a cell for each). Self-reported: shown, never believed.
    """

    _cells_type = list[tuple[str, int, int | None]]

    @classmethod
    def write(cls, dot: Dot, totals: dict[str, int]) -> Counters:
        """Return the delta that sets these totals (not increments: those would count twice)."""
        return cls.delta(dot.actor, dot.sequence, dict(totals))

    def value(self) -> dict[str, int]:
        """Return the sum over all authors."""
        newest: dict[tuple[bytes, str], tuple[int, int]] = {}
        for actor, name, total in self._present():
            key = (actor.peer, name)
            newest[key] = max(newest.get(key, (0, 0)), (actor.epoch, total))
        sums: dict[str, int] = {}
        for (_, name), (_, total) in newest.items():
            sums[name] = sums.get(name, 0) + total
        return sums

    @staticmethod
    def _is_further(cell: Cell[int], held: Cell[int]) -> bool:
        return (cell.value or 0, cell.sequence) > (held.value or 0, held.sequence)


class Maxima(Cells[str, int]):
    """name -> the greatest that this author has said: how far the swarm is (step, round).

    Kept by author, so that what a banned author said goes with it.
    """

    _cells_type = list[tuple[str, int, int | None]]

    @classmethod
    def write(cls, dot: Dot, marks: dict[str, int]) -> Maxima:
        """Return the delta of one write."""
        return cls.delta(dot.actor, dot.sequence, dict(marks))

    def value(self) -> dict[str, int]:
        """Return the greatest of all authors."""
        greatest: dict[str, int] = {}
        for _, name, mark in self._present():
            greatest[name] = max(mark, greatest.get(name, 0))
        return greatest

    @staticmethod
    def _is_further(cell: Cell[int], held: Cell[int]) -> bool:
        return (cell.value or 0, cell.sequence) > (held.value or 0, held.sequence)


RegisterContent = float | str


class Registers(Cells[str, RegisterContent]):
    """name -> what its author last said: state, loss, speed. Their author alone writes them.

    The last write wins, and last is by the author's own sequence: with one writer there is no
    race that a wall clock would have to decide.
    """

    _cells_type = list[tuple[str, int, RegisterContent | None]]

    @classmethod
    def write(cls, dot: Dot, contents: dict[str, RegisterContent]) -> Registers:
        """Return the delta of one write."""
        return cls.delta(dot.actor, dot.sequence, dict(contents))

    def value(self) -> dict[PeerId, dict[str, RegisterContent]]:
        """Return what each peer says, in its newest life."""
        newest = {actor.peer: actor for actor in sorted(self._cells)}
        return {peer: self.of(actor) for peer, actor in newest.items()}


SetKey = tuple[str, str]  # (name of the set, element)
HeardAt = Callable[[Actor], float]


class LeaseSet(Cells[SetKey, int]):
    """(set, element) -> seconds that it outlives the last word of its author.

    Members, roles, versions, addresses, claims of data shards. An add-wins set whose elements
    last as long as one of their authors is heard of. Any record of an author renews all its
    leases, and a lease ends its ``ttl_s`` after the last one was received: durations on the
    reader's own clock, so no wall clock decides which author is alive. When something was received
    is not part of the state: two replicas with equal states may for a while differ on what has
    expired, and never on what was said.
    """

    _cells_type = list[tuple[tuple[str, str], int, int | None]]

    @classmethod
    def write(cls, dot: Dot, leases: dict[SetKey, int]) -> LeaseSet:
        """Return the delta of one write; 0 seconds remove an element."""
        return cls.delta(dot.actor, dot.sequence, {key: ttl or None for key, ttl in leases.items()})

    def value(self, heard_at: HeardAt, now: float) -> dict[str, dict[str, frozenset[PeerId]]]:
        """Return set -> element -> the peers that say so, of all that has not expired."""
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


@dataclass(frozen=True)
class SnapshotEntry:
    """One snapshot and its live holders, in id order; ``loss`` is the first holder's."""

    root: bytes
    step: int
    size_bytes: int
    loss: float | None
    holders: tuple[PeerId, ...]


def is_safe(entries: Iterable[SnapshotEntry], step: int) -> bool:
    """Whether enough members hold a snapshot that is nearly as far as one of ``step`` steps."""
    return any(
        len(each.holders) >= limits.SNAPSHOT_REPLICAS
        and each.step >= limits.SNAPSHOT_NEW_SHARE * step
        for each in entries
    )


class SnapshotIndex(Cells[bytes, SnapshotClaim]):
    """root -> claim of a holder: which snapshots there are, and their holders; leases as above.

    A root of a Merkle tree names the bytes, so holders of one root hold the same. Step and size
    are claims about it: entries that differ in them are listed apart, and a liar has its own.
    """

    _cells_type = list[tuple[bytes, int, SnapshotClaim | None]]

    @classmethod
    def write(cls, dot: Dot, claims: dict[bytes, SnapshotClaim]) -> SnapshotIndex:
        """Return the delta of one write; a claim for 0 seconds takes it back."""
        values = {root: claim if claim.ttl_s else None for root, claim in claims.items()}
        return cls.delta(dot.actor, dot.sequence, values)

    def value(self, heard_at: HeardAt, now: float) -> tuple[SnapshotEntry, ...]:
        """Return what any member holds now: newest step first, then by number of holders."""
        held: dict[tuple[bytes, int, int], dict[PeerId, SnapshotClaim]] = {}
        for actor, root, claim in self._present():
            if now < heard_at(actor) + claim.ttl_s:
                held.setdefault((root, claim.step, claim.size_bytes), {})[actor.peer] = claim
        entries = []
        for (root, step, size_bytes), claims in held.items():
            holders = tuple(sorted(claims))
            entries.append(SnapshotEntry(root, step, size_bytes, claims[holders[0]].loss, holders))
        return tuple(sorted(entries, key=lambda e: (-e.step, -len(e.holders), e.root)))


class Verdicts(Cells[bytes, int]):
    """peer -> tenths: what its author has measured of that peer, below neutral.

    The last write wins, as for registers. What a reader makes of them is in ``protocol/trust.py``,
    author by author.
    """

    _cells_type = list[tuple[bytes, int, int | None]]

    @classmethod
    def write(cls, dot: Dot, verdicts: dict[bytes, int]) -> Verdicts:
        """Return the delta of one write; neutral ones are taken back."""
        neutral = limits.STATE_VERDICT_NEUTRAL
        values = {peer: None if each == neutral else each for peer, each in verdicts.items()}
        return cls.delta(dot.actor, dot.sequence, values)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one record writes, by type; None: nothing. It is never changed, so replicas share it."""

    actor: Actor
    sequence: int
    is_checkpoint: bool
    leases: LeaseSet | None
    counters: Counters | None
    registers: Registers | None
    maxima: Maxima | None
    snapshots: SnapshotIndex | None
    verdicts: Verdicts | None

    @classmethod
    def of(cls, actor: Actor, record: StateRecord) -> Delta:
        """Return what this record of an author writes."""
        dot = Dot(actor, record.sequence)
        leases = {(lease.set, lease.element): lease.ttl_s for lease in record.leases}
        claims = {claim.root: claim for claim in record.snapshots}
        verdicts = {verdict.peer: verdict.tenths for verdict in record.verdicts}
        return cls(
            actor,
            record.sequence,
            record.checkpoint,
            LeaseSet.write(dot, leases) if leases else None,
            Counters.write(dot, record.counters) if record.counters else None,
            Registers.write(dot, record.registers) if record.registers else None,
            Maxima.write(dot, record.maxima) if record.maxima else None,
            SnapshotIndex.write(dot, claims) if claims else None,
            Verdicts.write(dot, verdicts) if verdicts else None,
        )


@dataclass(frozen=True)
class Document:
    """The whole shared state: a function of the chains of its authors (but see ``apply``)."""

    leases: LeaseSet = field(default_factory=LeaseSet.new)
    counters: Counters = field(default_factory=Counters.new)
    registers: Registers = field(default_factory=Registers.new)
    maxima: Maxima = field(default_factory=Maxima.new)
    snapshots: SnapshotIndex = field(default_factory=SnapshotIndex.new)
    verdicts: Verdicts = field(default_factory=Verdicts.new)

    def parts(self) -> dict[str, DeltaState]:
        """Return the states by the name of their type."""
        return dict(vars(self))

    def apply(self, delta: Delta) -> set[str]:
        """Take in the next record of an author; return the names of what it changed.

        A checkpoint takes the place of what its author said before instead of joining it, so
        that nodes that saw the deltas before it and nodes that did not hold the same, even if the
        author lied in it.
        """
        actor = delta.actor
        changed = self.forget(actor) if delta.is_checkpoint else set()
        if delta.leases is not None:
            changed |= {name for name, _ in self.leases.merge(delta.leases)}
        if delta.counters is not None:
            changed |= self.counters.merge(delta.counters)
        if delta.registers is not None:
            changed |= self.registers.merge(delta.registers)
        if delta.maxima is not None:
            changed |= self.maxima.merge(delta.maxima)
        if delta.snapshots is not None and self.snapshots.merge(delta.snapshots):
            changed.add("snapshots")
        if delta.verdicts is not None and self.verdicts.merge(delta.verdicts):
            changed.add(VERDICTS)
        for part in vars(self).values():
            part.settle(actor, delta.sequence)
        return changed

    def forget(self, actor: Actor) -> set[str]:
        """Drop all that an author said; return the names of it."""
        gone = {name for name, _ in self.leases.forget(actor)}
        gone |= self.counters.forget(actor)
        gone |= self.registers.forget(actor)
        gone |= self.maxima.forget(actor)
        if self.snapshots.forget(actor):
            gone.add("snapshots")
        if self.verdicts.forget(actor):
            gone.add(VERDICTS)
        return gone

    def canonical(self) -> bytes:
        """Return bytes that are equal for equal states, whatever the way there was."""
        packed: bytes = msgpack.packb(
            {name: part.encode() for name, part in sorted(self.parts().items())}
        )
        return packed

    def statistics(self) -> dict[str, CellStatistics]:
        """Return sizes by type."""
        return {name: part.statistics() for name, part in self.parts().items()}
