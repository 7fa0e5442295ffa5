"""A share of the machine's time, on a clock that the test turns."""

from __future__ import annotations

import pytest
import torch

from swarmnode.worker.model.device import Device
from swarmnode.worker.training.clocks import MachineShare, share_of

STEP_S = 0.03


class Machine:
    def __init__(
        self, threads: int, *, by_steps: bool = False, busy: float = 1.0, look_s: float = 0.0
    ) -> None:
        self.now = self.cpu = self.trained_s = 0.0
        self.threads, self.busy, self.look_s = threads, busy, look_s
        self.share = MachineShare(
            threads, by_steps=by_steps, cpu_s=lambda: self.cpu, now=lambda: self.now
        )

    def step(self, seconds: float = STEP_S) -> None:
        self.now += seconds
        self.trained_s += seconds
        self.cpu += self.threads * self.busy * seconds
        self.share.note_step(seconds)

    def run(self, seconds: float, step_s: float = STEP_S) -> float:
        """Train for some time; return the share of the threads' time that was used."""
        begin, used = self.now, self.cpu
        while self.now < begin + seconds:
            self.cpu += self.look_s
            rest_s = self.share.rest_s()
            self.now += rest_s
            if not rest_s:
                self.step(step_s)
        return (self.cpu - used) / (self.threads * (self.now - begin))


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("threads", [1, 6])
def test_a_share_is_kept(share: float, threads: int) -> None:
    machine = Machine(threads)
    machine.share.keep(share)
    assert machine.run(60) == pytest.approx(share, rel=0.02)


def test_what_training_does_between_steps_counts_too() -> None:
    machine = Machine(2)
    machine.share.keep(0.5)
    machine.run(5)
    machine.cpu += 2 * 3.0  # an evaluation: three seconds of both threads
    machine.now += 3.0
    assert machine.share.rest_s() == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize("step_s", [0.0005, 0.03])
@pytest.mark.parametrize("share", [0.03, 0.2, 0.9])
def test_what_may_be_used_goes_into_steps_and_not_into_looks_at_messages(
    share: float, step_s: float
) -> None:
    machine = Machine(1, look_s=0.0002)
    machine.share.keep(share)
    assert machine.run(60, step_s) == pytest.approx(share, rel=0.02)
    assert machine.trained_s >= (0.95 if step_s > 0.01 else 0.6) * machine.cpu


def test_threads_that_wait_are_not_counted() -> None:
    machine = Machine(4, busy=0.4)
    machine.share.keep(0.5)
    assert machine.run(30) == pytest.approx(0.4, rel=0.02)


def test_a_time_without_steps_is_not_made_up_for() -> None:
    machine = Machine(1)
    machine.share.keep(0.5)
    machine.run(5)
    machine.now += 3600.0  # paused
    assert machine.run(10) < 0.55


def test_on_a_gpu_it_is_the_time_of_steps_that_counts() -> None:
    machine = Machine(8, by_steps=True, busy=0.1)
    machine.share.keep(0.25)
    machine.run(30)
    assert machine.trained_s / machine.now == pytest.approx(0.25, rel=0.02)


def test_without_a_limit_nothing_rests() -> None:
    machine = Machine(1)
    machine.step(100.0)
    assert machine.share.rest_s() == 0.0


def test_the_share_of_a_cpu_is_of_torchs_threads() -> None:
    share = share_of(Device(torch.device("cpu")))
    share.keep(0.5)
    assert share.share == 0.5
    assert share.rest_s() == 0.0
