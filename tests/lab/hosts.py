"""Agents on the hosts of a lab, and what a test says to them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import Any

from tests.lab.natlab import ROOT, NatLab

_ANSWER_S = 30.0


class Host:
    """An agent on one host; it ends with the lab at the latest."""

    def __init__(self, lab: NatLab, name: str, module: str = "tests.lab.agent") -> None:
        self.name = name
        self._rest = b""
        self._process = lab.popen(
            name,
            [sys.executable, "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def begin(self, command: str, **arguments: Any) -> None:
        """Say what to do; :meth:`finish` waits for the answer."""
        assert self._process.stdin is not None
        line = json.dumps({"do": command, "with": arguments}) + "\n"
        self._process.stdin.write(line.encode("ascii"))
        self._process.stdin.flush()

    def finish(self) -> Any:
        """Return the answer; AssertionError if it is an error, or there is none."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + _ANSWER_S
        while b"\n" not in self._rest:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left_s)
            piece = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            assert piece, f"{self.name}: no answer, only {self._rest!r}"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        assert "error" not in answer, f"{self.name}: {answer}"
        return answer["result"]

    def ask(self, command: str, **arguments: Any) -> Any:
        """Do it and return the answer."""
        self.begin(command, **arguments)
        return self.finish()

    def close(self) -> None:
        """End the agent in order: what it holds is given back."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait(_ANSWER_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
