"""Pulls: read what another member gives to its callers, and give what this node has.

::

    PostedIntent --> Lessor.borrow --> Pull to a random member --> Given + payload --> apply
    PostedIntent(is_open) kept
    Pull from a member --> Lessor.borrow --> Given + payload --> give_back

The slot that an answer was copied from goes back before anything is sent: a peer that reads slowly
holds memory, one of PULL_ANSWERS_MAX places, and no slot of the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import trio

from swarmnode import limits
from swarmnode.daemon.collective.payload import transfer_limit_s
from swarmnode.daemon.driver import Tasks
from swarmnode.daemon.exchange.pair.intents import costs
from swarmnode.daemon.worker.leases import BufferLease, Lessor, NoLease
from swarmnode.errors import (
    DeadlineExceeded,
    MalformedMessage,
    Refused,
    RemoteProtocolError,
    SwarmNodeError,
    WorkerError,
)
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.records import Partner
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.trust import NEUTRAL, Seen
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.magnitude import Sizes
from swarmnode.tensor.pieces import Chunk, cut_chunks
from swarmnode.wire.exchange import pull as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator

PULL_SERVICE = "pull/1"
_ID_BYTES = 16
_ANSWER_S = limits.EXCHANGE_OFFER_S + limits.EXCHANGE_VIEW_S
# So begin the reasons of one that makes a mean now, or gives to others.
_SOON = ("round:", "busy:")
_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
_log = get_logger("swarmnode.daemon.exchange")
_Topic = tuple[str, int]  # tag, fragment


class _Unanswered(DeadlineExceeded):
    """A peer has not said in time whether it gives."""


class Pulls:
    """The IntentHandler of pulls.

    Args:
        codec_name: the swarm's.

    Attributes:
        prefers: the peers to ask first; the others are asked as well.
        settled: returns once what is given will last for a while.
        call_s: how long a member that is called may take to come; 0: not known.
        on_pulled: told that what a peer gave is the worker's.
        pulled_total, failed_total, given_total, declined_total: as asker, and as giver.
        refused_total: answers of peers that were implausibly large.
    """

    def __init__(self, communicator: Communicator, *, codec_name: str, lessor: Lessor) -> None:
        self._self_id, self._key = communicator.self_id, communicator.key
        self._partners, self._env = communicator.partners, communicator.env
        self._trust = communicator.trust
        self._codec_name = codec_name
        self._lessor = lessor
        self._answers: dict[_Topic, PostedIntent] = {}
        self._asking: dict[_Topic, trio.CancelScope] = {}
        self._answering = 0
        self._tasks = Tasks()
        self.prefers: Callable[[], Collection[PeerId]] = tuple
        self.settled: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.call_s: Callable[[], float] = lambda: 0.0
        self.on_pulled: Callable[[], None] = lambda: None
        self.pulled_total = self.failed_total = self.given_total = self.declined_total = 0
        self.refused_total = 0
        services = communicator.services
        self._name = services.name(PULL_SERVICE)
        services.add_stream(PULL_SERVICE, self._answer)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve intents until cancelled."""
        async with self._tasks.open():
            task_status.started()
            await trio.sleep_forever()

    # --- as an IntentHandler -----------------------------------------------------------------

    def intent_posted(self, intent: PostedIntent) -> None:
        """Keep an answer, or ask for what is wanted; an earlier intent is asked for no more."""
        topic = (intent.tag, intent.fragment)
        if intent.is_open:
            self._answers[topic] = intent
            return
        if topic in self._asking:
            self._asking.pop(topic).cancel()
        if not self._tasks.are_open:
            self._lessor.drop(intent, "local: this node is starting or leaving")
            return
        scope = self._asking[topic] = trio.CancelScope()
        self._tasks.start_while_open(self._serve_intent, intent, scope)

    def worker_gone(self) -> None:
        """Ask for nothing and give nothing until there is another."""
        for scope in self._asking.values():
            scope.cancel()
        self._asking.clear()
        self._answers.clear()

    def partners_changed(self) -> None:
        """An intent is tried once, with the peers that are there: the strategy asks again."""

    @property
    def given_bytes(self) -> int:
        """The most that a peer is given at once."""
        return max(
            (_payload_bytes(each, self._codec_name) for each in self._answers.values()), default=0
        )

    @property
    def is_asking(self) -> bool:
        """Whether an answer is under way."""
        return bool(self._asking)

    # --- asking --------------------------------------------------------------------------------

    async def _serve_intent(self, intent: PostedIntent, scope: trio.CancelScope) -> None:
        topic = (intent.tag, intent.fragment)
        with scope:
            why = await self._ask_some(intent)
            if why:
                self.failed_total += 1
                say = _log.info if self._partners.sessions else _log.debug
                say("nothing pulled", tag=intent.tag, why=why)
        if self._asking.get(topic) is scope:
            del self._asking[topic]

    async def _ask_some(self, intent: PostedIntent) -> str:
        """Return why nothing came; empty: it was applied."""
        taken: list[BufferLease] = []
        why = "unreachable: no peer to ask"
        soon_s = min(max(limits.EXCHANGE_OFFER_S, 2 * self.call_s()), _ANSWER_S)
        candidates = self._candidates()
        # One whose worker stands still would be waited for where another gives at once.
        turns = [(peer, soon_s if len(candidates) > 1 else _ANSWER_S) for peer in candidates]
        is_soon = False  # one that has answered gives in a while: then the strategy asks again
        with self._ending(intent, taken):
            for peer, answer_s in turns:
                if peer not in self._partners.sessions or (is_soon and answer_s > soon_s):
                    continue
                session = self._partners.sessions[peer]
                try:
                    given = await self._ask(session, intent, taken, answer_s)
                except NoLease as error:  # of our own worker: no other peer can help
                    why = str(error)
                    break
                except SwarmNodeError as error:
                    why = str(error)
                    is_soon |= why.startswith(_SOON)
                    _log.debug("not given", peer=peer.short, why=why)
                    if isinstance(error, RemoteProtocolError):
                        await session.aclose(str(error))
                    if isinstance(error, _Unanswered) and answer_s < _ANSWER_S:
                        turns.append((peer, _ANSWER_S))  # again after the others
                    continue
                self._lessor.apply(taken.pop(), self._env.token(_ID_BYTES), partner=given)
                self.pulled_total += 1
                self.on_pulled()
                return ""
            if taken:
                self._lessor.give_back(taken.pop(), why)
            else:
                self._lessor.drop(intent, why)
        return why

    @contextlib.contextmanager
    def _ending(self, intent: PostedIntent, taken: list[BufferLease]) -> Iterator[None]:
        """Give a lease back when another intent takes the place."""
        try:
            yield
        finally:
            if taken:
                self._lessor.give_back(taken.pop(), f"{intent.tag} is asked for anew")

    def _candidates(self) -> list[PeerId]:
        peers = [peer for peer in self._partners.partners() if peer != self._self_id]
        there = costs(self._partners)
        found = [peer for peer in peers if peer in there]
        if not found:
            self._partners.want(tuple(peers[: limits.SOUGHT_MAX]))
        self._env.rng.shuffle(found)
        preferred, now = set(self.prefers()), self._env.monotonic()
        # In each part as shuffled. What is pulled takes the place of the own model.
        found.sort(
            key=lambda peer: (self._trust.weight(peer, now) < NEUTRAL, peer not in preferred)
        )
        return found[: limits.EXCHANGE_CANDIDATES_MAX]

    async def _ask(
        self, session: Session, intent: PostedIntent, taken: list[BufferLease], answer_s: float
    ) -> Partner:
        """Read what one peer gives into the room of a lease; return that peer as the partner.

        ``taken``: the lease, once there is one; it serves for the next peer if this one fails.
        ``answer_s``: how long the peer may take to say that it gives.

        Raises SwarmNodeError.
        """
        request = wire.Pull(
            key=self._key,
            tag=intent.tag,
            fragment=intent.fragment,
            round=intent.round,
            numel=intent.numel,
            step=intent.step,
            tokens=intent.tokens,
            weight=intent.weight,
            base_version=intent.base_version,
        )
        if not taken:
            # First, as the worker lends at the end of a step, and takes at the end of one: what is
            # given is older with each that it waits for.
            taken.append(await self._lessor.borrow(intent))
        async with await session.open_stream(self._name, priority=Priority.BULK) as stream:
            await stream.send_message(encode_record(request))
            await stream.send_end()
            given = await self._receive_given(session.peer, stream, intent, answer_s)
            limit_s = transfer_limit_s(intent.numel)
            with trio.move_on_after(limit_s) as scope:
                parts = cut_chunks(intent.views, self._codec_name)
                sizes = await _receive_payload(stream, parts, taken[0].room)
            if scope.cancelled_caught:
                raise DeadlineExceeded(
                    f"receiving {intent.tag} from {session.peer.short}, which gave it", limit_s
                )
            self._refuse_if_implausible(session.peer, sizes, taken[0])
        return Partner(session.peer, given.step, given.tokens, given.weight, given.base_version)

    def _refuse_if_implausible(self, peer: PeerId, sizes: Sizes, lease: BufferLease) -> None:
        """Raise Refused: it would ruin the model; the next peer is asked."""
        why = sizes.refusal(Sizes(), lease.weights)
        if why:
            self.refused_total += 1
            self._trust.note(peer, Seen.FAULTY, self._env.monotonic())
            _log.warning("a payload is refused", peer=peer.short, why=why)
            raise Refused(f"refused: {why}")

    async def _receive_given(
        self, peer: PeerId, stream: Stream, intent: PostedIntent, limit_s: float
    ) -> wire.Given:
        what = f"{peer.short} to answer a pull of {intent.tag}"
        try:
            answer = await _receive(stream, what, limit_s)
        except DeadlineExceeded:
            raise _Unanswered(f"waiting for {what}", limit_s) from None
        match answer:
            case wire.Given() as given:
                return given
            case wire.Declined(reason=reason):
                raise Refused(reason)
        raise MalformedMessage("expected the answer to a pull, got another pull")

    # --- answering -----------------------------------------------------------------------------

    async def _answer(self, session: Session, stream: Stream) -> None:
        """Give one peer what it asks for, or say why not; for as long as it waits for that."""
        with trio.CancelScope() as stream.scope_to_cancel:
            await self._answer_now(session, stream)

    async def _answer_now(self, session: Session, stream: Stream) -> None:
        what = f"{session.peer.short} to say what it pulls"
        request = await _receive(stream, what, limits.EXCHANGE_OFFER_S)
        if not isinstance(request, wire.Pull):
            raise MalformedMessage(f"expected a pull, got {type(request).__name__}")
        why = self._refusal(request)
        if why:
            await self._decline(stream, why)
            return
        answer = self._answers[request.tag, request.fragment]
        self._answering += 1
        try:
            with trio.move_on_after(limits.PULL_SETTLED_S):
                await self.settled()
            given, payload = await self._copy(session.peer, request, answer)
            limit_s = transfer_limit_s(answer.numel)
            with trio.move_on_after(limit_s) as scope:
                await stream.send_message(encode_record(given))
                for part in payload:
                    await stream.send(part)
            if scope.cancelled_caught:
                raise DeadlineExceeded(f"sending {answer.tag} to {session.peer.short}", limit_s)
            self.given_total += 1
        except WorkerError as error:
            await self._decline(stream, str(error))
        finally:
            self._answering -= 1

    def _refusal(self, request: wire.Pull) -> str:
        topic = (request.tag, request.fragment)
        if request.key != self._key:
            return "incompatible: another task, strategy, setting, layout or codec"
        if topic not in self._answers:
            return f"no-wish: nothing to give of {request.tag} {request.fragment}"
        numel = self._answers[topic].numel
        if request.numel != numel:
            return f"incompatible: expected {numel} elements, got {request.numel}"
        if self._answering >= limits.PULL_ANSWERS_MAX:
            return f"busy: answering {self._answering} others"
        return ""

    async def _decline(self, stream: Stream, why: str) -> None:
        self.declined_total += 1
        await stream.send_message(encode_record(wire.Declined(why[: limits.REASON_BYTES_MAX])))

    async def _copy(
        self, peer: PeerId, request: wire.Pull, answer: PostedIntent
    ) -> tuple[wire.Given, list[bytearray]]:
        """Return what this node gives now. Raises WorkerError: nothing."""
        asker = Partner(peer, request.step, request.tokens, request.weight, request.base_version)
        lease = await self._lessor.borrow(answer, asker, request.round)
        payload = []
        try:
            for chunk in cut_chunks(answer.views, self._codec_name):
                part = bytearray(chunk.codec.payload_bytes(chunk.numel))
                chunk.codec.encode(chunk.of(lease.own), part)
                payload.append(part)
                await trio.lowlevel.checkpoint()
        finally:
            self._lessor.give_back(lease, "")
        given = wire.Given(lease.step, lease.tokens, answer.weight, answer.base_version)
        return given, payload


def _payload_bytes(intent: PostedIntent, codec_name: str) -> int:
    """Return the size of the payload."""
    chunks = cut_chunks(intent.views, codec_name)
    return sum(chunk.codec.payload_bytes(chunk.numel) for chunk in chunks)


async def _receive(stream: Stream, what: str, limit_s: float) -> wire.Message:
    """Return the next message. Raises SwarmNodeError; of a timeout it says what was waited for."""
    with trio.move_on_after(limit_s):
        try:
            data, _ = await stream.receive_message(max_bytes=0)
        except trio.EndOfChannel:
            raise MalformedMessage(f"waited for {what}, got the end of the stream") from None
        message: wire.Message = decode_record(data, _MESSAGE)
        return message
    raise DeadlineExceeded(f"waiting for {what}", limit_s)


async def _receive_payload(stream: Stream, parts: tuple[Chunk, ...], room: memoryview) -> Sizes:
    """Decode a whole payload into ``room``; return how large it is. Raises SwarmNodeError."""
    sizes = Sizes()
    for chunk in parts:
        payload = bytearray(chunk.codec.payload_bytes(chunk.numel))
        await stream.receive_into(memoryview(payload))
        sizes.decode(chunk, payload, chunk.of(room))
    if await stream.receive():
        raise MalformedMessage("expected the end of what was pulled, got more bytes")
    return sizes
