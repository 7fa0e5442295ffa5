"""A member that holds up exchanges in pairs, at each point of the protocol where it can.

It answers with what the partner itself sends, which every guard takes; what it withholds is the
next message. It offers ten times a second to all peers, as a node of the product never does.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Literal, get_args

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.exchange.pair.transfer import decode_message, receive_offer
from swarmnode.daemon.membership.swarm import Communicator
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip.events import Topic
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.packing import encode_record

# What the last thing is that the others hear of it.
PairStall = Literal[
    "unanswered",  # an offer of theirs is not answered
    "accepted",  # theirs is accepted, and then nothing comes
    "offered",  # its own offer is accepted, and then nothing comes
    "trickled",  # the same, but all chunks save the last one come, slowly
    "ready",  # both are through, and the other one waits for the decision
    "pending",  # ... and whenever it asks, it is told to go on waiting
    "unready",  # it has accepted and sent all, and never says that it is ready
]
PAIR_STALLS: tuple[PairStall, ...] = get_args(PairStall)
OFFER_EVERY_S = 0.1
_TRICKLE_S = 0.9
_INITIATES = frozenset({"offered", "trickled", "ready", "pending"})


class StallingExchanges(Exchanges):
    """In place of :class:`Exchanges`; a subclass has its ``stall``."""

    stall: PairStall

    def __init__(self, communicator: Communicator, **parts: Any) -> None:
        super().__init__(communicator, **parts)
        self._key = communicator.key
        self._wanted: dict[Topic, PostedIntent] = {}  # what its own worker would exchange
        self._numbers = itertools.count()
        self._holding: set[PeerId] = set()

    def intent_posted(self, intent: PostedIntent) -> None:
        """Learn from the own worker what an honest offer looks like, and let nothing come of it."""
        self._wanted[intent.tag, intent.fragment] = intent
        if not intent.is_open:
            self._lessor.drop(intent, "busy")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold whom it can until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run)
            task_status.started()
            while self.stall in _INITIATES:
                for peer, session in list(self._neighbours.sessions.items()):
                    if peer not in self._holding and self._wanted:
                        nursery.start_soon(self._offer, session)
                await trio.sleep(OFFER_EVERY_S)

    async def _offer(self, session: Session) -> None:
        self._holding.add(session.peer)
        try:
            with contextlib.suppress(SwarmNodeError, trio.EndOfChannel):
                async with await session.open_stream(self._exchange_name) as stream:
                    await self._hold(stream, self._next_offer())
        finally:
            self._holding.discard(session.peer)

    def _next_offer(self) -> wire.Offer:
        number = next(self._numbers)
        intent = list(self._wanted.values())[number % len(self._wanted)]
        return wire.Offer(
            xid=self._env.rng.randbytes(16),
            key=self._key,
            tag=intent.tag,
            fragment=intent.fragment,
            round=intent.round,
            n_chunks=len(self._intents.pieces(intent)),
            step=intent.step,
            tokens=intent.tokens,
            base_version=intent.base_version,
        )

    async def _hold(self, stream: Stream, offer: wire.Offer) -> None:
        """Initiate, and go as far as the stall says."""
        await _say(stream, offer)
        while True:
            header, payload = await stream.receive_message(limits.EXCHANGE_MESSAGE_BYTES_MAX)
            match decode_message(header):
                case wire.Busy() | wire.Abort():
                    await stream.send_end()
                    return
                case wire.Chunk(index=index) if self.stall != "offered":
                    if self.stall == "trickled":
                        await trio.sleep(_TRICKLE_S)
                        if index == offer.n_chunks - 1:
                            continue
                    await _say(stream, wire.Chunk(offer.xid, index), bytes(payload))
                case wire.StatusQuery(number=number) if self.stall == "pending":
                    await _say(stream, wire.StatusReply(offer.xid, "pending", number))

    async def _serve_stream(self, session: Session, stream: Stream) -> None:
        """Respond, and go as far as the stall says."""
        offer = await receive_offer(stream)
        async with stream:
            if self.stall in _INITIATES:
                await _say(stream, wire.Busy(offer.xid, "busy"))
                await stream.send_end()
                return
            if self.stall != "unanswered":
                accept = wire.Accept(offer.xid, offer.round, offer.step, offer.tokens)
                await _say(stream, accept)
            while True:
                header, payload = await stream.receive_message(limits.EXCHANGE_MESSAGE_BYTES_MAX)
                match decode_message(header):
                    case wire.Abort():
                        return
                    case wire.Chunk(index=index) if self.stall == "unready":
                        await _say(stream, wire.Chunk(offer.xid, index), bytes(payload))

    async def _answer_message(self, peer: PeerId, payload: bytes) -> bytes:
        message = decode_message(payload)
        if isinstance(message, wire.StatusQuery) and self.stall == "pending":
            reply = wire.StatusReply(message.xid, "pending", message.number)
            self._tasks.start_while_open(self._send_alone, peer, reply)
        return b""


async def _say(stream: Stream, message: wire.Message, payload: bytes = b"") -> None:
    await stream.send_message(encode_record(message), payload)
