"""What a member brings to one run of a round of the log, and what it takes away.

Since when a round of the log has been wanted, and none has closed. How long members are waited for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import trio

from swarmnode import limits
from swarmnode.daemon.collective.runs import Payload
from swarmnode.errors import MalformedMessage, WorkerError
from swarmnode.ids import PeerId
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.log_book import ClosedRound, LogBook
from swarmnode.protocol.gossip.round_patience import RoundPatience
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.exchange.log import LogShare
from swarmnode.wire.packing import decode_record, encode_record

_SHARE_BYTES_MAX = limits.LOG_ROUND_BYTES_MAX + limits.KIB


class LogCargo:
    """The cargo of one run; see ``runs.py``. It has one piece.

    Args:
        make_share: says what this node brings, when the roll is closed.
        offered: own records that this node has brought to runs of this round.

    Attributes:
        over: set when the run is over.
        has_committed: it counts.
        is_bound: it may count elsewhere although it does not here: the next run must be told.
        why: it does not count, in words.
        usual_s: what it took without the slowest, if it counts.
        result: the round, if it was put together.
    """

    def __init__(
        self,
        book: LogBook,
        self_id: PeerId,
        make_share: Callable[[], LogShare],
        offered: set[bytes | None],
    ) -> None:
        self._book = book
        self._self_id = self_id
        self._make_share = make_share
        self._offered = offered
        self._share = b""
        self._shares: dict[PeerId, LogShare] = {}
        self._plan = b""
        self._sum = b""
        self.over = trio.Event()
        self.has_committed = self.is_bound = False
        self.why, self.usual_s = "", 0.0
        self.result: ClosedRound | None = None

    async def load(self) -> float:
        """Decide what to bring."""
        await trio.lowlevel.checkpoint()
        share = self._make_share()
        self._offered.add(share.record)
        self._shares[self._self_id] = share
        self._share = encode_record(share)
        return 0.0

    def share(self, piece: int) -> Payload:  # noqa: ARG002
        """Return what this node brings."""
        return [self._share]

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        """Read a share or a round. Raises MalformedMessage and what streams do."""
        data = await stream.receive_rest(_SHARE_BYTES_MAX)
        if isinstance(header, wire.Share):
            decode_record(data, LogShare)
        else:
            self._book.read(data)
        return [data]

    def keep_share(self, peer: PeerId, piece: int, payload: Payload) -> None:  # noqa: ARG002
        """Keep it for the round."""
        self._shares[peer] = decode_record(bytes(payload[0]), LogShare)

    def use_plan(
        self,
        plan: bytes,
        n_pieces: int,  # noqa: ARG002
        contributors: Sequence[PeerId],  # noqa: ARG002
    ) -> None:
        """Let go of what came for an earlier plan."""
        self._plan, self._sum = plan, b""

    def keep_sum(self, piece: int, payload: Payload) -> None:  # noqa: ARG002
        """Keep the round."""
        self._sum = bytes(payload[0])

    async def reduce(
        self,
        plan: bytes,
        piece: int,  # noqa: ARG002
        contributors: Sequence[PeerId],
        weights: Sequence[float],  # noqa: ARG002
    ) -> None:
        """Make the round of what its contributors brought."""
        await trio.lowlevel.checkpoint()
        if plan == self._plan:
            self._sum = self._book.make((peer, self._shares[peer]) for peer in contributors)

    def sum(self, piece: int) -> Payload:  # noqa: ARG002
        """Return the round."""
        return [self._sum]

    async def assemble(self) -> bytes:
        """Check the round; return its SHA-256. Raises WorkerError: it cannot be right."""
        await trio.lowlevel.checkpoint()
        try:
            closed = self._book.read(self._sum)
        except MalformedMessage as error:
            raise WorkerError(str(error)) from error
        if self._self_id in closed.members and self._entry_of(closed) not in self._offered:
            raise WorkerError("the round says something else in this node's name: a member lies")
        self.result = closed
        return hashlib.sha256(self._sum).digest()

    def _entry_of(self, closed: ClosedRound) -> bytes | None:
        payloads = {bytes(entry.author): entry.payload for entry in closed.round.entries}
        return payloads.get(bytes(self._self_id))

    def committed(self, commit: events.Commit) -> None:
        """It counts."""
        self.has_committed, self.usual_s = True, commit.usual_s
        self.over.set()

    def aborted(self, abort: events.Abort) -> None:
        """It does not count here."""
        self.is_bound, self.why = abort.in_doubt, abort.why
        self.over.set()


class LogWait:
    """Told of records that wait and of rounds that close; knows how long nothing has moved.

    Told at each look for a majority whether there is one; knows for how long none was.
    """

    def __init__(self) -> None:
        self._since = math.inf  # no worker here waits for a round
        self._lacked_s = 0.0
        self._looked_at = -math.inf

    def look(self, now: float, *, has_majority: bool) -> None:
        """A round cannot close without a majority; looks follow one another every LOG_WAIT_S."""
        # A machine that was suspended has not looked meanwhile.
        pause_s = min(now - self._looked_at, limits.LOG_WAIT_S)
        self._lacked_s = 0.0 if has_majority else self._lacked_s + pause_s
        self._looked_at = now

    def are_gone(self, *, is_alone: bool, is_called: bool) -> bool:
        """Whether to go on without those that are missing.

        ``is_called``: another member does.
        """
        if is_alone:
            return self._lacked_s >= limits.LOG_GONE_ALONE_S
        return self._lacked_s >= (limits.LOG_GONE_CALLED_S if is_called else limits.LOG_GONE_S)

    def want(self, now: float) -> None:
        """A record waits for a round to be in."""
        self._since = min(self._since, now)

    def note_round(self, now: float, *, is_more_wanted: bool) -> None:
        """A round has closed."""
        self._since = now if is_more_wanted else math.inf

    def forget(self) -> None:
        """No caller waits any more: the worker is gone."""
        self._since = math.inf

    def waited_s(self, now: float) -> float:
        """Return for how long a record has waited without any round closing."""
        return max(0.0, now - self._since)


class LogPatience:
    """How long members are waited for, in runs and when they are asked.

    One that holds up runs is left out of them for minutes: it follows the log meanwhile, and what
    it has to say is in a later round.
    """

    def __init__(self, self_id: PeerId, now: Callable[[], float]) -> None:
        self._self_id, self._now = self_id, now
        self.rounds = RoundPatience(debt_s_max=limits.LOG_DEBT_S_MAX)
        self._called_at: dict[PeerId, float] = {}  # it spoke of a run that nothing is known of

    def begin(self, book: LogBook, gid: bytes, members: tuple[PeerId, ...]) -> events.Begin:
        """Return a run of the open round with those of the members that hold up none."""
        now = self._now()
        waited_for = self.rounds.waited_for(members, self._self_id, now)
        is_enough = events.has_majority(book.electorate, waited_for)
        return events.Begin(
            gid,
            waited_for if is_enough else members,
            pieces_max=1,
            weight=1.0,
            enlist_s=limits.LOG_ENLIST_S,
            transfer_s=limits.LOG_TRANSFER_S,
            electorate=book.electorate,
            needs_all=not book.electorate,
            patience_s=self.rounds.limit_s(limits.LOG_TRANSFER_S),
            doubted=self.rounds.doubted(members, now),
            calls=True,
        )

    def note_held(self, peer: PeerId, held_s: float) -> None:
        """A run waited for this member alone for so long."""
        self.rounds.note_held(peer, held_s, self._now())

    def is_news(self, peer: PeerId) -> bool:
        """Whether to ask all where they are because this one speaks of a run that is not known.

        Once in a while: it may make up one after the other.
        """
        now = self._now()
        self._called_at = {
            each: at for each, at in self._called_at.items() if now < at + limits.LOG_WAIT_S
        }
        if peer in self._called_at:
            return False
        self._called_at[peer] = now
        return True

    def answer_s(self, peer: PeerId) -> float:
        """Return how long a member may take to say where it is in the log."""
        is_silent = self.rounds.conduct.is_silent(peer, self._now())
        return limits.EXCHANGE_ANSWER_S_MIN if is_silent else limits.LOG_ASK_S

    def note_asked(self, peer: PeerId, *, has_answered: bool) -> None:
        """It has said so; or has not in time, and is silent as one that says nothing in a run."""
        if has_answered:
            self.rounds.conduct.note_answer(peer)
        else:
            self.rounds.conduct.note_no_answer(peer, self._now())
