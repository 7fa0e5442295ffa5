"""The chain of one author as far as it is held here: its last checkpoint and what follows."""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.errors import InvariantViolation
from swarmnode.protocol.crdt.actors import Actor
from swarmnode.protocol.crdt.records import Opened
from swarmnode.wire.crdt import Head


@dataclass(slots=True)
class Chain:
    """Records of one actor without a gap; the first one is a checkpoint."""

    actor: Actor
    heard_at: float
    records: list[Opened]
    size_bytes: int

    @classmethod
    def begin(cls, checkpoint: Opened, heard_at: float) -> Chain:
        """Start from a checkpoint."""
        if not checkpoint.record.checkpoint:
            raise InvariantViolation("a chain begins with a checkpoint")
        return cls(checkpoint.actor, heard_at, [checkpoint], checkpoint.size_bytes)

    @property
    def newest(self) -> Opened:
        """The last record."""
        return self.records[-1]

    @property
    def head(self) -> Head:
        """What others compare with theirs."""
        return self.newest.head

    def append(self, opened: Opened, heard_at: float) -> int:
        """Take in a record that belongs here; return by how many bytes the chain has grown."""
        before = self.size_bytes
        if opened.record.checkpoint:
            self.records, self.size_bytes = [opened], opened.size_bytes
        else:
            self.records.append(opened)
            self.size_bytes += opened.size_bytes
        self.heard_at = max(self.heard_at, heard_at)
        return self.size_bytes - before

    def at(self, sequence: int) -> Opened | None:
        """Return the record of that sequence, if it is still held."""
        index = sequence - self.records[0].sequence
        return self.records[index] if 0 <= index < len(self.records) else None

    def find(self, body: bytes) -> Opened | None:
        """Return the held record with these signed bytes: most that come in came before."""
        return next((held for held in reversed(self.records) if held.signed.body == body), None)

    def contradiction(self, opened: Opened) -> Opened | None:
        """Return a held record that its author cannot have signed beside this one."""
        same = self.at(opened.sequence)
        if same is not None and same.hash != opened.hash:
            return same
        before = self.at(opened.sequence - 1)
        if before is not None and before.hash != opened.record.previous:
            return before
        return None

    def lacking(self, head: Head) -> list[Opened]:
        """Return what a node with that head of this peer lacks.

        Nothing where it is ahead of us; all of it where its history is another one, so that
        it sees the contradiction.
        """
        if (head.epoch, head.sequence) > (self.actor.epoch, self.newest.sequence):
            return []
        if head.epoch < self.actor.epoch:
            return list(self.records)
        same = self.at(head.sequence)
        if same is None or same.hash != head.hash:
            return list(self.records)
        return self.records[head.sequence - self.records[0].sequence + 1 :]
