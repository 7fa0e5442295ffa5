"""A large model over the line of a home: exchanges come to their end, beside its snapshots."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import trio

from swarmnode.cli.node.control import line_words
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import sim_swarm
from tests.sim.checks import are_one_swarm, until
from tests.sim.strategy_worker import StrategyWorker

NUMEL = 4_000_000
SECONDS = 91.0


async def test_four_million_parameters_are_exchanged_over_1_mbit_per_s(
    tmp_path, autojump_clock
) -> None:
    """4.1 MB each way take 35 s, and snapshots of 4 MB want the line all the time."""
    worker = FakeWorker(np.zeros(0), step_s=2.0, every=4, save_every=5)
    line = {"upload": "1 Mbit/s"}
    async with sim_swarm(tmp_path, 2, numel=NUMEL, worker=worker, settings=line) as swarm:
        nodes = swarm.nodes
        await until(lambda: all(node.status.state == "training" for node in nodes), 300)
        await trio.sleep(SECONDS)
        for node in nodes:
            status = node.status
            assert status.exchanges_committed >= 1
            assert status.line_sent_bytes["exchange"] > 4_000_000


async def test_one_member_on_a_thin_line_is_in_means_of_fast_ones_again_and_again(
    tmp_path, autojump_clock
) -> None:
    """A fortieth of the parameters over a twentieth of the line: a round for it takes 25 s.

    The others make theirs meanwhile, and all of them say what the rounds do.
    """
    make = StrategyWorker(
        np.zeros(0), lambda x: Streaming({"every": 10, "fragments": 1}, x), step_s=1.0
    )
    async with sim_swarm(tmp_path, 3, numel=100_000, worker=make) as swarm:
        thin = swarm.add(replace(make, initial=np.zeros(100_000)), settings={"upload": "50 kbit/s"})
        await swarm.start(thin.index)
        await until(lambda: are_one_swarm(swarm.nodes), 60, poll_s=0.5)
        said: set[str] = set()
        for _ in range(46):
            await trio.sleep(10)
            said |= {line_words(msgspec.to_builtins(node.status)) for node in swarm.nodes}
        assert thin.status.exchanges_committed >= 3, "one at the beginning, then each four minutes"
        for node in swarm.nodes[:3]:
            assert node.status.exchanges_committed >= 0.8 * 460 / 10
        assert thin.status.line_bytes_per_s == pytest.approx(6250, rel=0.35)
        words = " ".join(said)
        assert "the line of this node needs" in words
        assert "for 1 member on a thin line" in words
        assert "1 member on a thin line waited for in at most 12.5% of the time" in words
