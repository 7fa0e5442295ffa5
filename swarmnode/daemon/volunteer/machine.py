"""Looks at this machine: battery, people, connection, GPUs, disk, and what the worker uses.

Each look returns None for what this system cannot tell; that is never a reason to pause. Files
of Linux are read at once, programs of the system and NVIDIA's library are asked in between.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

from swarmnode import limits
from swarmnode.telemetry.machine import nvidia

_POWER_SUPPLY = Path("/sys/class/power_supply")
_PROC = Path("/proc")
_DEV = Path("/dev")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


# --- battery ------------------------------------------------------------------------------


def is_on_battery(root: Path = _POWER_SUPPLY) -> bool | None:
    """Whether a battery of this machine is being discharged and no mains feeds it."""
    supplies = sorted(root.iterdir()) if root.is_dir() else []
    kinds = {supply: _text(supply / "type") for supply in supplies}
    # The battery of a mouse or a headset is none of this machine's.
    batteries = [s for s in supplies if kinds[s] == "Battery" and _text(s / "scope") != "Device"]
    if not batteries:
        return None
    if any(kinds[s] in ("Mains", "USB") and _text(s / "online") == "1" for s in supplies):
        return False
    return any(_text(battery / "status") == "Discharging" for battery in batteries)


# --- people -------------------------------------------------------------------------------


def user_quiet_s(now_unix_s: float, dev: Path = _DEV) -> float | None:
    """Return for how long nobody has typed in a terminal or moved a mouse on a desktop."""
    found = [*_terminal_inputs_unix_s(dev), *_desktop_inputs_unix_s(now_unix_s)]
    return max(0.0, now_unix_s - max(found)) if found else None


def _terminal_inputs_unix_s(dev: Path) -> Iterable[float]:
    """The system notes the last time that somebody typed in a terminal, to about 8 s."""
    for pattern in ("pts/[0-9]*", "tty[0-9]*"):
        for terminal in dev.glob(pattern):
            try:
                yield terminal.stat().st_atime
            except OSError:  # it was closed just now
                continue


def _desktop_inputs_unix_s(now_unix_s: float) -> Iterable[float]:
    """Desktops tell logind when their session became idle."""
    for session in _tool("loginctl", "list-sessions", "--no-legend").splitlines():
        name, *_ = session.split() or [""]
        wanted = ("-p", "Type", "-p", "IdleHint", "-p", "IdleSinceHint")
        facts = dict(
            line.split("=", 1)
            for line in _tool("loginctl", "show-session", name, *wanted).splitlines()
            if "=" in line
        )
        if facts.get("Type") not in ("x11", "wayland", "mir"):
            continue
        if facts.get("IdleHint") == "no":
            yield now_unix_s
        elif facts.get("IdleSinceHint", "").isdecimal():
            yield int(facts["IdleSinceHint"]) / 1e6


# --- connection ---------------------------------------------------------------------------


def is_metered() -> bool | None:
    """Whether a connection in use is metered, as far as NetworkManager knows."""
    said = _tool("nmcli", "-t", "-f", "GENERAL.STATE,GENERAL.METERED", "device", "show")
    is_connected, known = False, []
    for line in said.splitlines():
        name, _, value = line.partition(":")
        if name == "GENERAL.STATE":
            is_connected = value.startswith("100")
        elif name == "GENERAL.METERED" and is_connected:
            known.append(value.startswith("yes"))
    return any(known) if known else None


# --- the worker and its files -------------------------------------------------------------


class ProcessUse(NamedTuple):
    """What a process takes."""

    memory_bytes: int
    cpu_s: float


def process_use(pid: int, proc: Path = _PROC) -> ProcessUse | None:
    """Return what a process takes; memory that it shares with others, slots, is not counted."""
    try:
        resident, shared = (proc / str(pid) / "statm").read_text().split()[1:3]
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None  # it has ended, or this is no Linux
    ticks = int(fields[11]) + int(fields[12])
    return ProcessUse((int(resident) - int(shared)) * _PAGE_BYTES, ticks / _TICKS_PER_S)


def directory_bytes(root: Path) -> int:
    """Return what all files below a directory take on the disk."""
    total_bytes = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total_bytes += os.lstat(Path(folder) / name).st_blocks * 512
            except OSError:  # it was replaced just now
                continue
    return total_bytes


# --- GPUs ---------------------------------------------------------------------------------


class GpuUse(NamedTuple):
    """Over the GPUs that are looked at: the hottest, and the one most used by others."""

    celsius: float | None
    others_share: float | None


def gpu_use(gpus: Collection[int], own_pids: Collection[int]) -> GpuUse:
    """Ask NVIDIA's library about some GPUs, or all if none is named."""
    nvml = nvidia()
    celsius, shares = [], []
    for index in gpus or range(nvml.nvmlDeviceGetCount()):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            celsius.append(float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)))
            shares.append(_others_share(nvml, device, own_pids))
        except nvml.NVMLError:  # a GPU that is not there, or does not tell
            continue
    return GpuUse(max(celsius, default=None), max(shares, default=None))


class GpuMemory(NamedTuple):
    """Of one GPU: what may still be taken, and what there is in all."""

    free_bytes: int
    total_bytes: int


def gpu_memory(gpus: Collection[int]) -> GpuMemory | None:
    """Return the memory of the first of some GPUs, or of all if none is named; None: no GPU.

    The first is where a worker trains, unless it is told otherwise.
    """
    nvml = nvidia()
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(min(gpus, default=0))
        found = nvml.nvmlDeviceGetMemoryInfo(device)
    except nvml.NVMLError:  # a GPU that is not there, or does not tell
        return None
    return GpuMemory(int(found.free), int(found.total))


def _others_share(nvml: Any, device: Any, own_pids: Collection[int]) -> float:
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(device, 0)
    except nvml.NVMLError:  # older ones only tell of all together; that may be us
        return 0.0
    newest: dict[int, float] = {
        sample.pid: float(sample.smUtil) for sample in sorted(samples, key=lambda s: s.timeStamp)
    }
    return sum(share for pid, share in newest.items() if pid not in own_pids) / 100


# --- how ----------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _tool(name: str, *arguments: str) -> str:
    """Return what a program of the system prints, "" if it is not there or fails."""
    if which(name) is None:
        return ""
    try:
        return subprocess.run(
            [name, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=limits.MACHINE_TOOL_DEADLINE_S,
            check=False,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
