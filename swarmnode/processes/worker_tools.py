"""What needs torch, done in a process of its own: the command line never imports it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from swarmnode.errors import ConfigError, SpecMismatch, SwarmNodeError, WorkerError
from swarmnode.ipc.names import FATAL_KINDS
from swarmnode.ipc.spawn import worker_command
from swarmnode.processes.children import start_child

_OFFLINE = "swarmnode.worker.offline"
_HUB_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")


def run_offline(*arguments: str, module: str = _OFFLINE) -> dict[str, Any]:
    """Run one offline command of the worker and return the last thing that it says.

    ``module``: another one that speaks in the same way.

    Raises:
        SwarmNodeError: it failed; the message is the line that it printed.
    """
    answers = deque(stream_offline(*arguments, module=module), maxlen=1)
    if not answers:
        raise WorkerError("the worker ended without an answer: was it killed?")
    return answers[0]


def model_folder(model: str | None) -> tuple[str, str, str]:
    """Return the folder of ``--model``, and the name and the revision that it has on the hub.

    A name is fetched from the hub, to its cache on this machine, unless it is there.

    Raises:
        ConfigError: it is no folder and no name, or cannot be fetched.
    """
    if not model:
        return "", "", ""
    if Path(model).is_dir():
        return str(Path(model).absolute()), "", ""
    name, _, revision = model.partition("@")
    if not _HUB_NAME.fullmatch(name):
        raise ConfigError(
            f"--model: expected a folder with a model, or its NAME/ON-THE-HUB, got {model!r}"
        )
    found = run_offline("fetch_model", f"--revision={revision}", "--", name)
    return found["folder"], name, found["revision"]


def stream_offline(*arguments: str, module: str = _OFFLINE) -> Iterator[dict[str, Any]]:
    """Yield what an offline command of the worker says, one JSON object a line.

    Closing the iterator ends the process.

    Raises:
        SwarmNodeError: it failed; the message is the line that it printed.
    """
    command = worker_command(module, *arguments)
    with tempfile.TemporaryFile() as complaints, _start(command, complaints) as process:
        assert process.stdout is not None
        has_answered = False
        try:
            for line in process.stdout:
                if (answer := _parse(line)) is None:
                    continue
                if "failed" in answer:
                    raise _error(answer["failed"], answer["message"])
                has_answered = True
                yield answer
            if not has_answered:
                process.wait()  # its status says why; after an answer, torch's slow end is all
        finally:
            process.terminate()
            process.wait()
        complaints.seek(0)
        _check_status(process.returncode, complaints.read().decode("utf-8", "replace"))


def _start(command: list[str], complaints: IO[bytes]) -> subprocess.Popen[str]:
    try:
        return start_child(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:  # no memory for a process, or arguments that are too long
        raise WorkerError(f"cannot start a process that has torch: {error.strerror}") from error


def _parse(line: str) -> dict[str, Any] | None:
    """Return the object on a line; None for what a task or a library printed there."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _check_status(status: int, complaint: str) -> None:
    if status in (0, -signal.SIGTERM):
        return
    if status == -signal.SIGKILL:
        raise WorkerError("the worker was killed: out of memory? use a smaller model")
    lines = complaint.strip().splitlines() or ["it said nothing"]
    raise WorkerError(f"the worker ended with status {status}: {lines[-1]}")


def _error(kind: str, message: str) -> SwarmNodeError:
    if kind == "layout":
        return SpecMismatch(message)
    is_mine = kind in FATAL_KINDS and kind != "too-little-memory"
    return ConfigError(message) if is_mine else WorkerError(message)
