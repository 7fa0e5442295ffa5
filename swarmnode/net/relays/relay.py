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
from dataclasses import dataclass, field

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    DialCause,
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
from swarmnode.net.paths import DIRECT_WORD, PROXIED_WORD
from swarmnode.net.relays.address import (
    INCOMING_SERVICE,
    LEG_SERVICE,
    RELAY_SERVICE,
    RelayAddress,
)
from swarmnode.net.relays.legs import RelayedChannel, StreamChannel
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.wire.connect.relay import (
    Accepted,
    Answer,
    Arrival,
    Connect,
    Granted,
    Incoming,
    LegAnswer,
    PlaceLost,
    Question,
    Refusal,
    Release,
    Reserve,
    Reserved,
    encode_leg,
)
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority, printable

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
    """A relay that we can be reached through.

    ``circuits``: those of it that are ours, 0 if it does not say. ``why_lost``: once it has given
    our place to another peer, which ends ``pause``.
    """

    session: Session
    address: str
    circuits: int = 0
    why_lost: str = ""
    pause: trio.CancelScope = field(default_factory=trio.CancelScope)


class Relays:
    """Dials through relays, and takes what comes through those that we hold.

    ``connect`` gives the session with a relay; while it dials, callers of :meth:`dial` wait,
    so it must not wait for the end of that dial. ``dial`` makes channels for legs.

    Attributes:
        loads: of relays that have said how much of theirs is taken, in percent.
    """

    def __init__(self, services: Services, connect: ConnectPeer, dial: DialAddress) -> None:
        self._connect = connect
        self._dial = dial
        self.loads: dict[PeerId, int] = {}
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
                cause: DialCause = "busy" if answer.code == "full" else "silent"
                raise DialFailed(f"{way.way}: {_words_of(answer)}", address=address, cause=cause)
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
            lifetime_s = await self._reserve(held)
            self._held[relay] = held
            task_status.started()
            while True:
                with trio.move_on_after(
                    min(limits.RELAY_LOOK_S, max(1.0, lifetime_s / 2))
                ) as pause:
                    held.pause = pause
                    await session.wait_closed()
                if held.why_lost:
                    raise Overloaded(f"relay {relay.short}: the relay says full: {held.why_lost}")
                error = session.closed_error()
                if error is not None:
                    raise error
                lifetime_s = await self._reserve(held)
        finally:
            if self._held.get(relay) is held:
                del self._held[relay]
            session.ask(
                RELAY_SERVICE, encode_record(Release()), deadline_s=_ANSWER_S, on_answer=_ignore
            )

    @property
    def circuits(self) -> int:
        """How many circuits are ours at the relays that we hold; 0: they do not say."""
        shares = [each.circuits for each in self._held.values()]
        return sum(shares) if all(shares) else 0

    async def _reserve(self, held: _Held) -> int:
        """Ask for a reservation, or for it again; return how long it lasts, in seconds."""
        answer = await _ask(held.session, Reserve())
        relay = held.session.peer
        if isinstance(answer, Refusal):
            is_full = answer.code in ("full", "rate")
            self.loads[relay] = 100
            raise (Overloaded if is_full else Refused)(f"relay {relay.short}: {_words_of(answer)}")
        if not isinstance(answer, Reserved):
            raise MalformedMessage(f"expected a lifetime, got {type(answer).__name__}")
        self.loads[relay], held.circuits = answer.load, answer.circuits
        return answer.lifetime_s

    def _on_incoming(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer a relay that has a peer for us."""
        incoming: Arrival = decode_record(payload, Arrival)  # type: ignore[arg-type]
        held = self._held.get(peer)
        if held is None:
            raise Refused("no reservation with you")
        if isinstance(incoming, PlaceLost):
            held.why_lost = printable(incoming.reason)
            held.pause.cancel()
            return encode_record(Accepted())
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
    by_tcp = word.partition(":")[0] in (DIRECT_WORD, PROXIED_WORD)
    return address if session.outbound and by_tcp else ""


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

    Where one of them is busy, another candidate is held beside them now and then, and of all three
    the busiest is given back: so nodes spread over the relays that there are. The second of two is
    given back where nearly all places are taken: one is what a node cannot do without.

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
        self._active: dict[PeerId, trio.CancelScope] = {}
        self._look_at = self._yield_at = 0.0
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
                self._give_back()
                for relay, address in self._choose():
                    self._active[relay] = trio.CancelScope()
                    nursery.start_soon(self._hold, relay, address)
                with trio.move_on_after(_RELAY_RETRY_S_MIN):
                    await self._ended.wait()

    def _choose(self) -> list[tuple[PeerId, str]]:
        now = self._env.monotonic()
        known = self._candidates()
        names = {relay for relay, _ in known}
        self._resting = {relay: rest for relay, rest in self._resting.items() if relay in names}
        loads = self._relays.loads
        for relay in loads.keys() - names - self._active.keys():
            del loads[relay]
        free = [
            (relay, address)
            for relay, address in known
            if relay not in self._active
            and (relay not in self._resting or self._resting[relay].until <= now)
        ]
        wanted = limits.RELAYS_HELD + (bool(free) and self._is_to_look(free[0][0], now))
        return free[: max(0, wanted - len(self._active))]

    def _is_to_look(self, other: PeerId, now: float) -> bool:
        """Whether another relay may be better than the busiest of those that we hold."""
        if now < self._look_at or len(self._relays.held) < limits.RELAYS_HELD:
            return False
        self._look_at = now + limits.RELAY_LOOK_S
        most, loads = self._busiest(), self._relays.loads
        is_better = loads.get(other, 0) + limits.RELAY_LOAD_STEP <= most[0]
        is_busy = most[0] >= limits.RELAY_LOAD_BUSY
        return is_better and is_busy and self._env.rng.random() < limits.RELAY_LOOK_CHANCE

    def _busiest(self) -> tuple[int, PeerId]:
        return max((self._relays.loads.get(relay, 0), relay) for relay in self._relays.held)

    def _give_back(self) -> None:
        """Of one relay too many the busiest goes, and the second where others have none left."""
        n_held, now = len(self._relays.held), self._env.monotonic()
        if n_held < limits.RELAYS_HELD:
            return
        load, relay = self._busiest()
        is_scarce = load >= limits.RELAY_LOAD_FULL and now >= self._yield_at
        if is_scarce:
            self._yield_at = now + limits.RELAY_LOOK_S
            is_scarce = self._env.rng.random() < limits.RELAY_LOOK_CHANCE
        if relay in self._active and (n_held > limits.RELAYS_HELD or is_scarce):
            self._active[relay].cancel()
            self._rest(relay, "others have no place there", limits.RELAY_YIELD_S)

    async def _hold(self, relay: PeerId, address: str) -> None:
        began_at = self._env.monotonic()
        try:
            with self._active[relay]:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._relays.keep, relay, address)
                    self._resting.pop(relay, None)
                    self._on_change()
        except* SwarmNodeError as group:
            self._refused(relay, str(group.exceptions[0]), self._env.monotonic() - began_at)
        finally:
            del self._active[relay]
            self._ended.set()
        self._on_change()

    def _refused(self, relay: PeerId, why: str, held_s: float) -> None:
        """Leave a relay alone for a while, longer each time that it did not last."""
        known = self._resting.get(relay)
        pause_s = _RELAY_RETRY_S_MIN
        if known is not None and held_s < _RELAY_RETRY_S_MAX:
            pause_s = min(_RELAY_RETRY_S_MAX, known.pause_s * 2)
        self._rest(relay, why, pause_s)

    def _rest(self, relay: PeerId, why: str, pause_s: float) -> None:
        until = self._env.monotonic() + pause_s * self._env.rng.uniform(0.5, 1.0)
        self._resting[relay] = _Rest(until, pause_s, why)
