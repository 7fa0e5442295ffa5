"""What the machine says, and what a machine that does not say it looks like."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarmnode.telemetry import machine
from swarmnode.telemetry.machine import (
    GpuUse,
    NoNvidia,
    ProcessUse,
    read_gpus,
    read_machine,
    read_process,
)

STAT = "7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 12345 1000000 300 18446744"


def fake_proc(folder: Path, pid: int, stat: str) -> Path:
    (folder / str(pid)).mkdir()
    (folder / str(pid) / "stat").write_text(stat)
    return folder


def test_a_process_with_a_strange_name_is_read(tmp_path: Path) -> None:
    use = read_process(7, fake_proc(tmp_path, 7, STAT))
    ticks_per_s, page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert use == ProcessUse(300 / ticks_per_s, 300 * page_bytes)


@pytest.mark.parametrize("stat", ["", "7 (x)", "7 (x) S a b c", "7 (x) S" + " x" * 30])
def test_what_is_no_process_is_none(tmp_path: Path, stat: str) -> None:
    assert read_process(7, fake_proc(tmp_path, 7, stat)) is None
    assert read_process(8, tmp_path) is None


def test_this_process_and_its_disk(tmp_path: Path) -> None:
    seen = read_machine(tmp_path, None)
    own = seen.processes["daemon"]
    assert own.cpu_s > 0
    assert 10**6 < own.resident_bytes < 10**11
    assert seen.processes.keys() == {"daemon"}
    assert seen.disk_free_bytes is not None
    assert seen.disk_size_bytes is not None
    assert 0 < seen.disk_free_bytes <= seen.disk_size_bytes
    assert read_machine(tmp_path, os.getpid()).processes.keys() == {"daemon", "worker"}
    assert read_machine(tmp_path, 2**22 + 1).processes.keys() == {"daemon"}
    assert read_machine(tmp_path / "gone", None).disk_free_bytes is None


class NVMLError(Exception):
    pass


@dataclass
class FakeNvml:
    """As much of NVIDIA's library as is used; GPU 1 tells nothing but its memory."""

    n_gpus: int = 2
    NVMLError: type[Exception] = NVMLError
    NVML_TEMPERATURE_GPU: int = 0

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.n_gpus

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        if number == 2:
            raise NVMLError
        return number

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if handle == 1:
            raise NVMLError
        return SimpleNamespace(gpu=75, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=2**30, total=2**33)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        if handle == 1:
            raise NVMLError
        return 61


def test_gpus_tell_what_they_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "nvidia", lambda: FakeNvml(n_gpus=3))
    full = GpuUse(busy_ratio=0.75, memory_used_bytes=2**30, memory_size_bytes=2**33, celsius=61.0)
    assert read_gpus() == {
        "0": full,
        "1": GpuUse(memory_used_bytes=2**30, memory_size_bytes=2**33),
    }


def test_without_the_library_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "nvidia", NoNvidia)
    assert read_gpus() == {}
