"""What the daemon remembers of workers that memory was too short for."""

from __future__ import annotations

import logging
import signal

import pytest

from swarmnode.daemon.worker.fitting import Fitting
from swarmnode.daemon.worker.link import SAID_NOTHING
from swarmnode.errors import WorkerCrashed, WorkerError
from swarmnode.ipc.control import BatchFit, Configure, WorkerFailed
from swarmnode.memory import MainMemory

CONFIGURE = Configure("t", {}, "pair-average", {}, 1, 2, "/nowhere")
KILLED = WorkerCrashed("killed", signal_number=signal.SIGKILL)
FAILED = WorkerFailed("out-of-memory", "out of memory")
HALVED = "; micro-batch 4 of 8 (out of memory), accumulating 2"


class Machine:
    def __init__(self) -> None:
        self.memory = MainMemory(8 * 10**9, 16 * 10**9)
        self.kills = 3
        self.fitting = Fitting(lambda: self.memory, lambda: self.kills)

    def begin(self) -> int:
        return self.fitting.begin(CONFIGURE).batch_parts


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_the_oom_killer_halves_the_micro_batch(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    assert machine.begin() == 1
    machine.fitting.take(BatchFit(8, 8))
    assert machine.fitting.words() == ""
    machine.kills += 1
    with caplog.at_level(logging.WARNING):
        assert machine.fitting.died(KILLED, SAID_NOTHING)
        assert machine.begin() == 2
        machine.fitting.take(BatchFit(4, 8, 2))  # the next worker says so itself: no news
    assert machine.fitting.words() == HALVED
    said = [record.fields["why"] for record in caplog.records]
    assert said == ["micro-batch 4 of 8 (out of memory), accumulating 2"]


def test_a_kill_by_hand_is_none_of_memory(machine: Machine) -> None:
    machine.begin()
    machine.fitting.take(BatchFit(8, 8))
    machine.fitting.watch()
    assert not machine.fitting.died(KILLED, SAID_NOTHING)
    assert machine.begin() == 1


def test_a_kill_while_memory_was_short_is_one(machine: Machine) -> None:
    machine.begin()
    machine.fitting.take(BatchFit(8, 8))
    machine.memory = MainMemory(10**9, 16 * 10**9)
    machine.fitting.watch()
    machine.memory = MainMemory(15 * 10**9, 16 * 10**9)  # the worker is gone
    assert machine.fitting.died(KILLED, SAID_NOTHING)
    assert machine.begin() == 2


def test_what_the_worker_has_cut_itself_is_remembered(machine: Machine) -> None:
    machine.begin()
    machine.fitting.take(BatchFit(8, 8))
    machine.fitting.take(BatchFit(4, 8, 2))
    assert not machine.fitting.died(
        WorkerCrashed("segmentation fault", signal_number=11), SAID_NOTHING
    )
    assert machine.begin() == 2
    assert machine.fitting.words() == HALVED


def test_nothing_left_to_cut_ends_the_node(machine: Machine) -> None:
    machine.begin()
    machine.fitting.take(BatchFit(2, 2))
    assert machine.fitting.died(WorkerCrashed("failed"), FAILED)
    machine.fitting.take(BatchFit(1, 2, 2, is_smallest=True))
    with pytest.raises(WorkerError) as caught:
        machine.fitting.died(WorkerCrashed("failed"), FAILED)
    assert "even one example at a time" in str(caught.value)
    assert "8 GB of 16 GB of main memory were free" in str(caught.value)


def test_a_model_that_does_not_fit_is_tried_thrice(machine: Machine) -> None:
    """Before any batch there is nothing to cut; a machine can be full for a moment."""
    for _ in range(2):
        assert machine.begin() == 1
        assert not machine.fitting.died(WorkerCrashed("failed"), FAILED)
    with pytest.raises(WorkerError, match="failed; 8 GB of 16 GB of main memory were free"):
        machine.fitting.died(WorkerCrashed("failed"), FAILED)


def test_killed_over_the_first_batch_the_next_takes_half(machine: Machine) -> None:
    machine.begin()
    machine.kills += 1
    assert not machine.fitting.died(KILLED, SAID_NOTHING), "the budget of restarts counts"
    assert machine.begin() == 2


def test_odd_batches_end_at_one(machine: Machine) -> None:
    machine.begin()
    machine.fitting.take(BatchFit(5, 5))
    sizes = []
    for _ in range(3):
        assert machine.fitting.died(WorkerCrashed("failed"), FAILED)
        sizes.append(machine.fitting.words().split()[2])
    assert sizes == ["3", "2", "1"]
