"""The owner's rules at work: fake machines, a fake trainer, a virtual clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from swarmnode import limits
from swarmnode.config import load_config
from swarmnode.daemon.volunteer.machine import GpuUse, ProcessUse
from swarmnode.daemon.volunteer.rules import Volunteer
from swarmnode.env import Env
from swarmnode.errors import Overloaded, StorageError
from swarmnode.net.traffic import Traffic
from swarmnode.protocol.volunteer import MEMORY_PAUSE_S, ManualPause
from swarmnode.store.files import make_private_dir
from swarmnode.store.volunteer import TrafficLedger, load_pause, save_pause

WALL = datetime(2026, 11, 30, 20).timestamp()  # four hours before the month ends, here
MB = 1_000_000
NO_GPU = GpuUse(None, None)


@dataclass
class FakeMachine:
    battery: bool | None = None
    metered: bool | None = None
    quiet_s: float | None = None
    gpu: GpuUse = NO_GPU
    use: ProcessUse | None = None
    files_bytes: int = 0
    looks: list[str] = field(default_factory=list)

    def is_on_battery(self) -> bool | None:
        self.looks.append("battery")
        return self.battery

    def is_metered(self) -> bool | None:
        self.looks.append("metered")
        return self.metered

    def user_quiet_s(self, now_unix_s: float) -> float | None:
        self.looks.append("user")
        return self.quiet_s

    def gpu_use(self, gpus: Collection[int], own_pids: Collection[int]) -> GpuUse:
        self.looks.append("gpu")
        return self.gpu

    def process_use(self, pid: int) -> ProcessUse | None:
        self.looks.append("process")
        return self.use

    def directory_bytes(self, root: Path) -> int:
        self.looks.append("disk")
        return self.files_bytes


class FakeTrainer:
    worker_pid: int | None = 42

    def __init__(self) -> None:
        self.state = "training"
        self.why = ""
        self.has_memory = True
        self.is_deaf = False

    def pause(self, why: str) -> None:
        if self.is_deaf:
            raise Overloaded("reads nothing")
        self.state, self.why = "paused", why

    def resume(self) -> None:
        if self.is_deaf:
            raise Overloaded("reads nothing")
        self.state, self.why = "training", ""

    def unload(self) -> None:
        self.has_memory = False

    def load(self) -> None:
        self.has_memory = True


@dataclass
class Rig:
    volunteer: Volunteer
    trainer: FakeTrainer
    machine: FakeMachine
    traffic: Traffic
    said: list[str]


@asynccontextmanager
async def rig(home: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A node's volunteer part on virtual time; leaving the block is a clean stop."""
    make_private_dir(home)
    machine = FakeMachine()
    traffic, trainer, said = Traffic(), FakeTrainer(), []
    env = Env(trio.current_time, lambda: WALL + trio.current_time())
    config = load_config({"home": str(home), **settings}, {})
    volunteer = Volunteer(config, traffic, machine, env, said.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(volunteer.run)
        volunteer.hold(trainer)
        yield Rig(volunteer, trainer, machine, traffic, said)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("settings", "bad", "good", "reason"),
    [
        ({}, {"battery": True}, {"battery": False}, "battery"),
        ({}, {"metered": True}, {"metered": None}, "metered"),
        ({"pause_on_user_s": 600}, {"quiet_s": 20.0}, {"quiet_s": 700.0}, "user"),
        (
            {"pause_on_gpu_busy": True},
            {"gpu": GpuUse(50, 0.4)},
            {"gpu": GpuUse(50, 0.0)},
            "gpu-busy",
        ),
        (
            {"gpu_temperature_max": 80},
            {"gpu": GpuUse(80, 0.0)},
            {"gpu": GpuUse(70, 0.0)},
            "gpu-hot",
        ),
        ({"disk": "1 GB"}, {"files_bytes": 1100 * MB}, {"files_bytes": 900 * MB}, "disk"),
        (
            {"ram": "1 GB"},
            {"use": ProcessUse(1100 * MB, 1.0)},
            {"use": ProcessUse(900 * MB, 1.0)},
            "memory",
        ),
    ],
)
async def test_each_reading_pauses_and_goes_on(
    autojump_clock,
    tmp_path: Path,
    settings: dict[str, Any],
    bad: dict[str, Any],
    good: dict[str, Any],
    reason: str,
) -> None:
    async with rig(tmp_path, **settings) as it:
        assert it.trainer.state == "training"
        for name, value in bad.items():
            setattr(it.machine, name, value)
        await trio.sleep(limits.MACHINE_SLOW_LOOK_S + 1)
        assert it.trainer.state == "paused"
        assert it.volunteer.verdict.reason == reason
        assert it.trainer.why == it.volunteer.verdict.sentence()
        assert it.trainer.has_memory == (reason not in ("memory", "gpu-busy"))
        assert bool(it.traffic.why_no_tensors) == (reason == "metered")
        assert it.volunteer.snapshot().paused == (reason,)
        for name, value in good.items():
            setattr(it.machine, name, value)
        await trio.sleep(MEMORY_PAUSE_S + limits.MACHINE_SLOW_LOOK_S)
        assert it.trainer.state == "training"
        assert it.trainer.has_memory
        assert it.said[0].startswith("paused: ")
        assert it.said[-1] == "nothing holds training any more"
        assert it.volunteer.held_s()[reason] > 0


async def test_only_what_a_rule_asks_about_is_looked_at(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path, pause_on_metered=False) as it:
        await trio.sleep(100)
        assert set(it.machine.looks) == {"battery"}
    async with rig(tmp_path, pause_on_metered=False, pause_on_battery=False) as it:
        await trio.sleep(1000)
        assert it.machine.looks == []


async def test_a_pause_of_two_hours(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        await it.volunteer.pause(7200)
        assert it.trainer.state == "paused"
        await trio.sleep(7190)
        assert it.trainer.state == "paused"
        await trio.sleep(20)
        assert it.trainer.state == "training"
        assert not (tmp_path / "pause.json").exists()


async def test_a_pause_by_hand_stays_until_it_is_resumed_by_hand(
    autojump_clock, tmp_path: Path
) -> None:
    async with rig(tmp_path, schedule=("mon-sun 08:00-20:00",)) as it:
        await it.volunteer.pause()
        for hour in range(13):
            it.machine.battery = hour % 2 == 0
            await trio.sleep(3600)
            assert it.volunteer.verdict.reason == "manual"
            assert it.trainer.state == "paused"
    async with rig(tmp_path) as it:  # the daemon starts again
        await trio.sleep(10_000)
        assert it.trainer.state == "paused"
        await it.volunteer.resume()
        assert it.trainer.state == "training"
    async with rig(tmp_path) as it:
        assert it.trainer.state == "training"


async def test_the_rest_of_a_pause_is_kept_by_a_new_process(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        await it.volunteer.pause(7200)
        await trio.sleep(3600)
    async with rig(tmp_path) as it:
        await trio.sleep(3500)
        assert it.trainer.state == "paused"
        await trio.sleep(200)
        assert it.trainer.state == "training"


async def test_a_pause_that_cannot_be_written_down_still_holds(
    autojump_clock, tmp_path: Path
) -> None:
    async with rig(tmp_path / "home") as it:
        (tmp_path / "home").rmdir()
        with pytest.raises(StorageError):
            await it.volunteer.pause()
        assert it.trainer.state == "paused"


def test_a_damaged_pause_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "pause.json"
    assert load_pause(path) is None
    for text in ("{", "[]", '{"until_unix_s": "soon"}', '{"until_unix_s": 1e999, "length_s": 1}'):
        path.write_text(text)
        assert load_pause(path) == ManualPause()
    save_pause(path, ManualPause(WALL, 60.0))
    assert load_pause(path) == ManualPause(WALL, 60.0)
    save_pause(path, None)
    save_pause(path, None)
    assert load_pause(path) is None


async def test_a_schedule_opens_and_closes(autojump_clock, tmp_path: Path) -> None:
    """In steps of 10 minutes over two days, the trainer does what the schedule says."""
    async with rig(tmp_path, schedule=("22:00-07:00",), pause_on_battery=False) as it:
        await trio.sleep(1)
        for _ in range(2 * 24 * 6):
            await trio.sleep(600)
            is_open = it.volunteer.rules.schedule.is_open(WALL + trio.current_time())
            assert (it.trainer.state == "training") == is_open


async def test_a_trainer_that_reads_nothing_is_told_again(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        it.trainer.is_deaf = True
        it.machine.battery = True
        await trio.sleep(30)
        assert it.trainer.state == "training"
        it.trainer.is_deaf = False
        await trio.sleep(5)
        assert it.trainer.state == "paused"


# --- the month's quota --------------------------------------------------------------------


async def test_the_quota_is_kept_within_ten_percent_and_over_restarts(
    autojump_clock, tmp_path: Path
) -> None:
    quota = 500 * MB
    sent = 0
    for _boot in range(4):  # a process each
        async with rig(tmp_path, monthly_quota="500 MB", upload="1 MB/s") as it:
            while it.volunteer.verdict.may_carry_tensors and it.traffic.up.total_bytes < 150 * MB:
                await trio.sleep(1)
                it.traffic.up.spend(MB, trio.current_time())
                sent += MB
            reason = it.volunteer.verdict.reason
    assert sent == pytest.approx(quota, rel=0.1)
    assert reason == "quota"

    async with rig(tmp_path, monthly_quota="500 MB") as it:
        assert it.trainer.state == "paused"
        assert "500 MB of traffic are used up" in it.trainer.why
        assert it.traffic.why_no_tensors
        until = it.volunteer.verdict.until_unix_s
        assert until is not None
        waiting = trio.Event()

        async def wait() -> None:
            await it.volunteer.wait_for_line()
            waiting.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            assert until == WALL + 4 * 3600
            await trio.sleep(until - WALL - trio.current_time() - 60)
            assert not waiting.is_set()
            await trio.sleep(120)  # the month is over
        assert it.trainer.state == "training"
        assert it.volunteer.snapshot().quota_used_bytes == 0


def test_a_ledger_of_a_few_months(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    ledger = TrafficLedger(path)
    for month in range(1, 10):
        ledger.add(f"2026-{month:02}", month)
    ledger.save()
    assert json.loads(path.read_text()) == {"2026-07": 7, "2026-08": 8, "2026-09": 9}
    assert TrafficLedger(path).add("2026-09", 1) == 10
    path.write_text("no JSON")
    assert TrafficLedger(path).add("2026-09", 1) == 1


async def test_what_is_used_of_the_cpu(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path, cpu_percent=50) as it:
        await trio.sleep(0.5)  # between two looks
        for second in range(10):
            it.machine.use = ProcessUse(MB, 0.5 * second)
            await trio.sleep(1)
        assert it.volunteer.cpu_cores_used == pytest.approx(0.5, rel=0.1)
        it.machine.use = None
        await trio.sleep(2)
        assert it.volunteer.cpu_cores_used is None


async def test_limits_of_the_line_come_from_the_settings(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path, upload="500 kB/s", download="16 Mbit/s", monthly_quota="1 TB") as it:
        assert it.traffic.up.rate_bytes_per_s == 500_000
        assert it.traffic.down.rate_bytes_per_s == 2_000_000
        said = it.volunteer.snapshot()
        assert said.bytes_per_s == {"upload": 500_000, "download": 2_000_000}
        assert (said.quota_bytes, said.quota_used_bytes) == (10**12, 0)
