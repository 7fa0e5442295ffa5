"""Exchanges over sessions: the Trio shell of ``protocol/gossip/exchange.py``.

One exchange is one bulk stream that the initiator opens; all its messages go
over that stream in order. A message that has no stream (STATUS after a session
was lost) goes as a request of its own, answered with nothing: the core sees
the same messages either way.

::

    trainer --snapshot_ready--> core --StartTransfer--> Transfer (codec, slot)
    core --Commit--> trainer.apply     core --Abort--> trainer.release

A slot is the *spare* (offered to nobody, to be had by whoever offers) or the
*lease* (the core holds it), and goes back to the worker from either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver
from swarmnode.daemon.lane import Lane, decode_message
from swarmnode.daemon.transfer import Transfer
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
from swarmnode.net.services import ScopedServices
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.events import Snapshot
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.matching import candidates
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.codec import Codec
from swarmnode.wire import gossip as wire
from swarmnode.wire.gossip import reason_code
from swarmnode.wire.packing import encode_record
from swarmnode.wire.session import Priority

EXCHANGE_SERVICE = "exchange/1"
MESSAGE_SERVICE = "exchange-message/1"
_log = get_logger(__name__)


@dataclass(frozen=True)
class SlotLease:
    """A snapshot that the worker lent: what the core is told of it, and its memory."""

    snapshot: Snapshot
    view: memoryview


@dataclass
class ExchangeTotals:
    """Sums over committed exchanges, for metrics."""

    committed: int = 0
    duration_s: float = 0.0
    encode_s: float = 0.0
    requantize_s: float = 0.0
    merge_s: float = 0.0
    payload_sent_bytes: int = 0
    payload_received_bytes: int = 0

    def phases(self) -> dict[str, float]:
        """Seconds in the codec so far, by what it did."""
        return {
            "encode_s": self.encode_s,
            "requantize_s": self.requantize_s,
            "merge_s": self.merge_s,
        }

    def add(self, transfer: Transfer) -> None:
        """Count one committed transfer."""
        self.committed += 1
        self.encode_s += transfer.times.encode_s
        self.requantize_s += transfer.times.requantize_s
        self.merge_s += transfer.times.merge_s
        self.payload_sent_bytes += transfer.sent_bytes
        self.payload_received_bytes += transfer.received_bytes


class Partners(Protocol):
    """Who may be a partner, and how to talk to it."""

    @property
    def sessions(self) -> Mapping[PeerId, Session]:
        """With our neighbours."""

    def partners(self) -> tuple[PeerId, ...]:
        """Return who trains now, ourselves included, in id order."""


class Exchanges:
    """Offers, answers and carries out exchanges, one at a time.

    Args:
        apply: the worker shall merge this slot, the result of this exchange.
        release: the slot is the worker's again.
        record: one line of history.
        lost: this exchange has committed, but the worker that was to merge it is gone.
    """

    def __init__(
        self,
        *,
        self_id: PeerId,
        swarm_id: bytes,
        partners: Partners,
        services: ScopedServices,
        codec: Codec,
        env: Env,
        apply: Callable[[int, bytes], None],
        release: Callable[[int], None],
        record: Callable[[events.Finished], None],
        lost: Callable[[bytes], None],
    ) -> None:
        self._self_id = self_id
        self._swarm_id = swarm_id
        self._neighbours = partners
        self._codec = codec
        self._env = env
        self._apply = apply
        self._release = release
        self._record = record
        self._lost = lost
        self.core = ExchangeCore(self_id, env.rng)
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self.core, self._carry_out, now=env.monotonic
        )
        self._lease: SlotLease | None = None
        self._spare: SlotLease | None = None
        self._lanes: dict[bytes, Lane] = {}
        self._current: Lane | None = None  # that of the exchange in flight
        self._merge_next: int | None = None
        self._transfer_mean_s: float | None = None
        self._slow_until: dict[PeerId, float] = {}  # pruned: each takes a timeout
        self._draining = False
        self._ended = trio.Event()
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
            task_status.started()
            try:
                await self._driver.run()
            finally:
                self._nursery = None  # lanes end after this, and nobody is left to be told

    # --- the worker's side ----------------------------------------------------------------

    def snapshot_ready(self, lease: SlotLease) -> None:
        """Offer a fresh snapshot; an older one that is unused goes back.

        Whatever is declined stays to be had by others until the next snapshot, so each
        snapshot is exchanged at most once, and with enough peers about once.
        """
        self._drop_spare()
        if self._draining:
            self._release(lease.snapshot.slot)
            return
        self._make_spare(lease)
        self._begin()

    def partners_changed(self) -> None:
        """There may be somebody to offer to: a snapshot may have waited for that."""
        self._begin()

    def _begin(self) -> None:
        lease = self._spare
        if lease is None or not self.core.is_ready_to_begin:
            return
        partners = self._partners(lease.snapshot.round)
        if partners:
            self._lease, self._spare = lease, None
            self._driver.feed(events.Begin(partners, self._transfer_limit_s(lease)))

    def _make_spare(self, lease: SlotLease) -> None:
        self._spare = lease
        self._driver.feed(events.Available(lease.snapshot, self._transfer_limit_s(lease)))

    def _drop_spare(self) -> None:
        """Give back a snapshot that nobody uses: it is out of date."""
        if self._spare is not None:
            spare, self._spare = self._spare, None
            self._driver.feed(events.Unavailable())
            self._release(spare.snapshot.slot)

    async def drain(self) -> None:
        """Offer and accept nothing more; return when no exchange runs."""
        self._draining = True
        self._drop_spare()
        if self._current is not None and self._current.transfer is None:
            self.give_up("leaving")  # nobody has accepted yet
        while self._current is not None:
            self._ended = trio.Event()
            await self._ended.wait()

    def give_up(self, why: str) -> None:
        """Abort what runs, unless the decision is the partner's already."""
        if self._current is not None:
            self._driver.feed(events.LocalFailed(self._current.xid, why))

    def worker_lost(self) -> None:
        """The worker died with its slots: whatever runs is over, nothing is given back."""
        self._spare = self._lease = None
        self._driver.feed(events.Unavailable())
        if self._current is not None and self._current.transfer is not None:
            self._current.transfer.end()
        self.give_up("the worker went away")

    def _partners(self, round_number: int) -> tuple[PeerId, ...]:
        members = self._neighbours.partners()
        ordered = candidates(
            self._self_id, self._swarm_id, round_number, members, limit=len(members)
        )
        reachable = [peer for peer in ordered if self._is_reachable(peer)]
        # While a slow one is asked, for seconds, others that offer find us busy.
        quick = [peer for peer in reachable if not self._is_slow(peer)]
        return tuple((quick or reachable)[: limits.EXCHANGE_CANDIDATES_MAX])

    def _is_reachable(self, peer: PeerId) -> bool:
        session = self._neighbours.sessions.get(peer)
        return session is not None and not session.is_suspended

    def _is_slow(self, peer: PeerId) -> bool:
        return self._env.monotonic() < self._slow_until.get(peer, 0.0)

    def _transfer_limit_s(self, lease: SlotLease) -> float:
        """Five times what it usually takes; before the first one, a slow home uplink's time."""
        if self._transfer_mean_s is not None:
            return limits.EXCHANGE_TRANSFER_S_MIN + 5 * self._transfer_mean_s
        payload_bytes = self._codec.payload_bytes(len(lease.view) // 4)
        return limits.EXCHANGE_TRANSFER_S_MIN + payload_bytes / limits.EXCHANGE_RATE_BYTES_PER_S_MIN

    # --- effects of the core --------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Send(peer, message):
                self._send(peer, message)
            case events.StartTransfer(xid=xid):
                self._start_transfer(self._lanes[xid], effect.slot)
            case events.MergeChunk(index=index):
                self._merge_next = index
            case events.Commit(xid, slot):
                self._committed(slot, xid)
            case events.Abort(slot=slot):
                self._aborted(slot)
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

    def _start_transfer(self, lane: Lane, slot: int) -> None:
        if self._lease is None:  # we answer an offer: with what was to be had
            self._lease, self._spare = self._spare, None
        assert self._lease is not None
        assert self._lease.snapshot.slot == slot
        self._current = lane
        lane.start(Transfer(self._lease.view, self._codec))

    def _end_transfer(self) -> Transfer | None:
        """Let nobody touch the slot any more; return the transfer if there was one."""
        transfer = self._current.transfer if self._current is not None else None
        if transfer is not None:
            transfer.end()
        return transfer

    def _committed(self, slot: int, xid: bytes) -> None:
        transfer = self._end_transfer()
        assert transfer is not None
        lease, self._lease = self._lease, None
        self.totals.add(transfer)
        self._drop_spare()  # it was taken before this exchange: the core wants a newer one
        if lease is None:
            self._lost(xid)  # it died after READY: nobody is left to merge it
        else:
            self._apply(slot, xid)

    def _aborted(self, slot: int) -> None:
        transfer = self._end_transfer()
        lease, self._lease = self._lease, None
        if lease is None:
            return  # the worker that owned it is gone
        assert lease.snapshot.slot == slot
        if transfer is None and self._spare is None and not self._draining:
            # Nobody took the offer: whoever comes may still have this snapshot.
            self._make_spare(lease)
        else:
            self._release(slot)

    def _finished(self, effect: events.Finished) -> None:
        if self._current is not None:
            # What the core still says of it, in this same batch of effects, leaves all the same.
            self._current.finish()
            self._current = None
        if reason_code(effect.reason) == "timeout":
            now = self._env.monotonic()
            self._slow_until = {p: until for p, until in self._slow_until.items() if until > now}
            self._slow_until[effect.peer] = now + limits.PARTNER_SLOW_S
        if effect.outcome == "committed":
            self._slow_until.pop(effect.peer, None)
            took_s = effect.ended - effect.started
            mean = self._transfer_mean_s
            self._transfer_mean_s = took_s if mean is None else 0.8 * mean + 0.2 * took_s
            self.totals.duration_s += took_s
        self._ended.set()
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
        """Take a message of the partner; merge the chunk if that is what it is."""
        wanted = self._receive(lane.peer, message)
        if wanted is None:
            return
        assert lane.transfer is not None
        try:
            await lane.transfer.merge(wanted, payload)
        except MalformedMessage as error:
            self._driver.feed(events.LocalFailed(lane.xid, str(error)))
            raise
        self._check_complete(lane)

    def _receive(self, peer: PeerId, message: wire.Message) -> int | None:
        """Give the core a message; return the index of the chunk that it wants merged now."""
        self._merge_next = None
        self._driver.feed(events.Received(peer, message))
        return self._merge_next

    def chunk_sent(self, lane: Lane) -> None:
        """Note that one more of our chunks has left."""
        self._check_complete(lane)

    def cannot_encode(self, lane: Lane, why: str) -> None:
        """Abort: the worker's values are not finite."""
        self._driver.feed(events.LocalFailed(lane.xid, why))

    def _check_complete(self, lane: Lane) -> None:
        if lane is self._current and lane.transfer is not None and lane.transfer.is_complete:
            self._driver.feed(events.LocalDone(lane.xid))

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
