"""Exchanges over sessions: the Trio shell of ``protocol/gossip/exchange.py``.

One exchange is one bulk stream that the initiator opens; all its messages go
over that stream in order. A message that has no stream (STATUS after a session
was lost) goes as a request of its own, answered with nothing: the core sees
the same messages either way.

::

    trainer --snapshot_ready--> core --StartTransfer--> Transfer (codec, slot)
    core --Commit--> trainer.apply     core --Abort--> trainer.release
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver
from swarmnode.daemon.neighbours import Neighbours
from swarmnode.daemon.transfer import Transfer
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    MalformedMessage,
    RemoteProtocolError,
    SpecMismatch,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.events import Snapshot
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.matching import candidates
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.codec import Codec
from swarmnode.wire import gossip as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority, ResetCode

EXCHANGE_SERVICE = "exchange/1"
MESSAGE_SERVICE = "exchange-message/1"
_log = get_logger(__name__)


class Lane:
    """The stream of one exchange: messages of the core in order, our chunks between them."""

    def __init__(self, peer: PeerId, xid: bytes) -> None:
        self.peer = peer
        self.xid = xid
        self.transfer: Transfer | None = None
        self.outbox: deque[bytes] = deque()  # bounded: the core says a handful per exchange
        self.is_finished = False
        self._changed = trio.Event()

    def post(self, message: wire.Message) -> None:
        """Queue a message; it leaves before any chunk that is encoded later."""
        self.outbox.append(encode_record(message))
        self._changed.set()

    def start(self, transfer: Transfer) -> None:
        """From now on there are chunks to send."""
        self.transfer = transfer
        self._changed.set()

    def finish(self) -> None:
        """No more messages: our half of the stream ends once the outbox is empty."""
        self.is_finished = True
        self._changed.set()

    async def write(self, stream: Stream, sent: Callable[[Lane, Transfer], None]) -> None:
        """Write messages and chunks until finished; call ``sent`` after each chunk."""
        while True:
            while self.outbox:
                await stream.send_message(self.outbox.popleft())
            transfer = self.transfer
            chunk = transfer.encode_next() if transfer is not None else None
            if transfer is not None and chunk is not None:
                index, payload = chunk
                await stream.send_message(
                    encode_record(wire.Chunk(xid=self.xid, index=index)), payload
                )
                transfer.note_sent()
                sent(self, transfer)
            elif self.outbox:
                continue
            elif self.is_finished:
                await stream.send_end()
                return
            else:
                self._changed = trio.Event()
                await self._changed.wait()


@dataclass(frozen=True)
class SlotLease:
    """A snapshot that the worker lent: what the core is told of it, and its memory."""

    snapshot: Snapshot
    view: memoryview


@dataclass
class ExchangeTotals:
    """Sums over committed exchanges, for metrics."""

    committed: int = 0
    lost_with_worker: int = 0
    duration_s: float = 0.0
    encode_s: float = 0.0
    requantize_s: float = 0.0
    merge_s: float = 0.0
    payload_sent_bytes: int = 0
    payload_received_bytes: int = 0

    def add(self, transfer: Transfer) -> None:
        """Count one committed transfer."""
        self.committed += 1
        self.encode_s += transfer.times.encode_s
        self.requantize_s += transfer.times.requantize_s
        self.merge_s += transfer.times.merge_s
        self.payload_sent_bytes += transfer.sent_bytes
        self.payload_received_bytes += transfer.received_bytes


class Exchanges:
    """Offers, answers and carries out exchanges, one at a time."""

    def __init__(
        self,
        *,
        self_id: PeerId,
        network_id: bytes,
        neighbours: Neighbours,
        services: Services,
        codec: Codec,
        env: Env,
        apply: Callable[[int, bytes], None],
        release: Callable[[int], None],
        record: Callable[[events.Finished], None],
    ) -> None:
        self._self_id = self_id
        self._network_id = network_id
        self._neighbours = neighbours
        self._codec = codec
        self._env = env
        self._apply = apply
        self._release = release
        self._record = record
        self.core = ExchangeCore(self_id, env.rng)
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self.core, self._carry_out, now=env.monotonic
        )
        self._lease: SlotLease | None = None  # given to the core, not yet given back
        self._spare: SlotLease | None = None  # fresh, to be had for an offer
        self._lanes: dict[bytes, Lane] = {}
        self._running: tuple[bytes, Transfer] | None = None
        self._merge_next: tuple[bytes, int] | None = None
        self._transfer_mean_s: float | None = None
        self._draining = False
        self._ended = trio.Event()
        self.totals = ExchangeTotals()
        self._nursery: trio.Nursery | None = None
        services.add_stream(EXCHANGE_SERVICE, self._serve_stream)
        services.add_request(MESSAGE_SERVICE, self._answer_message)
        neighbours.on_session_closed = self._session_closed

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the core's deadlines and its transfers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await self._driver.run()

    # --- the worker's side ----------------------------------------------------------------

    def snapshot_ready(self, lease: SlotLease) -> None:
        """Offer a fresh snapshot; an older one that is unused goes back.

        Whatever is declined stays to be had by others until the next snapshot, so each
        snapshot is exchanged at most once, and with enough peers about once.
        """
        self.drop_spare()
        if self._draining:
            self._release(lease.snapshot.slot)
            return
        self._spare = lease
        self._driver.feed(events.Available(lease.snapshot, self._transfer_limit_s(lease)))
        if self.core.is_ready_to_begin:
            self._begin()

    def _begin(self) -> None:
        assert self._spare is not None
        partners = self._partners(self._spare.snapshot.round)
        if partners:
            limit_s = self._transfer_limit_s(self._spare)
            self._lease, self._spare = self._spare, None
            self._driver.feed(events.Begin(partners, limit_s))

    def drop_spare(self) -> None:
        """Give back a snapshot that nobody uses: it is out of date."""
        if self._spare is not None:
            spare, self._spare = self._spare, None
            self._driver.feed(events.Unavailable())
            self._release(spare.snapshot.slot)

    async def drain(self) -> None:
        """Offer and accept nothing more; return when no exchange runs."""
        self._draining = True
        self.drop_spare()
        while self.core.statistics().is_busy:
            self._ended = trio.Event()
            await self._ended.wait()

    def worker_lost(self) -> None:
        """The worker died with its slots: whatever runs is over, nothing is given back."""
        self._spare = self._lease = None
        self._driver.feed(events.Unavailable())
        if self._running is not None:
            xid, transfer = self._running
            transfer.end()
            self._driver.feed(events.LocalFailed(xid, "the worker went away"))

    def _partners(self, round_number: int) -> tuple[PeerId, ...]:
        members = self._neighbours.book.members(self._env.monotonic())
        ordered = candidates(
            self._self_id, self._network_id, round_number, members, limit=len(members)
        )
        reachable = [peer for peer in ordered if peer in self._neighbours.sessions]
        return tuple(reachable[: limits.EXCHANGE_CANDIDATES_MAX])

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
            case events.StartTransfer():
                self._start_transfer(effect)
            case events.MergeChunk(xid, index):
                self._merge_next = (xid, index)
            case events.Commit(xid, slot):
                self._committed(slot, xid)
            case events.Abort(_, slot):
                self._give_back(slot, untouched=self._end_transfer() is None)
            case events.Finished():
                self._finished(effect)

    def _send(self, peer: PeerId, message: wire.Message) -> None:
        assert self._nursery is not None
        lane = self._lanes.get(message.xid)
        if lane is not None and lane.peer == peer:
            lane.post(message)
        elif isinstance(message, wire.Offer):
            lane = self._lanes[message.xid] = Lane(peer, message.xid)
            lane.post(message)
            self._nursery.start_soon(self._open_stream, lane)
        else:
            self._nursery.start_soon(self._send_alone, peer, message)

    def _start_transfer(self, effect: events.StartTransfer) -> None:
        if self._lease is None:  # we answer an offer: with what was to be had
            self._lease, self._spare = self._spare, None
        lane = self._lanes[effect.xid]
        assert self._lease is not None
        assert self._lease.snapshot.slot == effect.slot
        transfer = Transfer(self._lease.view, self._codec)
        self._running = (effect.xid, transfer)
        lane.start(transfer)

    def _end_transfer(self) -> Transfer | None:
        """Let nobody touch the slot any more; return the transfer if there was one."""
        if self._running is None:
            return None
        (_, transfer), self._running = self._running, None
        transfer.end()
        return transfer

    def _committed(self, slot: int, xid: bytes) -> None:
        transfer = self._end_transfer()
        lease, self._lease = self._lease, None
        if transfer is not None:
            self.totals.add(transfer)
        self.drop_spare()  # it was taken before this exchange: the core wants a newer one
        if lease is None:
            self.totals.lost_with_worker += 1  # it died after READY: nobody is left to apply
        else:
            self._apply(slot, xid)

    def _give_back(self, slot: int, *, untouched: bool) -> None:
        lease, self._lease = self._lease, None
        if lease is None or lease.snapshot.slot != slot:
            return  # the worker that owned it is gone
        if untouched and self._spare is None and not self._draining:
            # Nobody took the offer: whoever comes may still have this snapshot.
            self._spare = lease
            self._driver.feed(events.Available(lease.snapshot, self._transfer_limit_s(lease)))
        else:
            self._release(slot)

    def _finished(self, effect: events.Finished) -> None:
        lane = self._lanes.get(effect.xid)
        if lane is not None:
            # After this effect the core may still send its last word (COMMIT, ABORT).
            assert self._nursery is not None
            self._nursery.start_soon(self._finish_lane, lane)
        if effect.outcome == "committed":
            took_s = effect.ended - effect.started
            mean = self._transfer_mean_s
            self._transfer_mean_s = took_s if mean is None else 0.8 * mean + 0.2 * took_s
            self.totals.duration_s += took_s
        self._ended.set()
        self._record(effect)

    async def _finish_lane(self, lane: Lane) -> None:
        await trio.lowlevel.checkpoint()
        lane.finish()

    # --- streams --------------------------------------------------------------------------

    async def _open_stream(self, lane: Lane) -> None:
        session = self._neighbours.sessions.get(lane.peer)
        try:
            if session is None:
                raise ChannelBroken(f"no session with {lane.peer.short}")
            stream = await session.open_stream(EXCHANGE_SERVICE, priority=Priority.BULK)
            await self._run_lane(lane, stream)
        except SwarmNodeError as error:
            self._lane_broken(lane, stream.session, error)
        finally:
            self._lanes.pop(lane.xid, None)

    async def _serve_stream(self, session: Session, stream: Stream) -> None:
        """A peer opened a stream: its first message must be an OFFER."""
        header, _ = await stream.receive_message(limits.MESSAGE_BYTES_MAX)
        offer = _decode(header)
        if not isinstance(offer, wire.Offer) or offer.xid in self._lanes:
            raise MalformedMessage("expected a new OFFER first", peer=str(session.peer))
        if self._nursery is None:
            raise ChannelBroken("this node does not train yet")
        lane = self._lanes[offer.xid] = Lane(session.peer, offer.xid)
        try:
            self._driver.feed(events.Received(session.peer, offer))
            if not self._is_in_flight(offer.xid):
                lane.finish()  # refused: the answer is in the outbox
            await self._run_lane(lane, stream)
        except SwarmNodeError as error:
            self._lane_broken(lane, stream.session, error)
        finally:
            self._lanes.pop(offer.xid, None)

    def _is_in_flight(self, xid: bytes) -> bool:
        return self._running is not None and self._running[0] == xid

    async def _run_lane(self, lane: Lane, stream: Stream) -> None:
        """Write and read one stream until both ends are done with it.

        Raises SwarmNodeError if the stream breaks or the peer breaks a rule; the
        stream is reset then.
        """
        failure: SwarmNodeError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_lane, lane, stream, nursery.cancel_scope)
            try:
                await self._read_lane(lane, stream)
            except SwarmNodeError as error:
                failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            await stream.reset(ResetCode.REFUSED, str(failure))
            raise failure
        await stream.aclose()

    async def _write_lane(self, lane: Lane, stream: Stream, scope: trio.CancelScope) -> None:
        try:
            await lane.write(stream, self._chunk_sent)
        except SpecMismatch as error:  # our own values cannot be encoded
            self._driver.feed(events.LocalFailed(lane.xid, str(error)))
            lane.finish()
            await lane.write(stream, self._chunk_sent)
        except SwarmNodeError:
            scope.cancel()  # the stream is broken: the reader reports it

    async def _read_lane(self, lane: Lane, stream: Stream) -> None:
        while True:
            try:
                header, payload = await stream.receive_message(limits.EXCHANGE_MESSAGE_BYTES_MAX)
            except trio.EndOfChannel:
                return
            message = _decode(header)
            if message.xid != lane.xid:
                raise MalformedMessage("a message of another exchange", peer=str(lane.peer))
            self._merge_next = None
            self._driver.feed(events.Received(lane.peer, message))
            if isinstance(message, wire.Chunk) and self._takes(lane, message.index):
                await self._merge(lane, message.index, payload)

    def _takes(self, lane: Lane, index: int) -> bool:
        """Whether the core wants this chunk merged: it is new and of the running exchange."""
        return self._merge_next == (lane.xid, index)

    async def _merge(self, lane: Lane, index: int, payload: memoryview) -> None:
        transfer = lane.transfer
        assert transfer is not None
        try:
            await transfer.merge(index, payload)
        except MalformedMessage as error:
            self._driver.feed(events.LocalFailed(lane.xid, str(error)))
            raise
        self._check_complete(lane, transfer)

    def _chunk_sent(self, lane: Lane, transfer: Transfer) -> None:
        self._check_complete(lane, transfer)

    def _check_complete(self, lane: Lane, transfer: Transfer) -> None:
        if transfer.is_complete and self._is_in_flight(lane.xid):
            self._driver.feed(events.LocalDone(lane.xid))

    def _lane_broken(self, lane: Lane, session: Session | None, error: SwarmNodeError) -> None:
        """The stream is gone: for the core that is the same as losing the peer."""
        assert self._nursery is not None
        if session is not None and isinstance(error, RemoteProtocolError):
            self._nursery.start_soon(session.aclose, str(error))
        _log.info("exchange broke", peer=lane.peer.short, why=str(error))
        self._driver.feed(events.PeerLost(lane.peer))

    # --- messages without a stream --------------------------------------------------------

    async def _send_alone(self, peer: PeerId, message: wire.Message) -> None:
        session = self._neighbours.sessions.get(peer)
        if session is None:
            return  # the core asks again, or the peer does
        try:
            await session.request(
                MESSAGE_SERVICE, encode_record(message), deadline_s=limits.EXCHANGE_OFFER_S
            )
        except SwarmNodeError as error:
            _log.debug("no answer", peer=peer.short, to=type(message).__name__, why=str(error))

    async def _answer_message(self, peer: PeerId, payload: bytes) -> bytes:
        message = _decode(payload)
        if isinstance(message, wire.Offer | wire.Chunk):
            raise MalformedMessage(f"{type(message).__name__} needs a stream", peer=str(peer))
        self._driver.feed(events.Received(peer, message))
        return b""

    def _session_closed(self, peer: PeerId) -> None:
        self._driver.feed(events.PeerLost(peer))


def _decode(data: bytes) -> wire.Message:
    message: wire.Message = decode_record(data, wire.Message)  # type: ignore[arg-type]
    return message
