"""What all sessions of a node together may send and receive: rates, and whether tensors at all.

A session asks before it sends or allows bulk; control and state pass at once, and what they take
is paid for by the bulk after them. So a limit is kept over a second, and a probe never waits for
a tensor. What comes cannot be delayed without delaying everything behind it on the same channel:
the credit of bulk streams is given late instead, and a peer that opens new ones is sent away while
the line is owed much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.errors import Overloaded
from swarmnode.net.channel import Channel
from swarmnode.protocol.session.core import SessionCore
from swarmnode.protocol.session.outgoing import HELD_PURPOSES
from swarmnode.protocol.uplink import Delays, Line, Purpose, on_the_wire, receipts

# A peer that opens a stream for tensors while we owe the line more than this is sent elsewhere;
# the first windows of a few streams are always allowed.
_TRAFFIC_DEBT_S = 2.0
_TRAFFIC_DEBT_BYTES_MIN = limits.MIB


# The kernel's smoothed round trip moves in about twice this time.
_LOOK_S = 0.1


class Way:
    """One way on which this node sends, and whether it leads over the uplink."""

    def __init__(self, line: Line) -> None:
        self.is_far = False
        self.is_within = False  # a stream of another session
        self._line = line
        self._look_at = 0.0
        self._channel: Channel | None = None
        self._arrived_bytes = 0

    def look(self, channel: Channel | None, now: float) -> None:
        """Ask the channel now and then; one that cannot tell is taken for near."""
        if channel is not self._channel:
            self._channel, self._look_at, self.is_far = channel, now, False
            self._arrived_bytes, self.is_within = -1, getattr(channel, "is_within", False)
        if now < self._look_at or self._line.yielding is None:
            return
        self._look_at = now + _LOOK_S
        delays = getattr(channel, "delays", None)
        found: Delays | None = delays() if delays is not None else None
        if found is None:
            return
        before = found.arrived_bytes if self._arrived_bytes < 0 else self._arrived_bytes
        self._arrived_bytes = found.arrived_bytes
        new = found._replace(arrived_bytes=found.arrived_bytes - before)
        self.is_far = self._line.note(id(self), new, now)


class Tally:
    """What one session was counted for, both ways; its channel may be a stream of another one."""

    def __init__(self, traffic: Traffic) -> None:
        self.way = Way(traffic.up)
        self._traffic = traffic
        self._sent = [0 for _ in Purpose]
        self._received = [0 for _ in Purpose]
        self._opened_bytes = 0

    def sent(self, n_bytes: int, core: SessionCore, now: float) -> None:
        """Count records that are about to be sent, by what most of them is for."""
        new = _taken(core.sent_for, self._sent)
        # A leg's bytes are those of the session inside of it, which counts them itself.
        own_bytes = n_bytes - new[Purpose.RELAYING]
        new[Purpose.RELAYING] = 0
        most = max(HELD_PURPOSES, key=new.__getitem__)
        purpose = most if 2 * new[most] > own_bytes else Purpose.STATE
        up = self._traffic.up
        up.spend(on_the_wire(own_bytes), now, purpose, is_far=self.way.is_far)

    def received(self, n_bytes: int, opened_bytes: int, core: SessionCore, now: float) -> None:
        """Count what came: ``n_bytes`` now, and ``opened_bytes`` of whole records so far.

        A peer may say of any stream that it is a leg: what came on one counts here, and not again
        in the session inside of it.
        """
        if self.way.is_within:
            return
        up, down = self._traffic.up, self._traffic.down
        new = _taken(core.received_for, self._received)
        rest_bytes = opened_bytes - self._opened_bytes - sum(new)
        self._opened_bytes = opened_bytes
        down.pay(on_the_wire(n_bytes), now)
        for purpose in (Purpose.EXCHANGE, Purpose.RELAYING, Purpose.SNAPSHOTS):
            down.count(on_the_wire(new[purpose]), purpose)
        down.count(on_the_wire(rest_bytes), Purpose.STATE)
        up.spend(receipts(n_bytes), now)


def _taken(counts: list[int], seen: list[int]) -> list[int]:
    new = [count - before for count, before in zip(counts, seen, strict=True)]
    seen[:] = counts
    return new


class Traffic:
    """Both directions; one for all sessions that share a registry of services.

    Attributes:
        why_no_tensors: told to peers and callers that want to pass one; "" lets them.
        on_relaying: told why nothing may be relayed for others, "" if it may.
    """

    def __init__(self) -> None:
        self.up = Line()
        self.down = Line()
        self.why_no_tensors = ""
        self.on_relaying: Callable[[str], None] = lambda _why_not: None

    def refusal(self, now: float) -> str:
        """Return why a peer may not open a stream for tensors just now, "" if it may."""
        if self.why_no_tensors:
            return self.why_no_tensors
        rate = self.down.rate_bytes_per_s
        owed_bytes = self.down.debt_s(now) * rate
        is_deep = owed_bytes > max(_TRAFFIC_DEBT_BYTES_MIN, rate * _TRAFFIC_DEBT_S)
        return "its line is busy" if is_deep else ""

    def carried(self, sent_bytes: int, received_bytes: int) -> None:
        """Count datagrams, or what of them no session knows."""
        now = trio.current_time()
        self.up.spend(sent_bytes, now)
        self.down.spend(received_bytes, now)

    def hold_back(self, core: SessionCore, now: float, *, is_far: bool) -> float:
        """Tell a session what it must keep back; return when to look again, if ever."""
        look_again_at = math.inf
        if self.up.is_limited:
            look_again_at = self._hold_data(core, now, is_far=is_far)
        if self.down.rate_bytes_per_s:
            free_at = self.down.free_at(now)
            core.bulk_window_bytes = self.down.window_bytes
            is_waiting = core.hold_credit(free_at > now)
            if free_at > now:
                look_again_at = min(look_again_at, free_at)
                if is_waiting:
                    self.down.note_wait(now, free_at)
        return look_again_at

    def _hold_data(self, core: SessionCore, now: float, *, is_far: bool) -> float:
        look_again_at = math.inf
        turn_bytes, waiter = self.up.turn_bytes_max(is_far=is_far), id(core)
        core.body_bytes_max = min(core.body_bytes_max, turn_bytes)
        for purpose in HELD_PURPOSES:
            free_at = now
            if core.wants(purpose):
                free_at = self.up.free_at(now, purpose, is_far=is_far, waiter=waiter)
            else:
                self.up.wait_no_more(waiter, purpose)
            core.hold(purpose, is_held=free_at > now)
            if free_at > now:
                look_again_at = min(look_again_at, free_at)
                self.up.note_wait(now, free_at)
        return look_again_at

    async def wait_for_turn(self, purpose: Purpose) -> None:
        """Wait until both directions owe nothing, before a stream for tensors is opened.

        Raises:
            Overloaded: none may pass.
        """
        waiter = object()
        try:
            while not self.why_no_tensors:
                now = trio.current_time()
                free_at = max(self.up.free_at(now, purpose, waiter=waiter), self.down.free_at(now))
                if free_at <= now:
                    return
                await trio.sleep_until(free_at)
        finally:
            self.up.wait_no_more(waiter, purpose)
        raise Overloaded(f"no tensors are sent or received now: {self.why_no_tensors}")
