"""Whether the peer is there, and how far away: pings, where nothing else says so.

A ping is due when nothing came for a while; the server waits half as long again, so that of two
quiet sides only one asks. Now and then one is due in any case, for the round trip, and because
a peer may go on talking that has stopped reading: a session is dead if nothing comes, or if a
ping is not answered for long.
"""

from __future__ import annotations

from swarmnode import limits
from swarmnode.errors import DeadlineExceeded, MalformedMessage
from swarmnode.protocol.session.records import Role
from swarmnode.wire.frames import PING_BYTES, FrameKind, encode_frame

# A peer that talks but never answers has stopped reading; slow links queue seconds of bulk.
PONG_WAIT_S = 30.0

_RTT_WEIGHT = 0.125  # of a new sample, as in RFC 6298


class Keepalive:
    """The clock of one session."""

    def __init__(self, role: Role, now: float) -> None:
        self._quiet_s = limits.PING_QUIET_S * (1.5 if role is Role.SERVER else 1.0)
        self._ping_due = True  # at once, so that the round trip is known early
        self._ping_number = 0
        self._ping_sent_at: float | None = None  # of the one that is unanswered
        self._pinged_at = now  # when the last one became due
        self._heard_at = now
        self._has_suspected = False  # the shell has been woken for it
        self._pong_due: bytes | None = None  # only the newest: a flood of pings queues nothing
        self.rtt_s: float | None = None

    @property
    def has_due(self) -> bool:
        """Whether :meth:`take` has something to give."""
        return self._ping_due or self._pong_due is not None

    def heard(self, now: float) -> None:
        """Note that bytes came."""
        self._heard_at = now
        self._has_suspected = False

    def is_suspect(self, now: float) -> bool:
        """Whether the peer has been silent for longer than one that is there would be."""
        return now >= self._heard_at + limits.SUSPECT_S

    def begin_anew(self, now: float) -> None:
        """Start from here: what was silent so far was the old channel."""
        self._heard_at = self._pinged_at = now
        if self._ping_sent_at is not None:
            self._ping_sent_at = now

    def next_deadline(self) -> float:
        """Return when :meth:`check` wants to be called."""
        deadline = min(self._heard_at + limits.SILENCE_S, self._next_ping_at())
        if not self._has_suspected:
            deadline = min(deadline, self._heard_at + limits.SUSPECT_S)
        if self._ping_sent_at is not None:
            deadline = min(deadline, self._ping_sent_at + PONG_WAIT_S)
        return deadline

    def check(self, now: float) -> DeadlineExceeded | None:
        """Make a ping due if it is time; return why the session is dead, if it is."""
        pinged_at = self._ping_sent_at
        self._has_suspected = self.is_suspect(now)
        if now >= self._heard_at + limits.SILENCE_S:
            return DeadlineExceeded("any byte from the peer", limits.SILENCE_S)
        if pinged_at is not None and now >= pinged_at + PONG_WAIT_S:
            return DeadlineExceeded("the peer's answer to a ping", PONG_WAIT_S)
        if now >= self._next_ping_at():
            self._ping_due = pinged_at is None  # one at a time
            self._pinged_at = now
        return None

    def take(self, now: float) -> bytes:
        """Return the frames that are due, which go out now."""
        frames = b""
        if self._pong_due is not None:
            frames = encode_frame(FrameKind.PONG, 0, self._pong_due)
            self._pong_due = None
        if self._ping_due:
            self._ping_due = False
            self._ping_number += 1
            self._ping_sent_at = now
            number = self._ping_number.to_bytes(PING_BYTES, "big")
            frames += encode_frame(FrameKind.PING, 0, number)
        return frames

    def on_ping(self, payload: bytes) -> None:
        """Owe the answer."""
        self._pong_due = payload

    def on_pong(self, payload: bytes, now: float) -> None:
        """Measure. Raises MalformedMessage for an answer to nothing."""
        if self._ping_sent_at is None or int.from_bytes(payload, "big") != self._ping_number:
            raise MalformedMessage("PONG without a PING")
        sample_s = now - self._ping_sent_at
        self._ping_sent_at = None
        if self.rtt_s is None:
            self.rtt_s = sample_s
        else:
            self.rtt_s += _RTT_WEIGHT * (sample_s - self.rtt_s)

    def _next_ping_at(self) -> float:
        quiet_at = max(self._heard_at, self._pinged_at) + self._quiet_s
        return min(quiet_at, self._pinged_at + limits.PING_INTERVAL_S)
