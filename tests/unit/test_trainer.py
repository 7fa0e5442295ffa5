"""The parent side of training, against a worker that says what a test wants."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from swarmnode import limits
from swarmnode.daemon.exchange import SlotLease
from swarmnode.daemon.trainer import Trainer
from swarmnode.env import Env
from swarmnode.errors import (
    ConfigError,
    DeadlineExceeded,
    Overloaded,
    SpecMismatch,
    StorageError,
    SwarmNodeError,
    WorkerCrashed,
    WorkerError,
)
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Configure,
    FromWorker,
    Pause,
    Progress,
    Release,
    SaveSnapshot,
    SlotReady,
    SnapshotFailed,
    SnapshotSaved,
    ToWorker,
    WorkerFailed,
    WorkerReady,
)
from swarmnode.ipc.segment import StaleSlot

CONFIGURE = Configure("t", {}, "pair-average", {}, 1, 2, "/nowhere")
READY = WorkerReady(bytes(32), 640, 2, step=0, tokens=0, device="fake", torch_version="", threads=1)


class ScriptedLink:
    """A worker whose messages a test puts in; what it is sent is kept."""

    pid = 42

    def __init__(self) -> None:
        self.say, self._heard = trio.open_memory_channel[FromWorker | Exception](100)
        self.sent: list[ToWorker] = []
        self.is_deaf = False
        self.memory = np.zeros((2, 640), np.float32)
        self.stale: set[int] = set()

    async def send(self, message: ToWorker) -> None:
        if self.is_deaf:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.sent.append(message)
        if isinstance(message, Apply | Release) and message.slot in self.stale:
            raise StaleSlot("gone")

    async def receive(self) -> FromWorker:
        message = await self._heard.receive()
        if isinstance(message, Exception):
            raise message
        return message

    def slot_view(self, slot: int, generation: int) -> memoryview:
        if slot in self.stale:
            raise StaleSlot("gone")
        return self.memory[slot].data.cast("B")


class Borrower:
    """Stands in for the exchanges: keeps what it is lent."""

    def __init__(self) -> None:
        self.leases: list[SlotLease] = []
        self.losses = 0

    def snapshot_ready(self, lease: SlotLease) -> None:
        self.leases.append(lease)

    def worker_lost(self) -> None:
        self.losses += 1


class Rig:
    def __init__(self) -> None:
        self.links: list[ScriptedLink] = []
        self.borrower = Borrower()
        self.lost: list[bytes] = []
        self.applied: list[Applied] = []
        self.failure: SwarmNodeError | None = None
        self.trainer = Trainer(
            CONFIGURE,
            compatibility_key=b"k" * 32,
            start_worker=self._start,
            env=Env(trio.current_time, lambda: 0.0, random.Random(1)),
            on_applied=self.applied.append,
            on_lost=self.lost.append,
        )
        self.trainer.exchanges = self.borrower  # type: ignore[assignment]

    @asynccontextmanager
    async def _start(self, configure: Configure) -> AsyncIterator[ScriptedLink]:
        assert configure == CONFIGURE
        self.links.append(ScriptedLink())
        yield self.links[-1]

    async def run(self) -> None:
        try:
            await self.trainer.run()
        except SwarmNodeError as error:
            self.failure = error

    async def hears(self, *messages: FromWorker | Exception) -> None:
        """Let the worker that runs say something; return when it has been taken in."""
        for message in messages:
            await self.links[-1].say.send(message)
        await trio.testing.wait_all_tasks_blocked()

    @property
    def sent(self) -> list[ToWorker]:
        return self.links[-1].sent


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


def slot_ready(slot: int, generation: int = 1, applied: int = 0) -> SlotReady:
    return SlotReady(slot, generation, round=3, step=24, tokens=99, applied=applied)


def crash(why: str = "killed") -> WorkerCrashed:
    return WorkerCrashed(why)


async def test_a_snapshot_is_lent_with_what_the_core_is_to_know(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY, slot_ready(1, 7))
        (lease,) = it.borrower.leases
        assert (lease.snapshot.slot, lease.snapshot.round, lease.snapshot.n_chunks) == (1, 3, 1)
        assert (lease.snapshot.key, lease.snapshot.step) == (b"k" * 32, 24)
        lease.view[:4] = b"\0\0\x80\x3f"
        assert it.links[0].memory[1, 0] == 1.0
        it.trainer.apply(1, b"x" * 16)
        await trio.testing.wait_all_tasks_blocked()
        assert it.sent == [Apply(1, 7, b"x" * 16)]


async def test_a_snapshot_older_than_a_commit_goes_back(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY, slot_ready(0))
        it.trainer.apply(0, b"x" * 16)
        await it.hears(slot_ready(1, 2, applied=0))
        assert len(it.borrower.leases) == 1
        assert it.sent[-1] == Release(1, 2)
        await it.hears(Applied(b"x" * 16, 25, 1), slot_ready(1, 3, applied=1))
        assert it.borrower.leases[-1].snapshot.slot == 1


async def test_a_slot_that_went_with_its_worker_is_neither_lent_nor_given_back(
    autojump_clock,
) -> None:
    async with rig() as it:
        await it.hears(READY)
        it.links[0].stale.add(0)
        await it.hears(slot_ready(0))
        assert it.borrower.leases == []
        it.trainer.release(0)  # StaleSlot: receive() is about to say that the worker died
        await it.hears(crash())
        assert it.borrower.losses == 1
        it.trainer.release(0)
        assert it.failure is None


async def test_what_was_not_merged_is_lost_with_the_worker(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY, slot_ready(0), slot_ready(1))
        it.trainer.apply(0, b"1" * 16)
        it.trainer.apply(1, b"2" * 16)
        await it.hears(Applied(b"1" * 16, 25, 1))
        with trio.move_on_after(1) as waiting:
            await it.trainer.drain()
        assert waiting.cancelled_caught
        await it.hears(crash())
        await it.trainer.drain()
        assert it.lost == [b"2" * 16]
        assert it.trainer.applications.applied == 1
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        await it.hears(READY, slot_ready(0))  # the next worker counts from zero
        assert len(it.borrower.leases) == 3


async def test_the_restart_budget(autojump_clock) -> None:
    async with rig() as it:
        for number in range(limits.WORKER_RESTARTS_MAX + 1):
            assert it.trainer.restarts == number
            await it.hears(READY, crash(f"death {number}"))
            await trio.sleep(limits.WORKER_BACKOFF_S_MAX)
        assert isinstance(it.failure, WorkerError)
        assert "last: death 5" in str(it.failure)
        assert len(it.links) == limits.WORKER_RESTARTS_MAX + 1


async def test_the_restart_budget_is_earned_back(autojump_clock) -> None:
    async with rig() as it:
        for _ in range(3 * limits.WORKER_RESTARTS_MAX):
            await it.hears(READY, crash())
            await trio.sleep(limits.WORKER_RESTARTS_WINDOW_S / limits.WORKER_RESTARTS_MAX + 1)
        assert it.failure is None


@pytest.mark.parametrize(
    ("kind", "error"), [("layout", SpecMismatch), ("config", ConfigError), ("data", ConfigError)]
)
async def test_what_a_restart_cannot_mend_ends_the_node(autojump_clock, kind, error) -> None:
    async with rig() as it:
        await it.hears(WorkerFailed(kind, "say why in one line"), crash())
        assert isinstance(it.failure, error)
        assert str(it.failure) == "say why in one line"
        assert len(it.links) == 1


async def test_what_a_restart_may_mend_is_restarted(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(WorkerFailed("out-of-memory", "too big"), crash())
        assert it.trainer.state == "starting"
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        assert len(it.links) == 2


async def test_a_pause_outlives_the_worker(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        it.trainer.pause()
        await it.hears(Progress(1, 1, 0.5, 0.5, 0.1, paused=True))
        assert it.trainer.state == "paused"
        await it.hears(crash())
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        assert it.sent == [Pause()]
        it.trainer.resume()
        await it.hears(crash())
        await trio.sleep(2 * limits.WORKER_BACKOFF_S_MIN)
        assert it.sent == []


async def test_requests_of_people_leave_room_for_slots(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY, slot_ready(0), slot_ready(1))
        it.links[0].is_deaf = True

        def ask_for_ever() -> None:
            for _ in range(10 * limits.TRAINER_OUTBOX_MAX):
                it.trainer.pause()

        with pytest.raises(Overloaded, match="has not read"):
            ask_for_ever()
        it.trainer.apply(0, b"x" * 16)
        it.trainer.release(1)


async def test_a_snapshot_on_request(autojump_clock) -> None:
    async with rig() as it:
        with pytest.raises(WorkerError, match="starting"):
            await it.trainer.save_snapshot(1)
        await it.hears(READY)
        got: list[Any] = []

        async def ask() -> None:
            try:
                got.append(await it.trainer.save_snapshot(5))
            except SwarmNodeError as error:
                got.append(error)

        async with trio.open_nursery() as nursery:
            for answer in (
                SnapshotSaved(1, 7, "here"),
                SnapshotFailed(2, 8, "no space"),
                crash(),
            ):
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                assert isinstance(it.sent[-1], SaveSnapshot)
                await it.hears(SnapshotSaved(0, 6, "by itself"))
                await it.hears(answer)
        assert got[0] == SnapshotSaved(1, 7, "here")
        assert isinstance(got[1], StorageError)
        assert isinstance(got[2], WorkerError)


async def test_a_snapshot_that_takes_too_long(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        with pytest.raises(DeadlineExceeded):
            await it.trainer.save_snapshot(5)
