"""What needs torch, done in a process of its own: the command line never imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from swarmnode.errors import ConfigError, SwarmNodeError, WorkerError


def run_offline(*arguments: str) -> Any:
    """Run one offline command of the worker and return its last line of JSON.

    Raises:
        SwarmNodeError: it failed; the message is the line that it printed.
    """
    return list(stream_offline(*arguments))[-1]


def stream_offline(*arguments: str) -> Iterator[Any]:
    """Yield each line of JSON that an offline command of the worker prints."""
    command = [sys.executable, "-m", "swarmnode.worker.offline", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            yield json.loads(line)
        complaint = process.stderr.read()
    if process.returncode:
        raise _error(process.returncode, complaint)


def _error(code: int, complaint: str) -> SwarmNodeError:
    lines = complaint.strip().splitlines()
    message = lines[-1] if lines else f"the worker ended with status {code} and said nothing"
    message = message.removeprefix("swarmnode: ")
    return ConfigError(message) if code == ConfigError.exit_code else WorkerError(message)
