"""Whether and what a peer answers to a STUN question: rates in, bytes out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.protocol.nat.stun import (
    Answer,
    Endpoint,
    Question,
    decode_stun,
    encode_answer,
)


@dataclass(frozen=True)
class StunStatistics:
    """Counters since the start."""

    answered_total: int
    malformed_total: int
    limited_total: int  # over one of the rates
    short_total: int  # an answer would have been longer than the question


@dataclass(frozen=True)
class Reply:
    """What to send back to where the question came from."""

    data: bytes
    from_other_port: bool


class StunServer:
    """Answers as many questions a second as the limits allow, of one host and in all.

    Silent about the rest: a source may be forged, and then even a refusal hits a third party.
    """

    def __init__(self) -> None:
        self._second = 0
        self._admitted: Counter[str] = Counter()  # as many entries as answers of one second
        self._answered = 0
        self._malformed = 0
        self._limited = 0
        self._short = 0

    def answer(self, data: bytes, source: Endpoint, now: float, *, other_port: int) -> Reply | None:
        """Return the reply to a datagram; ``other_port`` is our second port, 0 if we have none."""
        try:
            question = decode_stun(data)
        except MalformedMessage:
            question = None
        if not isinstance(question, Question) or (question.change_port and not other_port):
            self._malformed += 1
            return None
        answer = encode_answer(Answer(question.transaction, source, other_port))
        if len(answer) > len(data):
            self._short += 1
            return None
        if not self.admits(source.host, now):
            return None
        self._answered += 1
        return Reply(answer, question.change_port)

    def admits(self, host: str, now: float) -> bool:
        """Count one datagram to ``host``; False if there have been too many in this second."""
        if int(now) != self._second:
            self._second = int(now)
            self._admitted.clear()
        if (
            self._admitted.total() >= limits.STUN_ANSWERS_PER_S_MAX
            or self._admitted[host] >= limits.STUN_ANSWERS_PER_HOST_PER_S_MAX
        ):
            self._limited += 1
            return False
        self._admitted[host] += 1
        return True

    def statistics(self) -> StunStatistics:
        """Return a frozen record of counters."""
        return StunStatistics(self._answered, self._malformed, self._limited, self._short)
