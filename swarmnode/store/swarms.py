"""The swarms that a home knows: their link, manifest and, for their creator, their key."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.errors import ConfigError, CorruptRecord, MalformedMessage
from swarmnode.paths import Paths
from swarmnode.protocol.swarm import SwarmLink, check_name, parse_link
from swarmnode.store.files import (
    make_private_dir,
    read_file,
    storage_errors,
    sync_directory,
    write_atomic,
)
from swarmnode.wire.packing import decode_record
from swarmnode.wire.swarm import Manifest, Signed


def save_link(link: SwarmLink, paths: Paths, *, has_check: bool = True) -> None:
    """Remember a link, so that its name is enough next time.

    An invite or peers that are known already stay, if this link has none.

    Args:
        has_check: whether a checksum is written beside it.
    """
    path = paths.swarm(link.name).link
    make_private_dir(path.parent)
    text = str(with_stored(link, paths))
    # The link alone, for people and `cat`. Without the checksum beside it a flipped bit could be
    # another swarm's key; it is gone while they differ, as a crash may come between the two. A disk
    # may do the second first.
    check_path = _check_path(path)
    with storage_errors(check_path, "remove"):
        check_path.unlink(missing_ok=True)
        sync_directory(path.parent)
    write_atomic(path, f"{text}\n".encode())
    if has_check:
        write_atomic(check_path, f"{_check_line(text)}\n".encode())


def with_stored(link: SwarmLink, paths: Paths) -> SwarmLink:
    """Return a link with what this home knows besides: peers, and the invite it came with."""
    stored = None
    with suppress(ConfigError, CorruptRecord):  # damaged: the new link replaces it
        stored = stored_link(link.name, paths)
    if stored is None or stored.swarm_key != link.swarm_key:
        return link
    hints, invite = link.hints or stored.hints, link.invite or stored.invite
    meeting, zones = link.meeting or stored.meeting, link.zones or stored.zones
    return replace(link, hints=hints, invite=invite, meeting=meeting, zones=zones)


def stored_link(name: str, paths: Paths) -> SwarmLink | None:
    """Return the link that this home has for a name, None if it knows no such swarm.

    Raises:
        ConfigError: ``name`` is no swarm's name, or what is stored is damaged.
        CorruptRecord: what is stored is far too large.
    """
    path = paths.swarm(check_name(name)).link
    try:
        stored = read_file(path, bytes_max=limits.KEY_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    # Former versions wrote the checksum as a second line. A person who copies a link there by hand
    # leaves it out.
    text, _, check_line = stored.decode("utf-8", "replace").partition("\n")
    try:
        if (check_line.strip() or _read_check(path)) not in ("", _check_line(text)):
            raise ConfigError("its checksum is wrong")
        return _check_hints(parse_link(text))
    except ConfigError as error:
        raise ConfigError(
            f"{path} is damaged ({error}): join once by the link instead of the name"
        ) from error


def _check_path(link_path: Path) -> Path:
    return link_path.with_name("link.crc32")


def _read_check(link_path: Path) -> str:
    try:
        found = read_file(_check_path(link_path), bytes_max=limits.KEY_FILE_BYTES_MAX)
    except FileNotFoundError:
        return ""
    return found.decode("utf-8", "replace").strip()


def _check_line(text: str) -> str:
    return f"crc32 {zlib.crc32(text.encode()):08x}"


def stored_links(paths: Paths) -> list[SwarmLink]:
    """Return the links of all swarms of this home, by name; damaged ones are left out.

    Raises:
        StorageError: the system does not let us read them.
    """
    directory = paths.swarms
    with storage_errors(directory, "read"):
        names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    found = []
    for name in names:
        with suppress(ConfigError, CorruptRecord):
            if (link := stored_link(name, paths)) is not None:
                found.append(link)
    return found


def is_link(text: str) -> bool:
    """Whether a link was meant and not a name."""
    return ":" in text or "?" in text


def resolve_link(text: str, paths: Paths) -> SwarmLink:
    """Return the link that ``text`` is, or the one that this home has for that name.

    Raises:
        ConfigError: it is no link, or no swarm of that name is known here.
    """
    if is_link(text):
        return with_stored(_check_hints(parse_link(text)), paths)
    link = stored_link(text, paths)
    if link is None:
        raise ConfigError(
            f"this home knows no swarm named {text!r}: join it once by its link, swarm:{text}?k=…"
        )
    return link


def _check_hints(link: SwarmLink) -> SwarmLink:
    """Notice a link that was cut off in the middle of an address."""
    for hint in link.hints:
        host, _ = parse_host_port(hint.address, setting="a peer (b=) in the link")
        if host is None:
            raise ConfigError("a peer (b=) in the link: expected HOST:PORT, got '*'")
    return link


def read_manifest(name: str, paths: Paths) -> Manifest:
    """Return the manifest that this home holds for a swarm; it was verified when it came.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    signed = read_signed_manifest(name, paths)
    if signed is None:
        raise ConfigError(f"this home holds no manifest of a swarm named {name!r}")
    with _damage_named(paths.swarm(name).manifest):
        return decode_record(signed.body, Manifest)


def read_signed_manifest(name: str, paths: Paths) -> Signed | None:
    """Return the manifest of a swarm as it lies on this disk, None if there is none.

    Raises:
        ConfigError: it is damaged.
    """
    path = paths.swarm(name).manifest
    try:
        raw = read_file(path, bytes_max=limits.MESSAGE_BYTES_MAX)
    except FileNotFoundError:
        return None
    with _damage_named(path):
        return decode_record(raw, Signed)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except MalformedMessage as error:
        raise ConfigError(f"{path} is damaged ({error}): remove it and join again") from error
