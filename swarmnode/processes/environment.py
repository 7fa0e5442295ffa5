"""A swarm's own environment in a home: what its manifest names, made once, remade when it must be.

::

    swarms/NAME/environment/    a virtual environment with exactly the packages of the manifest, and
                                after them what this Python has: torch is not there twice
        swarmnode-environment   written last: for which manifest, Python and paths it was made
    swarms/NAME/agreed          the digest of what the owner has said yes to; another one is asked
    swarms/NAME/data/FILE       what is trained on, if the manifest names a file by its address

Packages come from an index and data from its address, never from a peer, and both are checked by
SHA-256 before they are used. Nothing here asks the owner; see ``cli/swarm/equip.py``.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import msgspec

from swarmnode import limits
from swarmnode.errors import ConfigError, Refused, StorageFull, TransportError
from swarmnode.ipc.spawn import ENVIRONMENT_MARK, own_paths
from swarmnode.paths import SwarmPaths
from swarmnode.processes import pip
from swarmnode.processes.worker_tools import run_offline
from swarmnode.quantities import show_bytes
from swarmnode.store.files import (
    IncomingFile,
    make_private_dir,
    read_file,
    storage_errors,
    write_atomic,
)
from swarmnode.wire.environment import DataReference, Environment

_ADDRESS = re.compile(r"https?://[!-~]+")
_HUB_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")
_NAME_CHARACTERS_MAX = 100
_READ_BYTES = limits.MIB
_SILENCE_S = 60.0  # of the place that has the data
_MARK_BYTES_MAX = 256


class SwarmEnvironment:
    """What one swarm needs, and what of it this home has."""

    def __init__(self, environment: Environment, paths: SwarmPaths) -> None:
        self._environment = environment
        self._paths = paths
        body = msgspec.msgpack.encode(environment)
        self._digest = hashlib.sha256(b"swarmnode/environment/1\0" + body).hexdigest()

    @property
    def folder(self) -> Path:
        """Where the packages are, or will be."""
        return self._paths.directory / "environment"

    @property
    def is_agreed(self) -> bool:
        """Whether the owner of this home has said yes to exactly this."""
        return _read(self._paths.directory / "agreed") == self._digest

    def agree(self) -> None:
        """Remember the owner's yes. Raises StorageError."""
        make_private_dir(self._paths.directory)
        write_atomic(self._paths.directory / "agreed", self._digest.encode())

    @property
    def python(self) -> str:
        """The Python of the environment; "" if it is not made, or nothing is to be installed."""
        if not self._environment.packages or _read(self.folder / ENVIRONMENT_MARK) != self._made:
            return ""
        return str(self.folder / "bin" / "python")

    @property
    def data(self) -> str:
        """The folder of the data that came by its address, "" if it is not here.

        Raises StorageError.
        """
        reference = self._environment.data
        path = self._file(reference) if reference and reference.kind == "url" else None
        if not path or not reference:
            return ""
        # Its hash was checked when it came; only a whole file gets its name.
        with storage_errors(path, "look at"):
            is_whole = path.is_file() and path.stat().st_size == reference.size_bytes
        return str(path.parent) if is_whole else ""

    @property
    def is_made(self) -> bool:
        """Whether nothing is left to install or fetch."""
        reference = self._environment.data
        has_data = not reference or reference.kind != "url" or bool(self.data)
        return has_data and (bool(self.python) or not self._environment.packages)

    def install(self) -> str:
        """Install what is not there; return the Python that has it.

        Raises:
            Refused: a file at the index has another hash.
            SwarmNodeError: it cannot be installed; the message is one line.
        """
        if not self._environment.packages:
            return ""
        if self.python:
            return self.python
        pip.requirements(self._environment.packages)  # refused before anything is made
        address = pip.index_address(self._environment.index)
        make_private_dir(self._paths.directory)
        is_whole = False
        try:
            python = pip.make_venv(self.folder)
            pip.install_exactly(python, self._environment.packages, address)
            write_atomic(self.folder / ENVIRONMENT_MARK, self._made.encode())
            is_whole = True
        finally:
            if not is_whole:
                shutil.rmtree(self.folder, ignore_errors=True)
        return str(python)

    def fetch_data(self) -> str:
        """Fetch the data, unless it is here; return its folder, "" if members bring their own.

        Raises:
            Refused: it has another hash or size.
            SwarmNodeError: it cannot be had, or there is no room for it.
        """
        reference = self._environment.data
        if not reference or reference.kind == "yours":
            return ""
        check_reference(reference)
        if reference.kind == "hub":
            return _fetch_from_hub(reference)
        if not self.data:
            path = self._file(reference)
            make_private_dir(path.parent)
            with storage_errors(path.parent, "look at"):
                free_bytes = shutil.disk_usage(path.parent).free
            if reference.size_bytes > free_bytes:
                raise StorageFull(
                    f"the data of the swarm takes {show_bytes(reference.size_bytes)},"
                    f" {show_bytes(free_bytes)} are free at {path.parent}"
                )
            fetch(reference, path)
        return self.data

    @property
    def _made(self) -> str:
        """What an environment must have been made for: another Python or path makes it anew."""
        made_by = "\0".join([self._digest, sys.version, sys.prefix, *own_paths()])
        return hashlib.sha256(made_by.encode()).hexdigest()

    def _file(self, reference: DataReference) -> Path:
        return self._paths.directory / "data" / file_name(reference.source)


def check_reference(reference: DataReference) -> None:
    """Refuse data that a manifest names in a way in which nothing safe can be fetched.

    Raises:
        ConfigError: with what was expected.
    """
    said = reference.source[:120]
    if reference.kind == "url" and not (_ADDRESS.fullmatch(reference.source) and reference.sha256):
        raise ConfigError(f"expected data as http(s)://… with its SHA-256, got {said!r}")
    if reference.kind == "hub" and not (
        _HUB_NAME.fullmatch(reference.source) and _COMMIT.fullmatch(reference.revision)
    ):
        raise ConfigError(f"expected data as NAME/ON-THE-HUB at a commit, got {said!r}")


def file_name(address: str) -> str:
    """Return what a file from there is called here."""
    last = unquote(urlsplit(address).path).rpartition("/")[2]
    name = _NOT_IN_NAMES.sub("-", last)[-_NAME_CHARACTERS_MAX:].lstrip(".-")
    return name or "data"


def fetch(reference: DataReference, path: Path) -> None:
    """Fetch a file; it appears at ``path`` only if its size and hash are those.

    Raises:
        Refused: they are others.
        TransportError: it cannot be had.
        StorageError: it cannot be written.
    """
    hashed = hashlib.sha256()
    with IncomingFile(path) as incoming:

        def take(part: bytes) -> None:
            hashed.update(part)
            incoming.write(memoryview(part))

        got_bytes = _read_from(reference.source, take, bytes_max=reference.size_bytes)
        if got_bytes != reference.size_bytes or hashed.digest() != reference.sha256:
            wanted = reference.sha256.hex() if reference.sha256 else "none"
            more = " or more" if got_bytes > reference.size_bytes else ""
            raise Refused(
                f"{reference.source[:300]} is not the data that the swarm's creator signed:"
                f" expected {reference.size_bytes} bytes with SHA-256 {wanted}, got"
                f" {got_bytes}{more} with {hashed.hexdigest()}; it was thrown away: try again, else"
                " tell the creator"
            )
        incoming.commit()


def _fetch_from_hub(reference: DataReference) -> str:
    """Return the folder of a data set that is the one of the manifest."""
    named = ("--data-set", f"--revision={reference.revision}", "--", reference.source)
    found = run_offline("fetch_model", *named)
    # A commit names files, but neither the library nor a mirror of the hub proves that it has them.
    # Manifests of before had no hash.
    if reference.sha256 and found["sha256"] != reference.sha256.hex():
        raise Refused(
            f"data set {reference.source} at {reference.revision} is not the data that the swarm's"
            f" creator signed: expected {reference.size_bytes} bytes with SHA-256"
            f" {reference.sha256.hex()}, got {found['size_bytes']} with {found['sha256']}; remove"
            f" {found['folder']} with what its links lead to and try again, else tell the creator"
        )
    return str(found["folder"])


def describe_url(address: str, path: Path) -> DataReference:
    """Fetch a file to ``path``, for a new swarm; return what its manifest will say.

    Raises:
        SwarmNodeError: it cannot be had.
    """
    check_reference(DataReference("url", address, sha256=bytes(32)))
    hashed = hashlib.sha256()
    make_private_dir(path.parent)
    with IncomingFile(path) as incoming:

        def take(part: bytes) -> None:
            hashed.update(part)
            incoming.write(memoryview(part))

        size_bytes = _read_from(address, take, bytes_max=None)
        incoming.commit()
    return DataReference("url", address, "", hashed.digest(), size_bytes)


def _read_from(address: str, take: Callable[[bytes], None], *, bytes_max: int | None) -> int:
    """Give ``take`` what is there, at most one part more than ``bytes_max``; return how much."""
    got_bytes = 0
    try:
        with urlopen(address, timeout=_SILENCE_S) as answer:  # noqa: S310 -- http or https, checked
            while part := answer.read(_READ_BYTES):
                got_bytes += len(part)
                take(part)
                if bytes_max is not None and got_bytes > bytes_max:
                    break
    except (OSError, HTTPException, ValueError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise TransportError(f"{address[:300]} cannot be fetched: {why}") from error
    return got_bytes


def _read(path: Path) -> str:
    try:
        return read_file(path, bytes_max=_MARK_BYTES_MAX).decode("ascii", "replace")
    except FileNotFoundError:
        return ""
