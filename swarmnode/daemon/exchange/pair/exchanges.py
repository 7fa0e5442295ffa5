"""Exchanges in pairs over sessions: the Trio shell of ``protocol/gossip/exchange.py``.

One exchange is one bulk stream that the initiator opens; all its messages go
over that stream in order. A message that has no stream (STATUS after a session
was lost) goes as a request of its own, answered with nothing: the core sees
the same messages either way.

::

    PostedIntent --Available, Begin--> core
    core --StartTransfer--> Lessor.borrow -> Transfer (codecs, slot)
    all is there --> Lessor.weigh -> LocalDone, or LocalFailed: it is refused
    core --Commit--> Lessor.apply     core --Abort--> Lessor.give_back

Each intent is offered once, as soon as there is a place for its exchange and a peer can be
reached. What none took then waits for peers that offer; but an intent for a random neighbour goes
back to the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.daemon.exchange.pair.intents import PairIntents, PartnerChoice, for_core
from swarmnode.daemon.exchange.pair.transfer import (
    ExchangeStream,
    ExchangeTotals,
    Transfer,
    decode_message,
    receive_offer,
)
from swarmnode.daemon.membership.swarm import Communicator
from swarmnode.daemon.worker.leases import BufferLease, NoLease, WeighingLessor
from swarmnode.errors import (
    ChannelBroken,
    LocalProtocolError,
    MalformedMessage,
    Overloaded,
    Refused,
    RemoteProtocolError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.names import HONEST_REFUSALS, UNSEEN_REFUSALS
from swarmnode.ipc.records import Partner
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.patience import Patience
from swarmnode.protocol.trust import Seen
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.codec import Codec
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.packing import encode_record
from swarmnode.wire.session import Priority

EXCHANGE_SERVICE = "exchange/1"
MESSAGE_SERVICE = "exchange-message/1"
_log = get_logger("swarmnode.daemon.exchange")


@dataclass(eq=False)
class _Side:
    """Our side of the exchange that runs: what was agreed on, and the slot once it is lent."""

    intent: PostedIntent
    partner: Partner
    round: int  # the partner's
    transfer: Transfer
    lease: BufferLease | None = None
    is_over: bool = False
    is_useful: bool = False  # what came is no worse for this node's model, which takes some of it
    borrowing: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def lent(self) -> BufferLease:
        """The slot, of which something was sent or received."""
        assert self.lease is not None, "bytes come and go after it was lent"
        return self.lease

    def end(self) -> None:
        """Touch the slot no more, and wait for none."""
        self.is_over = True
        self.transfer.end()
        self.borrowing.cancel()


class Exchanges:
    """The IntentHandler of pairs: offers, answers and carries out exchanges.

    Args:
        topology: the graph of members that meet, as the manifest names it.
        codec: of views that name none.
        lessor: lends the worker's slots.
        record: one line of history.
        lost: this exchange has committed, but the worker that was to merge it is gone.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        swarm_id: bytes,
        topology: str,
        codec: Codec,
        lessor: WeighingLessor,
        record: Callable[[events.Finished], None],
        lost: Callable[[bytes], None],
    ) -> None:
        self_id, env = communicator.self_id, communicator.env
        self._neighbours = communicator.partners
        self._lessor = lessor
        self._record = record
        self._lost = lost
        self._env = env
        self._trust = communicator.trust
        self._conduct = ConductTable(self._trust)
        self._choice = PartnerChoice(self_id, swarm_id, topology, self._conduct, env)
        self.core = ExchangeCore(self_id, communicator.key, env.rng, Patience(self._conduct))
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self.core, self._carry_out, now=env.monotonic
        )
        self._intents = PairIntents(codec)
        self._streams: dict[bytes, ExchangeStream] = {}
        self._in_flight: dict[bytes, ExchangeStream] = {}  # of those, whose exchange is not over
        self._sides: dict[bytes, _Side] = {}  # of these, from StartTransfer on
        self._to_merge: list[int] = []  # chunks that came with the message that is handled now
        self._transfer_mean_s: float | None = None
        self._draining = False
        self._ended = trio.Event()
        self._may_begin = trio.Event()
        self.totals = ExchangeTotals()
        self._tasks = Tasks()
        services = communicator.services
        self._exchange_name = services.name(EXCHANGE_SERVICE)
        self._message_name = services.name(MESSAGE_SERVICE)
        services.add_stream(EXCHANGE_SERVICE, self._serve_stream)
        services.add_request(MESSAGE_SERVICE, self._answer_message)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the core's deadlines and its transfers until cancelled."""
        async with self._tasks.open():  # streams end after this, and no one is left to be told
            self._tasks.start_while_open(self._keep_beginning)
            task_status.started()
            await self._driver.run()

    # --- as an IntentHandler -----------------------------------------------------------------

    def intent_posted(self, intent: PostedIntent) -> None:
        """Offer an intent when there is a place for it, keep an answer for peers that ask."""
        why = "local: leaving" if self._draining else self._intents.refusal(intent)
        if why:
            log = _log.debug if self._draining else _log.error
            log("an intent that no pair serves", tag=intent.tag, why=why)
            if not intent.is_open:
                self._lessor.drop(intent, why)
            return
        self._intents.add(intent)
        self._driver.feed(
            events.Available(
                for_core(intent, self._intents.payload_bytes(intent)),
                self._transfer_limit_s(intent),
            )
        )
        self._may_begin.set()

    def worker_gone(self) -> None:
        """The worker died with its intents and slots: whatever runs is over."""
        self._intents.take_all()
        self._driver.feed(events.Unavailable())
        for side in self._sides.values():
            side.transfer.end()
        self.give_up("the worker went away")

    def partners_changed(self) -> None:
        """There may be a peer to offer to: an intent may have waited for that."""
        self._may_begin.set()

    # --- offering -------------------------------------------------------------------------

    async def _keep_beginning(self) -> None:
        """A task of its own, so that no effect of the core begins another exchange."""
        while True:
            await self._may_begin.wait()
            self._may_begin = trio.Event()
            self._begin()

    def _begin(self) -> None:
        """Offer the oldest intent that was not tried yet and that a peer may want."""
        for intent in self._intents.untried():
            if not self.core.may_begin((intent.tag, intent.fragment), self._env.monotonic()):
                continue
            members, reachable = self._choice.among(intent, self._neighbours)
            self._neighbours.want(self._choice.sought(intent, members, reachable))
            candidates = self._choice.candidates(intent, members, reachable)
            if candidates and all(map(self.core.is_exchanging_with, candidates)):
                continue  # its turn comes when one of these ends
            if candidates:
                self._intents.note_tried(intent)
                limit_s = self._transfer_limit_s(intent)
                self._driver.feed(events.Begin(intent.tag, intent.fragment, candidates, limit_s))
            elif intent.selector == "neighbour":
                self._take_back(intent, "unreachable: no neighbour is connected")

    def _transfer_limit_s(self, intent: PostedIntent) -> float:
        """Two steps' time for the views, and five times what an exchange usually takes.

        Before the first one, a slow home uplink's time.
        """
        limit_s = limits.EXCHANGE_VIEW_S + limits.EXCHANGE_TRANSFER_S_MIN
        if self._transfer_mean_s is not None:
            return limit_s + 5 * self._transfer_mean_s
        payload_bytes = self._intents.payload_bytes(intent)
        return limit_s + payload_bytes / limits.EXCHANGE_RATE_BYTES_PER_S_MIN

    def _take_back(self, intent: PostedIntent, why: str) -> None:
        """Give up an intent that was promised to no peer."""
        self._intents.remove(intent.number)
        self._driver.feed(events.Unavailable(intent.number))
        self._lessor.drop(intent, why)

    # --- the end of it --------------------------------------------------------------------

    async def drain(self) -> None:
        """Offer and accept nothing more; return when no exchange runs."""
        self._draining = True
        for intent in self._intents.take_all():
            self._lessor.drop(intent, "local: leaving")
        self._driver.feed(events.Unavailable())
        for xid in set(self._in_flight) - set(self._sides):
            self._driver.feed(events.LocalFailed(xid, "local: leaving"))  # not accepted yet
        while self._in_flight:
            self._ended = trio.Event()
            await self._ended.wait()

    def give_up(self, why: str, *, is_last: bool = False) -> None:
        """Abort what runs, unless the decision is the partner's already and can be waited for."""
        for xid in list(self._in_flight):
            self._driver.feed(events.LocalFailed(xid, f"local: {why}", is_last))

    # --- effects of the core --------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Send(peer, message):
                self._send(peer, message)
            case events.StartTransfer():
                self._start_transfer(self._streams[effect.xid], effect)
            case events.MergeChunk(index=index):
                self._to_merge.append(index)
            case events.Commit(xid):
                self._committed(xid)
            case events.Abort(xid, why):
                self._aborted(xid, why)
            case events.Untaken(number, why):
                self._untaken(number, why)
            case events.Finished():
                self._finished(effect)

    def _send(self, peer: PeerId, message: wire.Message) -> None:
        if not self._tasks.are_open:
            return
        if isinstance(message, wire.Offer):
            exchange = ExchangeStream(peer, message.xid)
            self._streams[message.xid] = self._in_flight[message.xid] = exchange
            exchange.post(message)
            self._tasks.start_while_open(self._open_stream, exchange)
        elif self._has_stream(peer, message.xid):
            self._streams[message.xid].post(message)
        else:
            self._tasks.start_while_open(self._send_alone, peer, message)

    def _has_stream(self, peer: PeerId, xid: bytes) -> bool:
        if xid not in self._streams:
            return False
        known = self._streams[xid]
        return known.peer == peer and known.takes_messages

    def _start_transfer(self, exchange: ExchangeStream, start: events.StartTransfer) -> None:
        # Of one whose place another has taken the worker will not lend.
        intent = self._intents.find(start.number)
        if self._intents.is_kept(start.number) and not intent.is_open:
            self._intents.remove(start.number)
        theirs = start.theirs
        partner = Partner(
            start.peer, theirs.step, theirs.tokens, theirs.weight, theirs.base_version
        )
        transfer = Transfer(self._intents.pieces(intent))
        side = self._sides[exchange.xid] = _Side(intent, partner, theirs.round, transfer)
        self._in_flight[exchange.xid] = exchange
        exchange.start(transfer)
        self._tasks.start_while_open(self._borrow, exchange, side)

    async def _borrow(self, exchange: ExchangeStream, side: _Side) -> None:
        """Get the slot at the worker's next step boundary, and begin to send."""
        with side.borrowing:
            try:
                lease = await self._lessor.borrow(side.intent, side.partner, side.round)
            except NoLease as error:
                if not side.is_over:
                    self._driver.feed(events.LocalFailed(exchange.xid, str(error)))
                return
            if side.is_over:
                self._lessor.give_back(lease, "the exchange is over")
                return
            side.lease = lease
            side.transfer.lend(lease.own, lease.room, lease.weights)
            self._driver.feed(events.ViewLent(exchange.xid))
            exchange.wake()

    def _committed(self, xid: bytes) -> None:
        side = self._sides.pop(xid)
        side.end()
        self.totals.add(side.transfer)
        if side.is_useful:
            self._note(PeerId(side.partner.peer), Seen.USEFUL)
        if not self._lessor.apply(side.lent, xid, side.partner):
            self._lost(xid)  # the worker died after READY: none is left to merge it

    def _aborted(self, xid: bytes, why: str) -> None:
        side = self._sides.pop(xid)
        side.end()
        if side.lease is not None:
            self._lessor.give_back(side.lease, why)

    def _untaken(self, number: int, why: str) -> None:
        if self._intents.is_kept(number) and self._intents.find(number).selector == "neighbour":
            self._take_back(self._intents.find(number), why)

    def _finished(self, effect: events.Finished) -> None:
        # What the core still says of it, in this same batch of effects, leaves all the same.
        self._in_flight.pop(effect.xid).finish()
        if effect.outcome == "committed":
            took_s = effect.ended - effect.started
            mean = self._transfer_mean_s
            self._transfer_mean_s = took_s if mean is None else 0.8 * mean + 0.2 * took_s
            self.totals.duration_s += took_s
        self._ended.set()
        self._may_begin.set()
        self._record(effect)

    # --- streams --------------------------------------------------------------------------

    async def _open_stream(self, exchange: ExchangeStream) -> None:
        with self._keeping(exchange):
            if exchange.peer not in self._neighbours.sessions:
                raise ChannelBroken(f"no session with {exchange.peer.short}")
            session = self._neighbours.sessions[exchange.peer]
            with self._closing_if_rules_break(session):
                stream = await session.open_stream(self._exchange_name, priority=Priority.BULK)
                await exchange.run(stream, self)

    async def _serve_stream(self, session: Session, stream: Stream) -> None:
        """A peer opened a stream: its first message must be an OFFER."""
        offer = await receive_offer(stream)
        if offer.xid in self._streams:
            raise MalformedMessage("expected a new OFFER", peer=str(session.peer))
        exchange = self._streams[offer.xid] = ExchangeStream(session.peer, offer.xid)
        with self._keeping(exchange), self._closing_if_rules_break(session):
            self._driver.feed(events.Received(session.peer, offer))
            if exchange.xid not in self._in_flight:
                exchange.finish()  # refused: the answer is in the outbox
            await exchange.run(stream, self)

    @contextlib.contextmanager
    def _keeping(self, exchange: ExchangeStream) -> Iterator[None]:
        """Keep a stream in the books while its block runs, and tell the core if it broke early.

        For the core a broken stream is the same as a lost peer; that of an exchange which is
        over, or never was, is nothing.
        """
        try:
            with exchange.scope:
                yield
        except SwarmNodeError as error:
            _note_broken(exchange, error)
        finally:
            # First out of the books: what the core says now cannot go over this stream.
            del self._streams[exchange.xid]
            if exchange.xid in self._in_flight:
                self._driver.feed(events.PeerLost(exchange.peer))

    @contextlib.contextmanager
    def _closing_if_rules_break(self, session: Session) -> Iterator[None]:
        """Be done with a peer that breaks a rule in this block; the error goes on."""
        try:
            yield
        except RemoteProtocolError as error:
            self._tasks.start_while_open(session.aclose, str(error))
            raise

    # --- as the owner of streams ---------------------------------------------------------

    async def heard(
        self, exchange: ExchangeStream, message: wire.Message, payload: memoryview
    ) -> None:
        """Take a message of the partner; decode the chunk if that is what it is."""
        for index in self._receive(exchange.peer, message):
            try:
                await self._sides[exchange.xid].transfer.take(index, payload)
            except MalformedMessage as error:
                self._note(exchange.peer, Seen.FAULTY)
                self._driver.feed(events.LocalFailed(exchange.xid, f"local: {error}"))
                raise
            self._check_complete(exchange)

    def _receive(self, peer: PeerId, message: wire.Message) -> list[int]:
        """Give the core a message; return the index of the chunk that it wants now, if any."""
        self._to_merge = []
        self._driver.feed(events.Received(peer, message))
        return self._to_merge

    def chunk_sent(self, exchange: ExchangeStream) -> None:
        """Note that one more of our chunks has left."""
        self._driver.feed(events.ChunkSent(exchange.xid))
        self._check_complete(exchange)

    def cannot_encode(self, exchange: ExchangeStream, why: str) -> None:
        """Abort: the worker's values are not finite."""
        self._driver.feed(events.LocalFailed(exchange.xid, f"local: {why}"))

    def _check_complete(self, exchange: ExchangeStream) -> None:
        if exchange.xid not in self._sides:
            return  # it is over
        side = self._sides[exchange.xid]
        if not side.transfer.is_complete:
            return
        side.transfer.measure()
        why = side.transfer.refusal()
        if why:
            self._refuse(exchange, why, is_fault=True)
        else:
            self._tasks.start_while_open(self._weigh, exchange, side)

    async def _weigh(self, exchange: ExchangeStream, side: _Side) -> None:
        """Ask the worker, between two of its steps, whether what came may count."""
        try:
            weighed = await self._lessor.weigh(side.lent, side.partner)
        except NoLease as error:
            if not side.is_over:
                self._driver.feed(events.LocalFailed(exchange.xid, str(error)))
            return
        self.totals.note_weighed(weighed)
        if side.is_over:
            return
        if weighed.refusal:
            is_fault = weighed.refusal not in HONEST_REFUSALS
            self._refuse(exchange, weighed.refusal, is_fault=is_fault)
        else:
            side.is_useful = weighed.is_useful
            self._driver.feed(events.LocalDone(exchange.xid))

    def _refuse(self, exchange: ExchangeStream, why: str, *, is_fault: bool) -> None:
        """Abort before this side is done: what was sent counts on neither side."""
        self.totals.refused += 1
        if is_fault:
            self._conduct.note_refused(exchange.peer, self._env.monotonic())
        if why not in UNSEEN_REFUSALS:
            self._note(exchange.peer, Seen.FAULTY if is_fault else Seen.REFUSED)
        _log.warning("a payload is refused", peer=exchange.peer.short, why=why)
        self._driver.feed(events.LocalFailed(exchange.xid, f"local: refused: {why}"))

    def _note(self, peer: PeerId, seen: Seen) -> None:
        self._trust.note(peer, seen, self._env.monotonic())

    # --- messages without a stream --------------------------------------------------------

    async def _send_alone(self, peer: PeerId, message: wire.Message) -> None:
        if peer not in self._neighbours.sessions:
            self._neighbours.want((peer,))
            return  # the core asks again, or the peer does
        try:
            await self._neighbours.sessions[peer].request(
                self._message_name, encode_record(message), deadline_s=limits.EXCHANGE_OFFER_S
            )
        except SwarmNodeError as error:
            _log.debug("no answer", peer=peer.short, to=type(message).__name__, why=str(error))

    async def _answer_message(self, peer: PeerId, payload: bytes) -> bytes:
        message = decode_message(payload)
        if isinstance(message, wire.Offer | wire.Chunk | wire.Accept | wire.Ready):
            raise MalformedMessage(f"{type(message).__name__} needs a stream", peer=str(peer))
        self._driver.feed(events.Received(peer, message))
        return b""


def _note_broken(exchange: ExchangeStream, error: SwarmNodeError) -> None:
    log = _log.error if isinstance(error, LocalProtocolError) else _log.info
    if isinstance(error, Refused | Overloaded):
        log = _log.debug  # a peer that is still coming up, or busy: nothing is wrong
    log("exchange broke", peer=exchange.peer.short, why=str(error))
