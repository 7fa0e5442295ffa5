"""Being a relay: the Trio shell of ``protocol/relay``, and the copying of bytes.

A circuit's legs are channels: connections of their own, or streams of sessions. For each direction
one task reads a piece, waits until it may pass, and writes it; so a reader that is slow holds up
its own sender only, and the relay never has more of it than one piece each way besides what the
kernel keeps for a socket, or the window of a stream.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, Refused, SwarmNodeError, TransportError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.relays.address import INCOMING_SERVICE, LEG_SERVICE, RELAY_SERVICE
from swarmnode.net.relays.legs import StreamChannel
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.traffic import Way
from swarmnode.protocol.relay import RelayStatistics, events
from swarmnode.protocol.relay.accounts import Quota
from swarmnode.protocol.relay.core import RelayCore
from swarmnode.protocol.uplink import Purpose, on_the_wire, receipts
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.disguise import wrap_answer
from swarmnode.wire.connect.relay import (
    LEG_BYTES,
    Accepted,
    Answer,
    Connect,
    Incoming,
    LegAnswer,
    OfferAnswer,
    PlaceLost,
    Question,
    Release,
    decode_leg,
)
from swarmnode.wire.packing import decode_record, encode_record

_log = get_logger("swarmnode.daemon.transport")
_SECRET_BYTES = 32


@dataclass(slots=True, eq=False)
class _Command:
    """A request that waits for its answer."""

    done: trio.Event = field(default_factory=trio.Event)
    answers: list[Answer] = field(default_factory=list)  # one, once it is done


@dataclass(slots=True, eq=False)
class _Leg:
    """A connection that has shown a token; its task waits until ``done``."""

    channel: Channel
    is_as_tls: bool  # it began so, and is answered so
    done: trio.Event = field(default_factory=trio.Event)

    def say(self, word: LegAnswer) -> memoryview:
        """Return an answer in the shape of the question."""
        return memoryview(wrap_answer(word) if self.is_as_tls else bytes([word]))


class RelayService:
    """Relays for every caller, within its quota.

    ``sessions`` are those that are open; ``host_of`` gives where a peer's bytes come from, the
    same for all that one machine or router is. What it relays keeps to the owner's limits of
    ``services.traffic``.
    """

    def __init__(
        self,
        services: Services,
        env: Env,
        *,
        quota: Quota,
        sessions: Mapping[PeerId, Session],
        host_of: Callable[[PeerId], str],
    ) -> None:
        self._env = env
        self._sessions = sessions
        self._host_of = host_of
        self._traffic = services.traffic
        self._core = RelayCore(env.token(_SECRET_BYTES), quota, self._traffic.up)
        self._driver = CoreDriver(self._core, self._carry_out, now=env.monotonic)
        self._numbers = count(1)
        self._commands: dict[int, _Command] = {}
        self._legs: dict[int, _Leg] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._passed: dict[tuple[int, int], trio.Event] = {}
        self._tasks = Tasks()
        self._n_unsorted = 0
        services.add_request(RELAY_SERVICE, self.answer)
        services.add_stream(LEG_SERVICE, self.serve_stream)
        self._traffic.on_relaying = lambda why_not: self._driver.feed(events.Allowed(why_not))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relay until cancelled."""
        async with self._tasks.open():
            task_status.started()
            await self._driver.run()

    def statistics(self) -> RelayStatistics:
        """Return counters."""
        return self._core.statistics()

    def serves(self, peer: PeerId) -> bool:
        """Whether a peer is to be reached through us, so that its session must stay."""
        return self._core.has_reservation(peer)

    # --- what peers ask -------------------------------------------------------------------

    async def answer(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer a question of a peer; see ``wire/connect/relay.py``. Raises Refused."""
        if not self._tasks.are_open:
            raise Refused("this node relays nothing now")
        question: Question = decode_record(payload, Question)  # type: ignore[arg-type]
        number, command = next(self._numbers), _Command()
        self._commands[number] = command
        try:
            if isinstance(question, Connect):
                target = PeerId(question.target)
                host = self._host_of(peer)
                self._driver.feed(events.ConnectAsked(number, peer, target, host))
            else:
                is_release = isinstance(question, Release)
                host = self._host_of(peer)
                self._driver.feed(events.ReserveAsked(number, peer, host, is_release))
            await command.done.wait()
        finally:
            del self._commands[number]
        return encode_record(command.answers[0])

    def session_opened(self, session: Session) -> None:
        """Nothing: a peer that wants something asks."""

    def session_closed(self, session: Session) -> None:
        """A peer is gone."""
        self._driver.feed(events.PeerGone(session.peer))

    # --- legs -----------------------------------------------------------------------------

    async def serve_leg(self, channel: Channel, first_bytes: bytes) -> None:
        """Take a connection that began with ``first_bytes``, as LEG_MAGIC does, until it is over.

        All LEG_BYTES are there already if it began in the shape of TLS. The caller closes it.

        Raises:
            MalformedMessage, DeadlineExceeded, TransportError: it shows no token.
        """
        if self._n_unsorted >= limits.RELAY_UNSORTED_MAX:
            return
        self._n_unsorted += 1
        try:
            token = await _receive_token(channel, first_bytes)
        finally:
            self._n_unsorted -= 1
        await self._attach(channel, token, None, is_as_tls=len(first_bytes) == LEG_BYTES)

    async def serve_stream(self, session: Session, stream: Stream) -> None:
        """Take a stream as a leg, until it is over. Raises as :meth:`serve_leg`."""
        channel = StreamChannel(stream, f"a stream of {session.peer.short}")
        token = await _receive_token(channel, b"")
        await self._attach(channel, token, session.peer, is_as_tls=False)

    async def _attach(
        self, channel: Channel, token: bytes, peer: PeerId | None, *, is_as_tls: bool
    ) -> None:
        number, leg = next(self._numbers), _Leg(channel, is_as_tls)
        self._legs[number] = leg
        try:
            self._driver.feed(events.Attached(number, token, peer))
            await leg.done.wait()
        finally:
            del self._legs[number]
            self._driver.feed(events.LegGone(number))

    # --- effects --------------------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Answered(command=number, answer=answer):
                self._answered(number, answer)
            case events.PlaceLost(peer=peer, why=why):
                self._tell_place_lost(peer, why)
            case events.Offer():
                self._offer(effect)
            case events.Joined(circuit=circuit, legs=numbers):
                self._join(circuit, numbers)
            case events.LegRefused(leg=number, answer=word):
                self._refuse_leg(number, word)
            case events.Passed(circuit=circuit, side=side):
                self._passed.pop((circuit, side)).set()
            case events.CircuitClosed(circuit=circuit, why=why):
                _log.debug("circuit closed", circuit=circuit, why=why)
                if circuit in self._scopes:
                    self._scopes[circuit].cancel()

    def _answered(self, number: int, answer: Answer) -> None:
        if number in self._commands:  # else the caller has not waited
            self._commands[number].answers.append(answer)
            self._commands[number].done.set()

    def _offer(self, offer: events.Offer) -> None:
        on_answer = functools.partial(self._on_offer_answer, offer.circuit)
        payload = encode_record(Incoming(offer.token, offer.source, as_tls=True))
        is_asked = offer.target in self._sessions and self._sessions[offer.target].ask(
            INCOMING_SERVICE, payload, deadline_s=limits.RELAY_SETUP_S, on_answer=on_answer
        )
        if not is_asked:
            self._driver.feed(events.OfferAnswered(offer.circuit, "it cannot be asked now"))

    def _tell_place_lost(self, peer: PeerId, why: str) -> None:
        _log.debug("place lost", peer=peer.short, why=why)
        if peer in self._sessions:
            payload = encode_record(PlaceLost(why))
            # One that is not heard, as an older peer does not know this, is found out by what it
            # asks for next.
            self._sessions[peer].ask(
                INCOMING_SERVICE, payload, deadline_s=limits.RELAY_SETUP_S, on_answer=_ignore
            )

    def _on_offer_answer(self, circuit: int, answer: bytes | SwarmNodeError) -> None:
        try:
            if isinstance(answer, SwarmNodeError):
                raise answer
            accepted: OfferAnswer = decode_record(answer, OfferAnswer)  # type: ignore[arg-type]
            why = None if isinstance(accepted, Accepted) else accepted.reason
        except SwarmNodeError as error:
            why = str(error)
        self._driver.feed(events.OfferAnswered(circuit, why))

    def _refuse_leg(self, number: int, word: LegAnswer) -> None:
        if number in self._legs:
            leg = self._legs[number]
            try:
                leg.channel.send_nowait(leg.say(word))
            except TransportError as error:
                _log.debug("a leg is gone already", why=str(error))
            leg.done.set()

    def _join(self, circuit: int, numbers: tuple[int, int]) -> None:
        one, other = self._legs[numbers[0]], self._legs[numbers[1]]
        self._scopes[circuit] = trio.CancelScope()
        self._tasks.start_soon(self._run_circuit, circuit, one, other)

    # --- circuits -------------------------------------------------------------------------

    async def _run_circuit(self, circuit: int, one: _Leg, other: _Leg) -> None:
        try:
            with self._scopes[circuit]:
                await self._copy_both(circuit, one, other)
        finally:
            del self._scopes[circuit]
            one.done.set()
            other.done.set()
            for side in (0, 1):
                self._passed.pop((circuit, side), None)
            self._driver.feed(events.CircuitEnded(circuit))

    async def _copy_both(self, circuit: int, one: _Leg, other: _Leg) -> None:
        async with trio.open_nursery() as nursery:

            async def copy(side: int, source: Channel, leg: _Leg) -> None:
                try:
                    await leg.channel.send_all(leg.say(LegAnswer.GO))
                    await self._copy(circuit, side, source, leg.channel)
                except TransportError as error:
                    _log.debug("circuit broken", circuit=circuit, why=str(error))
                # The last words of the other direction are on their way.
                nursery.cancel_scope.deadline = trio.current_time() + limits.GOODBYE_LINGER_S

            nursery.start_soon(copy, 0, one.channel, other)
            nursery.start_soon(copy, 1, other.channel, one)

    async def _copy(self, circuit: int, side: int, source: Channel, sink: Channel) -> None:
        # Memory comes page by page: most circuits carry a few pings for most of the time.
        buffer = memoryview(mmap.mmap(-1, limits.RELAY_PIECE_BYTES))
        up, down = self._traffic.up, self._traffic.down
        way = Way(up)
        while n_bytes := await source.receive_into(buffer[: up.turn_bytes_max(is_far=True)]):
            now = trio.current_time()
            way.look(sink, now)
            if not isinstance(source, StreamChannel):  # whose session counts it
                down.spend(on_the_wire(n_bytes), now, Purpose.RELAYING)
                up.spend(receipts(n_bytes), now, Purpose.RELAYING)
            if down.debt_s(now):
                await trio.sleep(down.debt_s(now))
            if not self._core.try_pass(circuit, n_bytes, self._env.monotonic()):
                await self._wait_passed(circuit, side, n_bytes)
            await sink.send_all(buffer[:n_bytes])

    async def _wait_passed(self, circuit: int, side: int, n_bytes: int) -> None:
        event = self._passed[circuit, side] = trio.Event()
        self._driver.feed(events.Waiting(circuit, side, n_bytes))
        await event.wait()


def _ignore(_answer: bytes | SwarmNodeError) -> None:
    """Nothing follows from it."""


async def _receive_token(channel: Channel, first_bytes: bytes) -> bytes:
    rest = bytearray(LEG_BYTES - len(first_bytes))
    with trio.move_on_after(limits.RELAY_SETUP_S):
        await receive_exactly(channel, memoryview(rest))
        return decode_leg(first_bytes + bytes(rest))
    raise DeadlineExceeded(f"{channel.description}: the token of a leg", limits.RELAY_SETUP_S)
