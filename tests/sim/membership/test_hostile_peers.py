"""Peers that stall, lie, or break rules: they cost one exchange, and never a step or the node."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.membership.members import SWIM_SERVICE
from swarmnode.daemon.membership.shared_state import STATE_SERVICE
from swarmnode.errors import SwarmNodeError
from swarmnode.net.stream import Stream
from swarmnode.protocol.plausible import TOKENS_TIMES_MAX
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, make_identity, sim_swarm
from swarmnode.wire import crdt, swim
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.packing import encode_record
from swarmnode.wire.recipe import Recipe
from tests.sim.checks import end, pull, until
from tests.sim.impostor import Impostor, accept_of, ignore, say, state_record

TRAINING = FakeWorker(np.zeros(0), drift=pull)


def streams(node: SimNode, other: Impostor) -> int:
    exchanges = node.running.view.training().exchanges
    return sum(exchange.peer == other.peer for exchange in exchanges._streams.values())


def with_peer(node: SimNode, impostor: Impostor) -> list[dict]:
    return [e for e in node.history if e.get("peer") == str(impostor.identity.peer_id)]


async def test_a_peer_that_accepts_and_then_reads_nothing(tmp_path, autojump_clock) -> None:
    """It costs one exchange, for a few times of what is usual; then the others have their turn."""

    async def stall(stream: Stream, offer: wire.Offer) -> None:
        await stream.send_message(accept_of(offer))
        await trio.sleep_forever()

    # 300,000 bytes of payload: more than a stream without a reader may hold.
    slow = FakeWorker(np.zeros(0), drift=pull, step_s=0.2)
    async with sim_swarm(tmp_path, 3, numel=300_000, worker=slow) as swarm:
        victim = swarm.nodes[0]
        await until(lambda: victim.status.exchanges_committed > 0, 20)
        impostor = Impostor(swarm, b"i", stall)
        session = await impostor.join(0)
        steps, started = victim.worker.step, trio.current_time()
        await until(lambda: victim.status.exchanges_aborted > 0, 2 * limits.EXCHANGE_VIEW_S)
        aborted = next(e for e in with_peer(victim, impostor) if e["outcome"] == "aborted")
        assert aborted["reason"] == "timeout"
        assert limits.EXCHANGE_PATIENCE_S_MIN <= aborted["took_s"] < limits.EXCHANGE_TRANSFER_S_MIN
        done = victim.status.exchanges_committed
        await until(lambda: victim.status.exchanges_committed > done, 30)
        passed_s = trio.current_time() - started
        assert abs((victim.worker.step - steps) - passed_s / slow.step_s) <= 2
        await session.aclose()
        await until(lambda: streams(victim, impostor) == 0, limits.EXCHANGE_LINGER_S + 5)
        await end(swarm)


async def test_a_peer_that_accepts_nothing_and_ends_nothing(tmp_path, autojump_clock) -> None:
    """Offers that time out leave no stream behind for longer than they linger."""

    async def ignore(_stream: Stream, _offer: wire.Offer) -> None:
        await trio.sleep_forever()

    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trio.sleep(2)
        impostor = Impostor(swarm, b"i", ignore)
        await impostor.join(0)
        victim = swarm.nodes[0]
        for asked_before in range(2):
            await until_offered(impostor, asked_before)
            offered_at, done = trio.current_time(), victim.status.exchanges_committed
            # Each offer waits EXCHANGE_OFFER_S, then lingers; others have their turn meanwhile.
            await trio.sleep(limits.EXCHANGE_OFFER_S + limits.EXCHANGE_LINGER_S + 5)
            assert streams(victim, impostor) == 0
            assert impostor.offers == asked_before + 1
            assert victim.status.exchanges_committed > done + 10
            await trio.sleep_until(offered_at + limits.EXCHANGE_OFFER_S + limits.PARTNER_SLOW_S)
        await end(swarm)


async def until_offered(impostor: Impostor, asked_before: int) -> None:
    await until(lambda: impostor.offers > asked_before, 3 * limits.PARTNER_SLOW_S)


async def nothing(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(accept_of(offer))
    await stream.send_end()


async def garbage(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(b"\xc1\xff no message")


async def commit_of_its_own(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(accept_of(offer))
    await say(stream, wire.Commit(xid=offer.xid))


async def another_exchange(stream: Stream, offer: wire.Offer) -> None:
    await say(stream, wire.Busy(xid=bytes(16), reason="busy"))


async def short_chunk(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(accept_of(offer))
    await say(stream, wire.Chunk(xid=offer.xid, index=0), b"short")


async def invalid_chunk(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(accept_of(offer))
    await say(stream, wire.Chunk(xid=offer.xid, index=0), b"\xff" * 660)


async def chunk_beyond(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(accept_of(offer))
    await say(stream, wire.Chunk(xid=offer.xid, index=7), bytes(660))


async def ready_too_early(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(accept_of(offer))
    await say(stream, wire.Ready(xid=offer.xid, n_chunks=1))
    await trio.sleep(2)
    await stream.reset()


async def ready_for_more(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(accept_of(offer))
    await say(stream, wire.Ready(xid=offer.xid, n_chunks=2))


async def an_offer_in_return(stream: Stream, offer: wire.Offer) -> None:
    await stream.send_message(encode_record(offer))


@pytest.mark.parametrize(
    ("answer", "is_sent_away"),
    [
        (nothing, False),
        (garbage, True),
        (commit_of_its_own, True),
        (another_exchange, True),
        (short_chunk, True),
        (invalid_chunk, True),
        (chunk_beyond, True),
        (ready_too_early, False),
        (ready_for_more, True),
        (an_offer_in_return, True),
    ],
)
async def test_a_responder_that_breaks_rules(
    tmp_path, autojump_clock, answer, is_sent_away
) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        await trio.sleep(2)
        impostor = Impostor(swarm, b"i", answer)
        session = await impostor.join(0)
        await until(lambda: impostor.offers > 0, 20)
        await trio.sleep(3)
        assert session.is_closed == is_sent_away
        assert all(entry["outcome"] != "committed" for entry in with_peer(swarm.nodes[0], impostor))
        before = swarm.nodes[0].status.exchanges_committed
        await trio.sleep(10)
        assert swarm.nodes[0].status.exchanges_committed > before
        await end(swarm)


def offer_with(key: bytes, **changes: object) -> wire.Offer:
    fields = {"xid": b"x" * 16, "key": key, "tag": "x", "fragment": 0, "round": 1, "n_chunks": 1}
    return wire.Offer(**{**fields, "step": 1, "tokens": 1, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [b"", b"\xc1", encode_record(wire.Commit(xid=b"x" * 16))])
async def test_a_stream_that_does_not_begin_with_an_offer(tmp_path, autojump_clock, first) -> None:
    async with sim_swarm(tmp_path, 1, worker=TRAINING) as swarm:
        await trio.sleep(1)
        impostor = Impostor(swarm, b"i", nothing)
        session = await impostor.enter(0)
        async with await impostor.open_exchange(session) as stream:
            if first:
                await stream.send_message(first)
            await stream.send_end()
            with pytest.raises(SwarmNodeError):
                await stream.receive_message(0)
        assert streams(swarm.nodes[0], impostor) == 0
        await end(swarm)


async def test_a_stream_on_which_nothing_comes_is_refused_in_time(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 1, worker=TRAINING) as swarm:
        await trio.sleep(1)
        impostor = Impostor(swarm, b"i", nothing)
        session = await impostor.enter(0)
        stream = await impostor.open_exchange(session)
        await stream.send(b"\0")  # a message has at least eight bytes
        with trio.fail_after(limits.EXCHANGE_OFFER_S + 1), pytest.raises(SwarmNodeError):
            await stream.receive_message(0)
        await end(swarm)


async def test_an_offer_that_is_refused_is_answered_and_ended(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 1, worker=TRAINING) as swarm:
        await trio.sleep(1)
        impostor = Impostor(swarm, b"i", nothing)
        session = await impostor.enter(0)
        async with await impostor.open_exchange(session) as stream:
            await say(stream, offer_with(b"k" * 32))
            header, _ = await stream.receive_message(0)
            assert b"incompatible" in header
            with pytest.raises(trio.EndOfChannel):
                await stream.receive_message(0)
            await stream.send_end()
        await trio.sleep(0.1)
        assert streams(swarm.nodes[0], impostor) == 0
        await end(swarm)


async def running_exchange(node: SimNode) -> bytes:
    """Wait until an exchange has begun its transfer; return its id."""
    exchanges = node.running.view.training().exchanges
    in_flight = exchanges._in_flight
    await until(lambda: not in_flight, 20)  # the next one, from its beginning
    await until(lambda: any(stream.has_started for stream in in_flight.values()), 20)
    (xid,) = in_flight
    return xid


async def test_a_message_of_a_running_exchange_from_another_peer(tmp_path, autojump_clock) -> None:
    """Refused, and neither the exchange nor the session of its partner suffers."""
    async with sim_swarm(tmp_path, 2, delay_s=0.1, worker=TRAINING) as swarm:
        await trio.sleep(3)
        victim = swarm.nodes[0]
        impostor = Impostor(swarm, b"i", nothing)
        session = await impostor.join(0)
        xid = await running_exchange(victim)
        abort = wire.Abort(xid=xid, reason="because I say so")
        with pytest.raises(SwarmNodeError):
            await impostor.tell(session, abort)
        accept = wire.Accept(xid=xid, round=1, step=1, tokens=1)
        with pytest.raises(SwarmNodeError, match="needs a stream"):
            await impostor.tell(session, accept)
        await until(lambda: any(e["xid"] == xid.hex() for e in victim.history), 10)
        assert next(e for e in victim.history if e["xid"] == xid.hex())["outcome"] == "committed"
        assert make_identity(1).peer_id in victim.part.sessions
        await end(swarm)


async def test_numbers_that_a_liar_says_of_itself_move_no_sum_and_no_schedule(
    tmp_path, autojump_clock
) -> None:
    huge = 2**63 - 1
    recipe = Recipe(schedule="cosine", target_tokens=10**9)  # with none, none counts tokens
    async with sim_swarm(tmp_path, 4, recipe=recipe) as swarm:
        await until(lambda: all(node.status.step > 50 for node in swarm.nodes), 60, poll_s=0.5)
        liar = Impostor(swarm, b"i", ignore)
        session = await liar.enter(0)
        await liar.ask(session, SWIM_SERVICE, swim.Sync(False, (liar.claim(),)))
        record = state_record(
            liar.identity,
            liar.link.swarm_id,
            loss=-1e300,
            counters={"steps": huge, "tokens": huge},
            maxima={"step": huge, "tokens": huge},
            registers={"eval_loss": -1e300, "step_time_s": 1e-9},
        )
        pushed = crdt.Push((crdt.Carried(record, 0),))
        before = swarm.nodes[0].status
        await liar.ask(session, STATE_SERVICE, pushed)
        await trio.sleep(30)
        for node in swarm.nodes:
            part, status = node.part, node.status
            steps = [each.status.step for each in swarm.nodes]
            assert liar.peer in part.state.view.marks("step"), "it is heard"
            assert part.swarm_step() <= 2 * max(steps)
            counted = sum(steps) + max(10_000, 200 * max(steps))
            assert 0 < part.swarm_tokens() <= TOKENS_TIMES_MAX * counted
            assert status.swarm_steps <= counted
            assert status.swarm_loss is not None
            assert abs(status.swarm_loss) <= 2 * abs(before.swarm_loss or 0.0) + 1
            assert all(step_s >= 1e-6 for step_s in part.step_times_s().values())
