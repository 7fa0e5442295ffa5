"""Reaching peers through a relay, and being reached: the side of the nodes that need one.

::

    A                          relay R                         B
    Connect(B) ──session──>    asks B        ──session──>      Incoming(token)
    Granted(token) <──                       <──               Accepted
    leg: "relay/1", token ──>  joins them    <──               leg: "relay/1", token
    GO <──                                   ──>               GO
    <═════════════════ the session of A and B, encrypted from end to end ═════════════>

A leg is a connection of its own to where the relay was dialled: what it carries is then copied as
it is, and waits behind nothing else. Where no second connection can be had, a leg is a stream
of the session with the relay.

A node that cannot be dialled holds places with some of them (:class:`RelayHolder`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    DialFailed,
    MalformedMessage,
    Overloaded,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.accept import run_accepted
from swarmnode.net.channel import (
    Channel,
    ChannelHandler,
    aclose_forcefully,
    receive_exactly,
)
from swarmnode.net.paths import DIRECT_WORD
from swarmnode.net.relays.address import RelayAddress
from swarmnode.net.relays.legs import RelayedChannel, StreamChannel
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.wire.connect.relay import (
    Accepted,
    Answer,
    Connect,
    Granted,
    Incoming,
    LegAnswer,
    Question,
    Refusal,
    Release,
    Reserve,
    Reserved,
    encode_leg,
)
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority, printable

RELAY_SERVICE = "relay/1"
INCOMING_SERVICE = "relay-in/1"
LEG_SERVICE = "relay-leg/1"
_ANSWER_S = limits.RELAY_SETUP_S + 1.0  # the relay gives up first, and says why
_LEG_ANSWERS = {
    LegAnswer.UNKNOWN: "the relay does not know the token",
    LegAnswer.ALONE: "the other side did not come",
    LegAnswer.CLOSED: "the relay gave the circuit up",
}
_log = logging.getLogger("swarmnode.relay")

ConnectPeer = Callable[[PeerId, tuple[str, ...]], Awaitable[Session]]
DialAddress = Callable[[str], Awaitable[Channel]]


@dataclass(slots=True)
class _Held:
    """A relay that we can be reached through."""

    session: Session
    address: str


class Relays:
    """Dials through relays, and takes what comes through those that we hold.

    ``connect`` gives the session with a relay; while it dials, callers of :meth:`dial` wait,
    so it must not wait for the end of that dial. ``dial`` makes channels for legs.
    """

    def __init__(self, services: Services, connect: ConnectPeer, dial: DialAddress) -> None:
        self._connect = connect
        self._dial = dial
        self._held: dict[PeerId, _Held] = {}
        self._nursery: trio.Nursery | None = None
        self._handle: ChannelHandler | None = None
        self._n_incoming = 0
        services.add_answer(INCOMING_SERVICE, self._on_incoming)

    async def run(
        self,
        handle_channel: ChannelHandler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hand on what comes through relays, as ``Transport.serve`` does, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery, self._handle = nursery, handle_channel
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # --- reaching others ------------------------------------------------------------------

    async def dial(self, address: str) -> RelayedChannel:
        """Connect to a peer ``relay:RELAY@HOST:PORT/TARGET``.

        Raises:
            DialFailed: the relay cannot be reached, or says no; its reason is in the text.
            ConfigError: that is no such address.
        """
        way = RelayAddress.parse(address)
        try:
            session = await self._connect(way.relay, (way.address,))
            answer = await _ask(session, Connect(way.target))
            if isinstance(answer, Refusal):
                raise DialFailed(f"{way.way}: {_words_of(answer)}", address=address)
            if not isinstance(answer, Granted):
                raise MalformedMessage(f"expected a token, got {type(answer).__name__}")
            return await self._begin_leg(session, way.address, answer, way.way)
        except DialFailed:
            raise
        except SwarmNodeError as error:
            raise DialFailed(f"{way.way}: {error}", address=address) from error

    # --- being reached --------------------------------------------------------------------

    @property
    def held(self) -> dict[PeerId, str]:
        """The relays that we can be reached through, and where they are dialled."""
        return {
            relay: each.address for relay, each in self._held.items() if not each.session.is_closed
        }

    async def keep(
        self,
        relay: PeerId,
        address: str,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hold a reservation until cancelled; ``start`` returns when there is one.

        Raises:
            Refused, Overloaded: the relay says no.
            TransportError, DeadlineExceeded: it is gone, or silent.
        """
        session = await self._connect(relay, (address,))
        held = _Held(session, address)
        try:
            lifetime_s = await _reserve(session)
            self._held[relay] = held
            task_status.started()
            while True:
                with trio.move_on_after(max(1.0, lifetime_s / 2)):
                    await session.wait_closed()
                error = session.closed_error()
                if error is not None:
                    raise error
                lifetime_s = await _reserve(session)
        finally:
            if self._held.get(relay) is held:
                del self._held[relay]
            session.ask(
                RELAY_SERVICE, encode_record(Release()), deadline_s=_ANSWER_S, on_answer=_ignore
            )

    def _on_incoming(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer a relay that has a peer for us."""
        incoming = decode_record(payload, Incoming)
        held = self._held.get(peer)
        if held is None:
            raise Refused("no reservation with you")
        if self._nursery is None or self._handle is None:
            raise Refused("this node takes no connections now")
        if self._n_incoming >= limits.RELAY_INCOMING_MAX:
            raise Overloaded("too many connections through relays at once")
        self._n_incoming += 1
        self._nursery.start_soon(self._take_up, peer, held, incoming)
        return encode_record(Accepted())

    async def _take_up(self, relay: PeerId, held: _Held, incoming: Incoming) -> None:
        way = f"relay:{relay.short}@{held.address}"
        try:
            channel = await self._begin_leg(held.session, held.address, incoming, way)
        except SwarmNodeError as error:
            _log.info("%s: a connection to us came to nothing: %s", way, error)
            return
        finally:
            self._n_incoming -= 1
        assert self._handle is not None
        await run_accepted(channel, self._handle)

    # --- legs -----------------------------------------------------------------------------

    async def _begin_leg(
        self, session: Session, address: str, ticket: Granted | Incoming, way: str
    ) -> RelayedChannel:
        """Return the leg of a circuit when both sides are there. Raises TransportError …"""
        with trio.move_on_after(limits.RELAY_SETUP_S):
            async with AsyncExitStack() as undo:
                leg = await self._open_leg(session, address, way)
                undo.push_async_callback(aclose_forcefully, leg)  # cancelled too
                word = await _greet(leg, encode_leg(ticket.token), as_tls=ticket.as_tls)
                _check_go(leg, word)
                undo.pop_all()
                return RelayedChannel(leg, way, session.peer)
        raise DeadlineExceeded(f"{way}: waiting for the other side", limits.RELAY_SETUP_S)

    async def _open_leg(self, session: Session, address: str, way: str) -> Channel:
        with trio.move_on_after(limits.RELAY_SETUP_S / 2):
            try:
                # Where the session goes, a leg can go too: of the relay's addresses not every one
                # can be reached from here.
                return await self._dial(_dialled(session) or address)
            except SwarmNodeError as error:
                _log.debug("%s: no second connection, a stream will do: %s", way, error)
        stream = await session.open_stream(LEG_SERVICE, priority=Priority.STATE)
        return StreamChannel(stream, way)


def _dialled(session: Session) -> str:
    """Return where we have reached the other side of a session by TCP, "" if it was not us."""
    word, _, address = session.channel_description.partition(" ")
    return address if session.outbound and word == DIRECT_WORD else ""


async def _greet(leg: Channel, greeting: bytes, *, as_tls: bool) -> int:
    """Return the one byte that the relay answers."""
    if as_tls and not isinstance(leg, StreamChannel):  # there no box sees how it begins
        from swarmnode.net.relays.wrapped import greet_wrapped  # most nodes are reached directly

        return await greet_wrapped(leg, greeting)
    await leg.send_all(memoryview(greeting))
    answer = bytearray(1)
    await receive_exactly(leg, memoryview(answer))
    return answer[0]


def _check_go(leg: Channel, word: int) -> None:
    if word != LegAnswer.GO:
        known = word in _LEG_ANSWERS
        why = _LEG_ANSWERS[LegAnswer(word)] if known else f"the relay answers {word}"
        raise ChannelBroken(f"{leg.description}: {why}")


async def _ask(session: Session, question: Question) -> Answer:
    payload = encode_record(question)
    reply = await session.request(RELAY_SERVICE, payload, deadline_s=_ANSWER_S)
    answer: Answer = decode_record(reply, Answer)  # type: ignore[arg-type]
    return answer


async def _reserve(session: Session) -> int:
    """Ask for a reservation, or for the same one again; return how long it lasts, in seconds."""
    answer = await _ask(session, Reserve())
    if isinstance(answer, Refusal):
        kind = Overloaded if answer.code in ("full", "rate") else Refused
        raise kind(f"relay {session.peer.short}: {_words_of(answer)}")
    if not isinstance(answer, Reserved):
        raise MalformedMessage(f"expected a lifetime, got {type(answer).__name__}")
    return answer.lifetime_s


def _words_of(refusal: Refusal) -> str:
    later = f"; again in {refusal.retry_s} s" if refusal.retry_s else ""
    return f"the relay says {refusal.code}: {printable(refusal.reason)}{later}"


def _ignore(_answer: bytes | SwarmNodeError) -> None:
    """No caller waits for this answer."""


# Between two tries to reserve a place; longer each time, and not for ever.
_RELAY_RETRY_S_MIN = 2.0
_RELAY_RETRY_S_MAX = 120.0

Candidates = Callable[[], Sequence[tuple[PeerId, str]]]


@dataclass(slots=True)
class _Rest:
    """A relay that said no, or went away."""

    until: float
    pause_s: float
    why: str


class RelayHolder:
    """Keeps RELAYS_HELD reservations with relays of ``candidates``, the first ones preferred.

    ``candidates`` gives public peers and where they are dialled; empty while no relay is needed.
    ``on_change`` hears whenever :meth:`addresses` gives something else.
    """

    def __init__(
        self,
        relays: Relays,
        candidates: Candidates,
        env: Env,
        *,
        own_id: PeerId,
        on_change: Callable[[], None],
    ) -> None:
        self._relays = relays
        self._candidates = candidates
        self._env = env
        self._own_id = own_id
        self._on_change = on_change
        self._active: set[PeerId] = set()
        self._resting: dict[PeerId, _Rest] = {}
        self._ended = trio.Event()

    def addresses(self) -> tuple[str, ...]:
        """Return under which addresses others reach us through relays."""
        held = self._relays.held.items()
        return tuple(str(RelayAddress(relay, at, self._own_id)) for relay, at in held)

    def refusals(self) -> dict[PeerId, str]:
        """Return why some relays are not used just now."""
        return {relay: rest.why for relay, rest in self._resting.items()}

    def look_again(self) -> None:
        """There may be other candidates now."""
        self._ended.set()

    async def run(self) -> None:
        """Look for relays until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._ended = trio.Event()
                for relay, address in self._choose():
                    self._active.add(relay)
                    nursery.start_soon(self._hold, relay, address)
                with trio.move_on_after(_RELAY_RETRY_S_MIN):
                    await self._ended.wait()

    def _choose(self) -> list[tuple[PeerId, str]]:
        now = self._env.monotonic()
        known = self._candidates()
        names = {relay for relay, _ in known}
        self._resting = {relay: rest for relay, rest in self._resting.items() if relay in names}
        free = [
            (relay, address)
            for relay, address in known
            if relay not in self._active
            and (relay not in self._resting or self._resting[relay].until <= now)
        ]
        return free[: max(0, limits.RELAYS_HELD - len(self._active))]

    async def _hold(self, relay: PeerId, address: str) -> None:
        began_at = self._env.monotonic()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._relays.keep, relay, address)
                self._resting.pop(relay, None)
                self._on_change()
        except* SwarmNodeError as group:
            self._rest(relay, str(group.exceptions[0]), self._env.monotonic() - began_at)
        finally:
            self._active.discard(relay)
            self._ended.set()
        self._on_change()

    def _rest(self, relay: PeerId, why: str, held_s: float) -> None:
        """Leave a relay alone for a while, longer each time that it did not last."""
        known = self._resting.get(relay)
        pause_s = _RELAY_RETRY_S_MIN
        if known is not None and held_s < _RELAY_RETRY_S_MAX:
            pause_s = min(_RELAY_RETRY_S_MAX, known.pause_s * 2)
        until = self._env.monotonic() + pause_s * self._env.rng.uniform(0.5, 1.0)
        self._resting[relay] = _Rest(until, pause_s, why)
