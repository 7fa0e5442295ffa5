"""Where the files of a node are.

Every command imports this: it loads nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import ConfigError

CONFIG_FILE_NAME = "config.toml"
_SWARM_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class SwarmPaths:
    """What a node keeps about one swarm."""

    directory: Path

    @property
    def manifest(self) -> Path:
        """The signed manifest."""
        return self.directory / "manifest"

    @property
    def extension(self) -> Path:
        """The newest signed target, if the swarm's was moved on."""
        return self.directory / "extension"

    @property
    def link(self) -> Path:
        """The link that it was created or joined with."""
        return self.directory / "link"

    @property
    def swarm_key(self) -> Path:
        """The private key of the swarm, only on the machine that created it."""
        return self.directory / "swarm.key"

    @property
    def meeting_key(self) -> Path:
        """The private key by which its members tell strangers where they are, on that machine."""
        return self.directory / "meeting.key"

    @property
    def journal(self) -> Path:
        """The shared state of the swarm."""
        return self.directory / "state.journal"

    @property
    def trust(self) -> Path:
        """What this node has measured of its peers."""
        return self.directory / "trust.journal"

    @property
    def blobs(self) -> Path:
        """Snapshots as others fetch them, and what we fetched."""
        return self.directory / "blobs"

    @property
    def snapshots(self) -> Path:
        """Model snapshots, written by the worker."""
        return self.directory / "snapshots"

    @property
    def final_model(self) -> Path:
        """The weights of a swarm that is finished, as a keeper has fetched them."""
        return self.directory / "final" / "model.safetensors"

    @property
    def worker_log(self) -> Path:
        """What the worker process prints."""
        return self.directory / "worker.log"


@dataclass(frozen=True)
class Paths:
    """Everything that one node owns, in one directory."""

    home: Path

    @property
    def config_file(self) -> Path:
        """The settings file; it need not exist."""
        return self.home / CONFIG_FILE_NAME

    @property
    def node_key(self) -> Path:
        """The private key that this node is known by."""
        return self.home / "node.key"

    @property
    def boot_epoch(self) -> Path:
        """How often this node was started."""
        return self.home / "boot_epoch"

    @property
    def contacts(self) -> Path:
        """Peers that answered for long: the first to ask after a restart."""
        return self.home / "contacts"

    @property
    def manual_pause(self) -> Path:
        """A pause by hand that is in force, also after a restart."""
        return self.home / "pause.json"

    @property
    def traffic(self) -> Path:
        """What was sent and received in which month."""
        return self.home / "traffic.json"

    @property
    def totals(self) -> Path:
        """What this node gave to its swarms so far."""
        return self.home / "totals.json"

    @property
    def dashboard_token(self) -> Path:
        """What a reader of the shared dashboard needs."""
        return self.home / "dashboard.token"

    @property
    def lock(self) -> Path:
        """Held by the one daemon that runs on this home."""
        return self.home / "home.lock"

    @property
    def history(self) -> Path:
        """One line for each exchange."""
        return self.home / "exchanges.jsonl"

    @property
    def control_socket(self) -> Path:
        """Where the daemon answers the command line.

        It lies in a directory of its own, which is private whatever the mode of the home.
        A socket address is short: a home with a long path gets a directory under the
        system's temporary one instead, named after the home.
        """
        socket_path = self.home / "run" / "control.sock"
        if len(os.fsencode(socket_path)) <= limits.UNIX_PATH_BYTES_MAX:
            return socket_path
        from tempfile import gettempdir  # 7 ms, for long homes only

        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path(gettempdir()) / f"swarmnode-{digest}" / "control.sock"

    @property
    def program_socket(self) -> Path:
        """Where a program that trains for this node finds it; private as the control socket is."""
        return self.control_socket.with_name("program.sock")

    @property
    def swarms(self) -> Path:
        """A directory for each swarm that was joined or created here."""
        return self.home / "swarms"

    def swarm(self, name: str) -> SwarmPaths:
        """Return the files of one swarm. Raises ConfigError if ``name`` is no swarm's name."""
        if not _SWARM_NAME.fullmatch(name):
            raise ConfigError(
                "expected a swarm name of 1 to 64 characters out of a-z, 0-9, '.', '_' and '-', "
                f"the first a letter or digit, got {name[:80]!r}"
            )
        return SwarmPaths(self.swarms / name)
