"""When snapshots are saved: one at a time, beside training, and what becomes of requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.errors import StorageError, StorageFull
from swarmnode.ipc.control import SnapshotFailed, SnapshotSaved
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker.channel import DaemonGone
from swarmnode.worker.model.state import build_state
from swarmnode.worker.snapshots.saver import Saver
from swarmnode.worker.snapshots.snapshot import SnapshotStore, Taken


class SlowStore(SnapshotStore):
    """Writes when the test lets it, or fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write = threading.Event()
        self.may_write.set()
        self.failure: Exception | None = None
        self.take_failure: StorageError | None = None
        self.taken: list[int] = []

    def take(self, state, strategy, **how):  # type: ignore[no-untyped-def]
        if self.take_failure is not None:
            raise self.take_failure
        taken = super().take(state, strategy, **how)
        self.taken.append(taken.about.step)
        return taken

    def write(self, taken: Taken) -> Path:
        assert self.may_write.wait(30)
        if self.failure is not None:
            raise self.failure
        return super().write(taken)


class Rig:
    """A saver with a clock of its own; ``step`` is one turn of the worker's loop."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.state = build_state(Synthetic({"dim": 4}), swarm_seed=0, device="cpu")
        self.strategy = PairAverage({}, self.state.arena.flat)
        self.store = SlowStore(folder)
        self.sent: list[SnapshotSaved | SnapshotFailed] = []
        self.is_daemon_gone = False
        self.saver = Saver(self.store, self.send, monotonic=lambda: self.now)
        self.batches = self.state.batches(0)

    def send(self, report: SnapshotSaved | SnapshotFailed) -> None:
        if self.is_daemon_gone:
            raise DaemonGone("gone")
        self.sent.append(report)

    def step(self, *, last: bool = False) -> None:
        self.state.take_step(next(self.batches))
        self.turn(last=last)

    def turn(self, *, last: bool = False) -> None:
        self.saver.save_when_due(self.state, self.strategy, last=last)

    def wait_written(self) -> None:
        save = self.saver._save
        assert save is not None
        wait([save.written])

    def steps_on_disk(self) -> list[int]:
        return [int(path.stem.rpartition("-")[2]) for path in self.store.paths()]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "snapshots")
    with rig.saver:
        yield rig
        rig.store.may_write.set()
    rig.store.close()


def test_training_goes_on_while_a_snapshot_is_written(rig: Rig) -> None:
    rig.store.may_write.clear()
    rig.saver.ask(5)
    rig.step()
    for _ in range(3):
        rig.step()
    assert rig.sent == []
    assert rig.state.step == 4
    rig.store.may_write.set()
    rig.wait_written()
    rig.turn()
    assert rig.sent == [SnapshotSaved(request=5, step=1, path=str(rig.store.paths()[0]))]
    assert rig.steps_on_disk() == [1]


def test_requests_while_one_is_written_wait_and_share_the_next(rig: Rig) -> None:
    rig.store.may_write.clear()
    rig.saver.ask(5)
    rig.step()
    rig.saver.ask(6)
    rig.step()
    rig.saver.ask(7)
    rig.step()
    assert rig.store.taken == [1]
    rig.store.may_write.set()
    rig.wait_written()
    rig.step()
    rig.wait_written()
    rig.step()
    assert rig.store.taken == [1, 4], "what was asked for at step 3 is no older than step 3"
    assert [(saved.request, saved.step) for saved in rig.sent] == [(5, 1), (7, 4)]
    rig.step()
    assert not rig.saver.is_busy


def test_the_period_follows_from_how_long_writing_takes(rig: Rig) -> None:
    rig.step()
    assert not rig.saver.is_busy, "none is due at once"
    rig.now += limits.SNAPSHOT_PERIOD_S_MIN
    rig.store.may_write.clear()
    rig.step()
    began_s = rig.now
    rig.now += 1.0
    rig.store.may_write.set()
    rig.wait_written()
    rig.now += 2.0  # a slow step: not the writer's time
    rig.turn()
    assert rig.saver.next_s == began_s + 1.0 / limits.SNAPSHOT_TIME_SHARE_MAX

    rig.saver.ask(1)
    rig.turn()
    rig.wait_written()
    rig.turn()
    assert rig.saver.next_s == rig.now + limits.SNAPSHOT_PERIOD_S_MIN
    rig.now += 1000.0
    rig.turn()
    assert not rig.saver.is_busy, "nothing was learnt since"


def test_the_last_step_is_saved_once(rig: Rig) -> None:
    rig.step(last=True)
    rig.wait_written()
    for _ in range(3):
        rig.turn(last=True)
    assert rig.store.taken == [1]
    assert [saved.step for saved in rig.sent] == [1]


def test_a_full_disk_is_said_and_tried_again_later(rig: Rig) -> None:
    rig.store.failure = StorageFull("no space left")
    rig.step(last=True)
    rig.wait_written()
    rig.turn(last=True)
    rig.turn(last=True)
    assert rig.sent == [SnapshotFailed(request=0, step=1, message="no space left")]
    rig.store.failure = None
    rig.now += limits.SNAPSHOT_PERIOD_S_MIN
    rig.turn(last=True)
    rig.wait_written()
    rig.turn(last=True)
    assert isinstance(rig.sent[1], SnapshotSaved)
    assert rig.steps_on_disk() == [1]


def test_a_state_that_cannot_be_copied_is_said_too(rig: Rig) -> None:
    rig.store.take_failure = StorageError("no memory")
    rig.saver.ask(3)
    rig.step()
    rig.step()
    assert rig.sent == [SnapshotFailed(request=3, step=1, message="no memory")]


def test_the_end_waits_for_what_is_written_and_saves_once_more(rig: Rig) -> None:
    rig.store.may_write.clear()
    rig.saver.ask(8)
    rig.step()
    rig.step()
    threading.Timer(0.0, rig.store.may_write.set).start()
    rig.saver.finish(rig.state, rig.strategy)
    assert [(saved.request, saved.step) for saved in rig.sent] == [(8, 1), (0, 2)]
    assert rig.steps_on_disk() == [2, 1]


def test_the_last_snapshot_is_written_even_if_the_daemon_is_gone(rig: Rig) -> None:
    rig.is_daemon_gone = True
    rig.saver.ask(8)
    rig.step()
    rig.wait_written()
    with pytest.raises(DaemonGone):
        rig.step()
    with pytest.raises(DaemonGone):
        rig.saver.finish(rig.state, rig.strategy)
    assert rig.steps_on_disk() == [2, 1]


def test_what_no_disk_does_wrong_ends_the_worker(rig: Rig) -> None:
    rig.store.failure = ZeroDivisionError("a bug")
    rig.saver.ask(1)
    rig.step()
    rig.wait_written()
    with pytest.raises(ZeroDivisionError):
        rig.step()
