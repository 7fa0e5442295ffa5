"""All faults at once, drawn from a seed: what must hold is the same as without any.

To look for faults: ``python -m tests.sim.training.test_storm FIRST_SEED COUNT``.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from swarmnode import limits
from swarmnode.daemon.status.phases import Training
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from tests.sim.checks import end, everybody_exchanges, pull, until


class Storm:
    """Draws faults and their times; every node is up and whole again when it is over."""

    def __init__(self, swarm: SimSwarm, rng: random.Random) -> None:
        self.swarm = swarm
        self.rng = rng
        self.crashed: set[int] = set()

    async def blow(self, seconds: float) -> None:
        """One fault after the other, some of which last."""
        faults: list[Callable[[], Awaitable[None]]] = [
            self.cut,
            self.cut,
            self.cut,
            self.unplug,
            self.crash_worker,
            self.kill,
            self.leave,
            self.part,
            self.pause,
        ]
        ends_at = trio.current_time() + seconds
        while trio.current_time() < ends_at:
            await trio.sleep(self.rng.expovariate(1 / 0.8))
            await self.rng.choice(faults)()

    def any_up(self) -> SimNode:
        return self.rng.choice(self.swarm.up)

    async def cut(self) -> None:
        self.swarm.cut(*self.rng.sample(range(len(self.swarm.nodes)), 2))

    async def unplug(self) -> None:
        self.swarm.unplug(self.any_up().index)

    async def crash_worker(self) -> None:
        node = self.any_up()
        if node.status.worker_restarts < 4 and node.running.view.work.has_worker:
            self.crashed.add(node.index)
            node.worker.crash()

    async def kill(self) -> None:
        node = self.any_up()
        self.crashed.add(node.index)
        await node.kill(unplug=self.rng.random() < 0.7)
        await trio.sleep(self.rng.uniform(0, 4))
        await self.swarm.start(node.index)

    async def leave(self) -> None:
        node = self.any_up()
        assert await node.leave() < 2
        await trio.sleep(self.rng.uniform(0, 4))
        await self.swarm.start(node.index)

    async def part(self) -> None:
        names = [node.name for node in self.swarm.nodes]
        self.rng.shuffle(names)
        split = self.rng.randint(1, len(names) - 1)
        self.swarm.network.partition(names[:split], names[split:])
        await trio.sleep(self.rng.choice([0.3, 2, 8, 25]))
        self.swarm.network.heal()

    async def pause(self) -> None:
        work = self.any_up().running.view.work
        if isinstance(work, Training):
            work.trainer.pause()
            await trio.sleep(self.rng.uniform(0, 3))
            work.trainer.resume()


async def storm(home: Path, seed: int, seconds: float = 60) -> None:
    """Draw a swarm and its weather; afterwards everybody exchanges, and every sum is right."""
    rng = random.Random(f"storm/{seed}")
    count = rng.randint(2, 6)
    worker = FakeWorker(np.zeros(0), drift=pull, save_every=rng.choice([20, 100]))
    worker = replace(worker, every=rng.choice([2, 8]), step_s=rng.choice([0.02, 0.05, 0.4]))
    delay_s = rng.choice([0.0, 0.01, 0.05, 0.2])
    numel = rng.choice([1, 640, 640, 300_000]) if worker.step_s == 0.4 else 640
    codec = rng.choice(["Q8B64", "Q4B64"])
    async with sim_swarm(
        home, count, seed=seed, delay_s=delay_s, numel=numel, codec=codec, worker=worker
    ) as swarm:
        weather = Storm(swarm, rng)
        await weather.blow(seconds)
        # A peer of the link that left and came back knows no peer: it is looked for now and then.
        limit_s = 2 * limits.HINT_REDIAL_S
        everybody = count - 1
        await until(
            lambda: all(node.status.peers_connected == everybody for node in swarm.nodes),
            limit_s,
            poll_s=0.5,
        )
        await everybody_exchanges(swarm, 60)
        crashed = tuple(swarm.nodes[index] for index in weather.crashed)
        await end(swarm, crashed=crashed, but_doubts=True)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_storm_is_survived(tmp_path, autojump_clock, seed: int) -> None:
    await storm(tmp_path, seed)


def look_for_faults(first: int, count: int) -> None:
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as home:
            clock = trio.testing.MockClock(autojump_threshold=0)
            trio.run(storm, Path(home), seed, clock=clock)
        print("survived", seed, flush=True)


if __name__ == "__main__":
    look_for_faults(*(int(word) for word in sys.argv[1:3]))
