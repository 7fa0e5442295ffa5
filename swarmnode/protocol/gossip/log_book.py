"""What one node knows of the log: closed rounds, chained by hash; which members decide on the next.

Agreement on a round is a group run (``group.py``) with one piece, whose sum is not a mean but the
bytes of the round. Two rules make it sound although members die and networks part:

- A run finishes only in a view with a majority of the members of the round before; of exactly half
  of them with the smallest id. So only one part of a network can go on.
- A member that had prepared a round without learning whether it counts is *bound*: it brings those
  bytes to the next run of the round, and of all that members are bound to, the one of the latest
  run becomes the round. Any two majorities share a member, so what counted somewhere is kept.

Where a majority is gone for good, those that are left go on *anew* after a while, without one.

That is Paxos with runs for ballots, and the members of each round as acceptors of the next; what
is kept in memory only is lost with the process, see proto/log.md.

Sources: L. Lamport, "The part-time parliament", 1998; S. Jajodia, D. Mutchler, "Dynamic voting
algorithms for maintaining the consistency of a replicated database", 1990, for the electorate.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import group_id, has_majority
from swarmnode.wire.exchange.log import LogEntry, LogGive, LogRound, LogShare
from swarmnode.wire.packing import decode_record, encode_record

NO_DIGEST = bytes(32)  # before the first round
_ROUND_DOMAIN = b"swarmnode/log-round\0"
_LOG_TAG = "log"
_ANEW_TAG = "log-anew"


@dataclass(frozen=True)
class ClosedRound:
    """A round, the bytes that all have of it, and their digest."""

    round: LogRound
    data: bytes
    digest: bytes

    @property
    def members(self) -> tuple[PeerId, ...]:
        """The members that took part, and decide on the next round."""
        return tuple(PeerId(member) for member in self.round.members)


class LogBook:
    """The rounds from ``first`` on. Keeps the last LOG_ROUNDS_KEPT of them.

    ``known``: the digest of the round before ``first``; empty: not known.

    Attributes:
        is_anew: the open round may close without a majority of the members of the last one.
    """

    def __init__(self, first: int, known: bytes = b"") -> None:
        self._first, self._known = first, known
        self.is_anew = False
        self._closed: deque[ClosedRound] = deque(maxlen=limits.LOG_ROUNDS_KEPT)
        self.head = NO_DIGEST

    @property
    def next(self) -> int:
        """The number of the round that is open."""
        return self._closed[-1].round.number + 1 if self._closed else self._first

    @property
    def first_kept(self) -> int:
        """The oldest round that can be given to others; :attr:`next` if there is none."""
        return self._closed[0].round.number if self._closed else self._first

    @property
    def is_fresh(self) -> bool:
        """Whether no round is known: neither the members that decide, nor what there was before."""
        return not self._closed

    @property
    def members(self) -> tuple[PeerId, ...]:
        """Of the last round; a majority of them closes the next. Empty: not known."""
        return self._closed[-1].members if self._closed else ()

    @property
    def electorate(self) -> tuple[PeerId, ...]:
        """Who decides on the open round. Empty: all that begin with it, and only together."""
        return () if self.is_anew else self.members

    def gid(self, key: bytes, attempt: int, *, is_anew: bool = False) -> bytes:
        """Return the name of run ``attempt`` of the open round."""
        return group_id(key, _ANEW_TAG if is_anew else _LOG_TAG, attempt, self.next, self.head)

    def read(self, data: bytes) -> ClosedRound:
        """Check bytes that are to be the next round.

        Raises MalformedMessage.
        """
        read = read_round(data)
        if read.round.number != self.next:
            raise MalformedMessage(f"log: expected round {self.next}, got {read.round.number}")
        if not self.is_fresh and read.round.before != self.head:
            raise MalformedMessage(f"log: round {self.next} does not follow the one before it here")
        if not has_majority(self.electorate, read.members):
            # Else a member could choose one: by a round that it makes, or claims to be bound to.
            raise MalformedMessage(
                f"log: expected a majority of the {len(self.electorate)} members of the round"
                f" before in round {self.next}, got {len({*self.electorate} & {*read.members})}"
            )
        return read

    @property
    def wanted(self) -> int:
        """The first round to ask others for: a fresh book needs the one before it as well."""
        return self.next - 1 if self.is_fresh and self.next else self.next

    def close(self, closed: ClosedRound) -> None:
        """Add the next round, as :meth:`read` returned it; or to a fresh book the one before."""
        assert closed.round.number in (self.next, self.wanted), "rounds are closed in order"
        assert self.is_fresh or closed.round.before == self.head, "rounds follow one another"
        self._closed.append(closed)
        self.head = closed.digest
        self.is_anew = False

    def get(self, number: int) -> ClosedRound | None:
        """Return a round, if it is still kept."""
        index = number - self.first_kept
        return self._closed[index] if 0 <= index < len(self._closed) else None

    def since(self, number: int, rounds_max: int) -> tuple[bytes, ...]:
        """Return rounds from ``number`` on, as many as one answer holds; none if it is not kept."""
        given: list[bytes] = []
        size_bytes = 0
        while len(given) < rounds_max:
            closed = self.get(number + len(given))
            if closed is None or size_bytes + len(closed.data) > limits.LOG_GIVEN_BYTES_MAX:
                break
            given.append(closed.data)
            size_bytes += len(closed.data)
        return tuple(given)

    def before(self, number: int) -> bytes:
        """Return the digest of the round before ``number``; empty: not known."""
        if number == self.next and not self.is_fresh:
            return self.head
        closed = self.get(number)
        return closed.round.before if closed is not None else b""

    def is_alike(self, next_number: int, before: bytes, head: bytes) -> bool | None:
        """Whether another node has the same rounds; None: no round is known to both.

        Args:
            next_number: its open round.
            before: its digest of the round before ours; empty: not known.
            head: of its last round; empty: not known.
        """
        if next_number >= self.next and self.is_fresh:
            # A log that was founded anew here says nothing of what was before.
            theirs, ours = b"" if before == NO_DIGEST else before, self._known
        elif next_number >= self.next:
            theirs, ours = before, self.head
        else:
            theirs, ours = head, self.before(next_number)
        return theirs == ours if theirs and ours else None

    def make(self, shares: Iterable[tuple[PeerId, LogShare]]) -> bytes:
        """Return the bytes of the open round, made of what its members brought."""
        ordered = sorted(shares, key=lambda each: each[0])
        bound = self._latest_bound([share for _, share in ordered])
        if bound:
            return bound
        entries = [
            LogEntry(bytes(peer), share.round, share.record)
            for peer, share in ordered
            if share.record is not None
        ]
        members = tuple(bytes(peer) for peer, _ in ordered)
        return encode_record(LogRound(self.next, self.head, members, tuple(entries)))

    def _latest_bound(self, shares: Sequence[LogShare]) -> bytes:
        """Return what the members bound last are bound to; what is no round binds none."""
        for share in sorted(shares, key=lambda each: each.bound_attempt, reverse=True):
            if share.bound:
                try:
                    return self.read(share.bound).data
                except MalformedMessage:
                    continue
        return b""


def read_round(data: bytes) -> ClosedRound:
    """Read the bytes of a round, whatever came before it. Raises MalformedMessage."""
    found = decode_record(data, LogRound)
    authors = [entry.author for entry in found.entries]
    is_ordered = all(_ascend(ids) for ids in (found.members, authors))
    if not is_ordered or not found.members or not set(authors) <= set(found.members):
        raise MalformedMessage("log: expected members and authors of them, in ascending order")
    if encode_record(found) != data:
        raise MalformedMessage("log: expected a round in its one encoding")
    return ClosedRound(found, bytes(data), hashlib.sha256(_ROUND_DOMAIN + data).digest())


def read_chain(before: bytes, first: int, rounds: Sequence[bytes]) -> list[ClosedRound]:
    """Read rounds that follow one another from ``first`` on.

    That each has a majority of the one before is not asked: some may have gone on anew, and who
    invents rounds can name whom they like.
    ``before``: the digest of the round before; empty: any. Raises MalformedMessage.
    """
    read: list[ClosedRound] = []
    for number, data in enumerate(rounds, first):
        closed = read_round(data)
        if closed.round.number != number or (before and closed.round.before != before):
            raise MalformedMessage(f"log: expected round {number} to follow the one before it")
        read.append(closed)
        before = closed.digest
    return read


def _ascend(ids: Sequence[bytes]) -> bool:
    return all(one < two for one, two in pairwise(ids))


def is_on_chain(chain: Sequence[ClosedRound], answer: LogGive) -> bool | None:
    """Whether another node has the rounds of a chain, as far as it has come; None: not known.

    ``answer``: to a question for what follows the chain.
    """
    last = chain[-1].round.number
    if answer.next > last:
        return answer.before == chain[-1].digest if answer.before else None
    known = {closed.round.number: closed.digest for closed in chain}
    known[chain[0].round.number - 1] = chain[0].round.before
    digest = known.get(answer.next - 1)
    return answer.head == digest if answer.head and digest else None
