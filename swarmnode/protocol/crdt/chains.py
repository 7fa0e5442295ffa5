"""Chains of one author: as far as it is held here, and our own, which we sign and write down."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.errors import InvariantViolation, LocalProtocolError, MalformedMessage
from swarmnode.protocol.crdt.actors import Actor
from swarmnode.protocol.crdt.clock import HybridClock
from swarmnode.protocol.crdt.document import RegisterContent, SetKey
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.crdt.records import NO_HASH, Opened, seal
from swarmnode.protocol.identity import Signer
from swarmnode.wire.crdt import Head, Lease, PeerVerdict, SnapshotClaim, StateRecord
from swarmnode.wire.packing import decode_record, encode_record


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
        for held in reversed(self.records):
            if held.signed.body == body:
                return held
        return None

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


_LONGEST = 2**63 - 1  # sequence and clock of a record as large as it can become


@dataclass
class _Words:
    """What we say, or what of it is new."""

    leases: dict[SetKey, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    registers: dict[str, RegisterContent] = field(default_factory=dict)
    maxima: dict[str, int] = field(default_factory=dict)
    snapshots: dict[bytes, SnapshotClaim] = field(default_factory=dict)
    verdicts: dict[bytes, int] = field(default_factory=dict)

    def add(self, update: Update) -> None:
        self.leases.update(update.leases)
        self.snapshots.update(update.snapshots)
        self.registers.update(update.registers)
        self.verdicts.update(update.verdicts)
        _raise_to(self.counters, dict(update.counters))
        _raise_to(self.maxima, dict(update.maxima))

    def without_removals(self) -> _Words:
        return _Words(
            {key: ttl for key, ttl in self.leases.items() if ttl},
            dict(self.counters),
            dict(self.registers),
            dict(self.maxima),
            {root: claim for root, claim in self.snapshots.items() if claim.ttl_s},
            {p: each for p, each in self.verdicts.items() if each < limits.STATE_VERDICT_NEUTRAL},
        )


class OwnChain:
    """Our own chain: gathers what we say, signs one record at a time, and waits for the disk.

    ::

        update -> pending -stage-> staged (at most one) -persisted-> may be sent

    A record leaves this machine only after it is on disk, so that after a crash no sequence
    number is ever signed twice. While the disk is slow, or full, what we say gathers in one
    pending change: bounded, and nothing of it is lost.

    Compaction: every STATE_CHECKPOINT_RECORDS records, or when the chain would grow too long,
    the next one is a checkpoint that says everything anew. Signed by its author alone, it takes
    the place of all its records before. The rejected alternative, snapshots of the whole state,
    would need all authors to agree on one; an author agrees with itself.
    """

    def __init__(self, signer: Signer, swarm_id: bytes, epoch: int, clock: HybridClock) -> None:
        self.epoch = epoch
        self.sequence = 0  # of the newest signed record
        self._signer = signer
        self._swarm_id = swarm_id
        self._clock = clock
        self._hash = NO_HASH
        self._all = _Words()
        self._pending: _Words | None = None
        self._staged: Opened | None = None
        self._records = 0  # since the last checkpoint, it included
        self._size_bytes = 0

    @property
    def has_spoken(self) -> bool:
        """Whether there is anything that leases must be renewed for."""
        return self.sequence > 0

    @property
    def is_pending(self) -> bool:
        """Whether there is something to sign."""
        return self._pending is not None

    def update(self, update: Update) -> None:
        """Say something.

        Raises:
            LocalProtocolError: a name or value that no record can hold, or more in all
                than fits into one checkpoint; nothing was changed.
        """
        words = self._all.without_removals()
        words.add(update)
        words = words.without_removals()
        new = _Words()
        new.add(update)
        problem = self._problem(words) or self._problem(new)
        if problem:
            raise LocalProtocolError(problem)
        self._all = words
        pending, self._pending = self._pending, new
        if pending is None:
            return
        pending.add(update)
        if self._problem(pending):  # much was taken back while the disk was slow
            pending = _Words()
            self._records = limits.STATE_CHECKPOINT_RECORDS
        self._pending = pending

    def renew(self) -> None:
        """Give a sign of life with the next record, whatever else it says."""
        self._pending = self._pending or _Words()

    def carry(self, counters: dict[str, int], maxima: dict[str, int]) -> None:
        """Go on from the totals of an earlier life; what it leased is not ours."""
        before = dict(self._all.counters), dict(self._all.maxima)
        _raise_to(self._all.counters, counters)
        _raise_to(self._all.maxima, maxima)
        # What we say already is not said once more for each record that a peer sends back to us.
        if self.has_spoken and (self._all.counters, self._all.maxima) != before:
            self.begin_anew()

    def begin_anew(self) -> None:
        """Say everything once more: the next record is a checkpoint."""
        self._records = limits.STATE_CHECKPOINT_RECORDS
        self.renew()

    def stage(self, now: float) -> Opened | None:
        """Sign what is pending, if the record before it is on disk."""
        if self._pending is None or self._staged is not None:
            return None
        opened = None
        if 0 < self._records < limits.STATE_CHECKPOINT_RECORDS:
            opened = self._seal(self._pending, now, is_checkpoint=False)
            if self._size_bytes + opened.size_bytes > limits.STATE_AUTHOR_BYTES_MAX:
                opened = None
        if opened is None:
            opened = self._seal(self._all, now, is_checkpoint=True)
            self._records = self._size_bytes = 0
        self._pending, self._staged = None, opened
        self._records += 1
        self._size_bytes += opened.size_bytes
        self.sequence, self._hash = opened.sequence, opened.hash
        return opened

    def persisted(self, sequence: int) -> Opened:
        """Return the staged record: from here on it may be shown.

        Raises:
            LocalProtocolError: it was another one that waited.
        """
        staged = self._staged
        if staged is None or staged.sequence != sequence:
            raise LocalProtocolError(f"no own record {sequence} waits for the disk")
        self._staged = None
        return staged

    def lease_s(self) -> float:
        """Return the shortest of our leases: how soon we must be heard of again."""
        ours = [*self._all.leases.values(), *(c.ttl_s for c in self._all.snapshots.values())]
        return min([limits.STATE_LEASE_S, *ours])

    def _seal(self, words: _Words, now: float, *, is_checkpoint: bool) -> Opened:
        stamp = self._clock.next(now)
        record = self._record(words, self.sequence + 1, stamp.wall_ms, stamp.tick, is_checkpoint)
        return seal(record, self._signer)

    def _record(
        self, words: _Words, sequence: int, clock_ms: int, tick: int, is_checkpoint: bool
    ) -> StateRecord:
        return StateRecord(
            swarm_id=self._swarm_id,
            epoch=self.epoch,
            sequence=sequence,
            previous=self._hash,
            clock_ms=clock_ms,
            clock_tick=tick,
            checkpoint=is_checkpoint,
            leases=tuple(Lease(s, e, ttl) for (s, e), ttl in sorted(words.leases.items())),
            counters=dict(sorted(words.counters.items())),
            registers=dict(sorted(words.registers.items())),
            maxima=dict(sorted(words.maxima.items())),
            snapshots=tuple(words.snapshots[root] for root in sorted(words.snapshots)),
            verdicts=tuple(PeerVerdict(p, each) for p, each in sorted(words.verdicts.items())),
        )

    def _problem(self, words: _Words) -> str | None:
        """Return why other nodes would refuse a checkpoint with these words."""
        if any(claim.root != root for root, claim in words.snapshots.items()):
            return "a claim of a snapshot is filed under another root"
        ticks = limits.STATE_CLOCK_TICKS_MAX
        body = encode_record(self._record(words, _LONGEST, _LONGEST, ticks, True))
        if len(body) > limits.STATE_RECORD_BYTES_MAX:
            return (
                f"all that one author says fits into {limits.STATE_RECORD_BYTES_MAX} bytes, "
                f"this would be {len(body)}"
            )
        try:
            decode_record(body, StateRecord)
        except MalformedMessage as error:
            return f"other nodes would not read this: {error}"
        return None


def _raise_to(held: dict[str, int], totals: dict[str, int]) -> None:
    for name, total in totals.items():
        held[name] = max(total, held.get(name, 0))
