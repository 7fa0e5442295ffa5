"""The shell of exchanges against a partner made by hand: streams that break, and leases."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.exchange.pair.exchanges import EXCHANGE_SERVICE, MESSAGE_SERVICE, Exchanges
from swarmnode.daemon.exchange.pair.transfer import ExchangeStream, decode_message
from swarmnode.daemon.membership.swarm import Communicator
from swarmnode.daemon.worker.leases import BufferLease, NoLease
from swarmnode.env import Env
from swarmnode.errors import Refused
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent, Weighed
from swarmnode.ipc.records import Partner, ViewShape
from swarmnode.net.services import ScopedServices, Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.trust import Counts, Trust
from swarmnode.tensor.codec import get_codec
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority
from tests.kits.session_kit import ALICE, BOB, start, start_both

CODEC = get_codec("Q8B64")
NUMEL = 640
CAROL = Identity.from_seed(b"c" * 32)
KEY = b"k" * 32
TAG = "tag"
EXCHANGE_NAME = f"{EXCHANGE_SERVICE}@{TAG}"
MESSAGE_NAME = f"{MESSAGE_SERVICE}@{TAG}"


def intent_of(
    number: int, fragment: int = 0, *, selector: Any = "matching", codec: str = "", **others: Any
) -> PostedIntent:
    views = (ViewShape("v", codec, NUMEL),)
    return PostedIntent(
        number, "pair", "x", fragment, 1, selector, views, step=1, tokens=1, **others
    )


class FakeLessor:
    """Lends a vector of its own for each intent, when ``may_lend`` says so."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.asked: list[tuple[int, Partner | None, int | None]] = []
        self.own = np.zeros(NUMEL, np.float32)
        self.rooms: dict[int, Any] = {}
        self.may_lend = trio.Event()
        self.may_lend.set()
        self.refusal = ""
        self.weighed: list[tuple[int, Partner]] = []
        self.may_weigh = trio.Event()
        self.may_weigh.set()
        self.verdict = ""
        self.is_gone = False

    async def borrow(
        self, intent: PostedIntent, partner: Partner | None = None, round_number: int | None = None
    ) -> BufferLease:
        self.asked.append((intent.number, partner, round_number))
        try:
            await self.may_lend.wait()
        except trio.Cancelled:
            self.told.append(("cancelled", intent.number))
            raise
        if self.refusal:
            raise NoLease(self.refusal)
        room = self.rooms[intent.number] = np.full(NUMEL, np.nan, np.float32)
        own = self.own.copy()
        return BufferLease(intent, 0, intent.number, own.data.cast("B"), room.data.cast("B"), 7, 70)

    async def weigh(self, lease: BufferLease, partner: Partner) -> Weighed:
        self.weighed.append((lease.intent.number, partner))
        await self.may_weigh.wait()
        if self.is_gone:
            raise NoLease("local: the worker went away")
        return Weighed(lease.slot, lease.generation, self.verdict, 0.25, is_useful=not self.verdict)

    def apply(
        self,
        lease: BufferLease,
        xid: bytes,
        partner: Partner | None = None,
        present: tuple[bytes, ...] = (),
    ) -> bool:
        assert partner is not None
        assert not present
        if self.is_gone:
            return False
        self.told.append(("apply", lease.intent.number))
        return True

    def give_back(self, lease: BufferLease, why: str) -> None:
        self.told.append(("give back", lease.intent.number))

    def drop(self, intent: PostedIntent, why: str) -> None:
        self.told.append(("drop", intent.number))


class Rig:
    """Alice's exchanges, what they told her worker, and Bob's bare side of the session."""

    def __init__(self) -> None:
        self.lessor = FakeLessor()
        self.told = self.lessor.told
        self.finished: list[Finished] = []
        self.sessions: dict[Any, Session] = {}
        self.streams: list[Stream] = []  # that Alice opened to Bob
        self.strangers: set[PeerId] = set()
        self.services, self.bobs = Services(), Services()
        self.bobs.add_stream(EXCHANGE_NAME, self._keep)
        self.network = MemoryNetwork(delay_s=0.01)
        self.trust = Trust(b"\x07" * 16)
        communicator = Communicator(
            self_id=ALICE.peer_id,
            key=KEY,
            partners=self,
            services=ScopedServices(self.services, TAG, self._is_member),
            live=self.partners,
            trust=self.trust,
            env=Env(trio.current_time, lambda: 0.0, random.Random(1)),
        )
        self.exchanges = Exchanges(
            communicator,
            swarm_id=b"s" * 32,
            topology="",
            codec=CODEC,
            lessor=self.lessor,
            record=self.finished.append,
            lost=lambda xid: self.told.append(("lost", xid)),
        )

    def want(self, peers: tuple[PeerId, ...]) -> None:
        """All that there are have a session."""

    def partners(self) -> tuple[PeerId, ...]:
        return tuple(sorted({ALICE.peer_id, BOB.peer_id, *self.sessions}))

    def active(self) -> tuple[PeerId, ...]:
        return self.partners()

    async def meet_carol(self, nursery: trio.Nursery) -> None:
        """Let a second peer be there, which keeps its streams as Bob does."""
        near, far = self.network.link("alice", "carol")

        async def answer() -> None:
            await start(nursery, far, CAROL, Role.SERVER, self.bobs)

        async with trio.open_nursery() as starting:
            starting.start_soon(answer)
            self.sessions[CAROL.peer_id] = await start(
                nursery, near, ALICE, Role.CLIENT, self.services, CAROL.peer_id
            )

    async def _is_member(self, peer: PeerId) -> bool:
        return peer not in self.strangers

    async def _keep(self, _session: Session, stream: Stream) -> None:
        self.streams.append(stream)
        await trio.sleep_forever()

    def intent(self, number: int = 1, fragment: int = 0, **others: Any) -> None:
        """The worker posts an intent."""
        self.exchanges.intent_posted(intent_of(number, fragment, **others))

    async def first_offer(self) -> tuple[Stream, wire.Offer]:
        """Wait until Alice has opened her last stream; return it and what she offers."""
        await self.until(lambda: self.streams)
        offer = await hear(self.streams[-1])
        assert isinstance(offer, wire.Offer)
        return self.streams[-1], offer

    @property
    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(f.role.value, f.outcome.value, f.reason) for f in self.finished]

    async def bob_offers(self, xid: bytes = b"x" * 16, **changes: Any) -> Stream:
        """Offer as Bob; return the stream once Alice has accepted."""
        stream, answer = await self.bob_asks(xid, **changes)
        assert isinstance(answer, wire.Accept)
        return stream

    async def bob_asks(self, xid: bytes, **changes: Any) -> tuple[Stream, wire.Message]:
        stream = await self.bob.open_stream(EXCHANGE_NAME, priority=Priority.BULK)
        fields = {"tag": "x", "fragment": 0, "round": 1, "n_chunks": 1, "step": 1, "tokens": 1}
        offer = wire.Offer(xid, KEY, **{**fields, **changes})
        await stream.send_message(encode_record(offer))
        return stream, await hear(stream)

    async def until(self, condition: Callable[[], object], limit_s: float = 1.0) -> None:
        with trio.fail_after(limit_s):
            while not condition():  # noqa: ASYNC110 -- of virtual time
                await trio.sleep(0.01)

    bob: Session
    alice: Session


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    async with trio.open_nursery() as nursery:
        ends = made.network.link("alice", "bob")
        made.alice, made.bob = await start_both(nursery, ends, made.bobs, made.services)
        made.sessions[BOB.peer_id] = made.alice
        await nursery.start(made.exchanges.run)
        yield made
        nursery.cancel_scope.cancel()


async def say(stream: Stream, message: wire.Message, payload: bytes = b"") -> None:
    await stream.send_message(encode_record(message), payload)


async def hear(stream: Stream) -> wire.Message:
    header, _ = await stream.receive_message(limits.EXCHANGE_MESSAGE_BYTES_MAX)
    return decode_record(header, wire.Message)  # type: ignore[arg-type,return-value]


def zeros(value: float = 0.0) -> bytes:
    payload = bytearray(CODEC.payload_bytes(NUMEL))
    CODEC.encode(np.full(NUMEL, value, np.float32), payload)
    return bytes(payload)


async def test_a_whole_exchange_as_initiator(autojump_clock) -> None:
    async with rig() as alice:
        alice.lessor.own[:] = 3.0
        alice.intent(weight=2.0, base_version=b"b")
        stream, offer = await alice.first_offer()
        assert (offer.weight, offer.base_version, offer.n_chunks) == (2.0, b"b", 1)
        await say(stream, wire.Accept(offer.xid, 4, 40, 400, 5.0))
        assert isinstance(await hear(stream), wire.Chunk)
        await say(stream, wire.Chunk(offer.xid, 0), zeros(5.0))
        await say(stream, wire.Ready(offer.xid, 1))
        assert isinstance(await hear(stream), wire.Commit)
        with pytest.raises(trio.EndOfChannel):
            await hear(stream)
        await stream.send_end()
        await alice.until(lambda: not alice.exchanges._streams)
        assert alice.told == [("apply", 1)]
        bob = Partner(BOB.peer_id, 40, 400, 5.0, b"b")
        assert alice.lessor.asked == [(1, bob, 4)]
        assert np.allclose(alice.lessor.rooms[1], 5.0, atol=0.02)
        assert alice.outcomes == [("initiator", "committed", "")]
        assert alice.exchanges.totals.payload_sent_bytes == CODEC.payload_bytes(NUMEL)


async def test_nothing_is_sent_before_the_worker_lends_and_what_comes_waits(autojump_clock) -> None:
    async with rig() as alice:
        alice.lessor.may_lend = trio.Event()
        alice.intent()
        stream, offer = await alice.first_offer()
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        await say(stream, wire.Chunk(offer.xid, 0), zeros())
        with trio.move_on_after(limits.EXCHANGE_VIEW_S / 2) as waiting:
            await hear(stream)
        assert waiting.cancelled_caught
        await say(stream, wire.Ready(offer.xid, 1))
        alice.lessor.may_lend.set()
        await alice.until(lambda: alice.finished)
        assert alice.outcomes == [("initiator", "committed", "")]


async def test_what_came_is_weighed_before_this_side_is_done(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.lessor.may_weigh = trio.Event()
        alice.intent()
        stream = await alice.bob_offers()
        await say(stream, wire.Chunk(b"x" * 16, 0), zeros())
        assert isinstance(await hear(stream), wire.Chunk)
        with trio.move_on_after(5) as waiting:
            await hear(stream)
        assert waiting.cancelled_caught, "READY, before the worker has said that it may count"
        assert alice.lessor.weighed == [(1, Partner(BOB.peer_id, 1, 1))]
        alice.lessor.may_weigh.set()
        assert isinstance(await hear(stream), wire.Ready)
        await say(stream, wire.Commit(b"x" * 16))
        await alice.until(lambda: alice.told == [("apply", 1)])
        assert alice.exchanges.totals.weighed == 1
        assert alice.exchanges.totals.weighing_s == 0.25
        assert alice.exchanges.totals.refused == 0
        assert alice.trust.counts(BOB.peer_id) == Counts(useful=1)


@pytest.mark.parametrize("is_initiator", [False, True])
async def test_what_the_worker_refuses_counts_on_neither_side(is_initiator, autojump_clock) -> None:
    async with rig() as alice:
        alice.lessor.verdict = "probe"
        if not is_initiator:
            alice.sessions.clear()
        alice.intent()
        if is_initiator:
            stream, offer = await alice.first_offer()
            xid = offer.xid
            await say(stream, wire.Accept(xid, 1, 1, 1))
        else:
            xid = b"x" * 16
            stream = await alice.bob_offers(xid)
        await say(stream, wire.Chunk(xid, 0), zeros())
        if is_initiator:
            await say(stream, wire.Ready(xid, 1))
        assert isinstance(await hear(stream), wire.Chunk)
        assert await hear(stream) == wire.Abort(xid, "local: refused: probe")
        assert alice.told == [("give back", 1)]
        totals = alice.exchanges.totals
        assert (totals.committed, totals.refused) == (0, 1)
        assert totals.weighed_refusals == {"probe": 1}
        assert alice.trust.counts(BOB.peer_id) == Counts(refused=1)
        assert [outcome for _, outcome, _ in alice.outcomes] == ["aborted"]


async def test_an_exchange_that_ends_while_it_is_weighed_is_over(autojump_clock) -> None:
    for is_gone in (False, True):
        async with rig() as alice:
            alice.sessions.clear()
            alice.lessor.may_weigh = trio.Event()
            alice.intent()
            stream = await alice.bob_offers()
            await say(stream, wire.Chunk(b"x" * 16, 0), zeros())
            await alice.until(lambda made=alice: made.lessor.weighed)
            if is_gone:
                alice.lessor.is_gone = True
                alice.lessor.may_weigh.set()
            else:
                await say(stream, wire.Abort(b"x" * 16, "other"))
            await alice.until(lambda made=alice: made.finished)
            alice.lessor.may_weigh.set()
            await trio.sleep(1)
            assert [outcome for _, outcome, _ in alice.outcomes] == ["aborted"]
            assert alice.told == [("give back", 1)]


async def test_a_worker_that_never_lends_costs_one_exchange(autojump_clock) -> None:
    async with rig() as alice:
        alice.lessor.may_lend = trio.Event()
        alice.intent()
        stream, offer = await alice.first_offer()
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        started = trio.current_time()
        await alice.until(lambda: alice.finished, 2 * limits.EXCHANGE_VIEW_S)
        assert trio.current_time() - started > limits.EXCHANGE_VIEW_S
        assert alice.outcomes == [("initiator", "aborted", "timeout")]
        await alice.until(lambda: alice.told == [("cancelled", 1)])


async def test_a_lease_that_is_refused_ends_the_exchange_with_its_reason(autojump_clock) -> None:
    async with rig() as alice:
        alice.lessor.refusal = "busy: the worker holds it back"
        alice.sessions.clear()
        alice.intent()
        stream = await alice.bob_offers()
        abort = await hear(stream)
        assert abort == wire.Abort(b"x" * 16, alice.lessor.refusal)
        assert alice.outcomes == [("responder", "aborted", alice.lessor.refusal)]
        assert alice.told == []
        _, answer = await alice.bob_asks(b"y" * 16)
        assert answer == wire.Busy(b"y" * 16, "no-wish")  # it was used up


async def test_every_intent_is_offered_once_one_after_the_other(autojump_clock) -> None:
    async with rig() as alice:
        for fragment in range(3):
            alice.intent(fragment + 1, fragment)
        for fragment in range(3):
            await alice.until(lambda n=fragment: len(alice.streams) == n + 1)
            stream, offer = await alice.first_offer()
            assert offer.fragment == fragment
            await trio.sleep(0.5)
            assert len(alice.streams) == fragment + 1  # one exchange at a time
            await say(stream, wire.Busy(offer.xid, "no-wish"))
        await trio.sleep(5)
        alice.exchanges.partners_changed()
        await trio.sleep(5)
        assert len(alice.streams) == 3
        assert alice.told == []
        stream = await alice.bob_offers(fragment=2)
        assert alice.lessor.asked[-1][0] == 3


async def test_two_exchanges_at_once_each_with_another_peer(autojump_clock) -> None:
    async with rig() as alice, trio.open_nursery() as nursery:
        await alice.meet_carol(nursery)
        for fragment in range(3):
            alice.intent(fragment + 1, fragment)
        await alice.until(lambda: len(alice.streams) == 2)
        offers = [await hear(stream) for stream in alice.streams]
        for stream, offer in zip(alice.streams, offers, strict=True):
            await say(stream, wire.Accept(offer.xid, 1, 1, 1))
            assert isinstance(await hear(stream), wire.Chunk)
        await trio.sleep(0.5)
        assert len(alice.streams) == 2, "the third waits for a place"
        for stream, offer in zip(alice.streams[:2], offers, strict=True):
            await say(stream, wire.Chunk(offer.xid, 0), zeros())
            await say(stream, wire.Ready(offer.xid, 1))
            assert isinstance(await hear(stream), wire.Commit)
        assert alice.told == [("apply", 1), ("apply", 2)]
        await alice.until(lambda: len(alice.streams) == 3)
        nursery.cancel_scope.cancel()


async def test_an_intent_waits_for_a_peer_to_be_there(autojump_clock) -> None:
    async with rig() as alice:
        sessions = dict(alice.sessions)
        alice.sessions.clear()
        alice.intent()
        await trio.sleep(1)
        alice.sessions.update(sessions)
        alice.exchanges.partners_changed()
        await alice.first_offer()


async def test_the_next_intent_takes_the_place_of_one_that_waits(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.intent(1)
        alice.intent(2)
        assert alice.told == []  # the worker knows: it made the next
        await alice.bob_offers()
        assert [number for number, _, _ in alice.lessor.asked] == [2]


async def test_an_intent_for_any_neighbour_that_none_takes_goes_back(autojump_clock) -> None:
    async with rig() as alice:
        alice.intent(1, selector="neighbour")
        stream, offer = await alice.first_offer()
        await say(stream, wire.Busy(offer.xid, "busy"))
        await alice.until(lambda: alice.told == [("drop", 1)])
        alice.sessions.clear()
        alice.intent(2, selector="neighbour")
        await alice.until(lambda: alice.told[1:] == [("drop", 2)])
        _, answer = await alice.bob_asks(b"y" * 16)
        assert answer == wire.Busy(b"y" * 16, "no-wish")


async def test_an_answer_is_had_by_each_caller_and_offered_to_none(autojump_clock) -> None:
    async with rig() as alice:
        alice.intent(9, selector="neighbour", is_open=True)
        await trio.sleep(1)
        assert alice.streams == []
        for number, xid in enumerate((b"1" * 16, b"2" * 16)):
            stream = await alice.bob_offers(xid, round=50 + number, base_version=b"theirs")
            await say(stream, wire.Chunk(xid, 0), zeros())
            assert isinstance(await hear(stream), wire.Chunk)
            assert isinstance(await hear(stream), wire.Ready)
            await say(stream, wire.Commit(xid))
            await alice.until(lambda n=number: len(alice.told) == n + 1)
        assert alice.told == [("apply", 9)] * 2
        bob = Partner(BOB.peer_id, 1, 1, 1.0, b"theirs")
        assert alice.lessor.asked == [(9, bob, 50), (9, bob, 51)]


async def test_intents_that_no_pair_can_serve_go_back(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.intent(1, codec="TK4")
        alice.intent(2, codec="Q9")
        alice.exchanges.intent_posted(PostedIntent(3, "pair", "x", 0, 1, "matching"))
        assert alice.told == [("drop", 1), ("drop", 2), ("drop", 3)]
        for number in range(limits.INTENTS_MAX + 1):
            alice.intent(100 + number, fragment=number)
        assert alice.told[3:] == [("drop", 100 + limits.INTENTS_MAX)]


async def test_a_stream_that_is_reset_ends_the_exchange_at_once(autojump_clock) -> None:
    """Whichever of the two tasks of a stream sees it first."""
    for resets_while in ("chunks come", "nothing comes"):
        async with rig() as alice:
            if resets_while == "chunks come":
                alice.sessions.clear()
                alice.intent()
                stream = await alice.bob_offers()
            else:
                alice.intent()
                stream, offer = await alice.first_offer()
                await say(stream, wire.Accept(offer.xid, 1, 1, 1))
                assert isinstance(await hear(stream), wire.Chunk)
            await stream.reset()
            await alice.until(lambda made=alice: made.told)
            assert alice.told == [("give back", 1)]
            assert alice.finished[-1].outcome == "aborted"
            assert not alice.exchanges._streams


async def test_a_session_that_ends_under_a_responder_ends_the_exchange(autojump_clock) -> None:
    """Even when no peer tells: its place was taken by a newer session with the same peer."""
    async with rig() as alice:
        alice.sessions.clear()  # no peer to offer to
        alice.intent()
        await alice.bob_offers()
        async with trio.open_nursery() as nursery:
            ends = alice.network.link("alice", "bob")
            newer, _ = await start_both(nursery, ends, alice.bobs, alice.services)
            alice.sessions[BOB.peer_id] = newer
            await alice.alice.aclose("replaced by a newer connection")
            assert alice.outcomes == [("responder", "aborted", "unreachable")]
            assert alice.told == [("give back", 1)]
            nursery.cancel_scope.cancel()


async def test_what_breaks_after_its_exchange_hurts_no_later_one(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.intent()
        first = await alice.bob_offers(b"1" * 16)
        await say(first, wire.Abort(b"1" * 16, "other"))
        await alice.until(lambda: alice.finished)
        alice.intent(2)
        second = await alice.bob_offers(b"2" * 16)
        assert len(alice.exchanges._streams) == 2
        await first.reset()
        await alice.until(lambda: len(alice.exchanges._streams) == 1)
        await say(second, wire.Chunk(b"2" * 16, 0), zeros())
        assert isinstance(await hear(second), wire.Chunk)
        assert isinstance(await hear(second), wire.Ready)
        await say(second, wire.Commit(b"2" * 16))
        await alice.until(lambda: ("apply", 2) in alice.told)


async def test_an_exchange_does_not_outlive_its_exchange_by_long(autojump_clock) -> None:
    async with rig() as alice:
        alice.intent()
        await alice.until(lambda: alice.streams)
        await trio.sleep(limits.EXCHANGE_OFFER_S + limits.EXCHANGE_LINGER_S / 2)
        assert alice.outcomes == [("initiator", "declined", "timeout")]
        assert len(alice.exchanges._streams) == 1
        await trio.sleep(limits.EXCHANGE_LINGER_S)
        assert not alice.exchanges._streams


async def test_an_answer_to_a_late_peer_takes_another_way(autojump_clock) -> None:
    """Our half of the stream has ended by then, and the waiting peer must learn that it is over."""
    async with rig() as alice:
        heard: list[wire.Message] = []

        async def take(_peer: PeerId, payload: bytes) -> bytes:
            heard.append(decode_message(payload))
            return b""

        alice.bobs.add_request(MESSAGE_NAME, take)
        alice.intent()
        stream, offer = await alice.first_offer()
        await alice.until(lambda: alice.finished, limits.EXCHANGE_OFFER_S + 1)
        await trio.sleep(1)
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        await alice.until(lambda: heard)
        assert heard == [wire.StatusReply(offer.xid, "aborted")]


async def test_who_is_no_member_exchanges_nothing(autojump_clock) -> None:
    async with rig() as alice:
        alice.intent()
        await alice.until(lambda: alice.finished, limits.EXCHANGE_OFFER_S + 1)
        alice.strangers.add(BOB.peer_id)
        with pytest.raises(Refused, match="members of the swarm only"):
            await alice.bob_offers()
        message = encode_record(wire.StatusQuery(b"x" * 16))
        with pytest.raises(Refused, match="members of the swarm only"):
            await alice.bob.request(MESSAGE_NAME, message, deadline_s=1)
        assert len(alice.finished) == 1


async def test_no_session_is_no_partner(autojump_clock) -> None:
    """It may go between the choice and the offer."""
    async with rig() as alice:
        alice.intent()
        await alice.until(lambda: not alice.exchanges.core.is_idle)
        await alice.alice.aclose("gone")
        await alice.until(lambda: alice.finished)
        assert [outcome for _, outcome, _ in alice.outcomes] == ["declined"]
        assert alice.told == []  # still to be had by whoever offers


async def test_the_worker_dies_under_an_open_offer(autojump_clock) -> None:
    async with rig() as alice:
        alice.intent()
        stream, offer = await alice.first_offer()
        alice.exchanges.worker_gone()
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        await trio.sleep(0.1)
        assert alice.outcomes == [("initiator", "aborted", "local: the worker went away")]
        assert alice.told == []
        alice.intent(1)  # of the next worker
        await alice.until(lambda: len(alice.streams) == 2)


async def test_the_worker_dies_after_ready(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.intent()
        stream = await alice.bob_offers()
        await say(stream, wire.Chunk(b"x" * 16, 0), zeros())
        assert isinstance(await hear(stream), wire.Chunk)
        assert isinstance(await hear(stream), wire.Ready)
        alice.lessor.is_gone = True
        alice.exchanges.worker_gone()
        alice.intent(1)  # of the next worker, before the decision is known
        assert alice.outcomes == []
        await say(stream, wire.Commit(b"x" * 16))
        await alice.until(lambda: alice.finished)
        assert alice.told == [("lost", b"x" * 16)]


async def test_values_that_are_not_finite_abort_and_the_slot_goes_back(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.lessor.own[7] = np.nan
        alice.intent()
        stream = await alice.bob_offers()
        abort = await hear(stream)
        assert isinstance(abort, wire.Abort)
        assert "finite" in abort.reason
        assert alice.told == [("give back", 1)]
        assert not alice.bob.is_closed


async def test_drain_waits_for_what_runs_and_gives_the_rest_back(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.intent(1)
        stream = await alice.bob_offers()
        alice.intent(2)
        with trio.move_on_after(2) as waiting:
            await alice.exchanges.drain()
        assert waiting.cancelled_caught
        assert alice.told == [("drop", 2)]
        alice.exchanges.give_up("leaving")
        await alice.exchanges.drain()
        assert isinstance(await hear(stream), wire.Chunk)
        abort = await hear(stream)
        assert isinstance(abort, wire.Abort)
        assert abort.reason == "local: leaving"
        alice.intent(3)
        assert alice.told[1:] == [("give back", 1), ("drop", 3)]


async def test_messages_leave_before_chunks_that_are_encoded_later(autojump_clock) -> None:
    exchange = ExchangeStream(BOB.peer_id, b"x" * 16)
    chunks = iter([(0, memoryview(b"zero")), (1, memoryview(b"one"))])
    transfer = SimpleNamespace(encode_next=lambda: next(chunks, None), note_sent=lambda: None)
    sent: list[str] = []

    class Recorder:
        async def send_message(self, header: bytes, payload: Any = b"") -> None:
            await trio.lowlevel.checkpoint()
            sent.append(type(decode_record(header, wire.Message)).__name__)  # type: ignore[arg-type]
            if sent == ["Accept", "Chunk"]:
                exchange.post(wire.Ready(exchange.xid, 1))

        async def send_end(self) -> None:
            sent.append("END")

    owner = SimpleNamespace(chunk_sent=lambda _exchange: None)
    exchange.post(wire.Accept(exchange.xid, 1, 1, 1))
    exchange.start(transfer)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange._write, Recorder(), owner)
        await trio.sleep(1)
        assert sent == ["Accept", "Chunk", "Ready", "Chunk"]
        exchange.finish()
        exchange.post(wire.Commit(exchange.xid))  # the core says it in the same batch of effects
    assert sent[4:] == ["Commit", "END"]
    assert not exchange.takes_messages


@pytest.mark.parametrize("value", [2.9e38, 1e30, 301.0])
async def test_a_payload_that_is_implausibly_large_counts_on_neither_side(
    autojump_clock, value
) -> None:
    async with rig() as alice:
        alice.lessor.own[:] = 3.0
        alice.intent()
        stream, offer = await alice.first_offer()
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        assert isinstance(await hear(stream), wire.Chunk)
        await say(stream, wire.Chunk(offer.xid, 0), zeros(value))
        abort = await hear(stream)
        assert isinstance(abort, wire.Abort), "before any word that could let Bob commit"
        assert abort.reason.startswith("local: refused: ")
        await alice.until(lambda: alice.finished)
        assert alice.told == [("give back", 1)]
        assert alice.exchanges.totals.refused == 1
        assert alice.exchanges.totals.committed == 0
        assert alice.trust.seen_total == {"faulty": 1}


async def test_what_is_refused_unseen_says_nothing_new_of_a_peer(autojump_clock) -> None:
    async with rig() as alice:
        alice.lessor.verdict = "banned"
        alice.intent()
        stream, offer = await alice.first_offer()
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        await say(stream, wire.Chunk(offer.xid, 0), zeros())
        await alice.until(lambda: alice.finished)
        assert alice.trust.seen_total == {}


async def test_beside_a_difference_of_zero_an_honest_one_counts(autojump_clock) -> None:
    async with rig() as alice:
        alice.intent()
        stream, offer = await alice.first_offer()
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        await say(stream, wire.Chunk(offer.xid, 0), zeros(5.0))
        await say(stream, wire.Ready(offer.xid, 1))
        await alice.until(lambda: alice.finished)
        assert alice.told == [("apply", 1)]
        assert alice.exchanges.totals.refused == 0
