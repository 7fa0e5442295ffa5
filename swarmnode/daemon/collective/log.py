"""The log of the swarm: tiny records, which all members see in the same rounds and order.

::

    PostedIntent(record) -> pending --+
    others call us ----------+-> one run (GroupRuns) -> LogBook.close -> Records -> worker
    aborted, or behind -> ask where the others are -> fetch rounds ----+

One task does one thing after the other: catch up, wait for a reason, take part in a run. A round
closes when all members have come; one that has nothing to say is waited for as LOG_GRACE_S_MAX
says, and takes part with nothing. What is too late is in the next round. Without a majority of the
last round's members the log waits, for LOG_GONE_S; local training goes on.

If this node's rounds turn out to differ from those of the others, or are too old to be caught up
with, it *halts*: it says so, and takes no part until a worker comes up on a newer model.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.collective.log_cargo import LogCargo, LogPatience, LogWait
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.worker.leases import Lessor
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    MalformedMessage,
    Refused,
    RemoteProtocolError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.records import LogRecord, Records
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.log_book import ClosedRound, LogBook, is_on_chain, read_chain
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.exchange.log import LogAsk, LogGive, LogShare
from swarmnode.wire.packing import decode_record, encode_record

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator

LOG_RUN_SERVICE = "log-run"
LOG_SERVICE = "log/1"
_log = get_logger("swarmnode.daemon.collective")


class _Reached(enum.Enum):
    """What became of an attempt to catch up."""

    SOME = enum.auto()
    NONE_YET = enum.auto()  # no answer, or nothing that others confirm
    NONE_KEEPS_IT = enum.auto()


class Log:
    """The IntentHandler of records.

    Args:
        tell: passes a closed round to the worker, as soon as it has room.
        halted: told why this node takes no part any more: it needs the swarm's model.

    Attributes:
        state: one line for people.
        wait: how long no round has closed although this node has a record for one.
        closed_total: rounds closed or fetched since the start.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        lessor: Lessor,
        tell: Callable[[Records], Awaitable[None]],
        halted: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._self_id, self._key = communicator.self_id, communicator.key
        self._partners, self._live = communicator.partners, communicator.live
        self._lessor = lessor
        self._tell = tell
        self._env = communicator.env
        self._on_halt = halted
        self._book = LogBook(0)  # none of the swarm, before a worker has come up
        self._has_begun = self._has_worker = False  # a worker has come up; one is up now
        self._worker_next = 0  # what it is to see next
        self._pending: deque[PostedIntent] = deque()
        self._attempt = 0  # at the open round
        self._bound: tuple[int, bytes] = (0, b"")
        self._offered: set[bytes | None] = set()
        self._is_used = False  # here, or by a peer: most strategies have no log
        self._is_called = self._is_called_anew = False
        self._must_ask = True
        self._has_spoken = False  # in the last round
        self._posted_at = self._pause_s = self._started_at = 0.0
        self._answered: set[PeerId] = set()  # peers that had no log either
        self._is_halted = False
        self._news = trio.Event()
        self.state = "waiting for the worker"
        self.wait = LogWait()
        self.closed_total = 0
        self._patience = LogPatience(self._self_id, self._env.monotonic)
        self.runs = GroupRuns(
            LOG_RUN_SERVICE,
            communicator,
            called=self._called,
            held=self._patience.note_held,
            patience=self._patience.rounds,
        )
        self._name = communicator.services.name(LOG_SERVICE)
        communicator.services.add_request(LOG_SERVICE, self._give)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the log until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.runs.run)
            nursery.start_soon(self._deliver)
            task_status.started()
            await self._take_part()

    @property
    def is_halted(self) -> bool:
        """Whether this node takes no part any more; :attr:`state` says why."""
        return self._is_halted

    @property
    def _is_open(self) -> bool:
        return self._has_begun and not self._is_halted

    # --- the worker's side -----------------------------------------------------------------

    def worker_ready(self, log_round: int, head: bytes = b"") -> None:
        """A worker is up, whose model holds all rounds before ``log_round``.

        ``head``: the digest of the last of them; empty: not known.
        """
        book = self._book
        if not self._is_open or (book.is_fresh and book.next != log_round):
            book = self._book = LogBook(log_round, head)
            self._forget_round()
            self._has_begun, self._is_halted = True, False
            self._must_ask = True
            self._started_at = self._env.monotonic()
            self._answered.clear()
        self._has_worker, self._worker_next = True, log_round
        if log_round < book.first_kept:
            self._halt(f"its model needs round {log_round}, which is kept no more")
        elif head and book.before(log_round) not in (b"", head):
            self._halt(f"its model holds other rounds before {log_round}: there are two logs")
        self._must_ask |= log_round > book.next
        self._wake()

    def intent_posted(self, intent: PostedIntent) -> None:
        """Publish a record."""
        now = self._env.monotonic()
        self._pause_s, self._posted_at = now - self._posted_at, now
        self.wait.want(now)
        self._pending.append(intent)
        self._is_used = True
        while len(self._pending) > limits.LOG_PENDING_MAX:
            self._lessor.drop(self._pending.popleft(), "round: the log does not get on")
        self._wake()

    def worker_gone(self) -> None:
        """What it has posted and is in no round yet is not published; rounds go on."""
        self._has_worker = False
        self._pending.clear()
        self.wait.forget()

    def partners_changed(self) -> None:
        """Go on without the dead; there may be a majority again."""
        self.runs.members_changed()
        self._wake()

    async def _deliver(self) -> None:
        """Hand the worker every closed round that it has not seen, in order."""
        while True:
            closed = self._book.get(self._worker_next)
            if closed is None or not self._has_worker:
                await self._news.wait()
                continue
            self._worker_next += 1
            entries = closed.round.entries
            records = tuple(LogRecord(each.author, each.payload, each.round) for each in entries)
            await self._tell(Records(closed.round.number, records, closed.digest))

    # --- one thing after the other ---------------------------------------------------------

    async def _take_part(self) -> None:
        while True:
            book = self._book
            if not (self._is_open and self._is_used):
                await self._news.wait()
            elif self._must_ask:
                await self._catch_up(book)
            elif not (self._pending or self._is_called):
                await self._news.wait()
            elif await self._may_begin(book):
                await self._wait_for_own_record()
                if book is self._book and not (self._must_ask or self._is_halted):
                    await self._close_next(book)

    async def _may_begin(self, book: LogBook) -> bool:
        """Whether a round can close with the members that are there; wait a little if not."""
        members = self._members(book)
        if book.is_fresh and not self._is_called and not self._may_found(members):
            await self._pause(limits.LOG_RETRY_S, "looking for a peer that has the log")
            self._must_ask = True
            return False
        has_majority = events.has_majority(book.members, members)
        self.wait.look(self._env.monotonic(), has_majority=has_majority)
        book.is_anew = not has_majority and self.wait.are_gone(
            is_alone=members == (self._self_id,), is_called=self._is_called_anew
        )
        if not (has_majority or book.is_anew):
            missing = ", ".join(peer.short for peer in book.members if peer not in members)
            await self._pause(
                limits.LOG_WAIT_S, f"waiting for a majority of round {book.next - 1}: {missing}"
            )
            self._must_ask = True
            return False
        return True

    def _may_found(self, members: Collection[PeerId]) -> bool:
        """Whether to begin a log: a member may have one already, and two would be one too many."""
        return not self._is_young and set(members) <= {self._self_id, *self._answered}

    @property
    def _is_young(self) -> bool:
        return self._env.monotonic() < self._started_at + limits.LOG_FOUND_S

    def _unheard(self, answers: Collection[PeerId]) -> bool:
        return not set(self._partners.partners()) <= {self._self_id, *answers}

    async def _wait_for_own_record(self) -> None:
        """Others have something to say: so may this node, in a moment."""
        grace_s = min(2 * self._pause_s, limits.LOG_GRACE_S_MAX) if self._has_spoken else 0.0
        with trio.move_on_after(grace_s):
            while not (self._pending or self._must_ask):
                await self._news.wait()

    async def _close_next(self, book: LogBook) -> None:
        """Take part in one run of the open round."""
        self._is_called = self._is_called_anew = False
        members = self._members(book)
        if members == (self._self_id,):
            # Looked at again: the others may have gone since a majority was there.
            may_found = not book.is_fresh or self._may_found(members)
            if may_found and events.has_majority(book.electorate, members):
                self._close_alone(book)
            return
        gid = book.gid(self._key, self._attempt, is_anew=book.is_anew)
        if not self.runs.may_begin(gid):
            self._attempt += 1
            await self._pause(limits.LOG_RETRY_S)
            return
        self.state = f"round {book.next}: {len(members)} members"
        cargo = LogCargo(book, self._self_id, self._share, self._offered)
        self.runs.begin(self._patience.begin(book, gid, members), cargo)
        await cargo.over.wait()
        match cargo.result:
            case ClosedRound() as closed if cargo.has_committed:
                self._patience.rounds.note_commit(cargo.usual_s)
                self._close(closed)
                return
            case ClosedRound() as closed if cargo.is_bound:
                # Numbered from 1: the latest binds, whatever its attempt was.
                self._bound = (self._attempt + 1, closed.data)
        _log.debug("no round", round=book.next, attempt=self._attempt, why=cargo.why)
        if not self.runs.may_begin(gid):
            self._attempt += 1
        self._must_ask = True
        await self._pause(limits.LOG_RETRY_S)

    def _close_alone(self, book: LogBook) -> None:
        self.state = f"round {book.next}: alone"
        self._close(book.read(book.make([(self._self_id, self._share())])))

    def _share(self) -> LogShare:
        """Return what this node brings: its oldest record, and what it is bound to."""
        attempt, bound = self._bound
        if not self._pending:
            return LogShare(None, 0, attempt, bound)
        intent = self._pending[0]
        return LogShare(intent.record, intent.round, attempt, bound)

    def _close(self, closed: ClosedRound, *, is_fetched: bool = False) -> None:
        if self._book.is_fresh and not is_fetched:
            _log.info("a log begins", round=closed.round.number, head=closed.digest.hex()[:16])
        if self._book.is_anew and not is_fetched:
            _log.warning("the log goes on without a majority", round=closed.round.number)
        self._book.close(closed)
        self.closed_total += 1
        own = [entry for entry in closed.round.entries if entry.author == self._self_id]
        self._has_spoken = bool(own)
        for entry in own:
            if (entry.round, entry.payload) in [(p.round, p.record) for p in self._pending][:1]:
                self._pending.popleft()
        self.wait.note_round(self._env.monotonic(), is_more_wanted=bool(self._pending))
        self._forget_round()
        self._wake()

    def _forget_round(self) -> None:
        self._attempt, self._bound = 0, (0, b"")
        self._is_called = self._is_called_anew = False
        self._offered = set()

    def _members(self, book: LogBook) -> tuple[PeerId, ...]:
        """Return the members to take part: those of the last round first, if there are too many."""
        live = {*self._live(), self._self_id}
        old = live & set(book.members)
        new = (live & set(self._partners.partners())) | {self._self_id}
        ordered = sorted(old | {self._self_id}) + sorted(new - old - {self._self_id})
        return tuple(sorted(ordered[: limits.LOG_MEMBERS_MAX]))

    def _called(self, peer: PeerId, message: wire.Message) -> None:
        """A peer speaks of a run that is not known here: it may be the next one."""
        if not isinstance(message, wire.Enlist):
            return
        book = self._book
        self._is_used = True
        if not self._is_open:
            self.runs.refuse(peer, message.gid, "this node takes no part in the log now")
        elif message.gid == book.gid(self._key, self._attempt):
            self._is_called = True
        elif message.gid == book.gid(self._key, self._attempt, is_anew=True):
            self._is_called = self._is_called_anew = True
        elif self.runs.may_begin(message.gid):  # not one that is over
            self._must_ask |= self._patience.is_news(peer)
        self._wake()

    # --- catching up -----------------------------------------------------------------------

    async def _catch_up(self, book: LogBook) -> None:
        """Learn where the others are, and fetch the rounds that this node lacks."""
        self._must_ask = False
        answers = await self._ask_all(LogAsk(book.next, 0))
        if book is not self._book:
            return
        self._answered |= {peer for peer, each in answers.items() if not each.head}
        self._attempt = max(
            self._attempt,
            *(a.attempt for a in answers.values() if (a.next, a.before) == (book.next, book.head)),
            *(a.attempt for a in answers.values() if a.next == book.next and not a.head),
            0,
        )
        others = self._find_others(book, answers)
        if self._is_halted:
            return
        ahead = {
            peer: each
            for peer, each in answers.items()
            if peer not in others
            and (each.next > book.next or (each.next == book.next and book.is_fresh and each.head))
        }
        if not ahead:
            return
        reached = await self._follow(book, ahead)
        if book is not self._book:
            return
        self._must_ask = True
        if reached is _Reached.NONE_KEEPS_IT and (book.is_fresh or 2 * len(ahead) > len(answers)):
            self._halt(f"no peer has round {book.next} of the log any more")
        elif reached is not _Reached.SOME:
            await self._pause(limits.LOG_RETRY_S, "catching up")
            self._must_ask = True

    def _find_others(self, book: LogBook, answers: Mapping[PeerId, LogGive]) -> set[PeerId]:
        """Return the peers with other rounds than this node, and say so; halt if they are more."""
        alike = {p: book.is_alike(a.next, a.before, a.head) for p, a in answers.items()}
        others = {peer: each for peer, each in answers.items() if alike[peer] is False}
        if not others:
            return set()
        names = ", ".join(peer.short for peer in sorted(others))
        why = f"rounds before {book.next} differ from those of {names}: there are two logs"
        _log.warning("the log differs", why=why)
        n_alike = sum(each is True for each in alike.values()) + 1
        strongest = max((each.next, each.head) for each in others.values())
        is_weaker = len(others) == n_alike and strongest > (book.next, book.head)
        if len(others) > n_alike or is_weaker:
            self._halt(why)
        return set(others)

    async def _follow(self, book: LogBook, ahead: Mapping[PeerId, LogGive]) -> _Reached:
        """Fetch rounds of one of the peers that are ahead.

        A fetched round proves nothing by itself. So all peers that can be reached are asked for a
        digest, which stands for all rounds before it; those that agree must outnumber the others.
        """
        is_kept = False
        for peer in sorted(ahead, key=lambda each: ahead[each].next, reverse=True):
            try:
                first, give = await self._ask_for_rounds(book, peer)
            except SwarmNodeError:
                is_kept = True  # as far as this node knows
                continue
            if not give.rounds:
                continue
            is_kept = True
            try:
                chain = read_chain(b"" if book.is_fresh else book.head, first, give.rounds)
            except MalformedMessage as error:
                await self._refuse(peer, error)
                continue
            answers = await self._ask_all(LogAsk(first + len(chain), 0))
            if book is not self._book:
                break
            votes = Counter(is_on_chain(chain, each) for each in answers.values())
            # The first peer that can be reached may be the one that lies.
            is_early = book.is_fresh and self._is_young and self._unheard(answers)
            if votes[True] <= votes[False] or is_early:
                _log.info("rounds not confirmed", peer=peer.short, round=book.next)
                continue
            for closed in chain:
                self._close(closed, is_fetched=True)
            return _Reached.SOME
        return _Reached.NONE_YET if is_kept else _Reached.NONE_KEEPS_IT

    async def _ask_for_rounds(self, book: LogBook, peer: PeerId) -> tuple[int, LogGive]:
        """Return what a peer gives, and the number of its first round. Raises SwarmNodeError."""
        for first in range(book.wanted, book.next + 1):
            give = await self._ask(peer, LogAsk(first, limits.LOG_ROUNDS_GIVEN_MAX))
            if give.rounds:
                break
        return first, give

    async def _refuse(self, peer: PeerId, error: RemoteProtocolError) -> None:
        _log.warning("a member broke a rule", peer=peer.short, why=str(error))
        if peer in self._partners.sessions:
            await self._partners.sessions[peer].aclose(str(error))

    async def _ask_all(self, ask: LogAsk) -> dict[PeerId, LogGive]:
        """Ask every peer that can be reached, all at once."""
        answers: dict[PeerId, LogGive] = {}

        async def ask_one(peer: PeerId) -> None:
            with contextlib.suppress(SwarmNodeError):
                answers[peer] = await self._ask(peer, ask)

        async with trio.open_nursery() as nursery:
            for peer in self._partners.partners():
                if peer != self._self_id:
                    nursery.start_soon(ask_one, peer)
        return dict(sorted(answers.items()))

    async def _ask(self, peer: PeerId, ask: LogAsk) -> LogGive:
        """Return what a peer answers. Raises SwarmNodeError: nothing, or nothing that counts."""
        sessions = self._partners.sessions
        if peer not in sessions or sessions[peer].is_closed:
            self._partners.want((peer,))
            raise ChannelBroken(f"no session with {peer.short}")
        try:
            answer = await sessions[peer].request(
                self._name, encode_record(ask), deadline_s=self._patience.answer_s(peer)
            )
            give = decode_record(answer, LogGive)
        except SwarmNodeError as error:
            self._patience.note_asked(peer, has_answered=not isinstance(error, DeadlineExceeded))
            _log.debug("no answer about the log", peer=peer.short, why=str(error))
            raise
        self._patience.note_asked(peer, has_answered=True)
        return give

    async def _give(self, peer: PeerId, payload: bytes) -> bytes:  # noqa: ARG002
        ask = decode_record(payload, LogAsk)
        book = self._book
        if not self._is_open:
            raise Refused("this node has no log now")
        rounds = book.since(ask.first, ask.rounds_max)
        head = b"" if book.is_fresh else book.head
        give = LogGive(book.next, self._attempt, book.before(ask.first), head, rounds)
        return encode_record(give)

    # --- small things ----------------------------------------------------------------------

    def _halt(self, why: str) -> None:
        self._is_halted = True
        self.state = f"halted: {why}; this node needs the swarm's model"
        _log.warning("the log is halted here", why=why)
        self._on_halt(why)
        self._wake()

    async def _pause(self, pause_s: float, state: str = "") -> None:
        """Wait for news, or up to ``pause_s`` with jitter."""
        self.state = state or self.state
        with trio.move_on_after(pause_s * self._env.rng.uniform(0.5, 1.0)):
            await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()
