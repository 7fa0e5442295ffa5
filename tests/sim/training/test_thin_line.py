"""A large model over the line of a home: exchanges come to their end, beside its snapshots."""

from __future__ import annotations

import numpy as np
import trio

from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import sim_swarm
from tests.sim.checks import until

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
