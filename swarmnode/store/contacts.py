"""Peers that answered for long, written down so that a restart needs no link and no beacon.

A text file, one contact a line: ``sn1…@HOST:PORT,HOST:PORT``. What is not readable in it is
skipped: these are hints, and the node that answers there must prove the id.
"""

from __future__ import annotations

from pathlib import Path

from swarmnode import limits
from swarmnode.errors import ConfigError, CorruptRecord
from swarmnode.ids import PeerId
from swarmnode.store.files import make_private_dir, read_file, write_atomic
from swarmnode.wire.dht import Contact

# Four addresses of 260 bytes for each remembered peer.
CONTACTS_FILE_BYTES_MAX = 128 * limits.KIB


def save_contacts(path: Path, contacts: tuple[Contact, ...]) -> None:
    """Write contacts, the best first. Raises StorageError."""
    lines = [f"{PeerId(each.peer)}@{','.join(each.addresses)}\n" for each in contacts]
    make_private_dir(path.parent)
    write_atomic(path, "".join(lines[: limits.DHT_REMEMBERED_MAX]).encode())


def load_contacts(path: Path) -> tuple[Contact, ...]:
    """Return what can be read of the file; nothing if it is not there."""
    try:
        text = read_file(path, bytes_max=CONTACTS_FILE_BYTES_MAX).decode("utf-8", "replace")
    except (FileNotFoundError, CorruptRecord):
        return ()
    found = [_parse(line) for line in text.splitlines()]
    return tuple(each for each in found if each is not None)[: limits.DHT_REMEMBERED_MAX]


def _parse(line: str) -> Contact | None:
    name, _, rest = line.partition("@")
    addresses = tuple(part for part in rest.split(",") if 3 <= len(part) <= 260)
    try:
        peer = PeerId.parse(name)
    except ConfigError:
        return None
    return Contact(bytes(peer), addresses[: limits.DHT_ADDRESSES_MAX]) if addresses else None
