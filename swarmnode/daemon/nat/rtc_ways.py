"""WebRTC channels between two nodes that talk to each other through a relay: ``net/rtc``, agreed on
with signals that the relay carries. For where UDP can be punched and TCP cannot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from swarmnode import limits
from swarmnode.daemon.nat.signals import Received, Signals
from swarmnode.errors import DeadlineExceeded, Overloaded, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.rtc.engine import RtcEngine
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.nat import RtcAnswer, RtcOffer
from swarmnode.wire.packing import decode_record

SIGNAL_KIND = "rtc"
_log = get_logger("swarmnode.daemon.nat")

TakeChannel = Callable[[PeerId, Channel], Awaitable[None]]


class RtcWays:
    """Offers channels, and answers offers.

    Args:
        engine: makes them.
        stun_servers: gives HOST:PORT of peers that tell us what our NAT does.
        may_offer: whether a peer's offer is answered.
        take: takes over a channel that the peer began.
    """

    def __init__(
        self,
        signals: Signals,
        engine: RtcEngine,
        *,
        stun_servers: Callable[[], Sequence[str]],
        may_offer: Callable[[PeerId], bool],
        take: TakeChannel,
    ) -> None:
        self._signals = signals
        self._engine = engine
        self._stun_servers = stun_servers
        self._may_offer = may_offer
        self._take = take
        self._answers: dict[PeerId, trio.MemorySendChannel[bytes]] = {}
        self._answering: set[PeerId] = set()
        self._nursery: trio.Nursery | None = None
        signals.register(SIGNAL_KIND, self._on_signal)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer offers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        """Return a channel with a peer, agreed on with the help of ``via``.

        Raises:
            DialFailed: no UDP gets through, or WebRTC does not work here.
            Refused, Overloaded, DeadlineExceeded, TransportError: it could not be agreed on.
            MalformedMessage: the answer is none.
        """
        if peer in self._answers:
            raise Refused(f"an offer to {peer.short} is under way already")
        if len(self._answers) >= limits.UPGRADES_CONCURRENT_MAX:
            raise Overloaded("too many offers at once")
        send, receive = trio.open_memory_channel[bytes](1)
        self._answers[peer] = send
        try:
            async with await self._engine.offer(self._stun_servers()) as offer:
                await self._signals.send(peer, SIGNAL_KIND, offer.description, via=via)
                return await offer.connect(await _next(receive))
        finally:
            del self._answers[peer]

    def _on_signal(self, received: Received) -> None:
        """Neither waits nor raises: what makes no sense is dropped, and its author told nothing."""
        author = received.author
        if _is_a(RtcAnswer, received.payload):
            if author in self._answers:
                _post(self._answers[author], received)
        elif (
            self._nursery is not None
            and _is_a(RtcOffer, received.payload)
            and author not in self._answering
            and len(self._answering) < limits.UPGRADES_CONCURRENT_MAX
            and self._may_offer(author)
        ):
            self._answering.add(author)
            self._nursery.start_soon(self._accept, received)

    async def _accept(self, received: Received) -> None:
        peer = received.author
        try:
            channel = await self._answer(received)
        except SwarmNodeError as error:
            _log.debug("offered a WebRTC channel in vain", peer=peer.short, why=str(error))
            return
        finally:
            self._answering.discard(peer)
        await self._take(peer, channel)

    async def _answer(self, received: Received) -> Channel:
        peer, via = received.author, received.via
        async with await self._engine.answer(received.payload, self._stun_servers()) as answer:
            await self._signals.send(peer, SIGNAL_KIND, answer.description, via=via)
            return await answer.connect()


def _is_a(kind: type[RtcAnswer] | type[RtcOffer], payload: bytes) -> bool:
    try:
        decode_record(payload, kind)
    except SwarmNodeError:
        return False
    return True


def _post(answers: trio.MemorySendChannel[bytes], received: Received) -> None:
    try:
        answers.send_nowait(received.payload)
    except trio.WouldBlock:
        _log.debug("an answer too many", author=received.author.short)


async def _next(answers: trio.MemoryReceiveChannel[bytes]) -> bytes:
    with trio.move_on_after(limits.RTC_ANSWER_S):
        return await answers.receive()
    raise DeadlineExceeded("the answer to a WebRTC offer", limits.RTC_ANSWER_S)
