"""A real worker whose task runs out of memory over more than a few examples."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import trio

from swarmnode.daemon.worker.fitting import Fitting
from swarmnode.daemon.worker.process import start_worker_process
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.env import Env
from swarmnode.errors import WorkerError
from swarmnode.ipc.control import Configure
from swarmnode.memory import MainMemory
from swarmnode.tasks.installed import ENTRY_POINT_GROUP

DEADLINE_S = 90.0
HUNGRY = """
    import torch

    from swarmnode.tasks.base import PositiveInt, TaskConfig
    from swarmnode.tasks.digits import Digits


    class Hungry(Digits):
        name = "hungry"
        version = 1

        class Config(Digits.Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
            room: int = 8

        def loss(self, model, batch):
            if model.training and len(batch[1]) > self.config.room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return super().loss(model, batch)
"""


@pytest.fixture
def hungry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Configure]:
    """Install a task whose loss takes ``room`` examples at a time; return what trains it."""
    site = tmp_path / "site"
    about = site / "hungry_tasks-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "hungry_tasks.py").write_text(dedent(HUNGRY))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hungry-tasks\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\nhungry = hungry_tasks:Hungry\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))

    def configure(room: int) -> Configure:
        return Configure(
            task="hungry",
            task_config={"batch": 8, "room": room},
            strategy="pair-average",
            strategy_settings={"every": 4},
            swarm_seed=1,
            shard_seed=2,
            snapshot_dir=str(tmp_path / "snapshots"),
            device="cpu",
        )

    return configure


def trainer_of(configure: Configure, folder: Path, kills: Callable[[], int]) -> Trainer:
    return Trainer(
        configure,
        start_worker=start_worker_process(folder / "worker.log"),
        env=Env(trio.current_time, lambda: 0.0),
        on_applied=lambda _applied: None,
        on_lost=lambda _xid: None,
        fitting=Fitting(lambda: MainMemory(8 * 10**9, 16 * 10**9), kills),
    )


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.02)


async def test_it_trains_on_with_smaller_parts_also_after_it_was_killed(
    hungry: Callable[[int], Configure], tmp_path: Path
) -> None:
    kills = [0]
    trainer = trainer_of(hungry(4), tmp_path, lambda: kills[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trainer.run)
        await until(lambda: trainer.progress is not None and trainer.progress.step > 20)
        assert trainer.state == "training"
        assert trainer.reason == "on cpu; micro-batch 4 of 8 (out of memory), accumulating 2"
        assert trainer.restarts == 0
        assert trainer.progress is not None
        assert math.isfinite(trainer.progress.loss)
        assert trainer.progress.tokens == 8 * trainer.progress.step

        assert trainer.worker_pid is not None
        kills[0] += 1
        os.kill(trainer.worker_pid, signal.SIGKILL)  # as the kernel does when memory runs out
        await until(lambda: trainer.restarts == 1)
        words = "micro-batch 2 of 8 (out of memory), accumulating 4"
        assert trainer.reason.endswith(words)
        trainer.progress = None
        await until(lambda: trainer.progress is not None and trainer.progress.step > 0)
        assert trainer.reason == f"on cpu; {words}"
        nursery.cancel_scope.cancel()


async def test_not_even_one_example_ends_the_node_at_once(
    hungry: Callable[[int], Configure], tmp_path: Path
) -> None:
    trainer = trainer_of(hungry(0), tmp_path, lambda: 0)
    with trio.fail_after(DEADLINE_S), pytest.raises(WorkerError) as caught:
        await trainer.run()
    message = str(caught.value)
    assert message.startswith("too little memory to train one example here: model, gradients")
    assert "of main memory are free beside that" in message
    assert "Tried to allocate 2.00 GiB" in message
    assert trainer.restarts == 0
