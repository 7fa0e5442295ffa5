"""The shell of exchanges against a partner made by hand: streams that break, and slots."""

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
from swarmnode.daemon.exchange import EXCHANGE_SERVICE, MESSAGE_SERVICE, Exchanges, SlotLease
from swarmnode.daemon.lane import Lane, decode_message
from swarmnode.env import Env
from swarmnode.errors import Refused
from swarmnode.ids import PeerId
from swarmnode.net.memory import MemoryNetwork
from swarmnode.net.services import ScopedServices, Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip.events import Finished, Snapshot
from swarmnode.tensor.codec import get_codec
from swarmnode.wire import gossip as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority
from tests.unit.session_kit import ALICE, BOB, start_both

CODEC = get_codec("Q8B64")
NUMEL = 640
KEY = b"k" * 32
TAG = "tag"
EXCHANGE_NAME = f"{EXCHANGE_SERVICE}@{TAG}"
MESSAGE_NAME = f"{MESSAGE_SERVICE}@{TAG}"


class Rig:
    """Alice's exchanges, what they told her worker, and Bob's bare side of the session."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.finished: list[Finished] = []
        self.sessions: dict[Any, Session] = {}
        self.streams: list[Stream] = []  # that Alice opened to Bob
        self.strangers: set[PeerId] = set()
        self.services, self.bobs = Services(), Services()
        self.bobs.add_stream(EXCHANGE_NAME, self._keep)
        self.network = MemoryNetwork(delay_s=0.01)
        self.slots = np.zeros((2, NUMEL), np.float32)
        self.exchanges = Exchanges(
            self_id=ALICE.peer_id,
            swarm_id=b"s" * 32,
            partners=self,
            services=ScopedServices(self.services, TAG, self._is_member),
            codec=CODEC,
            env=Env(trio.current_time, lambda: 0.0, random.Random(1)),
            apply=lambda slot, xid: self.told.append(("apply", slot)),
            release=lambda slot: self.told.append(("release", slot)),
            record=self.finished.append,
            lost=lambda xid: self.told.append(("lost", xid)),
        )

    def partners(self) -> tuple[PeerId, ...]:
        return (ALICE.peer_id, BOB.peer_id)

    async def _is_member(self, peer: PeerId) -> bool:
        return peer not in self.strangers

    async def _keep(self, _session: Session, stream: Stream) -> None:
        self.streams.append(stream)
        await trio.sleep_forever()

    def give(self, slot: int = 0) -> None:
        """A fresh snapshot comes from the worker."""
        snapshot = Snapshot(slot, KEY, "x", 0, round=1, n_chunks=1, step=1, tokens=1)
        view = self.slots[slot].data.cast("B")
        self.exchanges.snapshot_ready(SlotLease(snapshot, view))

    @property
    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(f.role.value, f.outcome.value, f.reason) for f in self.finished]

    async def bob_offers(self, xid: bytes = b"x" * 16) -> Stream:
        """Offer as Bob; return the stream once Alice has accepted."""
        stream = await self.bob.open_stream(EXCHANGE_NAME, priority=Priority.BULK)
        offer = wire.Offer(xid, KEY, "x", 0, 1, n_chunks=1, step=1, tokens=1)
        await stream.send_message(encode_record(offer))
        header, _ = await stream.receive_message(0)
        assert isinstance(decode_record(header, wire.Message), wire.Accept)  # type: ignore[arg-type]
        return stream

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


def zeros() -> bytes:
    payload = bytearray(CODEC.payload_bytes(NUMEL))
    CODEC.encode(np.zeros(NUMEL, np.float32), payload)
    return bytes(payload)


async def test_a_whole_exchange_as_initiator(autojump_clock) -> None:
    async with rig() as alice:
        alice.slots[0] = 3.0
        alice.give()
        await alice.until(lambda: alice.streams)
        stream = alice.streams[0]
        offer = await hear(stream)
        assert isinstance(offer, wire.Offer)
        await say(stream, wire.Accept(offer.xid, 1, 1, 1))
        assert isinstance(await hear(stream), wire.Chunk)
        await say(stream, wire.Chunk(offer.xid, 0), zeros())
        await say(stream, wire.Ready(offer.xid, 1))
        assert isinstance(await hear(stream), wire.Commit)
        with pytest.raises(trio.EndOfChannel):
            await hear(stream)
        await stream.send_end()
        await alice.until(lambda: not alice.exchanges._lanes)
        assert alice.told == [("apply", 0)]
        assert np.allclose(alice.slots[0], -3.0, atol=0.02)
        assert alice.outcomes == [("initiator", "committed", "")]
        assert alice.exchanges.totals.payload_sent_bytes == CODEC.payload_bytes(NUMEL)


async def test_a_stream_that_is_reset_ends_the_exchange_at_once(autojump_clock) -> None:
    """Whichever of the two tasks of a lane sees it first."""
    for resets_while in ("chunks come", "nothing comes"):
        async with rig() as alice:
            if resets_while == "chunks come":
                alice.sessions.clear()
            alice.give()
            if resets_while == "chunks come":
                stream = await alice.bob_offers()
            else:
                await alice.until(lambda made=alice: made.streams)
                stream = alice.streams[0]
                offer = await hear(stream)
                await say(stream, wire.Accept(offer.xid, 1, 1, 1))
                assert isinstance(await hear(stream), wire.Chunk)
            await stream.reset()
            await alice.until(lambda made=alice: made.told)
            assert alice.told == [("release", 0)]
            assert alice.finished[-1].outcome == "aborted"
            assert not alice.exchanges._lanes


async def test_a_session_that_ends_under_a_responder_ends_the_exchange(autojump_clock) -> None:
    """Even when nobody tells: its place was taken by a newer session with the same peer."""
    async with rig() as alice:
        alice.sessions.clear()  # nobody to offer to
        alice.give()
        await alice.bob_offers()
        async with trio.open_nursery() as nursery:
            ends = alice.network.link("alice", "bob")
            newer, _ = await start_both(nursery, ends, alice.bobs, alice.services)
            alice.sessions[BOB.peer_id] = newer
            await alice.alice.aclose("replaced by a newer connection")
            assert alice.outcomes == [("responder", "aborted", "unreachable")]
            assert alice.told == [("release", 0)]
            nursery.cancel_scope.cancel()


async def test_what_breaks_after_its_exchange_hurts_no_later_one(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.give()
        first = await alice.bob_offers(b"1" * 16)
        await say(first, wire.Abort(b"1" * 16, "other"))
        await alice.until(lambda: alice.finished)
        alice.give(1)
        second = await alice.bob_offers(b"2" * 16)
        assert len(alice.exchanges._lanes) == 2
        await first.reset()
        await alice.until(lambda: len(alice.exchanges._lanes) == 1)
        await say(second, wire.Chunk(b"2" * 16, 0), zeros())
        assert isinstance(await hear(second), wire.Chunk)
        assert isinstance(await hear(second), wire.Ready)
        await say(second, wire.Commit(b"2" * 16))
        await alice.until(lambda: ("apply", 1) in alice.told)


async def test_a_lane_does_not_outlive_its_exchange_by_long(autojump_clock) -> None:
    async with rig() as alice:
        alice.give()
        await alice.until(lambda: alice.streams)
        await trio.sleep(limits.EXCHANGE_OFFER_S + limits.EXCHANGE_LINGER_S / 2)
        assert alice.outcomes == [("initiator", "declined", "timeout")]
        assert len(alice.exchanges._lanes) == 1
        await trio.sleep(limits.EXCHANGE_LINGER_S)
        assert not alice.exchanges._lanes


async def test_an_answer_to_who_comes_late_takes_another_way(autojump_clock) -> None:
    """Our half of the stream has ended by then, and who waits must learn that it is over."""
    async with rig() as alice:
        heard: list[wire.Message] = []

        async def take(_peer: PeerId, payload: bytes) -> bytes:
            heard.append(decode_message(payload))
            return b""

        alice.bobs.add_request(MESSAGE_NAME, take)
        alice.give()
        await alice.until(lambda: alice.streams)
        offer = await hear(alice.streams[0])
        await alice.until(lambda: alice.finished, limits.EXCHANGE_OFFER_S + 1)
        await trio.sleep(1)
        await say(alice.streams[0], wire.Accept(offer.xid, 1, 1, 1))
        await alice.until(lambda: heard)
        assert heard == [wire.StatusReply(offer.xid, "aborted")]


async def test_who_is_no_member_exchanges_nothing(autojump_clock) -> None:
    async with rig() as alice:
        alice.give()
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
        alice.give()
        alice.sessions.clear()
        await alice.until(lambda: alice.finished)
        assert alice.outcomes == [("initiator", "declined", "unreachable")]
        assert alice.told == []  # still to be had by whoever offers
        await alice.bob_offers()


async def test_a_declined_snapshot_may_be_had_until_the_next_comes(autojump_clock) -> None:
    async with rig() as alice:
        alice.give(0)
        await alice.until(lambda: alice.streams)
        offer = await hear(alice.streams[0])
        await say(alice.streams[0], wire.Busy(offer.xid, "busy"))
        await alice.until(lambda: alice.finished)
        assert alice.told == []
        alice.sessions.clear()
        alice.give(1)
        assert alice.told == [("release", 0)]
        stream = await alice.bob_offers()
        await say(stream, wire.Abort(b"x" * 16, "other"))
        await alice.until(lambda: len(alice.told) == 2)
        assert alice.told[1] == ("release", 1)


async def test_the_worker_dies_under_an_open_offer(autojump_clock) -> None:
    async with rig() as alice:
        alice.give()
        await alice.until(lambda: alice.streams)
        offer = await hear(alice.streams[0])
        alice.exchanges.worker_lost()
        await say(alice.streams[0], wire.Accept(offer.xid, 1, 1, 1))
        await trio.sleep(0.1)
        assert alice.outcomes == [("initiator", "aborted", "local: the worker went away")]
        assert alice.told == []
        alice.give(1)  # of the next worker
        await alice.until(lambda: len(alice.streams) == 2)


async def test_the_worker_dies_after_ready(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.give()
        stream = await alice.bob_offers()
        await say(stream, wire.Chunk(b"x" * 16, 0), zeros())
        assert isinstance(await hear(stream), wire.Chunk)
        assert isinstance(await hear(stream), wire.Ready)
        alice.exchanges.worker_lost()
        alice.give(1)  # of the next worker, before the decision is known
        assert alice.outcomes == []
        await say(stream, wire.Commit(b"x" * 16))
        await alice.until(lambda: alice.finished)
        assert alice.told == [("release", 1), ("lost", b"x" * 16)]


async def test_values_that_are_not_finite_abort_and_the_slot_goes_back(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.slots[0, 7] = np.nan
        alice.give()
        stream = await alice.bob_offers()
        abort = await hear(stream)
        assert isinstance(abort, wire.Abort)
        assert "finite" in abort.reason
        assert alice.told == [("release", 0)]
        assert not alice.bob.is_closed


async def test_drain_waits_for_what_runs_and_gives_the_rest_back(autojump_clock) -> None:
    async with rig() as alice:
        alice.sessions.clear()
        alice.give(0)
        stream = await alice.bob_offers()
        alice.give(1)
        with trio.move_on_after(2) as waiting:
            await alice.exchanges.drain()
        assert waiting.cancelled_caught
        assert alice.told == [("release", 1)]
        alice.exchanges.give_up("leaving")
        await alice.exchanges.drain()
        assert isinstance(await hear(stream), wire.Chunk)
        abort = await hear(stream)
        assert isinstance(abort, wire.Abort)
        assert abort.reason == "local: leaving"
        alice.give(1)
        assert alice.told[1:] == [("release", 0), ("release", 1)]


async def test_messages_leave_before_chunks_that_are_encoded_later(autojump_clock) -> None:
    lane = Lane(BOB.peer_id, b"x" * 16)
    chunks = iter([(0, memoryview(b"zero")), (1, memoryview(b"one"))])
    transfer = SimpleNamespace(encode_next=lambda: next(chunks, None), note_sent=lambda: None)
    sent: list[str] = []

    class Recorder:
        async def send_message(self, header: bytes, payload: Any = b"") -> None:
            await trio.lowlevel.checkpoint()
            sent.append(type(decode_record(header, wire.Message)).__name__)  # type: ignore[arg-type]
            if sent == ["Accept", "Chunk"]:
                lane.post(wire.Ready(lane.xid, 1))

        async def send_end(self) -> None:
            sent.append("END")

    owner = SimpleNamespace(chunk_sent=lambda _lane: None)
    lane.post(wire.Accept(lane.xid, 1, 1, 1))
    lane.start(transfer)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane._write, Recorder(), owner)
        await trio.sleep(1)
        assert sent == ["Accept", "Chunk", "Ready", "Chunk"]
        lane.finish()
        lane.post(wire.Commit(lane.xid))  # the core says it in the same batch of effects
    assert sent[4:] == ["Commit", "END"]
    assert not lane.takes_messages
