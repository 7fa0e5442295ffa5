"""What a node sees of its machine: the real readers on a file system, programs and a library that
a test has made."""

from __future__ import annotations

import mmap
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from swarmnode.daemon.volunteer import machine
from swarmnode.telemetry.machine import nvidia


def power_supply(root: Path, **supplies: dict[str, str]) -> Path:
    for name, files in supplies.items():
        (root / name).mkdir(parents=True)
        for file, text in files.items():
            (root / name / file).write_text(text + "\n")
    return root


BATTERY = {"type": "Battery", "status": "Discharging"}
MOUSE = BATTERY | {"scope": "Device"}
MAINS = {"type": "Mains", "online": "1"}


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, None),
        ({"AC": MAINS}, None),  # a desktop
        ({"AC": MAINS, "BAT0": BATTERY}, False),
        ({"AC": MAINS | {"online": "0"}, "BAT0": BATTERY}, True),
        ({"AC": MAINS | {"online": "0"}, "BAT0": BATTERY | {"status": "Full"}}, False),
        ({"BAT0": BATTERY | {"status": "Charging"}, "BAT1": BATTERY}, True),
        ({"BAT0": BATTERY, "usb": {"type": "USB", "online": "1"}}, False),
        ({"hid": MOUSE}, None),
        ({"BAT0": {"type": "Battery"}}, False),  # a file that is missing
    ],
)
def test_battery(
    tmp_path: Path, supplies: dict[str, dict[str, str]], expected: bool | None
) -> None:
    root = power_supply(tmp_path / "supply", **supplies)
    assert machine.is_on_battery(root) is expected


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of the system on the path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("GENERAL.STATE:100 (connected)\nGENERAL.METERED:yes (guessed)", True),
        ("GENERAL.STATE:100 (connected)\nGENERAL.METERED:no", False),
        # What is not in use does not count.
        (
            "GENERAL.STATE:100 (connected)\nGENERAL.METERED:no (guessed)\n\n"
            "GENERAL.STATE:30 (disconnected)\nGENERAL.METERED:yes",
            False,
        ),
        ("GENERAL.STATE:100 (connected)\nGENERAL.METERED:unknown", False),
        ("", None),
        ("Error: NetworkManager is not running.", None),
    ],
)
def test_metered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, expected: bool | None
) -> None:
    program(tmp_path / "bin", "nmcli", f"cat <<'END'\n{said}\nEND", monkeypatch)
    assert machine.is_metered() is expected


def test_without_the_program_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.is_metered() is None
    assert machine.user_quiet_s(1000.0, tmp_path) is None


def test_a_program_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmnode.limits.MACHINE_TOOL_DEADLINE_S", 0.1)
    program(tmp_path / "bin", "nmcli", "exec sleep 60", monkeypatch)
    assert machine.is_metered() is None


def test_a_person_types_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    now = 1_000_000.0
    for name, quiet_s in {"pts/0": 300, "pts/7": 40, "tty1": 5000}.items():
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (now - quiet_s, now))
    (tmp_path / "dev" / "pts" / "ptmx").touch()  # is no person's terminal
    assert machine.user_quiet_s(now, tmp_path / "dev") == 40


@pytest.mark.parametrize(
    ("facts", "quiet_s"),
    [
        ("Type=wayland\nIdleHint=no\nIdleSinceHint=0", 0),
        ("Type=x11\nIdleHint=yes\nIdleSinceHint=999940000000", 60),
        ("Type=tty\nIdleHint=no\nIdleSinceHint=0", None),
    ],
)
def test_a_person_sits_at_the_desktop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str, quiet_s: float | None
) -> None:
    text = (
        f"case $1 in list-sessions) echo '  2 1000 ann seat0';; *) cat <<'END'\n{facts}\nEND\nesac"
    )
    program(tmp_path / "bin", "loginctl", text, monkeypatch)
    assert machine.user_quiet_s(1_000_000.0, tmp_path) == quiet_s


def test_what_a_process_takes() -> None:
    before = machine.process_use(os.getpid())
    assert before is not None
    # Pages of its own: a process that ran other tests may have some to spare for a bytearray.
    block = mmap.mmap(-1, 64_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    sum(range(3_000_000))
    after = machine.process_use(os.getpid())
    assert after is not None
    assert after.memory_bytes - before.memory_bytes == pytest.approx(len(block), rel=0.1)
    assert after.cpu_s > before.cpu_s
    assert machine.process_use(2**22 + 1) is None  # past the last pid


def test_what_files_take(tmp_path: Path) -> None:
    assert machine.directory_bytes(tmp_path / "nowhere") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"x" * 100_000)
    (tmp_path / "a" / "b" / "two").write_bytes(b"x" * 50_000)
    (tmp_path / "link").symlink_to("/")
    assert machine.directory_bytes(tmp_path) == pytest.approx(150_000, rel=0.1)


# --- GPUs ---------------------------------------------------------------------------------


class Nvml(types.ModuleType):
    """NVIDIA's library with two GPUs; the second tells nothing of processes."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index > 1:
            raise self.NVMLError("no such GPU")
        return index

    def nvmlDeviceGetTemperature(self, device: int, kind: int) -> int:  # noqa: N802
        return (61, 83)[device]

    def nvmlDeviceGetProcessUtilization(  # noqa: N802
        self, device: int, since: int
    ) -> list[SimpleNamespace]:
        if device:
            raise self.NVMLError("not supported")
        return [
            SimpleNamespace(pid=7, smUtil=90, timeStamp=2),  # ours
            SimpleNamespace(pid=8, smUtil=99, timeStamp=1),
            SimpleNamespace(pid=8, smUtil=30, timeStamp=2),
            SimpleNamespace(pid=9, smUtil=5, timeStamp=2),
        ]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    monkeypatch.setattr(machine, "nvidia", nvidia.__wrapped__)


@pytest.mark.parametrize(
    ("gpus", "celsius", "share"),
    [((), 83, 0.35), ((0,), 61, 0.35), ((1,), 83, 0.0), ((7,), None, None)],
)
def test_gpus(nvml: None, gpus: tuple[int, ...], celsius: float, share: float) -> None:
    use = machine.gpu_use(gpus, {7})
    assert use.celsius == celsius
    assert use.others_share == (pytest.approx(share) if share is not None else None)


def test_without_the_library_no_gpu_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(machine, "nvidia", nvidia.__wrapped__)
    assert machine.gpu_use((), ()) == (None, None)
