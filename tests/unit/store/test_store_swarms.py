"""Links on disk: a name is enough next time, and nothing that was known is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmnode.config import Paths
from swarmnode.errors import ConfigError
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.swarms import (
    is_link,
    resolve_link,
    save_link,
    stored_link,
    stored_links,
    with_stored,
)

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
