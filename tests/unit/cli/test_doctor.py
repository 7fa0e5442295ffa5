"""`swarmnode doctor`: what each check says of a machine that is well, and of one that is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swarmnode.cli.doctor import checks as doctor_checks
from swarmnode.cli.doctor import command as doctor
from swarmnode.cli.doctor.checks import Finding
from swarmnode.cli.main import cli
from swarmnode.config import NodeConfig, Paths
from swarmnode.errors import WorkerError
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.worker.tools.doctor import has_code_for

_PR_SET_MDWE = 65


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "home").mkdir(mode=0o700)
    return Paths(tmp_path / "home")


def only(findings: Iterator[Finding]) -> Finding:
    (finding,) = findings
    assert (finding.level == "OK") == (finding.advice == ""), "advice where it is needed"
    return finding


def test_every_line_is_there_and_the_exit_code_counts_failures(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("SWARMNODE_LISTEN", "127.0.0.1:0")
        monkeypatch.setenv("SWARMNODE_METRICS", f"127.0.0.1:{port}")
        ran = CliRunner().invoke(
            cli,
            ["doctor", "--home", str(paths.home), "--no-torch", "--json"],
            standalone_mode=False,
        )
    said = json.loads(ran.output)
    by_check = {finding["check"]: finding for finding in said["findings"]}
    wanted = ["versions", "config", "home", "node", "disk", "fsync", "memory", "clock", "limits"]
    assert set(wanted) <= by_check.keys()
    assert by_check["port metrics"]["level"] == "FAIL"
    assert str(port) in by_check["port metrics"]["said"]
    assert said["failed"] == 1
    assert ran.return_value == 1


def test_codecs_without_the_extension_are_a_warning() -> None:
    # In a process of its own: which codecs a process uses is decided once.
    program = "from swarmnode.cli.doctor.checks import check_versions as c; print(next(c()).level)"
    levels = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"SWARMNODE_NATIVE": isa},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for isa in ("ref", "numpy")
    ]
    assert levels == ["OK", "WARN"]


def test_a_machine_that_is_well_ends_with_0(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LISTEN", "METRICS", "DASHBOARD"):
        monkeypatch.setenv(f"SWARMNODE_{name}", "127.0.0.1:0")
    ran = CliRunner().invoke(
        cli, ["doctor", "--home", str(paths.home), "--no-torch"], standalone_mode=False
    )
    assert ran.return_value == 0, ran.output
    assert "FAIL" not in ran.output


def test_settings(paths: Paths) -> None:
    flags = {"home": str(paths.home)}
    assert only(doctor_checks.check_config(flags, {})).level == "OK"
    paths.config_file.write_text("lisen = '*:1'\n")
    found = only(doctor_checks.check_config(flags, {}))
    assert found.level == "FAIL"
    assert "did you mean 'listen'" in found.said


def test_a_home_and_its_keys(paths: Paths) -> None:
    assert only(doctor_checks.check_home(Paths(paths.home / "none"))).level == "OK"
    assert only(doctor_checks.check_home(paths)).level == "OK"
    paths.home.chmod(0o770)
    assert only(doctor_checks.check_home(paths)).level == "WARN"
    paths.home.chmod(0o700)
    paths.node_key.write_text("secret")
    paths.node_key.chmod(0o640)
    found = only(doctor_checks.check_home(paths))
    assert found.level == "FAIL"
    assert f"chmod 600 {paths.node_key}" in found.advice


def test_a_home_of_another_user(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert "belongs to uid" in only(doctor_checks.check_home(paths)).said


def test_disk(paths: Paths) -> None:
    disk, fsync = doctor_checks.check_disk(Paths(paths.home / "not" / "yet"))
    assert (disk.level, disk.check, fsync.check) == ("OK", "disk", "fsync")
    assert fsync.said.endswith("ms, the median of 5")
    assert list(paths.home.iterdir()) == [], "it leaves nothing behind"
    for free_bytes, level in ((2**32, "OK"), (2**30, "WARN"), (2**27, "FAIL")):
        assert doctor_checks.check_room(paths.home, free_bytes).level == level
    for fsync_s, level in ((0.01, "OK"), (0.2, "WARN"), (2.0, "FAIL")):
        assert doctor_checks.check_fsync(fsync_s).level == level


def test_memory(tmp_path: Path) -> None:
    assert only(doctor_checks.check_memory(tmp_path / "none")).level == "OK"
    meminfo = tmp_path / "meminfo"
    for free_kib, level in ((8 * 2**20, "OK"), (600 * 2**10, "WARN"), (2**10, "FAIL")):
        meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable:  {free_kib} kB\n")
        assert only(doctor_checks.check_memory(meminfo)).level == level


def test_clock() -> None:
    state = doctor_checks.clock_state()
    assert state is None or 0 <= state <= 5
    for answer, level in ((None, "OK"), (0, "OK"), (5, "WARN")):
        assert only(doctor_checks.check_clock(None, answer)).level == level
    for skew_s, level in ((-2.0, "OK"), (120.0, "WARN"), (86400.0, "FAIL")):
        assert only(doctor_checks.check_clock({"clock_skew_s": skew_s}, state)).level == level


def test_ports(paths: Paths) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config = NodeConfig(home=paths.home, listen=listen, metrics="off", dashboard="off")
        tcp, udp = doctor_checks.check_ports(config, is_running=False)
        assert (tcp.level, udp.level) == ("OK", "FAIL")
        found = list(doctor_checks.check_ports(config, is_running=True))
        assert {one.level for one in found} == {"OK"}


def test_limits() -> None:
    assert doctor_checks.process_limits() is not None
    for files, memory_bytes, level in (
        (20000, None, "OK"),
        (None, None, "OK"),
        (256, None, "WARN"),
        (20000, 2**32, "WARN"),
    ):
        found = doctor_checks.check_limits(doctor_checks.ProcessLimits(files, memory_bytes))
        assert found.level == level
        assert (level == "OK") == (found.advice == "")


def test_a_running_node(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    finding, status = doctor_checks.check_node(paths)
    assert (finding.said, status) == ("none runs on this home", None)
    answer = {"swarm": "demo", "state": "training", "reason": "all is well", "alarm": ""}
    monkeypatch.setattr(doctor_checks.ControlClient, "get", lambda *_, **__: answer)
    finding, status = doctor_checks.check_node(paths)
    assert (finding.level, status) == ("OK", answer)
    answer["alarm"] = "this machine's clock is a day behind"
    assert doctor_checks.check_node(paths)[0].level == "WARN"


# --- torch ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "built", "fits"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((9, 0), ["sm_80"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((7, 0), ["sm_75", "compute_80"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100a"], False),
        ((9, 0), [], False),
        ((9, 4), ["gfx942"], False),
    ],
)
def test_which_build_has_code_for_which_gpu(
    capability: tuple[int, int], built: list[str], *, fits: bool
) -> None:
    assert has_code_for(capability, built) == fits


def run_torch(**environ: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        worker_command("swarmnode.worker.tools.doctor"),
        env=worker_environment() | environ,
        capture_output=True,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_torch_calculates_on_the_cpu() -> None:
    by_check = {found["check"]: found for found in run_torch()}
    assert by_check["torch"]["said"].startswith("2.")
    assert by_check["matmul"]["level"] == by_check["convolution"]["level"] == "OK"


def test_a_sandbox_that_breaks_torch_is_found(tmp_path: Path) -> None:
    """What systemd's MemoryDenyWriteExecute does, done by the process itself."""
    probe = "import ctypes; print(ctypes.CDLL(None).prctl(66, 0, 0, 0, 0))"
    known = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True)
    if known.stdout.strip() == b"-1":
        pytest.skip("this kernel has no PR_SET_MDWE")
    (tmp_path / "sitecustomize.py").write_text(
        f"import ctypes\nassert ctypes.CDLL(None).prctl({_PR_SET_MDWE}, 1, 0, 0, 0) == 0\n"
    )
    path = os.pathsep.join([str(tmp_path), worker_environment()["PYTHONPATH"]])
    by_check = {found["check"]: found for found in run_torch(PYTHONPATH=path)}
    assert by_check["matmul"]["level"] == "OK"
    assert by_check["convolution"]["level"] == "FAIL"
    assert "MemoryDenyWriteExecute" in by_check["convolution"]["advice"]


def test_without_torch_it_depends_on_the_role(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    trainer = only(doctor.check_torch(NodeConfig(home=paths.home)))
    assert (trainer.check, trainer.level) == ("torch", "FAIL")
    assert "needs torch" in trainer.said
    assert only(doctor.check_torch(NodeConfig(home=paths.home, role="keeper"))).level == "OK"


def test_a_torch_that_dies_is_a_failure(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(**_: Any) -> Iterator[dict[str, Any]]:
        raise WorkerError("the worker ended with status -4: illegal instruction")
        yield {}

    monkeypatch.setattr("swarmnode.processes.worker_tools.stream_offline", dies)
    found = only(doctor.check_torch(None))
    assert (found.level, found.said) == (
        "FAIL",
        "the worker ended with status -4: illegal instruction",
    )


@pytest.mark.parametrize(
    ("built", "levels"),
    [(["sm_80", "sm_90"], ["OK", "OK", "OK"]), (["sm_80", "sm_86"], ["FAIL"])],
)
def test_a_gpu_is_compared_with_the_build(
    monkeypatch: pytest.MonkeyPatch, built: list[str], levels: list[str]
) -> None:
    """A GPU that torch is told of, whose kernels run on the CPU."""
    import torch

    from swarmnode.worker.tools import doctor as worker_doctor

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**33, 2**34))
    monkeypatch.setattr(torch, "device", lambda *_: torch.empty(0).device)
    found = list(worker_doctor._gpu(0))
    assert [one["level"] for one in found] == levels
    assert "sm_90" in found[0]["said"]
