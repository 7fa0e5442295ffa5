"""``swarmnode backup`` and ``restore``: a home in one file, and a home out of it."""

from __future__ import annotations

import os
import re
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click

from swarmnode import limits
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import home_option, json_option
from swarmnode.config import CONFIG_FILE_NAME, Paths, resolve_home
from swarmnode.errors import ConfigError, CorruptRecord
from swarmnode.quantities import show_bytes
from swarmnode.store.files import HomeLock, IncomingFile, make_private_dir, storage_errors
from swarmnode.store.keys import load_or_create_identity, skip_boot_epochs
from swarmnode.tensor.snapshot_format import find_snapshots

_PIECE_BYTES = limits.MIB
_SMALL_BYTES_MAX = 64 * limits.MIB  # weights do not get smaller by packing, and take minutes
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FILES_MAX = 10_000  # some ten for each swarm

# What a home needs to be the same node again. The rest is of the moment, or is fetched anew.
_OF_A_NODE = (
    CONFIG_FILE_NAME,
    "boot_epoch",
    "boot_epoch.previous",
    "contacts",
    "exchanges.jsonl",
    "exchanges.jsonl.1",
    "pause.json",
    "totals.json",
    "traffic.json",
)
_KEY = "node.key"  # the last to be written: a home that has it is whole
_OF_A_SWARM = (
    "extension",
    "final/model.safetensors",
    "link",
    "manifest",
    "meeting.key",
    "state.journal",
    "swarm.key",
    "trust.journal",
)
_SNAPSHOT = r"snapshots/[a-z0-9.-]{1,80}\.safetensors"
_NAMES = re.compile(
    "|".join(re.escape(name) for name in (*_OF_A_NODE, _KEY))
    + r"|swarms/[a-z0-9][a-z0-9._-]{0,63}/(?:"
    + "|".join([*(re.escape(name) for name in _OF_A_SWARM), _SNAPSHOT])
    + ")"
)


@click.command("backup")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@home_option
@click.option(
    "--snapshots/--no-snapshots",
    "with_snapshots",
    default=True,
    help="The newest model of each swarm as well, which others may have.",
)
@json_option
def backup(file: Path | None, home: Path | None, with_snapshots: bool, as_json: bool) -> None:
    """Write the keys, settings, swarms and models of this home to one zip file.

    The node may run meanwhile. The file has all that makes this node: keep it as you keep a key.
    """
    paths = Paths(resolve_home(home, os.environ))
    if not paths.node_key.exists():
        raise ConfigError(f"{paths.home} has no node yet: nothing to back up")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    target = (file or Path(f"swarmnode-backup-{stamp}.zip")).absolute()
    if target.exists():
        raise ConfigError(f"{target} exists already: name another file")
    names = list(_found(paths, with_snapshots=with_snapshots))
    with IncomingFile(target) as incoming, storage_errors(target, "write"):
        with zipfile.ZipFile(_Unseekable(incoming), "w") as archive:
            written = [name for name in names if _add(archive, paths.home, name)]
        incoming.commit()
    size = target.stat().st_size
    if as_json:
        print_json({"path": str(target), "bytes": size, "files": sorted(written)})
        return
    click.echo(f"wrote {plain(str(target))}: {len(written)} files, {show_bytes(size)}")
    click.echo("it holds this node's keys: keep it as you keep those. Back: swarmnode restore")


@click.command("restore")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@home_option
@json_option
def restore(file: Path, home: Path | None, as_json: bool) -> None:
    """Make a home out of what `backup` wrote, and go on as the same node.

    The home must have no node yet. The node must not run anywhere else from then on.
    """
    paths = Paths(resolve_home(home, os.environ))
    with HomeLock(paths.lock):
        if paths.node_key.exists():
            raise ConfigError(f"{paths.home} has a node already: name another with --home")
        names = _unpack(file, paths.home)
        # Where the node ran on after the backup it has used later numbers: none is given twice.
        skip_boot_epochs(paths.boot_epoch, int(time.time()))
        identity = load_or_create_identity(paths.node_key)
    swarms = sorted({name.split("/")[1] for name in names if name.startswith("swarms/")})
    if as_json:
        record = {"home": str(paths.home), "peer": str(identity.peer_id), "swarms": swarms}
        print_json(record | {"files": names})
        return
    click.echo(f"{plain(str(paths.home))} is {identity.peer_id.short} again: {len(names)} files")
    click.echo(f"swarms: {', '.join(swarms) or 'none'}")
    click.echo("do not run it anywhere else: two nodes with one key end each other")


class _Unseekable:
    """What a zip file is written through: forwards only."""

    def __init__(self, incoming: IncomingFile) -> None:
        self._incoming = incoming

    def write(self, data: bytes) -> int:
        self._incoming.write(memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The file below is its owner's."""


def _found(paths: Paths, *, with_snapshots: bool) -> Iterator[str]:
    """Yield the names of the files that a home has of those that are kept."""
    for name in (*_OF_A_NODE, _KEY):
        if (paths.home / name).is_file():
            yield name
    for directory in sorted(paths.swarms.glob("*/")):
        inner = [name for name in _OF_A_SWARM if (directory / name).is_file()]
        if with_snapshots:
            newest = find_snapshots(directory / "snapshots")[:1]
            inner += [f"snapshots/{path.name}" for _, path in newest]
        yield from (f"swarms/{directory.name}/{name}" for name in inner)


def _add(archive: zipfile.ZipFile, home: Path, name: str) -> bool:
    """Write one file; False if it is gone: the node that runs has a newer snapshot."""
    try:
        source = (home / name).open("rb")
    except FileNotFoundError:
        return False
    with source:
        size = os.fstat(source.fileno()).st_size
        info = zipfile.ZipInfo(name, time.gmtime()[:6])
        info.external_attr = (stat.S_IFREG | 0o600) << 16
        if size <= _SMALL_BYTES_MAX:
            info.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(info, "w", force_zip64=True) as target:
            # As much as there was: a journal that grows meanwhile ends at a whole record or is
            # cut there when it is read.
            while size > 0 and (piece := source.read(min(_PIECE_BYTES, size))):
                size -= len(piece)
                target.write(piece)
    return True


def _unpack(file: Path, home: Path) -> list[str]:
    """Write what is in ``file`` below ``home``, the key last; return the names."""
    try:
        with storage_errors(file, "read"), zipfile.ZipFile(file) as archive:
            _check(file, archive.infolist())
            names = sorted(archive.namelist(), key=lambda name: (name == _KEY, name))
            for name in names:
                with archive.open(name) as source:
                    _write(source, home / name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CorruptRecord(
            f"{file}: expected what `swarmnode backup` wrote: {error}", path=str(file)
        ) from error
    return names


def _check(file: Path, found: list[zipfile.ZipInfo]) -> None:
    names = {info.filename for info in found}
    as_we_pack = all(info.compress_type in _PACKED and not info.flag_bits & 1 for info in found)
    if not (len(names) == len(found) <= _FILES_MAX and _KEY in names and as_we_pack):
        raise ConfigError(f"{file}: expected what `swarmnode backup` wrote, with one {_KEY}")
    for name in names:
        if not _NAMES.fullmatch(name):
            raise ConfigError(f"{file}: {name[:80]!r} is no file of a home: nothing was written")


def _write(source: IO[bytes], path: Path) -> None:
    make_private_dir(path.parent)
    with IncomingFile(path) as incoming:
        while piece := source.read(_PIECE_BYTES):
            incoming.write(memoryview(piece))
        incoming.commit()
