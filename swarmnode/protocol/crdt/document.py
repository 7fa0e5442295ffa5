"""The whole shared state: one state of each type, fed with the records of authors in order."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgpack

from swarmnode.protocol.crdt.actors import Actor, Dot
from swarmnode.protocol.crdt.cells import CellStatistics, DeltaState
from swarmnode.protocol.crdt.counters import Counters
from swarmnode.protocol.crdt.leases import LeaseSet
from swarmnode.protocol.crdt.maxima import Maxima
from swarmnode.protocol.crdt.registers import Registers
from swarmnode.protocol.crdt.snapshots import SnapshotIndex
from swarmnode.wire.crdt import StateRecord


@dataclass(frozen=True)
class Document:
    """A function of the chains of its authors, and of nothing else (but see ``apply``)."""

    leases: LeaseSet = field(default_factory=LeaseSet.new)
    counters: Counters = field(default_factory=Counters.new)
    registers: Registers = field(default_factory=Registers.new)
    maxima: Maxima = field(default_factory=Maxima.new)
    snapshots: SnapshotIndex = field(default_factory=SnapshotIndex.new)

    def parts(self) -> dict[str, DeltaState]:
        """Return the states by the name of their type."""
        return dict(vars(self))

    def apply(self, actor: Actor, record: StateRecord) -> set[str]:
        """Take in the next record of an author; return the names of what it changed.

        A checkpoint takes the place of what its author said before instead of joining it, so
        that nodes that saw the deltas before it and nodes that did not hold the same, even if the
        author lied in it.
        """
        changed = self.forget(actor) if record.checkpoint else set()
        dot = Dot(actor, record.sequence)
        if record.leases:
            leases = {(lease.set, lease.element): lease.ttl_s for lease in record.leases}
            changed |= {name for name, _ in self.leases.merge(LeaseSet.write(dot, leases))}
        if record.counters:
            changed |= self.counters.merge(Counters.write(dot, record.counters))
        if record.registers:
            changed |= self.registers.merge(Registers.write(dot, record.registers))
        if record.maxima:
            changed |= self.maxima.merge(Maxima.write(dot, record.maxima))
        claims = {claim.root: claim for claim in record.snapshots}
        if claims and self.snapshots.merge(SnapshotIndex.write(dot, claims)):
            changed.add("snapshots")
        for part in self.parts().values():
            part.settle(actor, record.sequence)
        return changed

    def forget(self, actor: Actor) -> set[str]:
        """Drop all that an author said; return the names of it."""
        gone = {name for name, _ in self.leases.forget(actor)}
        gone |= self.counters.forget(actor)
        gone |= self.registers.forget(actor)
        gone |= self.maxima.forget(actor)
        if self.snapshots.forget(actor):
            gone.add("snapshots")
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
