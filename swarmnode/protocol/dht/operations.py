"""What a lookup is for: to find peers, to collect records, to store one, to fill the table."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.lookup import Lookup
from swarmnode.protocol.dht.records import OpenRecord, RecordRules, rejection
from swarmnode.wire import dht as wire
from swarmnode.wire.swarm import Signed


@dataclass(eq=False)
class Operation:
    """A lookup without any further purpose: it fills the table. Base of the others."""

    key: bytes
    lookup: Lookup

    wants_records = False

    def is_finished(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.lookup.is_finished()

    def effect(self) -> events.Effect | None:
        """Return what the shell is told at the end."""
        return None


@dataclass(eq=False)
class FindOperation(Operation):
    """See :class:`events.FindPeers`."""

    command: int

    def effect(self) -> events.Effect:
        lookup = self.lookup
        return events.PeersFound(
            self.command,
            self.key,
            tuple(lookup.closest()),
            lookup.hops(),
            lookup.rounds(),
            lookup.asked,
        )


@dataclass(eq=False)
class GetOperation(Operation):
    """See :class:`events.GetRecords`; keeps the newest record of each author and subject."""

    command: int
    quorum: int
    newest: dict[tuple[PeerId, bytes], OpenRecord] = field(default_factory=dict)
    holders: int = 0
    rejected: list[str] = field(default_factory=list)
    _paths: set[int] = field(default_factory=set)
    _seen: dict[bytes, Signed] = field(default_factory=dict)

    wants_records = True

    def take(self, record: OpenRecord) -> None:
        """Count a valid record."""
        slot = (record.author, record.subject)
        held = self.newest.get(slot)
        if held is None or record.replaces(held):
            self.newest[slot] = record

    def answered(
        self, peer: PeerId, records: tuple[Signed, ...], rules: RecordRules, now_unix_s: float
    ) -> None:
        """Check what a peer gave; what another one gave before is not checked again."""
        n_valid = 0
        for signed in records:
            if self._seen.get(signed.signature) == signed:
                n_valid += 1
                continue
            try:
                self.take(rules.open(signed, self.key, now_unix_s))
            except RemoteProtocolError as error:
                self.rejected.append(rejection(error))
                continue
            n_valid += 1
            if len(self._seen) < limits.DHT_RECORDS_PER_KEY_MAX * limits.DHT_BUCKET_CONTACTS:
                self._seen[signed.signature] = signed
        if n_valid:
            self.holders += 1
            self._paths.add(self.lookup.path_of(peer))

    def is_finished(self) -> bool:
        if self.quorum and self.holders >= self.quorum:
            return len(self._paths) >= min(self.lookup.n_paths, self.quorum) or (
                self.lookup.is_finished()
            )
        return self.lookup.is_finished()

    def effect(self) -> events.Effect:
        lookup = self.lookup
        return events.RecordsFound(
            self.command,
            self.key,
            tuple(self.newest.values()),
            self.holders,
            tuple(lookup.closest()),
            lookup.hops(),
            lookup.rounds(),
            lookup.asked,
        )


@dataclass(eq=False)
class PublishOperation(Operation):
    """See :class:`events.Publish`.

    It looks up the key until the peers around it are known, and stores there. To store is to
    ask as well: a peer that does not answer is left out, and the next closest is asked instead.
    """

    command: int | None  # None: the core's own repetition
    signed: Signed
    replicas: int = 0
    is_storing: bool = False
    _asked: set[PeerId] = field(default_factory=set)
    _waiting: set[PeerId] = field(default_factory=set)
    _lost: set[PeerId] = field(default_factory=set)
    _is_told: bool = False

    def targets(self) -> list[wire.Contact]:
        """Return who is to get the record now, nearest first, and count them as asked."""
        self.is_storing = self.is_storing or self.lookup.is_near() or self.lookup.is_finished()
        if not self.is_storing:
            return []
        due = [c for c in self.lookup.nearest(self._lost) if c.peer not in self._asked]
        self._asked.update(PeerId(contact.peer) for contact in due)
        self._waiting.update(PeerId(contact.peer) for contact in due)
        return due

    def stored(self, peer: PeerId, outcome: wire.StoreOutcome) -> None:
        """Count one answer, which may be late."""
        self._waiting.discard(peer)
        self.replicas += outcome in ("stored", "held")

    def gave_up(self, peer: PeerId) -> None:
        """This peer is slow or gone."""
        self._waiting.discard(peer)
        self._lost.add(peer)

    def is_finished(self) -> bool:
        return self.is_storing and not self._waiting

    def is_enough(self) -> bool:
        """Whether so many hold it that the shell is told, while the rest goes on."""
        return self.replicas >= limits.DHT_PUT_REPLICAS

    def effect(self) -> events.Effect | None:
        """Return what the shell is told: once, when it is enough or at the end."""
        if self.command is None or self._is_told:
            return None
        self._is_told = True
        return events.Published(self.command, self.key, self.replicas, len(self._asked))
