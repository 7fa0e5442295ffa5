"""What needs torch, done in a process of its own: the command line never imports it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from swarmnode.errors import ConfigError, SwarmNodeError, WorkerError
from swarmnode.ipc.control import FATAL_KINDS


def run_offline(*arguments: str) -> Any:
    """Run one offline command of the worker and return its last line of JSON.

    Raises:
        SwarmNodeError: it failed; the message is the line that it printed.
    """
    return list(stream_offline(*arguments))[-1]


def stream_offline(*arguments: str) -> Iterator[Any]:
    """Yield each line of JSON that an offline command of the worker prints.

    Closing the iterator ends the process.
    """
    command = [sys.executable, "-m", "swarmnode.worker.offline", *arguments]
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                answer = json.loads(line)
                if "failed" in answer:
                    raise _error(answer["failed"], answer["message"])
                yield answer
        finally:
            process.terminate()
            process.wait()
        complaints.seek(0)
        _check_status(process.returncode, complaints.read().decode("utf-8", "replace"))


def _check_status(status: int, complaint: str) -> None:
    if status in (0, -signal.SIGTERM):
        return
    lines = complaint.strip().splitlines() or ["it said nothing"]
    raise WorkerError(f"the worker ended with status {status}: {lines[-1]}")


def _error(kind: str, message: str) -> SwarmNodeError:
    return ConfigError(message) if kind in FATAL_KINDS else WorkerError(message)
