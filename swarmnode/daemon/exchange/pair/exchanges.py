"""Exchanges in pairs over sessions: the Trio shell of ``protocol/gossip/exchange.py``.

One exchange is one bulk stream that the initiator opens; all its messages go
over that stream in order. A message that has no stream (STATUS after a session
was lost) goes as a request of its own, answered with nothing: the core sees
the same messages either way.

::

    Wish --Available, Begin--> core --StartTransfer--> Lender.borrow -> Transfer (codecs, slot)
    core --Commit--> Lender.apply     core --Abort--> Lender.give_back

Each wish is offered once, as soon as no exchange runs and somebody can be reached. What nobody
took then waits for others who offer; but a wish for a random neighbour goes back to the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver
from swarmnode.daemon.exchange.pair.transfer import ExchangeTotals, Lane, Transfer, decode_message
from swarmnode.daemon.exchange.pair.wishes import PairWishes, PartnerChoice, for_core
from swarmnode.daemon.worker.loans import Lender, Loan, NoLoan
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    LocalProtocolError,
    MalformedMessage,
    Overloaded,
    Refused,
    RemoteProtocolError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Partner, Wish
from swarmnode.net.paths import cost_of
from swarmnode.net.services import ScopedServices
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.codec import Codec
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.exchange.gossip import reason_code
from swarmnode.wire.packing import encode_record
from swarmnode.wire.session import Priority

EXCHANGE_SERVICE = "exchange/1"
MESSAGE_SERVICE = "exchange-message/1"
_log = get_logger("swarmnode.daemon.exchange")


class Partners(Protocol):
    """Who may be a partner, and how to talk to it."""

    @property
    def sessions(self) -> Mapping[PeerId, Session]:
        """With our neighbours."""

    def partners(self) -> tuple[PeerId, ...]:
        """Return who trains now, ourselves included, in id order."""


def costs(partners: Partners) -> dict[PeerId, float]:
    """Return with whom there is a session that has a channel just now, and what its way costs."""
    return {
        peer: cost_of(session.channel_description)
        for peer, session in partners.sessions.items()
        if not session.is_suspended
    }


@dataclass(eq=False)
class _Side:
    """Our side of the exchange that runs: what was agreed on, and the slot once it is lent."""

    wish: Wish
    partner: Partner
    round: int  # the partner's
    transfer: Transfer
    loan: Loan | None = None
    is_over: bool = False
    borrowing: trio.CancelScope = field(default_factory=trio.CancelScope)

    def end(self) -> None:
        """Touch the slot no more, and wait for none."""
        self.is_over = True
        self.transfer.end()
        self.borrowing.cancel()


class Exchanges:
    """The WishTaker of pairs: offers, answers and carries out exchanges, one at a time.

    Args:
        key: 32 bytes that guard every exchange.
        topology: the graph of who meets whom that the manifest names.
        codec: of views that name none.
        lender: lends the worker's slots.
        record: one line of history.
        lost: this exchange has committed, but the worker that was to merge it is gone.
    """

    def __init__(
        self,
        *,
        self_id: PeerId,
        swarm_id: bytes,
        key: bytes,
        topology: str,
        partners: Partners,
        services: ScopedServices,
        codec: Codec,
        env: Env,
        lender: Lender,
        record: Callable[[events.Finished], None],
        lost: Callable[[bytes], None],
    ) -> None:
        self._neighbours = partners
        self._lender = lender
        self._record = record
        self._lost = lost
        self._choice = PartnerChoice(self_id, swarm_id, topology, env)
        self.core = ExchangeCore(self_id, key, env.rng)
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self.core, self._carry_out, now=env.monotonic
        )
        self._wishes = PairWishes(codec)
        self._offered: Wish | None = None  # what Begin was about, though it may be out of date
        self._lanes: dict[bytes, Lane] = {}
        self._current: Lane | None = None  # that of the exchange in flight
        self._side: _Side | None = None  # from its StartTransfer on
        self._merge_next: int | None = None
        self._transfer_mean_s: float | None = None
        self._draining = False
        self._ended = trio.Event()
        self._may_begin = trio.Event()
        self.totals = ExchangeTotals()
        self._nursery: trio.Nursery | None = None
        self._exchange_name = services.name(EXCHANGE_SERVICE)
        self._message_name = services.name(MESSAGE_SERVICE)
        services.add_stream(EXCHANGE_SERVICE, self._serve_stream)
        services.add_request(MESSAGE_SERVICE, self._answer_message)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the core's deadlines and its transfers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._keep_beginning)
            task_status.started()
            try:
                await self._driver.run()
            finally:
                self._nursery = None  # lanes end after this, and nobody is left to be told

    # --- as a WishTaker -------------------------------------------------------------------

    def wished(self, wish: Wish) -> None:
        """Offer a wish when nothing else runs, keep an answer for whoever asks."""
        why = "local: leaving" if self._draining else self._wishes.refusal(wish)
        if why:
            log = _log.debug if self._draining else _log.error
            log("a wish that no pair serves", tag=wish.tag, why=why)
            if not wish.is_open:
                self._lender.drop(wish, why)
            return
        self._wishes.add(wish)
        self._driver.feed(events.Available(for_core(wish), self._transfer_limit_s(wish)))
        self._may_begin.set()

    def worker_gone(self) -> None:
        """The worker died with its wishes and slots: whatever runs is over."""
        self._wishes.take_all()
        self._driver.feed(events.Unavailable())
        if self._side is not None:
            self._side.transfer.end()
        self.give_up("the worker went away")

    def partners_changed(self) -> None:
        """There may be somebody to offer to: a wish may have waited for that."""
        self._may_begin.set()

    # --- offering -------------------------------------------------------------------------

    async def _keep_beginning(self) -> None:
        """A task of its own, so that no effect of the core begins another exchange."""
        while True:
            await self._may_begin.wait()
            self._may_begin = trio.Event()
            self._begin()

    def _begin(self) -> None:
        """Offer the oldest wish that was not tried yet and that somebody may want."""
        for wish in self._wishes.untried():
            if not self.core.is_idle:
                return
            members = self._neighbours.partners()
            candidates = self._choice.candidates(wish, members, costs(self._neighbours))
            if candidates:
                self._wishes.note_tried(wish)
                self._offered = wish
                limit_s = self._transfer_limit_s(wish)
                self._driver.feed(events.Begin(wish.tag, wish.fragment, candidates, limit_s))
            elif wish.selector == "neighbour":
                self._take_back(wish, "unreachable: no neighbour is connected")

    def _transfer_limit_s(self, wish: Wish) -> float:
        """Two steps' time for the views, and five times what an exchange usually takes.

        Before the first one, a slow home uplink's time.
        """
        limit_s = limits.EXCHANGE_VIEW_S + limits.EXCHANGE_TRANSFER_S_MIN
        if self._transfer_mean_s is not None:
            return limit_s + 5 * self._transfer_mean_s
        payload_bytes = self._wishes.payload_bytes(wish)
        return limit_s + payload_bytes / limits.EXCHANGE_RATE_BYTES_PER_S_MIN

    def _take_back(self, wish: Wish, why: str) -> None:
        """Give up a wish that was promised to nobody."""
        self._wishes.remove(wish.number)
        self._driver.feed(events.Unavailable(wish.number))
        self._lender.drop(wish, why)

    # --- the end of it --------------------------------------------------------------------

    async def drain(self) -> None:
        """Offer and accept nothing more; return when no exchange runs."""
        self._draining = True
        for wish in self._wishes.take_all():
            self._lender.drop(wish, "local: leaving")
        self._driver.feed(events.Unavailable())
        if self._current is not None and self._side is None:
            self.give_up("leaving")  # nobody has accepted yet
        while self._current is not None:
            self._ended = trio.Event()
            await self._ended.wait()

    def give_up(self, why: str, *, is_last: bool = False) -> None:
        """Abort what runs, unless the decision is the partner's already and can be waited for."""
        if self._current is not None:
            self._driver.feed(events.LocalFailed(self._current.xid, f"local: {why}", is_last))

    # --- effects of the core --------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Send(peer, message):
                self._send(peer, message)
            case events.StartTransfer():
                self._start_transfer(self._lanes[effect.xid], effect)
            case events.MergeChunk(index=index):
                self._merge_next = index
            case events.Commit(xid):
                self._committed(xid)
            case events.Abort(why=why):
                self._aborted(why)
            case events.Untaken(number, why):
                self._untaken(number, why)
            case events.Finished():
                self._finished(effect)

    def _send(self, peer: PeerId, message: wire.Message) -> None:
        if self._nursery is None:
            return
        if isinstance(message, wire.Offer):
            lane = self._lanes[message.xid] = self._current = Lane(peer, message.xid)
            lane.post(message)
            self._nursery.start_soon(self._open_stream, lane)
            return
        known = self._lanes.get(message.xid)
        if known is not None and known.peer == peer and known.takes_messages:
            known.post(message)
        else:
            self._nursery.start_soon(self._send_alone, peer, message)

    def _start_transfer(self, lane: Lane, start: events.StartTransfer) -> None:
        wish = self._wishes.get(start.number)
        if wish is None:
            wish = self._offered  # another has taken its place: the worker will not lend
            assert wish is not None
        elif not wish.is_open:
            self._wishes.remove(start.number)
        theirs = start.theirs
        partner = Partner(
            start.peer, theirs.step, theirs.tokens, theirs.weight, theirs.base_version
        )
        transfer = Transfer(self._wishes.pieces(wish))
        self._side = side = _Side(wish, partner, theirs.round, transfer)
        self._current = lane
        lane.start(transfer)
        if self._nursery is not None:
            self._nursery.start_soon(self._borrow, lane, side)

    async def _borrow(self, lane: Lane, side: _Side) -> None:
        """Get the slot at the worker's next step boundary, and begin to send."""
        with side.borrowing:
            try:
                loan = await self._lender.borrow(side.wish, side.partner, side.round)
            except NoLoan as error:
                if not side.is_over:
                    self._driver.feed(events.LocalFailed(lane.xid, str(error)))
                return
            if side.is_over:
                self._lender.give_back(loan, "the exchange is over")
                return
            side.loan = loan
            side.transfer.lend(loan.own, loan.room, loan.weights)
            lane.wake()

    def _end_side(self) -> _Side:
        side, self._side = self._side, None
        assert side is not None
        side.end()
        return side

    def _committed(self, xid: bytes) -> None:
        assert self._side is not None
        self._side.transfer.measure()
        side = self._end_side()
        assert side.loan is not None
        self.totals.add(side.transfer)
        if not self._lender.apply(side.loan, xid, side.partner):
            self._lost(xid)  # the worker died after READY: nobody is left to merge it

    def _aborted(self, why: str) -> None:
        side = self._end_side()
        if side.loan is not None:
            self._lender.give_back(side.loan, why)

    def _untaken(self, number: int, why: str) -> None:
        wish = self._wishes.get(number)
        if wish is not None and wish.selector == "neighbour":
            self._take_back(wish, why)

    def _finished(self, effect: events.Finished) -> None:
        if self._current is not None:
            # What the core still says of it, in this same batch of effects, leaves all the same.
            self._current.finish()
            self._current = None
        if reason_code(effect.reason) == "timeout":
            self._choice.note_timeout(effect.peer)
        if effect.outcome == "committed":
            self._choice.note_commit(effect.peer)
            took_s = effect.ended - effect.started
            mean = self._transfer_mean_s
            self._transfer_mean_s = took_s if mean is None else 0.8 * mean + 0.2 * took_s
            self.totals.duration_s += took_s
        self._ended.set()
        self._may_begin.set()
        self._record(effect)

    # --- streams --------------------------------------------------------------------------

    async def _open_stream(self, lane: Lane) -> None:
        session = self._neighbours.sessions.get(lane.peer)
        with self._keeping(lane, session):
            if session is None:
                raise ChannelBroken(f"no session with {lane.peer.short}")
            stream = await session.open_stream(self._exchange_name, priority=Priority.BULK)
            await lane.run(stream, self)

    async def _serve_stream(self, session: Session, stream: Stream) -> None:
        """A peer opened a stream: its first message must be an OFFER."""
        offer = await _receive_offer(stream)
        if offer.xid in self._lanes:
            raise MalformedMessage("expected a new OFFER", peer=str(session.peer))
        lane = self._lanes[offer.xid] = Lane(session.peer, offer.xid)
        with self._keeping(lane, session):
            self._driver.feed(events.Received(session.peer, offer))
            if lane is not self._current:
                lane.finish()  # refused: the answer is in the outbox
            await lane.run(stream, self)

    @contextlib.contextmanager
    def _keeping(self, lane: Lane, session: Session | None) -> Iterator[None]:
        """Keep a lane in the books while its block runs, and tell the core if it broke early.

        For the core a broken stream is the same as a lost peer; that of an exchange which is
        over, or never was, is nothing.
        """
        try:
            with lane.scope:
                yield
        except SwarmNodeError as error:
            self._note_broken(lane, session, error)
        finally:
            # First out of the books: what the core says now cannot go over this stream.
            del self._lanes[lane.xid]
            if lane is self._current:
                self._driver.feed(events.PeerLost(lane.peer))

    def _note_broken(self, lane: Lane, session: Session | None, error: SwarmNodeError) -> None:
        log = _log.error if isinstance(error, LocalProtocolError) else _log.info
        if isinstance(error, Refused | Overloaded):
            log = _log.debug  # a peer that is still coming up, or busy: nothing is wrong
        log("exchange broke", peer=lane.peer.short, why=str(error))
        if isinstance(error, RemoteProtocolError) and session is not None and self._nursery:
            self._nursery.start_soon(session.aclose, str(error))

    # --- as the owner of lanes ------------------------------------------------------------

    async def heard(self, lane: Lane, message: wire.Message, payload: memoryview) -> None:
        """Take a message of the partner; decode the chunk if that is what it is."""
        wanted = self._receive(lane.peer, message)
        if wanted is None:
            return
        assert lane.transfer is not None
        try:
            await lane.transfer.take(wanted, payload)
        except MalformedMessage as error:
            self._driver.feed(events.LocalFailed(lane.xid, f"local: {error}"))
            raise
        self._check_complete(lane)

    def _receive(self, peer: PeerId, message: wire.Message) -> int | None:
        """Give the core a message; return the index of the chunk that it wants now."""
        self._merge_next = None
        self._driver.feed(events.Received(peer, message))
        return self._merge_next

    def chunk_sent(self, lane: Lane) -> None:
        """Note that one more of our chunks has left."""
        self._check_complete(lane)

    def cannot_encode(self, lane: Lane, why: str) -> None:
        """Abort: the worker's values are not finite."""
        self._driver.feed(events.LocalFailed(lane.xid, f"local: {why}"))

    def _check_complete(self, lane: Lane) -> None:
        if lane is not self._current or lane.transfer is None or not lane.transfer.is_complete:
            return
        why = lane.transfer.refusal()
        if why:
            self._refuse(lane, why)
        else:
            self._driver.feed(events.LocalDone(lane.xid))

    def _refuse(self, lane: Lane, why: str) -> None:
        """Abort before this side is done: what was sent counts on neither side."""
        self.totals.refused += 1
        self._choice.note_timeout(lane.peer)  # others are asked first for a while
        _log.warning("a payload is refused", peer=lane.peer.short, why=why)
        self._driver.feed(events.LocalFailed(lane.xid, f"local: refused: {why}"))

    # --- messages without a stream --------------------------------------------------------

    async def _send_alone(self, peer: PeerId, message: wire.Message) -> None:
        session = self._neighbours.sessions.get(peer)
        if session is None:
            return  # the core asks again, or the peer does
        try:
            await session.request(
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


async def _receive_offer(stream: Stream) -> wire.Offer:
    """Return the first message of a stream. Raises SwarmNodeError."""
    try:
        with trio.fail_after(limits.EXCHANGE_OFFER_S):
            header, _ = await stream.receive_message(max_bytes=0)
    except trio.TooSlowError as error:
        raise DeadlineExceeded("the OFFER of a new stream", limits.EXCHANGE_OFFER_S) from error
    except trio.EndOfChannel as error:
        raise MalformedMessage("expected an OFFER, got the end of the stream") from error
    message = decode_message(header)
    if not isinstance(message, wire.Offer):
        raise MalformedMessage(f"expected an OFFER first, got {type(message).__name__}")
    return message
