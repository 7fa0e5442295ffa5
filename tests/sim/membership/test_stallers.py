"""One member of six that holds up exchanges, and one that falls asleep: whole daemons go on."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
import trio

from swarmnode.errors import SwarmNodeError
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import UNIX_START_S, SimSwarm, sim_swarm
from swarmnode.wire.exchange import gossip as wire
from swarmnode.wire.packing import decode_record, encode_record
from tests.sim.checks import are_one_swarm, check_atomic, everybody_exchanges, pull, until
from tests.sim.impostor import Impostor, accept_of, say
from tests.sim.strategy_worker import StrategyWorker

TRAINING = FakeWorker(np.zeros(0), drift=pull, every=24)
_MESSAGE: Any = wire.Message
WARM_S, CLEAN_S, WATCHED_S = 5.0, 40.0, 150.0
NUMEL = 64


class Staller:
    """A member that offers to all nodes, again and again, and keeps each for as long as it can.

    ``phase``: what it does last: "unanswered" and "accepted" with offers of others, "offered",
    "ready" and "pending" with its own.
    """

    def __init__(self, swarm: SimSwarm, phase: str) -> None:
        self._phase = phase
        self._like: list[wire.Offer] = []  # an offer that was made to it, to copy what it must say
        self._numbers = itertools.count(1)
        self._swarm = swarm
        self._impostor = Impostor(swarm, b"i", self._hear)

    async def join(self) -> None:
        """Become a member for all nodes, and begin."""
        for index in range(len(self._swarm.nodes)):
            session = await self._impostor.join(index)
            if self._phase in ("offered", "ready", "pending"):
                self._swarm.nursery.start_soon(self._push, session)

    async def _hear(self, stream: Stream, offer: wire.Offer) -> None:
        self._like = [offer]
        if self._phase == "accepted":
            await stream.send_message(accept_of(offer))
        if self._phase in ("unanswered", "accepted"):
            await trio.sleep_forever()
        await say(stream, wire.Busy(offer.xid, "busy"))
        await stream.send_end()

    async def _push(self, session: Session) -> None:
        while True:
            await trio.sleep(0.1)
            if self._like:
                with contextlib.suppress(SwarmNodeError, trio.EndOfChannel):
                    async with await self._impostor.open_exchange(session) as stream:
                        await self._hold(stream)

    async def _hold(self, stream: Stream) -> None:
        like = self._like[0]
        xid = next(self._numbers).to_bytes(16, "big")
        offer = wire.Offer(xid, like.key, like.tag, like.fragment, like.round, like.n_chunks, 1, 1)
        await stream.send_message(encode_record(offer))
        while True:
            header, payload = await stream.receive_message(2**20)
            message: wire.Message = decode_record(header, _MESSAGE)
            match message:
                case wire.Busy() | wire.Abort():
                    await stream.send_end()
                    return
                case wire.Chunk(index=index) if self._phase != "offered":
                    await say(stream, wire.Chunk(xid, index), bytes(payload))
                case wire.StatusQuery(number=number) if self._phase == "pending":
                    await say(stream, wire.StatusReply(xid, "pending", number))


@pytest.mark.parametrize("phase", ["pending"])
async def test_one_staller_of_six_leaves_the_others_their_commits(
    tmp_path, autojump_clock, phase: str
) -> None:
    async with sim_swarm(tmp_path, 5, worker=TRAINING) as swarm:
        await everybody_exchanges(swarm)
        await trio.sleep(WARM_S)
        began_s = trio.current_time()
        await trio.sleep(CLEAN_S)
        clean_per_s = commits(swarm, began_s) / CLEAN_S
        await Staller(swarm, phase).join()
        attacked_s = trio.current_time()
        await trio.sleep(WATCHED_S)
        assert commits(swarm, attacked_s) / WATCHED_S >= 0.8 * clean_per_s
        await swarm.leave_all()
        check_atomic(swarm)


async def test_a_member_that_sleeps_stalls_no_mean_and_is_back_soon(
    tmp_path, autojump_clock
) -> None:
    worker = StrategyWorker(
        np.zeros(NUMEL), lambda x: Streaming({"every": 20, "fragments": 1}, x), step_s=0.02
    )
    async with sim_swarm(tmp_path, 5, worker=worker, numel=NUMEL) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.5)
        await trio.sleep(WARM_S)
        means_s: list[list[float]] = [[trio.current_time()] for _ in swarm.nodes]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_means, swarm, means_s)
            swarm.partition(range(4), range(4, 5))
            await trio.sleep(12)
            woke_s = trio.current_time()
            gaps_s = sorted(
                later - earlier
                for times_s in means_s[:4]
                for earlier, later in itertools.pairwise([*times_s, woke_s])
            )
            assert gaps_s[int(0.95 * len(gaps_s))] <= 1.0
            assert gaps_s[-1] <= 2.0
            swarm.network.heal()
            await until(lambda: sum(at > woke_s for at in means_s[4]) >= 3, 10)
            nursery.cancel_scope.cancel()
        await swarm.leave_all()


async def note_means(swarm: SimSwarm, means_s: list[list[float]]) -> None:
    """Note when the lineage of each node has grown."""
    behind = [0.0 for _ in swarm.nodes]
    while True:
        for node, times_s in zip(swarm.nodes, means_s, strict=True):
            lineage = float(node.worker.strategy.lineage[0])
            if lineage > behind[node.index]:
                behind[node.index] = lineage
                times_s.append(trio.current_time())
        await trio.sleep(0.02)


def commits(swarm: SimSwarm, since_s: float) -> int:
    """Count the exchanges that count between the nodes; each is counted at both."""
    honest = {str(node.peer) for node in swarm.nodes}
    entries = (entry for node in swarm.nodes for entry in node.committed(since_s=since_s))
    return sum(entry["peer"] in honest for entry in entries)


async def test_a_member_that_sleeps_stalls_no_other_and_is_back_at_once(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 5, worker=FakeWorker(np.zeros(0), drift=pull)) as swarm:
        await everybody_exchanges(swarm)
        await trio.sleep(WARM_S)
        began_s = trio.current_time()
        began_unix_s = UNIX_START_S + began_s
        swarm.partition(range(4), range(4, 5))  # bytes wait on the link, as for a stopped process
        await trio.sleep(8)
        swarm.network.heal()
        gaps_s = sorted(
            later - earlier
            for node in swarm.nodes[:4]
            for earlier, later in itertools.pairwise(
                [began_unix_s, *(entry["unix_s"] for entry in node.committed(since_s=began_s))]
            )
        )
        assert gaps_s[int(0.95 * len(gaps_s))] <= 1.0
        sleeper, woke_s = swarm.nodes[4], trio.current_time()
        await until(lambda: len(sleeper.committed(since_s=woke_s)) >= 3, 10)
        await swarm.leave_all()
        check_atomic(swarm)
