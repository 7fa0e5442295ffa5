"""Links on disk: a name is enough next time, and nothing that was known is lost."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.config import Paths
from swarmnode.errors import ConfigError, CorruptRecord, StorageError
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink, sign_manifest
from swarmnode.store.files import make_private_dir
from swarmnode.store.swarms import (
    is_link,
    read_manifest,
    read_signed_manifest,
    resolve_link,
    save_link,
    stored_link,
    stored_links,
    with_stored,
)
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed
from tests.kits.disk_recorder import Recorder
from tests.kits.other_system import UnreadablePath
from tests.unit.protocol.test_swarm import make_manifest

KEY = Identity.from_seed(bytes(32)).public_key
OTHER_KEY = Identity.from_seed(b"\1" * 32).public_key
PEER = Identity.from_seed(b"\2" * 32).peer_id
HINTS = (Hint(PEER, "192.0.2.1:7337"),)
NEW_HINTS = (Hint(PEER, "192.0.2.2:7337"),)
FULL = SwarmLink("demo", KEY, HINTS, b"an invite")
BARE = SwarmLink("demo", KEY)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "home")


def test_a_bare_link_takes_nothing_away(paths: Paths) -> None:
    save_link(FULL, paths)
    save_link(BARE, paths)
    assert stored_link("demo", paths) == FULL


def test_newer_peers_and_a_newer_invite_count(paths: Paths) -> None:
    save_link(FULL, paths)
    save_link(SwarmLink("demo", KEY, NEW_HINTS), paths)
    assert stored_link("demo", paths) == SwarmLink("demo", KEY, NEW_HINTS, b"an invite")
    save_link(SwarmLink("demo", KEY, (), b"another"), paths)
    assert stored_link("demo", paths) == SwarmLink("demo", KEY, NEW_HINTS, b"another")


def test_a_link_of_another_key_takes_nothing_over(paths: Paths) -> None:
    save_link(FULL, paths)
    other = SwarmLink("demo", OTHER_KEY)
    assert with_stored(other, paths) == other
    save_link(other, paths)
    assert stored_link("demo", paths) == other


def test_a_damaged_link_is_replaced(paths: Paths) -> None:
    save_link(FULL, paths)
    paths.swarm("demo").link.write_bytes(b"\xff\0garbage" * 4000)
    save_link(BARE, paths)
    assert stored_link("demo", paths) == BARE


def test_a_link_that_is_given_is_completed_from_the_disk(paths: Paths) -> None:
    save_link(FULL, paths)
    assert resolve_link(str(BARE), paths) == FULL
    assert resolve_link("demo", paths) == FULL


@pytest.mark.parametrize("text", ["swarm:demo", "demo?k=abc", "swarm:demo?k=abc"])
def test_half_a_link_is_taken_for_a_link_and_not_for_a_name(text: str, paths: Paths) -> None:
    assert is_link(text)
    with pytest.raises(ConfigError) as caught:
        resolve_link(text, paths)
    assert "this home knows no swarm" not in str(caught.value)


def test_the_links_of_a_home(paths: Paths) -> None:
    assert stored_links(paths) == []
    for name in ("b", "a", "damaged"):
        save_link(SwarmLink(name, KEY), paths)
    paths.swarm("damaged").link.write_text("swarm:")
    paths.swarm("empty").directory.mkdir()
    (paths.swarms / ".DS_Store").touch()
    assert [link.name for link in stored_links(paths)] == ["a", "b"]


def test_no_name_is_an_error_and_an_unknown_one_is_none(paths: Paths) -> None:
    assert stored_link("demo", paths) is None
    with pytest.raises(ConfigError, match="a swarm's name has"):
        stored_link("../demo", paths)


def test_a_link_lies_there_for_people_with_a_checksum_beside_it(paths: Paths) -> None:
    path = paths.swarm("demo").link
    check = path.with_name("link.crc32")
    save_link(FULL, paths)
    assert path.read_text() == f"{FULL}\n"
    assert check.read_text() == f"crc32 {zlib.crc32(str(FULL).encode()):08x}\n"
    save_link(FULL, paths, has_check=False)
    assert path.read_text() == f"{FULL}\n"
    assert not check.exists()
    assert stored_link("demo", paths) == FULL


def test_a_flipped_bit_of_a_link_is_noticed_wherever_its_checksum_is(paths: Paths) -> None:
    save_link(FULL, paths)
    path = paths.swarm("demo").link
    check = path.with_name("link.crc32")
    text, right = f"{FULL}", check.read_text()
    other = text.replace("192.0.2.1", "192.0.2.3")
    path.write_text(f"{other}\n")
    with pytest.raises(ConfigError, match=f"{path} is damaged .its checksum is wrong.: join once"):
        stored_link("demo", paths)
    check.unlink()  # as of a person who wrote the link by hand
    for by_hand in (other, f"{other}\n", f"{other}\n \n"):
        path.write_text(by_hand)
        found = stored_link("demo", paths)
        assert found is not None
        assert found.hints == (Hint(PEER, "192.0.2.3:7337"),)
    # Former versions had it in the second line.
    path.write_text(f"{text}\n{right}")
    assert stored_link("demo", paths) == FULL
    path.write_text(f"{other}\n{right}")
    with pytest.raises(ConfigError, match="its checksum is wrong"):
        stored_link("demo", paths)


def test_what_a_link_does_not_say_is_taken_from_the_stored_one(paths: Paths) -> None:
    whole = SwarmLink("demo", KEY, HINTS, b"an invite", b"m" * 32, ("a.example",))
    save_link(whole, paths)
    bare = {"hints": (), "invite": b"", "meeting": b"", "zones": ()}
    new: dict[str, Any] = {
        "hints": NEW_HINTS,
        "invite": b"another",
        "meeting": b"n" * 32,
        "zones": ("b.example",),
    }
    assert with_stored(BARE, paths) == whole
    for field, value in new.items():
        link = replace(whole, **{**bare, field: value})
        assert with_stored(link, paths) == replace(whole, **{field: value})


def test_a_link_is_read_up_to_a_size(paths: Paths) -> None:
    save_link(BARE, paths, has_check=False)
    path = paths.swarm("demo").link
    whole = f"{BARE}\n".encode()
    path.write_bytes(whole.ljust(limits.KEY_FILE_BYTES_MAX))
    assert stored_link("demo", paths) == BARE
    path.write_bytes(whole.ljust(limits.KEY_FILE_BYTES_MAX + 1))
    with pytest.raises(CorruptRecord, match="at most"):
        stored_link("demo", paths)
    assert stored_links(paths) == []


@pytest.mark.parametrize("address", ["*:7337", "192.0.2.1", "192.0.2.1:", "192.0.2.1:73370"])
def test_a_link_that_was_cut_off_in_an_address_is_none(address: str, paths: Paths) -> None:
    cut = SwarmLink("demo", KEY, (Hint(PEER, address),))
    with pytest.raises(ConfigError, match=r"a peer .b=. in the link"):
        resolve_link(str(cut), paths)
    make_private_dir(paths.swarm("demo").directory)
    paths.swarm("demo").link.write_text(f"{cut}\n")
    with pytest.raises(ConfigError, match=r"is damaged .a peer"):
        resolve_link("demo", paths)


def test_a_name_that_is_not_known_says_how_it_gets_known(paths: Paths) -> None:
    with pytest.raises(ConfigError, match="knows no swarm named 'demo': join it once by its link"):
        resolve_link("demo", paths)
    assert [is_link(text) for text in ("demo", "a:b", "a?b", "")] == [False, True, True, False]


def test_a_folder_of_swarms_that_cannot_be_read_is_an_error(
    paths: Paths,
) -> None:
    save_link(FULL, paths)
    with pytest.raises(StorageError, match="cannot read"):
        stored_links(Paths(UnreadablePath(paths.home)))


def test_a_manifest_is_read_as_it_was_signed_or_what_is_wrong_is_named(paths: Paths) -> None:
    own = paths.swarm("demo")
    assert read_signed_manifest("demo", paths) is None
    with pytest.raises(ConfigError, match="holds no manifest of a swarm named 'demo'"):
        read_manifest("demo", paths)
    manifest = make_manifest(name="demo", swarm_key=KEY)
    signed = sign_manifest(manifest, Identity.from_seed(bytes(32)))
    make_private_dir(own.directory)
    own.manifest.write_bytes(encode_record(signed))
    assert read_signed_manifest("demo", paths) == signed
    assert read_manifest("demo", paths) == manifest
    own.manifest.write_bytes(encode_record(Signed(b"\xc1", KEY, bytes(64))))
    assert read_signed_manifest("demo", paths) is not None
    with pytest.raises(ConfigError, match=f"{own.manifest} is damaged .*: remove it and join"):
        read_manifest("demo", paths)
    own.manifest.write_bytes(b"\xc1")
    with pytest.raises(ConfigError, match=f"{own.manifest} is damaged .*: remove it and join"):
        read_signed_manifest("demo", paths)


def test_a_checksum_is_taken_away_for_good_before_another_link_takes_its_place(
    paths: Paths, tmp_path: Path
) -> None:
    """Else a power failure could leave the new link with the checksum of the old one."""
    save_link(FULL, paths)
    recorder = Recorder(paths.home)
    with recorder.attached():
        save_link(SwarmLink("demo", OTHER_KEY), paths, has_check=False)
    left = tmp_path / "left"
    left.mkdir()
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    assert {path.name for path in (left / "swarms" / "demo").iterdir()} == {"link"}
    assert stored_link("demo", Paths(left)) == SwarmLink("demo", OTHER_KEY)
