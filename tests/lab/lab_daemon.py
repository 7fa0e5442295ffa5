"""Real daemons on the hosts of a lab."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swarmnode.ipc.spawn import worker_command
from tests.kits.daemon_kit import Daemon, environment
from tests.lab.natlab import NatLab


class LabDaemon(Daemon):
    """``swarmnode join`` on a host; it listens on every interface of it."""

    def __init__(
        self,
        lab: NatLab,
        host: str,
        folder: Path,
        link: str,
        *flags: str,
        port: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._lab, self._netns = lab, host
        super().__init__(folder / host, link, *flags, env=env, host="*", port=port)

    def start(self) -> None:
        """Start it, anew after it was killed."""
        with self.log_path.open("ab") as log:
            self.process = self._lab.popen(
                self._netns,
                worker_command("swarmnode", *self.arguments()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.home, self.env),
                start_new_session=True,
            )

    def path_to(self, peer: str) -> str:
        """Return the kind of way of the session with a peer, "" if there is none."""
        found: list[dict[str, Any]] = []
        with contextlib.suppress(Exception):  # it is just starting
            found = [each for each in self.peers() if each["peer"] == peer and each["connected"]]
        return found[0]["path"] if found else ""

    def page_of(self, peer: str) -> bytes:
        """Return the page of metrics of a peer, asked over the session with it."""
        return self._client.get_bytes(f"/peers/{peer}/metrics")

    def netcheck(self) -> tuple[list[dict[str, Any]], int]:
        """Return the findings of one ``netcheck`` on its host, and the exit code."""
        done = subprocess.run(
            [
                *("ip", "netns", "exec", self._lab.namespace(self._netns)),
                *worker_command("swarmnode", "netcheck", "--json"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(self.home, self.env),
            stdin=subprocess.DEVNULL,
        )
        findings = json.loads(done.stdout) if done.stdout else []
        return (findings if isinstance(findings, list) else []), done.returncode


def told(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the first sentence of ``netcheck``, with the advice after "->"."""
    if not findings:
        return ""
    first = findings[0]
    sentence = f"{first['verdict']}: {first['text']}"
    return f"{sentence} -> {first['advice']}" if first["advice"] else sentence
