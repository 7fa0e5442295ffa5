"""What the machine says: CPU time and memory of our processes, the disk, the GPUs.

Reads files of the kernel and NVIDIA's library, which may take milliseconds: call it in a thread.
What a machine does not tell is None or missing, and no error.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from swarmnode import limits


@dataclass(frozen=True)
class ProcessUse:
    """Of one process; ``cpu_s`` since it started."""

    cpu_s: float
    resident_bytes: int


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """Of one GPU, by whomever it is used; ``busy_ratio`` is 0 to 1."""

    busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_size_bytes: int | None = None
    celsius: float | None = None


@dataclass(frozen=True, kw_only=True)
class MachineSnapshot:
    """The machine at one moment; ``processes`` by ``daemon`` and ``worker``, GPUs by number."""

    processes: Mapping[str, ProcessUse] = field(default_factory=dict)
    disk_free_bytes: int | None = None
    disk_size_bytes: int | None = None
    gpus: Mapping[str, GpuUse] = field(default_factory=dict)


def read_machine(home: Path, worker_pid: int | None) -> MachineSnapshot:
    """Look at this process, the worker, the disk of ``home`` and the GPUs."""
    processes = {"daemon": _own_use()}
    worker = read_process(worker_pid) if worker_pid else None
    if worker is not None:
        processes["worker"] = worker
    free = size = None
    with contextlib.suppress(OSError):
        size, _, free = shutil.disk_usage(home)
    return MachineSnapshot(
        processes=processes, disk_free_bytes=free, disk_size_bytes=size, gpus=read_gpus()
    )


def read_process(pid: int, proc: Path = Path("/proc")) -> ProcessUse | None:
    """Return what Linux says of a process, None elsewhere or if there is none."""
    try:
        # The name of the program stands in brackets and may hold any character.
        words = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks, pages = int(words[11]) + int(words[12]), int(words[21])
    except (OSError, ValueError, IndexError):
        return None
    return ProcessUse(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def _own_use() -> ProcessUse:
    seen = read_process(os.getpid())
    return ProcessUse(time.process_time(), seen.resident_bytes if seen is not None else 0)


def read_gpus() -> dict[str, GpuUse]:
    """Return NVIDIA's GPUs by their number; needs the package ``nvidia-ml-py``."""
    nvml = nvidia()
    found = {}
    for number in range(min(nvml.nvmlDeviceGetCount(), limits.METRICS_GPUS_MAX)):
        with contextlib.suppress(nvml.NVMLError):
            found[str(number)] = _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(number))
    return found


class NoNvidia:
    """In place of NVIDIA's library where there is none, or no driver for it: it has no GPU."""

    class NVMLError(Exception):
        """There is no GPU of this number."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 -- as that of the library
        """Return how many GPUs there are."""
        return 0

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """Return a GPU. Raises NVMLError."""
        raise self.NVMLError(index)


@cache
def nvidia() -> Any:
    """Return NVIDIA's library, opened for as long as the process lives."""
    try:
        import pynvml
    except ImportError:
        return NoNvidia()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return NoNvidia()
    return pynvml


def _gpu(nvml: Any, handle: Any) -> GpuUse:
    """Read one; a kind of value that the GPU or its partition does not tell is left out."""
    told: dict[str, Any] = {}
    with contextlib.suppress(nvml.NVMLError):
        told["busy_ratio"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with contextlib.suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        told |= {"memory_used_bytes": memory.used, "memory_size_bytes": memory.total}
    with contextlib.suppress(nvml.NVMLError):
        told["celsius"] = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return GpuUse(**told)
