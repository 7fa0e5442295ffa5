"""What is under way: lookups with what each is for, and the requests that they wait for.

A lookup finds peers, collects records, stores one, or fills the table. A request becomes *slow*
after a time that follows from measured round trips (Jacobson and Karels: mean and four
deviations), between fixed bounds, and *gone* after ``DHT_GONE_S``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.lookup import Lookup
from swarmnode.protocol.dht.records import OpenRecord, RecordRules, rejection
from swarmnode.wire import dht as wire
from swarmnode.wire.dht import Answer, Contact
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
        holds_any = False
        for signed in records:
            if self._seen.get(signed.signature) == signed:
                holds_any = True
                continue
            try:
                self.take(rules.open(signed, self.key, now_unix_s))
            except RemoteProtocolError as error:
                self.rejected.append(rejection(error))
                continue
            holds_any = True
            if len(self._seen) < limits.DHT_RECORDS_PER_KEY_MAX * limits.DHT_BUCKET_CONTACTS:
                self._seen[signed.signature] = signed
        if holds_any:
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
        """Return the peers to get the record now, nearest first, and count them as asked."""
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


# From when a peer stops holding up a lookup; between them, measured round trips decide.
DHT_SLOW_S_INITIAL = 1.5

CHECK = 0


class RoundTrips:
    """Smoothed round trip of this node's requests, in seconds."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    def measured(self, round_trip_s: float) -> None:
        """Take in one round trip."""
        if self._mean_s is None:
            self._mean_s, self._deviation_s = round_trip_s, round_trip_s / 2
            return
        error_s = round_trip_s - self._mean_s
        self._mean_s += error_s / 8
        self._deviation_s += (abs(error_s) - self._deviation_s) / 4

    def slow_after_s(self) -> float:
        """Return how long an answer may take before others are asked instead."""
        if self._mean_s is None:
            return DHT_SLOW_S_INITIAL
        expected_s = self._mean_s + 4 * self._deviation_s
        return min(max(expected_s, limits.DHT_SLOW_S_MIN), limits.DHT_SLOW_S_MAX)


@dataclass(slots=True, eq=False)
class Request:
    """One request; ``operation`` is the number of what it belongs to, CHECK for none."""

    id: int
    peer: PeerId
    contact: Contact
    operation: int
    expects: type[Answer]
    sent_at: float


class Requests:
    """Requests in flight, by number, with their deadlines."""

    def __init__(self) -> None:
        self.round_trips = RoundTrips()
        self._last_id = 0
        self._open: dict[int, Request] = {}
        self._deadlines: list[tuple[float, int, bool]] = []  # when, id, whether it is gone then

    def __len__(self) -> int:
        return len(self._open)

    def open(self, contact: Contact, operation: int, expects: type[Answer], now: float) -> Request:
        """Count a request as sent."""
        self._last_id += 1
        request = Request(self._last_id, PeerId(contact.peer), contact, operation, expects, now)
        self._open[request.id] = request
        slow_at = now + self.round_trips.slow_after_s()
        heapq.heappush(self._deadlines, (slow_at, request.id, False))
        return request

    def answered(self, peer: PeerId, request_id: int, now: float) -> Request | None:
        """Return the request that this answer belongs to, if this peer was asked it."""
        request = self._open.get(request_id)
        if request is None or request.peer != peer:
            return None
        del self._open[request_id]
        self.round_trips.measured(now - request.sent_at)
        return request

    def failed(self, peer: PeerId, request_id: int) -> Request | None:
        """Return the request that came to nothing, if it was in flight."""
        request = self._open.get(request_id)
        if request is None or request.peer != peer:
            return None
        return self._open.pop(request_id)

    def next_deadline(self) -> float | None:
        """Return when a request becomes slow or gone."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._open:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def due(self, now: float) -> list[Request]:
        """Return requests that became slow now, and those that are gone: not open any more.

        Each is named once, even where its whole time went by while we were not called.
        """
        due: list[Request] = []
        while (at := self.next_deadline()) is not None and at <= now:
            _, request_id, is_gone = heapq.heappop(self._deadlines)
            request = self._open[request_id]
            if is_gone:
                del self._open[request_id]
            else:
                gone_at = request.sent_at + limits.DHT_GONE_S
                heapq.heappush(self._deadlines, (gone_at, request_id, True))
                if gone_at <= now:
                    continue
            due.append(request)
        return due

    def is_open(self, request: Request) -> bool:
        """Whether an answer may still come."""
        return request.id in self._open
