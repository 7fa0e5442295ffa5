"""What memory a worker needs, before there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swarmnode.config import NodeConfig
from swarmnode.daemon.volunteer import machine
from swarmnode.daemon.volunteer.machine import (
    Footprint,
    GpuMemory,
    before_joining,
    computed,
    measured,
)
from swarmnode.memory import MainMemory
from swarmnode.strategies.installed import installed_strategies
from swarmnode.strategies.registry import build_strategy
from swarmnode.telemetry.machine import NoNvidia
from tests.unit.cli.test_trust import manifest

GB = 10**9


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeConfig:
    monkeypatch.setattr(machine, "main_memory", lambda: MainMemory(8 * GB, 16 * GB))
    monkeypatch.setattr(machine, "gpu_memory", lambda _gpus: None)
    return NodeConfig(home=tmp_path)


def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_memory", lambda _gpus: GpuMemory(6 * GB, 8 * GB))


def test_on_a_cpu_all_is_main_memory(config: NodeConfig) -> None:
    found = computed(manifest(numel=100_000_000), config)
    # 4 copies, 3 more in a snapshot, 2 slots of 2 halves; and torch itself.
    assert found.main_bytes == 11 * 400_000_000 + 300_000_000
    assert (found.gpu_bytes, found.gpu_free_bytes) == (0, None)
    assert found.fits
    assert found.sentence() == (
        "needs at least 4.7 GB of main memory (8 GB of 16 GB are free); computed for 100,000,000"
        " parameters, an optimizer with two moments such as Adam, and no examples"
    )


def test_on_a_gpu_it_holds_what_is_trained(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch)
    found = computed(manifest(numel=100_000_000), config)
    assert found.gpu_bytes == 4 * 400_000_000 + 512 * 2**20
    assert "and at least 2.14 GB of the GPU's (6 GB of 8 GB are free)" in found.sentence()
    assert found.fits
    assert not computed(manifest(numel=500_000_000), config).fits
    assert computed(manifest(numel=100_000_000), config, "cpu").gpu_bytes == 0


def test_what_the_owner_allows_counts(config: NodeConfig, tmp_path: Path) -> None:
    small = NodeConfig(home=tmp_path, ram="2 GB")
    assert computed(manifest(numel=100_000_000), small).main_free_bytes == 2 * GB
    assert measured(3 * GB, 0, "measured here", small).sentence() == (
        "needs 3 GB of main memory (2 GB of 16 GB are free); measured here; that is more than"
        " there is"
    )


def test_joining_says_what_will_not_do(config: NodeConfig) -> None:
    assert before_joining(manifest(), config, "auto").startswith("training here needs at least")
    said = before_joining(manifest(numel=10**9), config, "auto")
    assert "that is more than there is: expect it to end for want of memory" in said


def test_a_system_that_does_not_tell_is_no_obstacle() -> None:
    found = Footprint(GB, 0, "computed", False, None, None)
    assert found.fits
    assert found.sentence() == "needs at least 1 GB of main memory; computed"


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        *((name, {}, machine._KEPT) for name in sorted(installed_strategies())),
        *((name, {"meet": "pair"}, machine._KEPT_IN_PAIRS) for name in machine._KEPT_IN_PAIRS),
    ],
)
def test_strategies_keep_what_is_said_of_them(
    name: str, settings: dict[str, str], said: dict[str, tuple[float, float]]
) -> None:
    numel = 128 * 64
    x = torch.zeros(numel, dtype=torch.float64 if name == "dadao" else torch.float32)
    built = build_strategy(name, settings, x)
    buffers, _ = said[name]
    kept = sum(tensor.numel() for tensor in built.buffers().values() if tensor.numel() >= numel)
    assert kept / numel == buffers


def test_without_nvidias_library_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "nvidia", NoNvidia)
    assert machine.gpu_memory(()) is None


def test_the_first_gpu_that_may_be_used_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        free, total = 3, 4

    class Nvml:
        NVMLError = OSError

        @staticmethod
        def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802  NVIDIA's names
            if index > 1:
                raise OSError
            return index

        @staticmethod
        def nvmlDeviceGetMemoryInfo(device: int) -> Info:  # noqa: N802
            assert device == 1
            return Info()

    monkeypatch.setattr(machine, "nvidia", Nvml)
    assert machine.gpu_memory((2, 1)) == GpuMemory(3, 4)
    assert machine.gpu_memory((2,)) is None
