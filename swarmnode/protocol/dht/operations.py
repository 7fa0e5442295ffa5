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
    """See :class:`events.Publish`; first it finds the closest, then it waits for their words."""

    command: int | None  # None: the core's own repetition
    signed: Signed
    targets: tuple[wire.Contact, ...] = ()
    waiting: set[PeerId] = field(default_factory=set)
    replicas: int = 0
    is_storing: bool = False

    def start_storing(self, targets: list[wire.Contact]) -> None:
        """The closest are known now."""
        self.is_storing = True
        self.targets = tuple(targets)
        self.waiting = {PeerId(contact.peer) for contact in targets}

    def stored(self, peer: PeerId, outcome: wire.StoreOutcome) -> None:
        """Count one answer."""
        self.waiting.discard(peer)
        self.replicas += outcome in ("stored", "held")

    def is_finished(self) -> bool:
        return self.is_storing and not self.waiting

    def effect(self) -> events.Effect | None:
        if self.command is None:
            return None
        return events.Published(self.command, self.key, self.replicas, len(self.targets))
