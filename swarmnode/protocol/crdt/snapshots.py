"""Index of snapshots: which there are, and who holds one; claims with leases, as in leases.py.

A root of a Merkle tree names the bytes, so holders of one root hold the same. Step and size
are claims about it: entries that differ in them are listed apart, and a liar has its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Dot
from swarmnode.protocol.crdt.cells import Cells
from swarmnode.protocol.crdt.leases import HeardAt
from swarmnode.wire.crdt import SnapshotClaim


@dataclass(frozen=True)
class SnapshotEntry:
    """One snapshot and its live holders, in id order; ``loss`` is the first holder's."""

    root: bytes
    step: int
    size_bytes: int
    loss: float | None
    holders: tuple[PeerId, ...]


class SnapshotIndex(Cells[bytes, SnapshotClaim]):
    """root -> claim of a holder."""

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
