"""A large model over the line of a home: exchanges come to their end, beside its snapshots."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import trio

from swarmnode.cli.node.control import line_words
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import sim_swarm
from tests.sim.checks import until
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
    """A mean takes 10 s with it, and 1 s without: it has an eighth of the others' time."""
    numel = 100_000
    make = StrategyWorker(
        np.zeros(0), lambda x: Streaming({"every": 10, "fragments": 1}, x), step_s=1.0
    )
    async with sim_swarm(tmp_path, 3, numel=numel, worker=make) as swarm:
        fast = swarm.nodes[:]
        await until(lambda: all(node.status.exchanges_committed for node in fast), 60, 0.5)
        like = replace(make, initial=np.zeros(numel))
        thin = swarm.add(like, settings={"upload": "100 kbit/s"})
        await swarm.start(thin.index)
        said: set[str] = set()

        def is_in_means() -> bool:
            said.update(line_words(msgspec.to_builtins(node.status)) for node in swarm.nodes)
            is_said = any("for 1 member on a thin line" in words for words in said)
            return is_said and thin.status.exchanges_committed >= 2

        took_s = await until(is_in_means, 250, poll_s=1.0)
        assert min(node.status.exchanges_committed for node in fast) > 0.05 * took_s
