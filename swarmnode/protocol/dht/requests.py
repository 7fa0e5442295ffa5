"""Requests that wait for their answer, and how long that may take.

A request becomes *slow* after a time that follows from measured round trips (Jacobson and
Karels: mean and four deviations), between fixed bounds, and *gone* after ``DHT_GONE_S``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.wire.dht import Answer, Contact

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
    is_slow: bool = False


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
        """Return requests that became slow now, and those that are gone: not ``in`` any more."""
        due: list[Request] = []
        while (at := self.next_deadline()) is not None and at <= now:
            _, request_id, is_gone = heapq.heappop(self._deadlines)
            request = self._open[request_id]
            if is_gone:
                del self._open[request_id]
            else:
                request.is_slow = True
                heapq.heappush(
                    self._deadlines, (request.sent_at + limits.DHT_GONE_S, request_id, True)
                )
            due.append(request)
        return due

    def is_open(self, request: Request) -> bool:
        """Whether an answer may still come."""
        return request.id in self._open
