"""Group runs over sessions: the Trio shell of ``protocol/gossip/group.py``.

What is averaged, or agreed on, is the cargo's business; the shell moves its pieces::

    Begin -> core --TakePayload--> cargo.load      core --SendShare, SendSum--> Post (one a peer)
    stream -> cargo.receive -> core --Keep--> cargo       core --Reduce, Assemble--> cargo
    core --Commit, Abort--> cargo

A member whose session ends, or that the failure detector gives up, is lost at once. One that breaks
a rule is lost too, and its session is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from swarmnode.daemon.collective.post import (
    MESSAGE,
    Parcel,
    Post,
    PostNames,
    SendRate,
    at_once,
    receive_header,
)
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.daemon.transport.network import ALIVE_SERVICE
from swarmnode.errors import (
    DeadlineExceeded,
    MalformedMessage,
    Refused,
    RemoteProtocolError,
    SwarmNodeError,
    WorkerError,
)
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.net.stream import Buffer, Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import GroupCore, GroupStatistics
from swarmnode.protocol.gossip.round_patience import RoundPatience
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.packing import decode_record

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator


_PATIENCE = 3  # a parcel waits for the view of the worker, for shares elsewhere, and for the link
Payload = Sequence[Buffer]  # in parts, such as the chunks of a codec
_log = get_logger("swarmnode.daemon.collective")


class Cargo(Protocol):
    """What one run carries. Async methods are cancelled when the run is over."""

    async def load(self) -> float:
        """Take the own payload; return its weight, 0: as Begin says.

        Raises WorkerError: there is none.
        """

    def use_plan(self, plan: bytes, n_pieces: int, contributors: Sequence[PeerId]) -> None:
        """Pieces are those of this plan now. What was kept or made for another is of no use."""

    def share(self, piece: int) -> Payload:
        """Return the own payload of a piece, after :meth:`load`; it does not change."""

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        """Read a payload to its end, and return it. Raises SwarmNodeError."""

    def keep_share(self, peer: PeerId, piece: int, payload: Payload) -> None:
        """What was received counts."""

    def keep_sum(self, piece: int, payload: Payload) -> None:
        """What was received counts, for the plan in use."""

    async def reduce(
        self, plan: bytes, piece: int, contributors: Sequence[PeerId], weights: Sequence[float]
    ) -> None:
        """Make the sum of a piece, unless another plan has come into use. Raises WorkerError."""

    def sum(self, piece: int) -> Payload:
        """Return the sum of a piece under the plan in use; it does not change."""

    async def assemble(self) -> bytes:
        """Put all sums together; return their SHA-256. Raises WorkerError."""

    def committed(self, commit: events.Commit) -> None:
        """It counts."""

    def aborted(self, abort: events.Abort) -> None:
        """Nothing came of it."""


class Maker(Protocol):
    """A cargo whose pieces have witnesses: it makes pieces of others as well."""

    async def witness(self, effect: events.Witness) -> tuple[bytes, ...]:
        """Return the hashes by which a piece may go. Raises WorkerError."""

    async def hashes(self) -> tuple[bytes, ...]:
        """Return the hash of each sum under the plan in use."""


class _NoMaker:
    """Of a cargo whose pieces have no witnesses."""

    async def witness(self, effect: events.Witness) -> tuple[bytes, ...]:  # noqa: ARG002
        return ()

    async def hashes(self) -> tuple[bytes, ...]:
        return ()


_NO_MAKER = _NoMaker()


@dataclass
class _Running:
    """One run, and what is done for it."""

    begin: events.Begin
    cargo: Cargo
    maker: Maker
    members: frozenset[PeerId]
    loaded: trio.Event = field(default_factory=trio.Event)
    scopes: set[trio.CancelScope] = field(default_factory=set)
    plan: bytes = b""  # in use
    is_enlisting: bool = True
    is_over: bool = False


class GroupRuns:
    """Runs of one kind. Every run that :meth:`begin` began ends in its cargo, exactly once.

    Args:
        name: of its services on the wire.
        called: a peer speaks of a run that is not known here.
        held: a run has waited for a peer alone, for so many seconds.
        patience: hears which members are silent; its own where rounds are not usual.
    """

    def __init__(
        self,
        name: str,
        communicator: Communicator,
        *,
        called: Callable[[PeerId, wire.Message], None] = lambda _peer, _message: None,
        held: Callable[[PeerId, float], None] = lambda _peer, _held_s: None,
        patience: RoundPatience | None = None,
    ) -> None:
        self._patience = patience or RoundPatience()
        self._now = communicator.env.monotonic
        self._asked: set[PeerId] = set()  # whether they are there
        self._self_id = communicator.self_id
        self._partners = communicator.partners
        self._live = communicator.live
        self._called, self._held = called, held
        self.core = GroupCore(self._self_id)
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self.core, self._carry_out, now=self._now
        )
        self._runs: dict[bytes, _Running] = {}
        self._posts: dict[PeerId, Post] = {}
        self._reading: dict[PeerId, trio.Lock] = {}
        self._incoming: dict[PeerId, tuple[bytes, Stream, int]] = {}  # and the bytes seen
        self._watched: set[Session] = set()
        self._arriving: Payload = ()  # the payload of the event that is being handled
        self._tasks, self.rate = Tasks(), SendRate()
        self._sent_bytes = self.received_bytes = 0
        words, payloads = f"{name}/2", f"{name}-payload/2"
        services = communicator.services
        self._names = PostNames(services.name(words), services.name(payloads))
        services.add_stream(words, self._hear)
        services.add_stream(payloads, self._take_in)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep deadlines and streams until cancelled."""
        async with self._tasks.open():
            task_status.started()
            await self._driver.run()

    def may_begin(self, gid: bytes) -> bool:
        """Whether :meth:`begin` is possible now."""
        return self._tasks.are_open and self.core.may_begin(gid)

    def note_over(self, gid: bytes) -> None:
        """This node committed it in an earlier life."""
        self.core.note_over(gid, self._now())

    def begin(self, begin: events.Begin, cargo: Cargo, maker: Maker = _NO_MAKER) -> None:
        """Begin a run; with witnesses the cargo is a ``maker``.

        Raises LocalProtocolError: out of its limits.
        """
        run = _Running(begin, cargo, maker, frozenset(begin.members) - {self._self_id})
        self._runs[begin.gid] = run
        self._patience.hearsay.note_begun()
        try:
            self._driver.feed(begin)
        except SwarmNodeError:
            del self._runs[begin.gid]
            raise

    def give_up(self, gid: bytes, why: str) -> None:
        """End a run here; the others go on. Nothing happens if it is over."""
        self._driver.feed(events.Failed(gid, why))

    def lose(self, peer: PeerId, gid: bytes) -> None:
        """Go on without a member."""
        self._driver.feed(events.PeerLost(peer, gid))

    def hold(self, gid: bytes, peer: PeerId, behind_s: float) -> None:
        """Keep the roll open for a member that has to catch up, if it still is."""
        self._driver.feed(events.Behind(gid, peer, behind_s))

    def refuse(self, peer: PeerId, gid: bytes, why: str) -> None:
        """Tell a peer not to wait for this node in a run that did not begin here."""
        if self._tasks.are_open:
            self._post(peer).say(wire.Leave(gid, why))

    def is_enlisting(self, gid: bytes) -> bool:
        """Whether this run still waits for members; nothing was taken from the worker then."""
        return gid in self._runs and self._runs[gid].is_enlisting

    def members_changed(self) -> None:
        """Go on without the members that the failure detector has given up."""
        members = {peer for run in self._runs.values() for peer in run.members}
        for peer in sorted(members - set(self._live())):
            self._lost(peer)

    def statistics(self) -> GroupStatistics:
        """Return the counters of the core."""
        return self.core.statistics()

    @property
    def sent_bytes(self) -> int:
        """Of payloads, since the start."""
        return self._sent_bytes + sum(post.sent_bytes for post in self._posts.values())

    # --- effects of the core -----------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        if not self._tasks.are_open:
            return
        if isinstance(effect, events.Send):
            self._post(effect.peer).say(effect.message)
        elif isinstance(effect, events.HeldRound):
            self._held(effect.peer, effect.held_s)
        elif isinstance(effect, events.CutApart | events.Named):
            self._patience.note_said(effect, self._now())
            _log.info("a member says that others are gone", peer=effect.peer.short)
        elif isinstance(effect, events.AskAlive):
            if not self._is_arriving(effect.peer) and effect.peer not in self._asked:
                self._asked.add(effect.peer)
                self._tasks.start_while_open(self._ask_alive, effect.peer)
        elif effect.gid in self._runs:
            self._carry_out_for(self._runs[effect.gid], effect)

    def _carry_out_for(self, run: _Running, effect: events.Effect) -> None:
        match effect:
            case events.TakePayload():
                run.is_enlisting = False
                self._start(run, self._load)
            case events.UsePlan(_, plan, n_pieces, contributors):
                run.plan = plan
                run.cargo.use_plan(plan, n_pieces, contributors)
            case events.SendShare(gid, peer, plan, piece, weight):
                header = wire.Share(gid, piece, weight, plan)
                self._send(run, peer, header, self._share_later(run, header))
            case events.SendSum(gid, peer, plan, piece):
                parts = run.cargo.sum(piece)  # as of now: a later plan has others
                self._send(run, peer, wire.Sum(gid, plan, piece), at_once(parts))
            case events.KeepShare(_, peer, piece):
                run.cargo.keep_share(peer, piece, self._arriving)
            case events.KeepSum(_, _, piece):
                run.cargo.keep_sum(piece, self._arriving)
            case events.Reduce():
                self._start(run, self._reduce, effect)
            case events.Witness():
                self._start(run, self._witness, effect)
            case events.Assemble(plan=plan):
                self._start(run, self._assemble, plan)
            case events.Commit():
                self._end(run)
                run.cargo.committed(effect)
            case events.Abort():
                self._end(run)
                run.cargo.aborted(effect)

    def _end(self, run: _Running) -> None:
        """Let no task touch the cargo any more."""
        run.is_over = True
        del self._runs[run.begin.gid]
        for scope in run.scopes:
            scope.cancel()
        for peer in [peer for peer, post in self._posts.items() if post.is_idle]:
            self._sent_bytes += self._posts.pop(peer).sent_bytes

    def _start(self, run: _Running, work: Callable[..., Awaitable[None]], *args: object) -> None:
        scope = trio.CancelScope()
        run.scopes.add(scope)

        async def supervise() -> None:
            try:
                with scope:
                    await work(run, *args)
            except WorkerError as error:
                self.give_up(run.begin.gid, str(error))
            finally:
                run.scopes.discard(scope)

        self._tasks.start_while_open(supervise)

    def _is_arriving(self, peer: PeerId) -> bool:
        """Whether more of a payload of this peer has come: it is there, and the core is told."""
        if peer in self._incoming:
            gid, stream, seen = self._incoming[peer]
            self._incoming[peer] = gid, stream, stream.state.arrived_bytes
            if stream.state.arrived_bytes > seen:
                self._patience.note_heard(peer)
                self._driver.feed(events.Arriving(gid, peer))
                return True
        return False

    async def _ask_alive(self, peer: PeerId) -> None:
        """Find out whether a member that is waited for is there; its worker may be slow."""
        began, limit_s = self._now(), self._patience.answer_s(peer)
        try:
            if peer in self._partners.sessions:  # else what watches the session tells
                await self._partners.sessions[peer].request(ALIVE_SERVICE, b"", deadline_s=limit_s)
                self._patience.note_answer(peer, self._now() - began)
        except DeadlineExceeded:
            waited_s = self._now() - began
            if self._patience.note_silent(peer, waited_s, self._now()):
                _log.info("a member is silent", peer=peer.short, waited_s=round(waited_s, 2))
                self._driver.feed(events.PeerSilent(peer))
        except SwarmNodeError as error:
            _log.debug("not asked", peer=peer.short, why=str(error))
        finally:
            self._asked.discard(peer)

    async def _load(self, run: _Running) -> None:
        weight = await run.cargo.load()
        run.loaded.set()
        self._driver.feed(events.Loaded(run.begin.gid, weight))

    async def _reduce(self, run: _Running, effect: events.Reduce) -> None:
        await run.loaded.wait()
        await run.cargo.reduce(effect.plan, effect.piece, effect.contributors, effect.weights)
        self._driver.feed(events.Reduced(effect.gid, effect.plan, effect.piece))

    async def _witness(self, run: _Running, effect: events.Witness) -> None:
        await run.loaded.wait()
        if effect.plan == run.plan:
            hashes = await run.maker.witness(effect)
            self._driver.feed(events.Witnessed(effect.gid, effect.plan, hashes))

    async def _assemble(self, run: _Running, plan: bytes) -> None:
        await run.loaded.wait()
        if plan != run.plan:
            return
        result = await run.cargo.assemble()
        if plan != run.plan or run.is_over:  # a nursery that closes feels no end of its scope
            return  # members left meanwhile: another mean is made, and of this one nothing is here
        hashes = await run.maker.hashes()
        self._driver.feed(events.Assembled(run.begin.gid, plan, result, hashes))

    # --- sending -------------------------------------------------------------------------------

    def _post(self, peer: PeerId) -> Post:
        if peer not in self._posts:
            self._posts[peer] = Post(
                peer,
                self._names,
                self._partners,
                self._tasks,
                self.rate,
                now=self._now,
                opened=self._watch,
                lost=self.lose,
            )
        return self._posts[peer]

    def _send(
        self,
        run: _Running,
        peer: PeerId,
        header: wire.Share | wire.Sum,
        load: Callable[[], Awaitable[Payload]],
    ) -> None:
        limit_s = _PATIENCE * run.begin.transfer_s

        def is_wanted() -> bool:
            return not run.is_over and run.plan == header.plan

        self._post(peer).send(Parcel(header, load, is_wanted, limit_s))

    def _share_later(self, run: _Running, header: wire.Share) -> Callable[[], Awaitable[Payload]]:
        async def load() -> Payload:
            with trio.CancelScope() as scope:
                run.scopes.add(scope)
                try:
                    await run.loaded.wait()
                    if run.plan == header.plan:
                        return run.cargo.share(header.piece)
                finally:
                    run.scopes.discard(scope)
            return ()  # the run is over, or has another plan: it is not wanted

        return load

    # --- what comes ------------------------------------------------------------------------------

    async def _hear(self, session: Session, stream: Stream) -> None:
        """Take in words until the peer has none for a while."""
        self._watch(session)
        with self._closing_if_rules_break(session):
            while True:
                try:
                    header, _ = await stream.receive_message(max_bytes=0)
                except trio.EndOfChannel:
                    return
                self._patience.note_heard(session.peer)
                message: wire.Message = decode_record(header, MESSAGE)
                if isinstance(message, wire.Share | wire.Sum):
                    raise MalformedMessage("a payload needs a stream of its own")
                if message.gid not in self._runs:
                    self._called(session.peer, message)
                self._driver.feed(events.Received(session.peer, message))

    async def _take_in(self, session: Session, stream: Stream) -> None:
        """Take in one payload, one at a time of each peer."""
        self._watch(session)
        peer = session.peer
        with self._closing_if_rules_break(session):
            async with self._reading.setdefault(peer, trio.Lock()):
                header = await receive_header(stream)
                if header.gid not in self._runs or not self.core.expects(peer, header):
                    raise Refused("this payload is not wanted here")
                run = self._runs[header.gid]
                with trio.CancelScope() as scope:
                    run.scopes.add(scope)
                    self._incoming[peer] = (header.gid, stream, 0)
                    try:
                        payload = await run.cargo.receive(stream, header)
                    except RemoteProtocolError:
                        raise
                    except SwarmNodeError as error:
                        log = _log.warning if isinstance(error, Refused) else _log.debug
                        log("a payload does not count", peer=peer.short, why=str(error))
                        self.lose(peer, header.gid)
                        raise
                    finally:
                        run.scopes.discard(scope)
                        self._incoming.pop(peer, None)
                if scope.cancelled_caught:
                    raise Refused("the run is over")
                self._arriving = payload
                try:
                    self._driver.feed(events.Received(peer, header))
                finally:
                    self._arriving = ()
                self.received_bytes += sum(map(len, payload))

    def _watch(self, session: Session) -> None:
        """Tell the core when this session ends."""
        if self._tasks.are_open and session not in self._watched:
            self._watched.add(session)
            self._tasks.start_while_open(self._wait_for_the_end, session)

    async def _wait_for_the_end(self, session: Session) -> None:
        await session.wait_closed()
        self._watched.discard(session)
        peer, sessions = session.peer, self._partners.sessions
        if peer not in sessions or sessions[peer].is_closed:
            self._reading.pop(peer, None)
            self._lost(peer)

    def _lost(self, peer: PeerId) -> None:
        self._patience.hearsay.note_gone(peer)
        self._driver.feed(events.PeerLost(peer))

    @contextlib.contextmanager
    def _closing_if_rules_break(self, session: Session) -> Iterator[None]:
        """Be done with a peer that breaks a rule in this block; the error goes on."""
        try:
            yield
        except RemoteProtocolError as error:
            _log.warning("a member broke a rule", peer=session.peer.short, why=str(error))
            self._driver.feed(events.PeerLost(session.peer))
            self._tasks.start_while_open(session.aclose, str(error))
            raise
