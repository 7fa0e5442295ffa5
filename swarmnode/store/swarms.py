"""The swarms that a home knows: their link, manifest and, for their creator, their key."""

from __future__ import annotations

from swarmnode import limits
from swarmnode.config import Paths, parse_host_port
from swarmnode.errors import ConfigError, MalformedMessage
from swarmnode.protocol.swarm import SwarmLink, check_name, parse_link
from swarmnode.store.files import make_private_dir, read_file, write_atomic
from swarmnode.wire.packing import decode_record
from swarmnode.wire.swarm import Manifest, Signed


def save_link(link: SwarmLink, paths: Paths) -> None:
    """Remember a link, so that its name is enough next time."""
    path = paths.swarm(link.name).link
    make_private_dir(path.parent)
    write_atomic(path, f"{link}\n".encode())


def resolve_link(text: str, paths: Paths) -> SwarmLink:
    """Return the link that ``text`` is, or the one that this home has for that name.

    Raises:
        ConfigError: it is no link, or no swarm of that name is known here.
    """
    if ":" in text or "?" in text:
        return _check_hints(parse_link(text))
    path = paths.swarm(check_name(text)).link
    try:
        stored = read_file(path, bytes_max=limits.KEY_FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise ConfigError(
            f"this home knows no swarm named {text!r}: join it once by its link, swarm:{text}?k=…"
        ) from error
    try:
        return _check_hints(parse_link(stored.decode("utf-8", "replace")))
    except ConfigError as error:
        raise ConfigError(
            f"{path} is damaged ({error}): join once by the link instead of the name"
        ) from error


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
    path = paths.swarm(name).manifest
    try:
        signed = decode_record(read_file(path, bytes_max=limits.MESSAGE_BYTES_MAX), Signed)
        return decode_record(signed.body, Manifest)
    except FileNotFoundError as error:
        raise ConfigError(f"this home holds no manifest of a swarm named {name!r}") from error
    except MalformedMessage as error:
        raise ConfigError(f"{path} is damaged ({error}): remove it and join again") from error
