"""Creating a swarm of a model that is not small: what it says meanwhile, and what it takes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from swarmnode.ipc.spawn import worker_command, worker_environment

DEADLINE_S = 120.0
# 29.9 M parameters, and a batch whose activations take several times as much.
CONFIG = {
    "vocabulary": 8192,
    "dim": 512,
    "layers": 8,
    "heads": 8,
    "head_dim": 64,
    "hidden": 1408,
    "context": 512,
    "batch": 16,
}
FLOAT32_BYTES = 4
TIMES_MAX = 2.2


def peak_bytes(*command: str) -> tuple[int, bytes]:
    """Run a command; return the most memory that it had, and what it printed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=worker_environment())
    assert process.stdout is not None
    with process.stdout:
        out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, out
    return usage.ru_maxrss * 1024, out


def create(home: Path, *options: str) -> list[str]:
    settings = [f"--set={name}={value}" for name, value in CONFIG.items()]
    command = ("create", "big", "--task", "llama-lm", "--home", str(home), *settings, *options)
    return worker_command("swarmnode", *command)


def test_describing_a_model_takes_little_more_than_the_model() -> None:
    bare_bytes, _ = peak_bytes(sys.executable, "-c", "import torch")
    arguments = ("describe", "--task=llama-lm", f"--config={json.dumps(CONFIG)}")
    taken_bytes, out = peak_bytes(*worker_command("swarmnode.worker.offline", *arguments))
    model_bytes = json.loads(out)["numel"] * FLOAT32_BYTES
    assert taken_bytes - bare_bytes <= TIMES_MAX * model_bytes


def test_lines_say_what_goes_on_without_a_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        create(tmp_path), env=worker_environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr.startswith("swarmnode: building the model of 29,893,120 parameters, ")
    assert "\r" not in done.stderr


def test_with_json_nothing_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        create(tmp_path, "--json"), env=worker_environment(), capture_output=True, check=True
    )
    assert done.stderr == b""
    assert json.loads(done.stdout)["numel"] == 29_893_120


def test_a_terminal_gets_one_line_that_is_gone_in_the_end(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        create(tmp_path), env=worker_environment(), stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        while part := _read(ours):
            said += part
        assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    assert b"loading torch, " in said
    assert b"building the model of 29,893,120 parameters, " in said
    assert b"\n" not in said
    assert said.endswith(b"\r\x1b[K")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # so a terminal says that no process has its other side any more
        return b""


def test_a_model_that_no_memory_holds_is_refused_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        create(tmp_path, "--set", "vocabulary=2000000000"),
        env=worker_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "swarmnode: task llama-lm: building its 1,024,025,698,816 parameters takes 8192.2 GB of"
    )
    assert "GB free: end something else, choose a smaller model" in line
