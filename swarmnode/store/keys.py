"""Secret keys and the boot epoch: what makes a node the same node after a restart.

A key file is text, readable by its owner only::

    swarmnode ed25519 key v1
    seed <32 bytes in base32>
    id sn1…

The id is derived from the seed and repeated so that a damaged file is noticed: a flipped bit
of the seed alone would silently be another node.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import ConfigError, CorruptRecord
from swarmnode.ids import decode_base32, encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.store.files import (
    make_private_dir,
    read_file,
    storage_errors,
    sync_directory,
    write_atomic,
    write_new,
)

_KEY_HEADER = "swarmnode ed25519 key v1"
_SEED_BYTES = 32


def load_or_create_identity(path: Path) -> Identity:
    """Return the identity in a key file, making both on the first run.

    Of two processes that start at the same time, both get the one that was stored.

    Raises:
        ConfigError: The file is damaged, or readable by others. It is never overwritten.
        StorageError: The disk does not do what was asked.
    """
    try:
        identity = load_identity(path)
    except FileNotFoundError:
        make_private_dir(path.parent)
        write_new(path, _encode_key(Identity.generate()))
        return load_identity(path)
    with storage_errors(path, "sync"):
        sync_directory(path.parent)  # what made it may have been killed before this
    return identity


def load_identity(path: Path) -> Identity:
    """Return the identity in a key file.

    Raises:
        FileNotFoundError: There is none.
        ConfigError: The file is damaged, or readable by others.
        StorageError: It is far too large, or the disk does not do what was asked.
    """
    data = read_file(path, bytes_max=limits.KEY_FILE_BYTES_MAX, secret=True)
    try:
        return _decode_key(data)
    except ValueError as error:
        raise ConfigError(
            f"the secret key {path} is damaged ({error}): restore it from a copy, or move it "
            "away to go on under a new key"
        ) from error


def next_boot_epoch(path: Path) -> int:
    """Return a number larger than any returned before for this file; durable on return.

    The number before it is kept beside the file. The file is at most one ahead of that, so a
    torn file costs one number and never gives one twice.

    Raises:
        CorruptRecord: Both copies are damaged: nothing is known about numbers already used.
        StorageError: The disk does not do what was asked.
    """
    previous_path = path.with_name(path.name + ".previous")
    last, previous = _read_epoch(path), _read_epoch(previous_path)
    if last is None and previous is None:
        with storage_errors(path, "read"):
            is_first = not (path.exists() or previous_path.exists())
        if not is_first:
            raise CorruptRecord(
                f"{path} and {previous_path.name} are both damaged: move them and node.key "
                "away to go on as a new node",
                path=str(path),
            )
        last = 0
    elif last is None:
        assert previous is not None
        last = previous + 1
    write_atomic(previous_path, _encode_epoch(last))
    write_atomic(path, _encode_epoch(last + 1))
    return last + 1


def skip_boot_epochs(path: Path, least: int) -> None:
    """Let the next number be larger than ``least``, for a home that others may have gone on with.

    Raises:
        StorageError: The disk does not do what was asked.
    """
    last = _read_epoch(path) or _read_epoch(path.with_name(path.name + ".previous")) or 0
    write_atomic(path, _encode_epoch(max(last + 1, least)))


def _encode_key(identity: Identity) -> bytes:
    lines = (_KEY_HEADER, f"seed {encode_base32(identity.seed())}", f"id {identity.peer_id}", "")
    return "\n".join(lines).encode("ascii")


def _decode_key(data: bytes) -> Identity:
    """Read a key file. Raises ValueError that says what was expected there."""
    lines = data.decode("ascii").splitlines()
    if not lines or lines[0] != _KEY_HEADER:
        raise ValueError(f"expected {_KEY_HEADER!r} in its first line")
    if len(lines) != 3 or not lines[1].startswith("seed ") or not lines[2].startswith("id "):
        raise ValueError("expected a 'seed' line and an 'id' line after it")
    # Nothing of the seed may reach an error message: those are printed and logged.
    try:
        seed = decode_base32(lines[1].removeprefix("seed "), what="seed")
    except ConfigError:
        raise ValueError("its seed is not base32") from None
    if len(seed) != _SEED_BYTES:
        raise ValueError(f"its seed has {len(seed)} bytes instead of {_SEED_BYTES}")
    identity = Identity.from_seed(seed)
    if data.strip() != _encode_key(identity).strip():
        raise ValueError("its seed and its id do not belong together")
    return identity


def _encode_epoch(epoch: int) -> bytes:
    digits = str(epoch).encode("ascii")
    return b"%s %08x\n" % (digits, zlib.crc32(digits))


def _read_epoch(path: Path) -> int | None:
    """Return the number in a file, None if there is no file or no whole number in it."""
    try:
        data = read_file(path, bytes_max=limits.KEY_FILE_BYTES_MAX)
    except (FileNotFoundError, CorruptRecord):
        return None
    digits = data.partition(b" ")[0]
    if not digits.isdigit() or data != _encode_epoch(int(digits)):
        return None
    return int(digits)
