"""Equal seeds give equal runs; and known bugs, put in on purpose, are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from swarmnode.daemon.worker.leases import BufferLease
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.flight import Flight
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import check_atomic, check_conserved, cut_at_random, end, pull

TRAINING = FakeWorker(np.zeros(0), drift=pull, save_every=100)


async def faulty_run(home: Path, seed: int) -> tuple[str, list[bytes], bytes]:
    """Cut links, kill a node and let it come back; return the digests and all parameters."""
    async with sim_swarm(home, 5, seed=seed, worker=TRAINING) as swarm:
        await cut_at_random(swarm, 12)
        await swarm.kill(3)
        await trio.sleep(2)
        await swarm.start(3)
        await cut_at_random(swarm, 12)
        states = [node.part.state.core.digest() for node in swarm.nodes]
        await end(swarm, crashed=(swarm.nodes[3],))
        parameters = np.concatenate([node.worker.x for node in swarm.nodes])
        return swarm.digest(), states, parameters.tobytes()


def run_alone(home: Path, seed: int) -> tuple[str, list[bytes], bytes]:
    """Run from the same moment on: sums of floats depend on where the clock stands."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(faulty_run, home, seed, clock=clock)


def test_the_same_seed_gives_the_same_run(tmp_path) -> None:
    """Keys and handshakes differ each time: they must not decide anything."""
    first = run_alone(tmp_path / "first", 1)
    assert run_alone(tmp_path / "again", 1) == first
    assert run_alone(tmp_path / "other", 2) != first


def merge_every_other(trainer: Trainer) -> None:
    """Bug: give half of the results back to the worker unused."""
    lessor = trainer.lessor
    apply, counter = lessor.apply, iter(range(10**9))

    def apply_or_drop(lease: BufferLease, xid: bytes, *others: Any) -> bool:
        if next(counter) % 2:
            lessor.give_back(lease, "a bug")
            return True
        return apply(lease, xid, *others)

    lessor.apply = apply_or_drop  # type: ignore[method-assign]


async def test_results_that_are_dropped_are_seen(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, worker=TRAINING) as swarm:
        await trio.sleep(2)
        merge_every_other(swarm.nodes[1].running.view.training().trainer)
        await trio.sleep(10)
        await swarm.leave_all()
        see_the_bug(swarm)


async def test_a_responder_that_does_not_wait_for_the_decision_is_seen(
    tmp_path, autojump_clock, monkeypatch, channels_are_all
) -> None:
    become_ready = ExchangeCore._become_ready

    def commit_at_once(self: ExchangeCore, flight: Flight, now: float) -> None:
        become_ready(self, flight, now)
        self._commit(flight, now)

    monkeypatch.setattr(ExchangeCore, "_become_ready", commit_at_once)
    async with sim_swarm(tmp_path, 3, delay_s=0.1, worker=TRAINING) as swarm:
        await trio.sleep(5)
        await cut_at_random(swarm, 60, mean_pause_s=0.4)
        await swarm.leave_all()
        see_the_bug(swarm)


def see_the_bug(swarm: SimSwarm) -> None:
    with pytest.raises(AssertionError, match="counts on"):
        check_conserved(swarm)
    assert swarm.drift() > 1e-3
    with pytest.raises(AssertionError):
        check_atomic(swarm)
