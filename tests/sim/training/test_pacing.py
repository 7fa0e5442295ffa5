"""Nodes of very different speed: rounds that end together, and no node that waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trio

from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import sim_swarm
from tests.sim.checks import are_one_swarm, end, until

_EVERY = 64


# One to eight times.
@pytest.mark.parametrize("steps_s", [(0.02, 0.16), (0.02, 0.04, 0.08, 0.16)], ids=["two", "four"])
async def test_from_one_to_eight_times_the_speed_no_node_waits(
    tmp_path, autojump_clock, steps_s
) -> None:
    worker = FakeWorker(np.zeros(0), every=_EVERY, save_every=0)
    async with sim_swarm(tmp_path, 1, worker=replace(worker, step_s=steps_s[0])) as swarm:
        for step_s in steps_s[1:]:
            initial = np.random.default_rng(1).standard_normal(640)
            node = swarm.add(replace(worker, step_s=step_s, initial=initial))
            await swarm.start(node.index)
        await until(lambda: are_one_swarm(swarm.nodes), 30)
        await trio.sleep(60)  # speeds are measured and said, rounds are told
        workers = [node.worker for node in swarm.nodes]
        steps, rounds = [w.step for w in workers], [len(w.rounds_at_s) for w in workers]
        committed = [len(node.committed()) for node in swarm.nodes]
        await trio.sleep(120)
        for w, before in zip(workers, steps, strict=True):
            waited = 1 - (w.step - before) * w.step_s / 120
            assert waited < 0.05
        fitting = [_EVERY * steps_s[0] / step_s for step_s in steps_s]
        assert [w.round_steps for w in workers] == pytest.approx(fitting)
        # A round lasts 64 of the fastest one's steps, for everybody.
        ended = [len(w.rounds_at_s) - before for w, before in zip(workers, rounds, strict=True)]
        assert min(ended) > 0.85 * max(ended)
        # Most rounds met a partner, though it takes eight times as long for a step.
        for node, before, n_rounds in zip(swarm.nodes, committed, ended, strict=True):
            assert len(node.committed()) - before > 0.6 * n_rounds
        await end(swarm)
