"""Signals as a service: sending them over common neighbours, and what is agreed on by them.

``signal/1`` takes what neighbours want carried, ``signal-in/1`` what carriers bring. A room wanting
signals of a kind registers for it; the answer, if there is one, is a signal of its own, for which
``via`` names the carrier that reaches the author. Two nodes agree so on a way around their NATs,
and what every such :class:`Agreement` needs is here: letters of one peer, and bounds on how many
peers are written with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from swarmnode import limits
from swarmnode.daemon.driver import Tasks
from swarmnode.env import Env
from swarmnode.errors import InvariantViolation, Overloaded, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat.signals import Postbox, SignalStatistics, sign_signal
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.signal import NONCE_BYTES, Carry, Deliver, Taken
from swarmnode.wire.packing import decode_record, encode_record

CARRY_SERVICE = "signal/1"
DELIVER_SERVICE = "signal-in/1"
_log = get_logger("swarmnode.daemon.transport")


@dataclass(frozen=True, slots=True)
class Received:
    """A signal that has been checked.

    Attributes:
        via: the neighbour that brought it; an answer goes the same way.
        observed: where it says that it sees the author, HOST:PORT, or "".
    """

    author: PeerId
    payload: bytes
    via: PeerId
    observed: str


OnSignal = Callable[[Received], None]


class Signals:
    """Sends, carries and takes signals.

    ``sessions`` are those with neighbours, ``address_of`` gives where the bytes of one come from
    ("" if its way has no address).
    """

    def __init__(
        self,
        services: Services,
        identity: Identity,
        env: Env,
        *,
        sessions: Mapping[PeerId, Session],
        address_of: Callable[[Session], str],
    ) -> None:
        self._identity = identity
        self._env = env
        self._sessions = sessions
        self._address_of = address_of
        self._postbox = Postbox(identity.peer_id)
        self._handlers: dict[str, OnSignal] = {}
        services.add_request(CARRY_SERVICE, self._carry)
        services.add_answer(DELIVER_SERVICE, self._take)

    def register(self, kind: str, on_signal: OnSignal) -> None:
        """Hand signals of this kind to ``on_signal``, which must neither wait nor raise."""
        if kind in self._handlers:
            raise InvariantViolation(f"signals of kind {kind!r} are registered twice")
        self._handlers[kind] = on_signal

    async def send(self, target: PeerId, kind: str, payload: bytes, *, via: PeerId) -> str:
        """Send a signal through a neighbour; return where the carrier sees the target, or "".

        Args:
            payload: at most SIGNAL_BYTES_MAX bytes.
            via: a peer that we have a session with.

        Raises:
            Refused, Overloaded: the carrier or the target says no.
            DeadlineExceeded, TransportError, MalformedMessage: it did not get there.
        """
        if via not in self._sessions:
            raise Refused(f"no session with {via.short}, which should carry a signal")
        nonce = self._env.token(NONCE_BYTES)
        unix_s = self._env.wall()
        signed = sign_signal(self._identity, target, kind, payload, unix_s=unix_s, nonce=nonce)
        answer = await self._sessions[via].request(
            CARRY_SERVICE,
            encode_record(Carry(target, signed)),
            deadline_s=limits.SIGNAL_DEADLINE_S,
        )
        return decode_record(answer, Taken).observed

    def statistics(self) -> SignalStatistics:
        """Return counters."""
        return self._postbox.statistics()

    async def _carry(self, peer: PeerId, payload: bytes) -> bytes:
        carry = decode_record(payload, Carry)
        target = PeerId(carry.target)
        self._postbox.carry(peer, target, carry.signal, self._env.monotonic())
        if target not in self._sessions or peer not in self._sessions:
            raise Refused(f"no session with {target.short} here")
        author, session = self._sessions[peer], self._sessions[target]
        deliver = Deliver(self._address_of(author), carry.signal)
        try:
            answer = await session.request(
                DELIVER_SERVICE, encode_record(deliver), deadline_s=limits.SIGNAL_DEADLINE_S
            )
            decode_record(answer, Taken)
        except SwarmNodeError as error:
            raise Refused(f"{target.short} did not take it: {error}") from error
        return encode_record(Taken(self._address_of(session)))

    def _take(self, peer: PeerId, payload: bytes) -> bytes:
        deliver = decode_record(payload, Deliver)
        now, unix_s = self._env.monotonic(), self._env.wall()
        taken = self._postbox.take(peer, deliver.signal, now=now, unix_s=unix_s)
        if taken.kind not in self._handlers:
            raise Refused(f"nothing here takes signals of kind {taken.kind!r}")
        _log.debug("signal", kind=taken.kind, author=taken.author.short, via=peer.short)
        received = Received(taken.author, taken.payload, peer, deliver.observed)
        self._handlers[taken.kind](received)
        return encode_record(Taken())


LetterT = TypeVar("LetterT")
TakeChannel = Callable[[PeerId, Channel], Awaitable[None]]
# Answers and words to begin with that wait to be read: a punch has one of each.
_LETTERS_MAX = 2


class Agreement(ABC, Generic[LetterT]):
    """Channels of one kind that two nodes agree on by signals: offered, and answered.

    Args:
        kind: of the signals.
        concurrent_max: peers whose letters are read at a time, and whose offers are answered.
        may_invite: whether a peer's offer is answered.
        take: takes over a channel that the peer began.
    """

    def __init__(
        self,
        signals: Signals,
        kind: str,
        *,
        concurrent_max: int,
        may_invite: Callable[[PeerId], bool],
        take: TakeChannel,
    ) -> None:
        self._signals = signals
        self._kind = kind
        self._concurrent_max = concurrent_max
        self._may_invite = may_invite
        self._take = take
        self._letters: dict[PeerId, trio.MemorySendChannel[tuple[LetterT, Received]]] = {}
        self._answering: set[PeerId] = set()
        self._tasks = Tasks()
        signals.register(kind, self._on_signal)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer offers until cancelled."""
        async with self._tasks.open():
            task_status.started()
            await trio.sleep_forever()

    @abstractmethod
    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        """Return a channel with a peer, agreed on with the help of ``via``. Raises SwarmNodeError.

        Checkpoint: yes.
        """

    @abstractmethod
    def _read(self, payload: bytes) -> LetterT:
        """Parse a letter. Raises SwarmNodeError."""

    @abstractmethod
    def _is_offer(self, letter: LetterT) -> bool:
        """Whether a letter begins an agreement."""

    @abstractmethod
    async def _answer(self, offer: LetterT, received: Received) -> Channel:
        """Return the channel that a peer has offered. Raises SwarmNodeError."""

    async def _send(self, peer: PeerId, letter: bytes, via: PeerId) -> None:
        await self._signals.send(peer, self._kind, letter, via=via)

    @asynccontextmanager
    async def _correspond(
        self, peer: PeerId
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[LetterT, Received]]]:
        """Take what this peer writes from now on; one agreement with a peer at a time.

        Raises:
            Refused, Overloaded: there is one with this peer, or there are too many.
        """
        if peer in self._letters:
            raise Refused(f"{self._kind}: an agreement with {peer.short} is under way already")
        if len(self._letters) >= self._concurrent_max:
            raise Overloaded(
                f"{self._kind}: {self._concurrent_max} agreements are under way, no more at once"
            )
        send, receive = trio.open_memory_channel[tuple[LetterT, Received]](_LETTERS_MAX)
        self._letters[peer] = send
        try:
            yield receive
        finally:
            del self._letters[peer]

    def _on_signal(self, received: Received) -> None:
        """Neither waits nor raises: what makes no sense is dropped, and its author told nothing."""
        try:
            letter = self._read(received.payload)
        except SwarmNodeError as error:
            author = received.author.short
            _log.debug("no letter", kind=self._kind, author=author, why=str(error))
            return
        if not self._is_offer(letter):
            self._post(letter, received)
        elif self._may_answer(received.author):
            self._answering.add(received.author)
            self._tasks.start_soon(self._accept, letter, received)

    def _may_answer(self, author: PeerId) -> bool:
        return (
            self._tasks.are_open
            and author not in self._answering
            and len(self._answering) < self._concurrent_max
            and self._may_invite(author)
        )

    def _post(self, letter: LetterT, received: Received) -> None:
        if received.author in self._letters:
            try:
                self._letters[received.author].send_nowait((letter, received))
            except trio.WouldBlock:
                _log.debug("a letter too many", kind=self._kind, author=received.author.short)

    async def _accept(self, offer: LetterT, received: Received) -> None:
        peer = received.author
        try:
            channel = await self._answer(offer, received)
        except SwarmNodeError as error:
            _log.debug("invited in vain", kind=self._kind, peer=peer.short, why=str(error))
            return
        finally:
            self._answering.discard(peer)
        await self._take(peer, channel)
