"""Real daemons on the hosts of a lab."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
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
