"""What the daemon keeps about workers that needs no process: budget, log, and the fake."""

import math
import os
import random
import tempfile

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.worker.link import RestartBudget, StartWorker
from swarmnode.daemon.worker.process import WorkerLog
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Configure,
    NoView,
    Pause,
    PostedIntent,
    Progress,
    Release,
    SaveSnapshot,
    SlotReady,
    SnapshotSaved,
    TakeView,
    WorkerReady,
)
from swarmnode.ipc.segment import StaleSlot
from swarmnode.testing.fake_worker import FakeWorker

CONFIGURE = Configure(
    task="fake",
    task_config={},
    strategy="pair-average",
    strategy_settings={},
    swarm_seed=0,
    shard_seed=0,
    snapshot_dir=tempfile.mkdtemp(),
)

# --- restarts --------------------------------------------------------------------------------


def test_the_budget_allows_a_few_restarts_and_then_none():
    budget = RestartBudget(random.Random(1))
    pauses_s = [budget.next_pause_s(now) for now in range(limits.WORKER_RESTARTS_MAX + 1)]
    assert pauses_s[-1] == math.inf
    for recent, pause_s in enumerate(pauses_s[:-1]):
        assert 0 <= pause_s <= min(30.0, 0.5 * 2**recent)


def test_deaths_long_ago_do_not_count():
    budget = RestartBudget(random.Random(1))
    spacing_s = limits.WORKER_RESTARTS_WINDOW_S / limits.WORKER_RESTARTS_MAX + 1
    assert all(budget.next_pause_s(n * spacing_s) < math.inf for n in range(50))


def test_pauses_are_spread_over_the_whole_range():
    pauses_s = [RestartBudget(random.Random(seed)).next_pause_s(0.0) for seed in range(200)]
    assert min(pauses_s) < 0.05
    assert max(pauses_s) > 0.45


# --- log -------------------------------------------------------------------------------------


def test_the_last_line_is_of_this_worker_only(tmp_path):
    path = tmp_path / "logs" / "worker.log"
    first = WorkerLog(path)
    os.write(first.fd, b"old trouble\n")
    first.close()
    log = WorkerLog(path)
    assert log.last_line() == ""
    os.write(log.fd, b"Traceback:\n  line\nValueError: new\n\n")
    assert log.last_line() == "ValueError: new"
    assert path.read_bytes().startswith(b"old trouble\n")
    log.close()


def test_a_log_that_grows_is_cut_to_its_tail(tmp_path):
    log = WorkerLog(tmp_path / "worker.log")
    os.write(log.fd, b"x" * limits.WORKER_LOG_BYTES_MAX)
    log.cut()
    assert os.fstat(log.fd).st_size == limits.WORKER_LOG_BYTES_MAX
    os.write(log.fd, b"\nthe end\n")
    log.cut()
    assert os.fstat(log.fd).st_size == limits.WORKER_LOG_KEPT_BYTES
    assert log.last_line() == "the end"
    os.write(log.fd, b"and on\n")
    assert log.last_line() == "and on"
    log.close()


# --- the fake worker -------------------------------------------------------------------------


def pull(step, x):
    """Drift towards one; not representable exactly, so rounding is part of the test."""
    return 0.01 * (1.0 - x) * (1 + step % 3)


async def ask(link, number, ticket=1):
    """Ask for the view of an intent; return the answer."""
    await link.send(TakeView(ticket=ticket, number=number))
    return await next_of(link, SlotReady | NoView)


async def next_of(link, kind):
    while True:
        message = await link.receive()
        if isinstance(message, kind):
            return message


async def test_a_fake_worker_is_a_worker_on_virtual_time(autojump_clock):
    worker = FakeWorker(np.zeros(3), step_s=0.5, every=4)
    start: StartWorker = worker.start
    async with start(CONFIGURE) as link:
        ready = await next_of(link, WorkerReady)
        assert (ready.numel, ready.payload_numel, ready.step) == (3, 3, 0)
        intent = await next_of(link, PostedIntent)
        assert trio.current_time() == pytest.approx(2.0)
        assert (intent.step, intent.round, intent.numel) == (4, 1, 3)
        progress = await next_of(link, Progress)
        assert progress.step_time_s == 0.5


async def test_exchanges_between_fake_workers_keep_the_sum(autojump_clock):
    rng = np.random.default_rng(5)
    first = [rng.standard_normal(6) for _ in range(2)]
    workers = [FakeWorker(x, drift=pull, every=3) for x in first]
    async with workers[0].start(CONFIGURE) as one, workers[1].start(CONFIGURE) as two:
        for round_number in range(20):
            intents = [await next_of(link, PostedIntent) for link in (one, two)]
            slots = [
                await ask(link, intent.number)
                for link, intent in zip((one, two), intents, strict=True)
            ]
            halves = [
                np.frombuffer(link.slot_view(slot.slot, slot.generation), np.float32).reshape(2, 6)
                for link, slot in zip((one, two), slots, strict=True)
            ]
            halves[0][1], halves[1][1] = halves[1][0], halves[0][0]
            for link, slot in zip((one, two), slots, strict=True):
                xid = bytes([round_number]) * 16
                await link.send(Apply(slot=slot.slot, generation=slot.generation, xid=xid))
            for link in (one, two):
                assert (await next_of(link, Applied)).xid == bytes([round_number]) * 16
    total = sum(worker.x for worker in workers)
    expected = sum(first) + sum(worker.drift_sum for worker in workers)
    np.testing.assert_allclose(total, expected, atol=1e-9)
    assert np.linalg.norm(workers[0].x - workers[1].x) < 0.1


async def test_slots_of_a_fake_worker_change_hands(autojump_clock):
    worker = FakeWorker(np.zeros(2), every=1)
    async with worker.start(CONFIGURE) as link:
        old = await next_of(link, PostedIntent)
        intent = await next_of(link, PostedIntent)
        assert await ask(link, old.number, 7) == NoView(7, "no-wish: it is over here")
        intent = await next_of(link, PostedIntent)
        first = await ask(link, intent.number)
        again = await next_of(link, PostedIntent)
        assert (await ask(link, again.number)).why == "busy: in another exchange of the same"
        await link.send(Release(slot=first.slot, generation=first.generation))
        with pytest.raises(StaleSlot):
            link.slot_view(first.slot, first.generation)
        with pytest.raises(StaleSlot):
            await link.send(Release(slot=first.slot, generation=first.generation))
        intent = await next_of(link, PostedIntent)
        second = await ask(link, intent.number)
        assert second.generation > first.generation
        worker.x[1] = np.nan
        await link.send(Release(slot=second.slot, generation=second.generation))
        intent = await next_of(link, PostedIntent)
        assert "finite" in (await ask(link, intent.number)).why


async def test_a_fake_worker_pauses_saves_crashes_and_comes_back(autojump_clock):
    worker = FakeWorker(np.zeros(2), drift=pull, every=5)
    async with worker.start(CONFIGURE) as link:
        await next_of(link, PostedIntent)
        await link.send(SaveSnapshot(request=7))
        saved = await next_of(link, SnapshotSaved)
        assert (saved.request, saved.step) == (7, 5)
        await next_of(link, PostedIntent)
        worker.crash()
        with pytest.raises(WorkerCrashed, match="SIGKILL"):
            await link.receive()
    async with worker.start(CONFIGURE) as link:
        assert (await next_of(link, WorkerReady)).step == 5
        np.testing.assert_allclose(worker.x, worker.drift_sum, atol=1e-12)
        await link.send(Pause())
        assert (await next_of(link, Progress)).paused
        assert worker.step == 5
    assert worker.lives == 2
