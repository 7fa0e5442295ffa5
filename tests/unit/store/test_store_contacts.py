"""Remembered peers: what is written is read again, and nothing in the file can hurt."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.errors import StorageError
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity
from swarmnode.store.contacts import CONTACTS_FILE_BYTES_MAX, load_contacts, save_contacts
from swarmnode.wire.dht import Contact


def contact(number: int, *addresses: str) -> Contact:
    who = Identity.from_seed(number.to_bytes(32, "big")).peer_id
    return Contact(bytes(who), addresses or (f"192.0.2.{number % 250}:7337",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "contacts"


def test_what_was_saved_is_loaded_in_its_order(path: Path) -> None:
    contacts = (contact(2), contact(1, "[2001:db8::1]:7337", "host.example:1"), contact(3))
    save_contacts(path, contacts)
    assert load_contacts(path) == contacts
    save_contacts(path, contacts[:1])
    assert load_contacts(path) == contacts[:1]


def test_without_a_file_no_node_is_remembered(path: Path) -> None:
    assert load_contacts(path) == ()


def test_only_the_best_are_kept(path: Path) -> None:
    many = tuple(contact(number) for number in range(limits.DHT_REMEMBERED_MAX + 10))
    save_contacts(path, many)
    assert load_contacts(path) == many[: limits.DHT_REMEMBERED_MAX]


def test_lines_that_are_none_are_skipped(path: Path) -> None:
    good = contact(1)
    save_contacts(path, (good,))
    line = path.read_bytes()
    name = str(PeerId(good.peer)).encode()
    junk = [
        b"",
        b"\xff\xfe\x00",
        b"sn1short@192.0.2.1:7337",
        name,
        name + b"@",
        name + b"@x,",  # an address has three characters at least
        name + b"@" + 300 * b"h",
        name.upper() + b"@192.0.2.1:7337",
    ]
    path.write_bytes(b"\n".join([*junk, line, *junk]))
    assert load_contacts(path) == (good,)


@pytest.mark.parametrize(
    ("n_bytes", "is_address"), [(2, False), (3, True), (260, True), (261, False)]
)
def test_an_address_has_3_to_260_characters(n_bytes: int, is_address: bool, path: Path) -> None:
    good = contact(1)
    save_contacts(path, (good,))
    name = str(PeerId(good.peer))
    path.write_text(f"{name}@{'h' * n_bytes},{good.addresses[0]}\n")
    addresses = ("h" * n_bytes,) * is_address + good.addresses
    assert load_contacts(path) == (Contact(good.peer, addresses),)


def test_a_file_of_the_most_bytes_is_read_up_to_as_many_peers(path: Path) -> None:
    many = [contact(number) for number in range(limits.DHT_REMEMBERED_MAX + 1)]
    path.parent.mkdir()
    text = "".join(f"{PeerId(each.peer)}@{each.addresses[0]}\n" for each in many)
    path.write_bytes(text.encode().ljust(CONTACTS_FILE_BYTES_MAX, b"\n"))
    assert load_contacts(path) == tuple(many[: limits.DHT_REMEMBERED_MAX])


def test_addresses_beyond_the_bound_are_left_out(path: Path) -> None:
    addresses = tuple(f"192.0.2.{number}:7337" for number in range(9))
    save_contacts(path, (contact(1, *addresses),))
    (read,) = load_contacts(path)
    assert read.addresses == addresses[: limits.DHT_ADDRESSES_MAX]


def test_a_file_that_is_too_large_is_not_read(path: Path) -> None:
    save_contacts(path, (contact(1),))
    with path.open("ab") as file:
        file.write(b"\n" * CONTACTS_FILE_BYTES_MAX)
    assert load_contacts(path) == ()


def test_what_is_written_can_be_read_whatever_its_size(path: Path) -> None:
    longest = tuple(f"{number}{'h' * 254}:7337" for number in range(limits.DHT_ADDRESSES_MAX))
    many = tuple(contact(number, *longest) for number in range(limits.DHT_REMEMBERED_MAX))
    save_contacts(path, many)
    assert load_contacts(path) == many


def test_a_disk_that_refuses_is_said_to_be_the_reason(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="home"):
        save_contacts(tmp_path / "home" / "contacts", (contact(1),))
