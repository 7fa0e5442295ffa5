"""The worker as a real process: it trains, it dies, it comes back, it leaves nothing behind."""

import json
import math
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.worker.process import run_worker
from swarmnode.errors import WorkerCrashed, WorkerHung
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Configure,
    NoView,
    Pause,
    PostedIntent,
    Progress,
    Release,
    Resume,
    SaveSnapshot,
    SlotReady,
    SnapshotFailed,
    SnapshotSaved,
    TakeView,
    WorkerFailed,
    WorkerReady,
)
from swarmnode.ipc.records import Partner
from swarmnode.ipc.segment import StaleSlot
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import is_alive

# The worker is niced: on a machine on which all tests run at once it loads torch for half a minute.
DEADLINE_S = 120.0
PARTNER = Partner(peer=b"p" * 32, step=0, tokens=0)
SMALL_LM = {"dim": 16, "layers": 1, "heads": 2, "context": 16, "batch": 2, "probe_windows": 4}


@pytest.fixture
def configure(tmp_path):
    def make(task="synthetic", **changes):
        fields = {
            "task": task,
            "task_config": {},
            "strategy": "pair-average",
            "strategy_settings": {"every": 4},
            "swarm_seed": 1,
            "shard_seed": 2,
            "snapshot_dir": str(tmp_path / "snapshots"),
            "device": "cpu",
        }
        return Configure(**(fields | changes))

    return make


@pytest.fixture
def log_path(tmp_path):
    return tmp_path / "worker.log"


async def next_of(link, kind, such_that=lambda message: True):
    """Return the next message of ``kind``, giving back every slot that comes before it."""
    with trio.fail_after(DEADLINE_S):
        while True:
            message = await link.receive()
            if isinstance(message, kind) and such_that(message):
                return message
            if isinstance(message, SlotReady):
                await link.send(Release(slot=message.slot, generation=message.generation))


async def next_slot(link):
    """Borrow a slot for the next intent that still holds when it is answered, and return it."""
    while True:
        intent = await next_of(link, PostedIntent)
        await link.send(
            TakeView(ticket=1, number=intent.number, peer=PARTNER.peer, round=intent.round)
        )
        answer = await next_of(link, SlotReady | NoView)
        if isinstance(answer, SlotReady):
            return answer


@pytest.mark.parametrize(("task", "config"), [("synthetic", {}), ("bytes-lm", SMALL_LM)])
async def test_it_trains_reports_and_exchanges(configure, log_path, task, config):
    async with run_worker(configure(task, task_config=config), log_path=log_path) as link:
        ready = await next_of(link, WorkerReady)
        assert ready.device == "cpu"
        assert ready.step == 0
        assert ready.payload_numel == ready.numel
        slot = await next_slot(link)
        view = link.slot_view(slot.slot, slot.generation).cast("f")
        assert len(view) == 2 * ready.payload_numel
        assert all(map(math.isfinite, view))
        view[ready.numel :] = view[: ready.numel]  # the partner's are the same
        apply = Apply(slot.slot, slot.generation, b"e" * 16, PARTNER)
        await link.send(apply)
        applied = await next_of(link, Applied)
        assert applied.xid == b"e" * 16
        # A merge may be in pieces, with a step between them on a machine that has other work.
        assert 0 <= applied.step - slot.step - applied.staleness_steps <= 1
        with pytest.raises(StaleSlot):
            link.slot_view(slot.slot, slot.generation)
        progress = await next_of(link, Progress, lambda p: p.step > 100)
        assert progress.loss < 10
        assert math.isfinite(progress.eval_loss)
        assert progress.step_time_s > 0
        pid = link.pid
    assert not is_alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="sessions share cores on Linux")
async def test_it_lets_all_other_sessions_go_first(configure, log_path):
    async with run_worker(configure(), log_path=log_path) as link:
        await next_of(link, WorkerReady)
        pid = link.pid
        assert os.getsid(pid) == pid
        assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
        assert share_of_the_session(pid) in ("", "10")


def share_of_the_session(pid):
    """What the session's group of tasks is niced to; empty: this system has no such groups."""
    try:
        return Path(f"/proc/{pid}/autogroup").read_text().split()[-1]
    except (OSError, IndexError):
        return ""


async def test_killed_it_is_reported_and_the_next_resumes(configure, log_path):
    async with run_worker(configure(), log_path=log_path) as link:
        await next_of(link, WorkerReady)
        await next_of(link, Progress, lambda p: p.step > 10)
        await link.send(SaveSnapshot(request=5))
        saved = await next_of(link, SnapshotSaved, lambda s: s.request == 5)
        slot = await next_slot(link)
        view = link.slot_view(slot.slot, slot.generation)
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashed, match="killed by SIGKILL; out of memory") as caught:
            await next_of(link, WorkerFailed)
        assert caught.value.signal_number == signal.SIGKILL
        with pytest.raises(StaleSlot):
            link.slot_view(slot.slot, slot.generation)
        assert view.nbytes == 2 * 64 * 4, "what was lent can still be read"
        await link.send(Pause())  # to no worker: not an error, receive() has said it

    async with run_worker(configure(), log_path=log_path) as link:
        ready = await next_of(link, WorkerReady)
        assert ready.step >= saved.step > 10


async def test_it_saves_when_stopped_and_leaves(configure, log_path):
    async with run_worker(configure(), log_path=log_path) as link:
        await next_of(link, Progress, lambda p: p.step > 5)
        pid = link.pid
    assert not is_alive(pid)
    async with run_worker(configure(), log_path=log_path) as link:
        assert (await next_of(link, WorkerReady)).step > 5
    async with run_worker(configure(resume=False), log_path=log_path) as link:
        assert (await next_of(link, WorkerReady)).step == 0


async def test_a_cancelled_daemon_task_leaves_no_process(configure, log_path):
    with trio.CancelScope() as scope:
        async with run_worker(configure(), log_path=log_path) as link:
            pid = link.pid
            scope.cancel()
            await link.receive()
    assert not is_alive(pid), "not even one that was still importing torch"


async def test_pause_resume_and_the_last_step(configure, log_path):
    async with run_worker(configure(steps_max=300), log_path=log_path) as link:
        await link.send(Pause())  # before it is ready, so that it cannot be done already
        await next_of(link, WorkerReady)
        paused = await next_of(link, Progress, lambda p: p.paused)
        again = await next_of(link, Progress, lambda p: p.paused)
        assert again.step == paused.step
        await link.send(Resume())
        finished = await next_of(link, Progress, lambda p: p.finished)
        assert finished.step == 300
        assert finished.tokens == 300 * 8
        assert math.isfinite(finished.eval_loss)


async def test_two_workers_of_one_swarm_begin_with_the_same_parameters(configure, tmp_path):
    first = []
    for shard in (1, 2):
        config = configure(
            "bytes-lm",
            task_config=SMALL_LM | {"lr": 1e-30},
            shard_seed=shard,
            snapshot_dir=str(tmp_path / f"snapshots{shard}"),
        )
        async with run_worker(config, log_path=tmp_path / f"{shard}.log") as link:
            ready = await next_of(link, WorkerReady)
            slot = await next_slot(link)
            view = link.slot_view(slot.slot, slot.generation)
            first.append(np.frombuffer(view.tobytes(), np.float32)[: ready.numel])
    np.testing.assert_allclose(first[0], first[1], rtol=0, atol=1e-25)
    assert np.linalg.norm(first[0]) > 1


PARENT = """
    import os, sys, trio
    from pathlib import Path
    from swarmnode.daemon.worker.process import run_worker
    from swarmnode.ipc.control import Configure, Progress

    async def main():
        configure = Configure(
            task="synthetic", task_config={}, strategy="pair-average", strategy_settings={},
            swarm_seed=1, shard_seed=2, snapshot_dir=sys.argv[1] + "/snapshots", device="cpu",
        )
        async with run_worker(configure, log_path=Path(sys.argv[1]) / "worker.log") as link:
            while True:
                message = await link.receive()
                if isinstance(message, Progress) and message.step > 3:
                    print(link.pid, flush=True)
    trio.run(main)
"""


def test_a_worker_whose_daemon_is_killed_saves_and_goes(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        worker = int(parent.stdout.readline())
        descriptor = os.pidfd_open(worker)
        parent.kill()
    readable, _, _ = select.select([descriptor], [], [], HANGS_S)
    os.close(descriptor)
    assert readable, "the worker outlived its daemon"
    assert list((tmp_path / "snapshots").glob("snapshot-*.safetensors"))


async def expect_failure(configure_message, log_path, kind):
    """Return the message of a worker that must fail with ``kind``."""
    async with run_worker(configure_message, log_path=log_path) as link:
        failed = await next_of(link, WorkerFailed)
        assert failed.kind == kind
        with pytest.raises(WorkerCrashed) as caught:
            await link.receive()
        assert str(caught.value) == f"the worker failed ({kind}): {failed.message}"
        assert caught.value.signal_number is None
    return failed.message


async def test_torch_that_is_missing_is_one_line(configure, log_path, tmp_path, monkeypatch):
    (tmp_path / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    message = await expect_failure(configure(), log_path, "torch-missing")
    assert message == "this task needs torch: pip install '.[torch]' in the clone of swarmnode"
    assert "Traceback" not in log_path.read_text()


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"task": "nope"}, "task-unknown", "task 'nope' is not installed here"),
        ({"task_config": {"dimm": 1}}, "config", "unknown setting 'dimm'"),
        ({"layout_hash": b"\x01" * 32}, "layout", "the swarm's model has layout 010101010101"),
        ({"task": "bytes-lm", "data_dir": "/nowhere"}, "data", "expected a folder of text files"),
        (
            {"task": "bytes-lm", "task_config": {"dim": 2**31 - 4}},  # 2 TiB of embeddings
            "out-of-memory",
            "use a smaller batch or model",
        ),
        ({"task_config": {"lr": 1e30}}, "diverged", "lower the learning rate"),
        ({"strategy": "dadao", "strategy_settings": {}}, "config", "a strongly convex task"),
        (
            {"strategy": "noloco", "strategy_settings": {"gamma": 1.9}},
            "config",
            "expected gamma below",
        ),
    ],
)
async def test_what_cannot_work_is_said_in_one_line(configure, log_path, changes, kind, message):
    assert message in await expect_failure(configure(**changes), log_path, kind)


async def test_a_full_disk_is_reported_and_training_goes_on(configure, log_path, tmp_path):
    (tmp_path / "snapshots").symlink_to("/dev/full")  # no directory can be made there
    async with run_worker(configure(), log_path=log_path) as link:
        ready = await next_of(link, WorkerReady)
        await link.send(SaveSnapshot(request=1))
        failed = await next_of(link, SnapshotFailed)
        assert failed.request == 1
        assert (await next_of(link, Progress, lambda p: p.step > failed.step)).step > ready.step


async def test_a_silent_worker_is_ended(configure, log_path, monkeypatch):
    monkeypatch.setattr(limits, "WORKER_SILENCE_S", 1.5)
    monkeypatch.setattr(limits, "WORKER_TERMINATE_S", 0.3)
    async with run_worker(configure(), log_path=log_path) as link:
        await next_of(link, Progress, lambda p: p.step > 3)
        pid = link.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerHung, match=f"process {pid}.* was silent for 2 s"):
            await next_of(link, WorkerFailed)
        assert not is_alive(pid)


async def test_a_machine_that_cannot_start_it_is_a_crash(configure, log_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerCrashed, match="cannot start a worker: No such file"):
        async with run_worker(configure(), log_path=log_path):
            pass


async def test_a_crash_names_the_last_line_of_its_log(configure, log_path, tmp_path, monkeypatch):
    (tmp_path / "swarmnode_broken.py").write_text("raise SystemExit('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import swarmnode_broken")
    async with run_worker(configure(), log_path=log_path) as link:
        with pytest.raises(WorkerCrashed, match=r"exited with status 1: .*no such thing"):
            await link.receive()


def test_an_offline_verb_that_fails_says_why(tmp_path):
    process = subprocess.run(
        [sys.executable, "-m", "swarmnode.worker.offline", "export", str(tmp_path), "out"],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert process.returncode == 12
    assert json.loads(process.stdout)["failed"] == "config"
