"""A worker of several processes: it learns what one does, and ends, saves and starts as one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trio

from swarmnode.daemon.worker.process import run_worker
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Configure,
    NoView,
    PostedIntent,
    SaveSnapshot,
    SlotReady,
    SnapshotSaved,
    TakeView,
    WorkerReady,
)
from swarmnode.ipc.records import Partner
from swarmnode.ipc.spawn import worker_environment
from tests.kits.daemon_kit import is_alive

DEADLINE_S = 600.0  # torch four times, niced, on a machine on which all tests run at once
PARTNER = Partner(peer=b"p" * 32, step=0, tokens=0)
# Muon makes much of rounding, and rounding is all that differs: a small learning rate, few of it.
SMALL_LM = {
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "context": 32,
    "batch": 4,
    "probe_windows": 4,
    "lr": 0.002,
}
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("strategy", ["streaming", "a2cid2"])  # a2cid2 is told of each step
def test_ranks_learn_what_one_process_does_with_a_part_of_its_memory(tmp_path, strategy):
    """Batches of which ranks have parts: the loss differs by rounding, whatever they share out.

    Half of the steps are taken in one way; a snapshot later they go on in the other one.
    """
    wanted = {
        "folder": str(tmp_path),
        "task": "bytes-lm",
        "task_config": SMALL_LM,
        "strategy": strategy,
        "strategy_settings": {},
        "swarm_seed": 1,
        "shard_seed": 2,
    }
    script = [sys.executable, "-m", "tests.process.worker.rank_losses", json.dumps(wanted), "50"]
    done = subprocess.run(
        [*script, "alone", "ddp,fsdp2", "fsdp2,ddp"],
        cwd=ROOT,
        env=worker_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    alone, *both = json.loads(done.stdout.splitlines()[-1])
    assert len(alone["losses"]) == 50
    assert alone["losses"][-1] < alone["losses"][0] - 1.0
    for ranks in both:
        assert ranks["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert ranks["probe"] == pytest.approx(alone["probe"], abs=1e-5)
        assert ranks["x"] == pytest.approx(alone["x"], rel=1e-5)
        assert ranks["held ddp"] == [1.0, 1.0]
        assert max(ranks["held fsdp2"]) <= 0.6, ranks["held fsdp2"]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
async def test_a_rank_that_is_killed_in_a_merge_ends_all_and_leaves_the_model_whole(
    tmp_path, parallel
):
    """What is on disk has all of a merge or none of it, on every rank."""
    configure = Configure(
        task="digits",
        task_config={"lr": 1e-30},
        strategy="pair-average",
        strategy_settings={"every": 4},
        swarm_seed=1,
        shard_seed=2,
        snapshot_dir=str(tmp_path / "snapshots"),
        device="cpu",
        nproc=2,
        parallel=parallel,
    )
    log_path = tmp_path / "worker.log"
    with trio.fail_after(DEADLINE_S):
        async with run_worker(configure, log_path=log_path) as link:
            numel = (await next_of(link, WorkerReady)).numel
            await link.send(SaveSnapshot(request=1))
            await next_of(link, SnapshotSaved)
            _, begun = await merge_one_more(link, numel)
            await next_of(link, Applied)
            await link.send(SaveSnapshot(request=2))
            await next_of(link, SnapshotSaved)
            _, merged = await merge_one_more(link, numel)
            pids = [link.pid, *children_of(link.pid)]
            assert len(pids) == 2
            await link.send(SaveSnapshot(request=3))
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(WorkerCrashed, match="was killed by SIGKILL"):
                await until_it_ends(link)
            assert not any(map(is_alive, pids))
        np.testing.assert_allclose(merged, begun + 0.5, rtol=1e-6)
        async with run_worker(configure, log_path=log_path) as link:
            await next_of(link, WorkerReady)
            _, found = await next_view(link, numel)
            pids = [link.pid, *children_of(link.pid)]
    assert not any(map(is_alive, pids))
    added = found - begun
    assert np.ptp(added) < 1e-5, "a part of a merge"
    assert round(float(added.mean()), 3) in (0.5, 1.0)
    assert "was killed by SIGKILL: so ends this worker" in log_path.read_text()


async def test_what_cannot_be_several_processes_is_said_in_one_line(tmp_path):
    """Before any rank has loaded more than torch."""
    cases = [
        ({"task": "logistic", "nproc": 2}, "expected --nproc 1 for a convex task"),
        ({"device": "cuda:0", "nproc": 2}, "expected auto, cpu or cuda with --nproc above 1"),
        ({"strategy": "dadao", "nproc": 2, "parallel": "fsdp2"}, "expected --parallel ddp"),
    ]
    for changes, words in cases:
        fields = {
            "task": "digits",
            "task_config": {},
            "strategy": "pair-average",
            "strategy_settings": {},
            "swarm_seed": 1,
            "shard_seed": 2,
            "snapshot_dir": str(tmp_path / "snapshots"),
            "device": "cpu",
        }
        configure = Configure(**(fields | changes))
        with trio.fail_after(DEADLINE_S):
            async with run_worker(configure, log_path=tmp_path / "worker.log") as link:
                with pytest.raises(WorkerCrashed, match=re.escape("(config): ")) as caught:
                    await until_it_ends(link)
        assert words in str(caught.value)


async def until_it_ends(link):
    """Receive what it says until it has ended, which raises why."""
    while True:
        await link.receive()


async def next_of(link, kind):
    """Return the next message of ``kind``."""
    while True:
        message = await link.receive()
        if isinstance(message, kind):
            return message


async def next_view(link, numel):
    """Borrow a slot; return it and the parameters as they are in it."""
    while True:
        intent = await next_of(link, PostedIntent)
        await link.send(
            TakeView(ticket=1, number=intent.number, peer=PARTNER.peer, round=intent.round)
        )
        answer = await next_of(link, SlotReady | NoView)
        if isinstance(answer, SlotReady):
            view = link.slot_view(answer.slot, answer.generation).cast("f")
            return answer, np.array(view[:numel])


async def merge_one_more(link, numel):
    """Have the mean with a partner merged whose parameters are larger by 1; return the own ones."""
    slot, own = await next_view(link, numel)
    view = link.slot_view(slot.slot, slot.generation).cast("f")
    np.asarray(view)[numel:] = own + 1
    await link.send(Apply(slot.slot, slot.generation, b"e" * 16, PARTNER))
    return slot, own


def children_of(pid):
    """Return the processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
