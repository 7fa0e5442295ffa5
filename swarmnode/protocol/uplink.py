"""One direction of a node's line: what passes, what for, and how much of it may pass now.

Control and state are never held: they pass at once and are paid for by what comes after them. What
may wait asks :meth:`Line.free_at` first, by its purpose. While several purposes wait, each has its
share of what is free, exchanges most of it: on a thin line a copy of the model would otherwise take
half, and no exchange would end in time.

Those that wait for the same purpose have their turns in the order in which they came: sessions, and
streams that are to be opened. All of them wait until the same moment, and the first that looks then
might be the same session each time. A share of a round that has no turn while another goes out
whole would be taken for one that comes no more.

Beside the owner's rate, an uplink has one of its own (:class:`Yielding`): tensors go out as fast as
the others on this line do not notice it, by how long their packets would have to wait.

Source of the sharing: Goyal, Vin and Cheng, Start-time fair queueing (1996). Deviation: no queue
stands here, the bytes wait where they are; a purpose that has waited lately counts as waiting.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from swarmnode import limits
from swarmnode.protocol.blobs.bucket import TokenBucket

# A limited line: what may pass at once, in seconds of its rate, and the least in any case.
_TRAFFIC_BURST_S = 0.25
_TRAFFIC_BURST_BYTES_MIN = 16 * limits.KIB
# One turn of bulk, in seconds of the rate: what all others wait behind. Two packets at least, or
# what says that they came is late (RFC 9293, delayed acknowledgements).
_TRAFFIC_TURN_S = 0.1
_TRAFFIC_TURN_BYTES_MIN = 4 * limits.KIB
# A purpose that has waited within so many turns counts as waiting: its task is about to ask again.
_WAITING_TURNS = 4
# One of those that wait counts as there if it may pass by then: timers and rounding are no order.
_TURN_SLACK_S = 1e-3

# What TCP and IP add to a packet of so many bytes, options included, and what a packet brings
# forth that only says it came: one for two, as RFC 5681 has it.
_PACKET_BYTES = 1400
_HEADER_BYTES = 52


class Purpose(IntEnum):
    """What bytes are for. The first are those that may be held."""

    EXCHANGE = 0
    RELAYING = 1  # for others
    SNAPSHOTS = 2
    STATE = 3  # all the rest: who is there, what they know, and how to reach them


# Streams that are known by name; other tensors are exchanges. A leg carries another session.
_SNAPSHOT_SERVICE = "blob/"
_LEG_SERVICE = "relay-leg/"

# Of a line on which all of them wait: eight elevenths are for exchanges.
_SHARES = {Purpose.EXCHANGE: 8, Purpose.RELAYING: 2, Purpose.SNAPSHOTS: 1, Purpose.STATE: 1}


def purpose_of(service: str, *, is_bulk: bool) -> Purpose:
    """Return what a stream is for; a peer that opens one may say anything of its priority."""
    if service.startswith(_SNAPSHOT_SERVICE):
        return Purpose.SNAPSHOTS
    if service.startswith(_LEG_SERVICE):
        return Purpose.RELAYING
    return Purpose.EXCHANGE if is_bulk else Purpose.STATE


def on_the_wire(n_bytes: int) -> int:
    """Return what the line carries for so many bytes of a stream: headers count for the owner."""
    return n_bytes + -(-n_bytes // _PACKET_BYTES) * _HEADER_BYTES


def receipts(n_bytes: int) -> int:
    """Return what goes back for so many bytes that came; few of them ride on what is sent."""
    return n_bytes // (2 * _PACKET_BYTES) * _HEADER_BYTES


# --- the rate that others do not notice -------------------------------------------------------

# How long packets may wait because of us, besides for what goes out in one turn. LEDBAT++ has 60 ms
# in all; others who talk or play notice 50.
YIELD_TARGET_S = 0.01
# A way that takes less is within a house or a data centre: no modem stands before it.
_YIELD_WAY_S_MIN = 0.002
_YIELD_BEGIN_BYTES_PER_S = 64_000.0
YIELD_BYTES_PER_S_MIN = 8_000.0
_YIELD_LOOK_S = 0.2  # a smoothed round trip follows in about this time
_YIELD_FRESH_S = 1.0
# What was hardly used says nothing of the line.
_YIELD_USED = 0.5
_YIELD_GROWTH_BEGIN, _YIELD_GROWTH = 1.5, 1.1
_YIELD_GAIN = 0.15
# Now and then, room for a moment: the queue drains, and the way's own delay is seen again.
_YIELD_EVERY_S, _YIELD_PAUSE_SHARE = 30.0, 0.25
_YIELD_TURN_S, _YIELD_TURN_BYTES_MIN = 0.02, 2 * _PACKET_BYTES
_YIELD_WAYS_MAX = 256


class Delays(NamedTuple):
    """What a way has told of late."""

    rtt_s: float  # of late
    least_s: float  # the shortest round trip of the last minutes
    arrived_bytes: int  # since the beginning, or since it was asked before

    @property
    def queue_s(self) -> float:
        """How long its packets wait."""
        return self.rtt_s - self.least_s


class Yielding:
    """How fast bytes may go out so that no packet of others waits for long.

    Sources: RFC 6817 (LEDBAT) and draft-irtf-iccrg-ledbat-plus-plus: delay as the sign of a queue,
    round trips instead of one-way delays, a decrease by how far the delay is above its target,
    slowdowns in which the delay without us is measured. Deviations: one rate for all ways of the
    node instead of a window for each, as they share the uplink, and the delay is that of the way
    with the shortest queue, as a queue further on is the business of that way's TCP. While a queue
    stands, the next rate is what arrives of ours, more or less by how far the queue is from its
    target, as a rate that follows its own last value swings. Without a queue it grows by a share,
    as the draft's packet for each round trip would take minutes on a fast line.
    """

    def __init__(self) -> None:
        self.rate_bytes_per_s = 0.0  # 0: no way was measured yet, and nothing is held
        self._bucket: TokenBucket | None = None
        self._ways: dict[int, tuple[float, Delays]] = {}  # each with when it was seen
        self._look_s = _YIELD_LOOK_S
        self._spent_bytes = self._arrived_bytes = 0
        self._looked_at = 0.0
        self._is_beginning = True
        self._pauses_at = 0.0
        self._paused_rate = 0.0  # to go back to; 0: no slowdown

    def note(self, way: int, seen: Delays, now: float) -> None:
        """Take note of a way on which we send."""
        if len(self._ways) < _YIELD_WAYS_MAX or way in self._ways:
            self._ways[way] = (now, seen)
        self._arrived_bytes += seen.arrived_bytes
        if self._bucket is None:
            self._looked_at, self._pauses_at = now, now + _YIELD_EVERY_S
            self._bucket = TokenBucket(_YIELD_BEGIN_BYTES_PER_S, _YIELD_TURN_BYTES_MIN)
            self._set_rate(_YIELD_BEGIN_BYTES_PER_S, now)
        elif now >= self._looked_at + self._look_s:
            self._look(seen, now)

    def spend(self, n_bytes: int, now: float) -> None:
        """Count what goes out over such a way."""
        self._spent_bytes += n_bytes
        if self._bucket is not None:
            self._bucket.spend(n_bytes, now)

    def free_at(self, now: float) -> float:
        """Return when bytes may pass; ``now``: now."""
        bucket = self._bucket
        return now if bucket is None or bucket.has(0, now) else bucket.free_at()

    @property
    def turn_bytes_max(self) -> int:
        """The most that may go out at once: others wait behind it."""
        return max(_YIELD_TURN_BYTES_MIN, int(self.rate_bytes_per_s * _YIELD_TURN_S))

    def _look(self, told: Delays, now: float) -> None:
        passed_s, self._looked_at = now - self._looked_at, now
        used_bytes_per_s = self._spent_bytes / passed_s
        arrived_bytes_per_s = on_the_wire(self._arrived_bytes) / passed_s
        self._spent_bytes = self._arrived_bytes = 0
        self._ways = {
            way: seen for way, seen in self._ways.items() if now - seen[0] <= _YIELD_FRESH_S
        }
        best = min([told, *(it for _, it in self._ways.values())], key=lambda it: it.queue_s)
        self._look_s = max(_YIELD_LOOK_S, 2 * best.rtt_s)
        is_used = used_bytes_per_s >= _YIELD_USED * self.rate_bytes_per_s
        if self._paused_rate:
            if now >= self._pauses_at:
                self._set_rate(self._paused_rate, now)
                self._paused_rate, self._pauses_at = 0.0, now + _YIELD_EVERY_S
        elif now >= self._pauses_at and is_used:
            self._paused_rate, self._pauses_at = self.rate_bytes_per_s, now + 2 * self._look_s
            self._set_rate(self.rate_bytes_per_s * _YIELD_PAUSE_SHARE, now)
        else:
            self._set_rate(self._next_rate(best.queue_s, arrived_bytes_per_s, is_used=is_used), now)

    def _next_rate(self, queue_s: float, arrived_bytes_per_s: float, *, is_used: bool) -> float:
        rate = self.rate_bytes_per_s
        # The last packet of a turn waits for those before it, which is no queue that stands.
        target_s = YIELD_TARGET_S + self.turn_bytes_max / rate
        self._is_beginning = self._is_beginning and queue_s < target_s / 2
        if self._is_beginning and is_used:
            return rate * _YIELD_GROWTH_BEGIN
        if queue_s < target_s / 2:
            return rate * _YIELD_GROWTH if is_used else rate
        # What arrives is what the line carries of ours: a little more or less of that.
        wanted = 1 + _YIELD_GAIN * (1 - queue_s / target_s)
        if queue_s < target_s and not is_used:
            return rate
        return min(rate * _YIELD_GROWTH, arrived_bytes_per_s * max(0.5, wanted))

    def _set_rate(self, rate_bytes_per_s: float, now: float) -> None:
        assert self._bucket is not None
        self.rate_bytes_per_s = max(YIELD_BYTES_PER_S_MIN, rate_bytes_per_s)
        self._bucket.change(self.rate_bytes_per_s, 2 * self.turn_bytes_max, now)


class Line:
    """One direction; without a rate it only counts.

    Attributes:
        yielding: the rate of the ways that lead over the uplink; None: they have none.
        for_purpose: bytes, by Purpose.
        throttled_s: how long bulk had to wait, overlapping waits once.
    """

    def __init__(self) -> None:
        self.rate_bytes_per_s = 0.0
        self.yielding: Yielding | None = None
        self.for_purpose = [0 for _ in Purpose]
        self.throttled_s = 0.0
        self._bucket: TokenBucket | None = None
        self._throttled_until = 0.0
        self._served = [0.0 for _ in Purpose]  # bytes by share, since it waits
        self._waits_until = [-math.inf for _ in Purpose]
        # Who waits for a turn, in order: from when it may pass, and until when it counts.
        self._waiting: list[dict[object, tuple[float, float]]] = [{} for _ in Purpose]

    @property
    def total_bytes(self) -> int:
        """All that has passed."""
        return sum(self.for_purpose)

    def by_purpose(self) -> dict[str, int]:
        """Return the bytes that have passed, by the name of what they were for."""
        return {each.name.lower(): self.for_purpose[each] for each in Purpose}

    @property
    def is_limited(self) -> bool:
        """Whether anything is ever held."""
        return self._bucket is not None or self.yielding is not None

    def limit(self, rate_bytes_per_s: float) -> None:
        """Keep a rate from now on; 0 is none."""
        self.rate_bytes_per_s = rate_bytes_per_s
        burst_bytes = max(rate_bytes_per_s * _TRAFFIC_BURST_S, _TRAFFIC_BURST_BYTES_MIN)
        self._bucket = TokenBucket(rate_bytes_per_s, burst_bytes) if rate_bytes_per_s else None

    def spend(
        self, n_bytes: int, now: float, purpose: Purpose = Purpose.STATE, *, is_far: bool = False
    ) -> None:
        """Count what has passed or is about to; ``is_far``: by a way that :meth:`note` knows."""
        self.count(n_bytes, purpose)
        self._served[purpose] += n_bytes / _SHARES[purpose]
        self.pay(n_bytes, now)
        if is_far and self.yielding is not None:
            self.yielding.spend(n_bytes, now)

    def note(self, way: int, seen: Delays, now: float) -> bool:
        """Take note of a way on which we send; return whether it leads over the uplink."""
        if self.yielding is None or seen.least_s < _YIELD_WAY_S_MIN:
            return False
        self.yielding.note(way, seen, now)
        return True

    def count(self, n_bytes: int, purpose: Purpose) -> None:
        """Note what bytes were for that :meth:`pay` has paid for."""
        self.for_purpose[purpose] += n_bytes

    def pay(self, n_bytes: int, now: float) -> None:
        """Take from what is allowed before it is known what it is for."""
        if self._bucket is not None:
            self._bucket.spend(n_bytes, now)

    def free_at(
        self,
        now: float,
        purpose: Purpose = Purpose.EXCHANGE,
        *,
        is_far: bool = False,
        waiter: object = None,
    ) -> float:
        """Return when bytes of this purpose may pass; ``now`` or earlier means now.

        To ask is to wait: others leave it its share for a moment. A ``waiter`` has its turn after
        those that wait for the same already, and waits anew for the next one.
        """
        rate = self._rate(is_far=is_far)
        if not rate:
            return now
        turn_s = self.turn_bytes_max(is_far=is_far) / rate
        free_at = now + self.debt_s(now)
        if is_far and self.yielding is not None:
            free_at = max(free_at, self.yielding.free_at(now))
        is_behind = self._is_behind_others(purpose, now) or self._is_turn_of_another(
            waiter, purpose, now
        )
        if free_at <= now and is_behind:
            free_at = now + turn_s / 2
        until = free_at + _WAITING_TURNS * turn_s
        self._note_waiting(purpose, now, until)
        if free_at <= now:
            self.wait_no_more(waiter, purpose)
        elif waiter is not None:
            self._waiting[purpose][waiter] = (free_at, until)
        return free_at

    def wait_no_more(self, waiter: object, purpose: Purpose) -> None:
        """Let the next one have its turn; nothing happens if it did not wait."""
        self._waiting[purpose].pop(waiter, None)

    def debt_s(self, now: float) -> float:
        """Return how long it takes to pay for what has passed."""
        if self._bucket is None or self._bucket.has(0, now):
            return 0.0
        return self._bucket.free_at() - now

    def note_wait(self, now: float, until: float) -> None:
        """Note that bulk waits; however many sessions do, a second counts once."""
        begin = max(now, self._throttled_until)
        self.throttled_s += max(0.0, until - begin)
        self._throttled_until = max(begin, until)

    @property
    def window_bytes(self) -> int:
        """How much a peer may send on a bulk stream before it is given more credit."""
        if self._bucket is None:
            return limits.BULK_WINDOW_BYTES
        second_bytes = int(self.rate_bytes_per_s)
        return min(limits.BULK_WINDOW_BYTES, max(limits.STREAM_WINDOW_BYTES, second_bytes))

    def turn_bytes_max(self, *, is_far: bool = False) -> int:
        """Return the most that one turn of bulk should be, so that the rate is kept smoothly."""
        turn_bytes = limits.FRAME_DATA_BYTES_MAX
        if self._bucket is not None:
            own_bytes = int(self.rate_bytes_per_s * _TRAFFIC_TURN_S)
            turn_bytes = min(turn_bytes, max(_TRAFFIC_TURN_BYTES_MIN, own_bytes))
        if is_far and self.yielding is not None and self.yielding.rate_bytes_per_s:
            turn_bytes = min(turn_bytes, self.yielding.turn_bytes_max)
        return turn_bytes

    def _rate(self, *, is_far: bool) -> float:
        """Return the lowest rate that holds; 0: none does."""
        rates = [self.rate_bytes_per_s]
        if is_far and self.yielding is not None:
            rates.append(self.yielding.rate_bytes_per_s)
        return min(filter(None, rates), default=0.0)

    def _note_waiting(self, purpose: Purpose, now: float, until: float) -> None:
        if self._waits_until[purpose] < now:  # it begins where the others are: no credit for rest
            waiting = [self._served[other] for other in Purpose if self._waits_until[other] >= now]
            self._served[purpose] = min(waiting, default=0.0)
        self._waits_until[purpose] = until

    def _is_behind_others(self, purpose: Purpose, now: float) -> bool:
        return any(
            self._waits_until[other] >= now and self._served[other] < self._served[purpose]
            for other in Purpose
            if other is not purpose
        )

    def _is_turn_of_another(self, waiter: object, purpose: Purpose, now: float) -> bool:
        waiting = self._waiting[purpose]
        for other, (free_at, until) in list(waiting.items()):
            if waiter in (None, other):
                return False
            if until < now:  # it is gone
                del waiting[other]
            elif free_at <= now + _TURN_SLACK_S:
                return True
        return False
