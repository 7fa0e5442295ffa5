"""Looks at this machine: battery, people, connection, GPUs, disk, and what the worker uses.

Here is also what memory training a swarm takes, from its manifest alone, against what there is.
What the examples of a batch take on top depends on the task, and only a step of it tells:
``swarmnode trust`` tries one. The numbers of whole models that a strategy keeps are those of its
``buffers()``; a test compares.

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

import msgspec

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.memory import main_memory
from swarmnode.quantities import parse_bytes, show_bytes
from swarmnode.telemetry.machine import nvidia
from swarmnode.wire.swarm import Manifest

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
    """Return for how long no person has typed in a terminal or moved a mouse on a desktop."""
    found = [*_terminal_inputs_unix_s(dev), *_desktop_inputs_unix_s(now_unix_s)]
    return max(0.0, now_unix_s - max(found)) if found else None


def _terminal_inputs_unix_s(dev: Path) -> Iterable[float]:
    """The system notes the last time that a person typed in a terminal, to about 8 s."""
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


def with_children(pid: int) -> list[int]:
    """Return a process and those that it started: the other ranks of a worker."""
    try:
        started = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        started = []  # it has ended, or this is no Linux
    return [pid, *map(int, started)]


def process_use(pid: int) -> ProcessUse | None:
    """Return what a process and those that it started take.

    Memory that it shares with others, slots, is not counted.
    """
    used = list(filter(None, map(_process_use, with_children(pid))))
    if not used:
        return None
    return ProcessUse(sum(use.memory_bytes for use in used), sum(use.cpu_s for use in used))


def _process_use(pid: int) -> ProcessUse | None:
    try:
        resident, shared = (_PROC / str(pid) / "statm").read_text().split()[1:3]
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
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
    own_pids = [each for pid in own_pids for each in with_children(pid)]
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


# --- what training takes -------------------------------------------------------------------

_NUMBER_BYTES = 4  # float32, as every number that is trained
_STATE_COPIES = 4  # weights, gradients, and the two moments of Adam: most optimizers keep fewer
_COPIED = 3  # of those: a snapshot is written from a copy, which has no gradients
_SLOTS = 2  # of SLOTS_PER_WORKER in use at a time; untouched ones cost nothing
_PROCESS_BYTES = 300_000_000  # Python and torch before any model: 240 to 290 MB measured
# (buffers, elements of half a slot) in whole models; what is not known here counts as the most.
KEPT = {
    "a2cid2": (1.0, 1.0),
    "dadao": (5.0, 1.0),
    "diloco": (2.0, 2.0),
    "noloco": (2.0, 2.0),
    "one-byte": (0.0, 0.0),
    "pair-average": (0.0, 1.0),
    "sparse": (2.0, 1.0),
    "streaming": (2.0, 2.0),
}
KEPT_IN_PAIRS = {"streaming": (3.0, 1.0)}  # whose default is groups
_KEPT_UNKNOWN = (5.0, 2.0)
ASSUMPTION = "an optimizer with two moments such as Adam, and no examples"


class Footprint(msgspec.Struct, frozen=True):
    """Bytes; those of a GPU are 0 where none is used."""

    main_bytes: int
    gpu_bytes: int
    how: str  # measured or computed, in words
    is_measured: bool
    main_free_bytes: int | None  # None: this system does not say
    main_total_bytes: int | None
    gpu_free_bytes: int | None = None  # None: there is no GPU, or none that says
    gpu_total_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether what is needed is there, as far as this machine says."""
        return _fits(self.main_bytes, self.main_free_bytes) and _fits(
            self.gpu_bytes, self.gpu_free_bytes
        )

    def sentence(self) -> str:
        """Say what is needed and what is there, in one line."""
        least = "" if self.is_measured else "at least "
        text = f"needs {least}{show_bytes(self.main_bytes)} of main memory"
        text += _free_in_words(self.main_free_bytes, self.main_total_bytes)
        if self.gpu_bytes:
            text += f" and {least}{show_bytes(self.gpu_bytes)} of the GPU's"
            text += _free_in_words(self.gpu_free_bytes, self.gpu_total_bytes)
        too_much = "" if self.fits else "; that is more than there is"
        return f"{text}; {self.how}{too_much}"


def computed(manifest: Manifest, config: NodeConfig, device: str = "auto") -> Footprint:
    """Return what a worker of this swarm needs at least, without its examples."""
    gpu = gpu_memory(config.gpus) if device == "auto" or device.startswith("cuda") else None
    model = _NUMBER_BYTES * manifest.numel
    buffers, payload = KEPT.get(manifest.strategy, _KEPT_UNKNOWN)
    if manifest.strategy_settings.get("meet") == "pair":
        buffers, payload = KEPT_IN_PAIRS.get(manifest.strategy, _KEPT_UNKNOWN)
    mean = 1 if manifest.recipe and manifest.recipe.ema_share else 0  # of the weights
    trained = round((_STATE_COPIES + buffers + mean) * model)
    apart = round((_COPIED + buffers + 2 * _SLOTS * payload) * model) + _PROCESS_BYTES
    on_gpu = gpu is not None
    return Footprint(
        main_bytes=apart + (0 if on_gpu else trained),
        gpu_bytes=trained + limits.GPU_CONTEXT_BYTES if on_gpu else 0,
        how=f"computed for {manifest.numel:,} parameters, {ASSUMPTION}",
        is_measured=False,
        **_present(config, on_gpu=on_gpu),
    )


def before_joining(manifest: Manifest, config: NodeConfig, device: str) -> str:
    """Return the line that `join` prints before it begins."""
    found = computed(manifest, config, device)
    advice = "" if found.fits else ": expect it to end for want of memory, or use another machine"
    return f"training here {found.sentence()}{advice}"


def measured(main_bytes: int, gpu_bytes: int, how: str, config: NodeConfig) -> Footprint:
    """Return what a worker took that was tried here."""
    present = _present(config, on_gpu=gpu_bytes > 0)
    return Footprint(main_bytes, gpu_bytes, how, is_measured=True, **present)


def _present(config: NodeConfig, *, on_gpu: bool) -> dict[str, int | None]:
    """Return what there is, and what the owner of this node allows of it."""
    main = main_memory()
    gpu = gpu_memory(config.gpus) if on_gpu else None
    return {
        "main_free_bytes": _allowed(main.available_bytes if main else None, config.ram),
        "main_total_bytes": main.total_bytes if main else None,
        "gpu_free_bytes": _allowed(gpu.free_bytes if gpu else None, config.gpu_memory),
        "gpu_total_bytes": gpu.total_bytes if gpu else None,
    }


def _allowed(free_bytes: int | None, limit: str) -> int | None:
    if free_bytes is None or not limit:
        return free_bytes
    return min(free_bytes, parse_bytes(limit))


def _fits(needed_bytes: int, free_bytes: int | None) -> bool:
    return free_bytes is None or needed_bytes <= free_bytes


def _free_in_words(free_bytes: int | None, total_bytes: int | None) -> str:
    if free_bytes is None or total_bytes is None:
        return ""
    return f" ({show_bytes(free_bytes)} of {show_bytes(total_bytes)} are free)"


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
