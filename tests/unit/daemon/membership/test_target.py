"""Which targets a member takes, by whose key, and what is left of them after a restart."""

import pytest
from msgspec import structs

from swarmnode.daemon.membership.progress import TargetKeeper
from swarmnode.errors import AuthenticationFailed, MalformedMessage, Refused
from swarmnode.ipc.lr_schedule import Horizon
from swarmnode.protocol.extension import open_extension, sign_extension
from swarmnode.protocol.identity import Identity
from swarmnode.testing.swarm import SWARM_KEY, make_manifest
from swarmnode.wire.recipe import Extension, Recipe

MANIFEST = make_manifest(recipe=Recipe(target_tokens=1000))


def signed(tokens, resumed=0, key=SWARM_KEY):
    return sign_extension(Extension(tokens, resumed), key)


def test_the_creator_moves_the_target_on_and_it_is_remembered(tmp_path):
    keeper = TargetKeeper(MANIFEST, tmp_path / "extension")
    told = []
    keeper.on_extended = lambda: told.append(keeper.horizon)
    keeper.load()
    assert keeper.horizon == Horizon(1000)
    assert keeper.text == ""
    text = signed(5000, 1000)
    assert keeper.extend(text) == Horizon(5000, 1000)
    assert keeper.extend(text) == Horizon(5000, 1000)  # the same once more changes nothing
    assert told == [Horizon(5000, 1000)]
    again = TargetKeeper(MANIFEST, tmp_path / "extension")
    again.load()
    assert (again.horizon, again.text) == (Horizon(5000, 1000), text)


@pytest.mark.parametrize("tokens", [1, 1000, 4999, 5000])
def test_older_ones_and_lower_ones_change_nothing(tmp_path, tokens):
    keeper = TargetKeeper(MANIFEST, tmp_path / "extension")
    keeper.heard(signed(5000))
    keeper.heard(signed(tokens, resumed=1))
    assert keeper.horizon == Horizon(5000)
    with pytest.raises(Refused, match="expected a target beyond 5,000 tokens"):
        keeper.extend(signed(tokens, resumed=1))


@pytest.mark.parametrize(
    "text", ["", "!", "AAAA", "A" * 4000, signed(9000, key=Identity.from_seed(b"x" * 32))]
)
def test_what_the_swarms_key_has_not_signed_is_left_alone(tmp_path, text):
    keeper = TargetKeeper(MANIFEST, tmp_path / "extension")
    keeper.heard(text)
    keeper.heard(text)
    assert keeper.horizon == Horizon(1000)
    with pytest.raises((AuthenticationFailed, MalformedMessage)):
        keeper.extend(text)


def test_a_damaged_file_is_no_end_of_the_node(tmp_path):
    (tmp_path / "extension").write_bytes(b"\xff\x00")
    keeper = TargetKeeper(MANIFEST, tmp_path / "extension")
    keeper.load()
    assert keeper.horizon == Horizon(1000)


def test_a_swarm_without_a_recipe_never_ends(tmp_path):
    keeper = TargetKeeper(structs.replace(make_manifest()), tmp_path / "extension")
    keeper.heard(signed(5000))
    assert keeper.horizon == Horizon()
    with pytest.raises(Refused, match="created without a recipe"):
        keeper.extend(signed(5000))


def test_a_body_of_another_kind_is_no_extension():
    with pytest.raises(MalformedMessage):
        open_extension("QUJD", SWARM_KEY.public_key)


def test_an_extension_is_read_as_it_was_signed_and_with_nothing_between():
    text = signed(5000)
    assert open_extension(text, SWARM_KEY.public_key) == Extension(5000, 0)
    for spoiled in (f"!{text}", f"{text[:40]} {text[40:]}"):
        with pytest.raises(MalformedMessage, match="as base64"):
            open_extension(spoiled, SWARM_KEY.public_key)
    with pytest.raises(MalformedMessage, match="got 63 bytes"):
        open_extension("A" * 84, SWARM_KEY.public_key)
    with pytest.raises(AuthenticationFailed):  # a signature alone
        open_extension("A" * 84 + "AA==", SWARM_KEY.public_key)
