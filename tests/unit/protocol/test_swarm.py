"""Links and manifests: what is accepted, and the one line that says why not."""

from __future__ import annotations

import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, ConfigError, MalformedMessage, Refused
from swarmnode.ids import encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import (
    Hint,
    SwarmLink,
    check_name,
    compatibility_key,
    cut_note,
    network_id,
    open_manifest,
    parse_link,
    sign_manifest,
    swarm_id,
)
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Manifest, Signed

SWARM = Identity.from_seed(bytes(range(32)))
PEER = Identity.from_seed(bytes(32))


def make_manifest(**changes: object) -> Manifest:
    manifest = Manifest(
        name="demo",
        swarm_key=SWARM.public_key,
        task="synthetic",
        task_version=1,
        task_config={"dim": 8},
        numel=8,
        layout_hash=b"\1" * 32,
        data_hash=b"",
        strategy="pair-average",
        strategy_settings={"every": 8},
        codec="Q8B64",
        seed=7,
        admission="open",
        min_version="0.1.0",
        created_at=1_000_000,
        expires_at=2_000_000,
    )
    return msgspec.structs.replace(manifest, **changes)


def test_link_round_trip() -> None:
    link = SwarmLink("demo", SWARM.public_key, (Hint(PEER.peer_id, "127.0.0.1:7337"),))
    assert parse_link(str(link)) == link
    assert str(link).startswith("swarm:demo?k=")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://x", "expected a link like swarm:NAME"),
        ("swarm:demo", "has no ?k="),
        ("swarm:UPPER?k=aa", "a swarm's name has 1-64"),
        ("swarm:demo?k=", "must have 32 bytes, it has 0"),
        ("swarm:demo?k=ae", "must have 32 bytes, it has 1"),
        ("swarm:demo?k=!!", "not base32"),
        ("swarm:demo?b=x", "expected a hint like"),
        ("swarm:" + "a" * 3000, "at most"),
    ],
)
def test_wrong_links_say_what_is_wrong(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_link(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_manifest_round_trip() -> None:
    manifest = make_manifest()
    signed = sign_manifest(manifest, SWARM)
    assert open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=1_500_000) == manifest


def test_forged_manifest_is_refused() -> None:
    signed = sign_manifest(make_manifest(), SWARM)
    tampered = Signed(signed.body.replace(b"demo", b"evil"), signed.public_key, signed.signature)
    with pytest.raises(AuthenticationFailed, match="signature does not match"):
        open_manifest(tampered, swarm_key=SWARM.public_key, now_unix_s=1_500_000)
    with pytest.raises(AuthenticationFailed, match="the link names the swarm key"):
        open_manifest(signed, swarm_key=PEER.public_key, now_unix_s=1_500_000)


def test_expired_and_future_manifests_are_refused() -> None:
    signed = sign_manifest(make_manifest(), SWARM)
    with pytest.raises(Refused, match=r"expired 1\.0 days ago"):
        open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=2_086_400)
    with pytest.raises(Refused, match="made in the future"):
        open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=10_000)


def test_compatibility_key_depends_on_what_is_mixed_only() -> None:
    key = compatibility_key(make_manifest())
    assert compatibility_key(make_manifest(expires_at=0)) == key
    assert compatibility_key(make_manifest(codec="Q4B64")) != key
    assert compatibility_key(make_manifest(strategy_settings={"every": 9})) != key
    assert compatibility_key(make_manifest(layout_hash=b"\2" * 32)) != key


# --- at the limits --------------------------------------------------------------------------------

LINK = SwarmLink("demo", SWARM.public_key)
HINTS = tuple(Hint(PEER.peer_id, f"192.0.2.1:{port}") for port in range(1, 99))


def test_a_link_has_so_many_characters_and_no_more() -> None:
    most = limits.LINK_CHARACTERS_MAX
    padded = f"{LINK}&x=".ljust(most, "x")
    assert parse_link(f"  {padded}\n") == LINK
    with pytest.raises(ConfigError, match=f"at most {most} characters, not {most + 1}"):
        parse_link(padded + "x")


def test_a_link_names_so_many_peers_and_no_more() -> None:
    most = limits.BOOTSTRAP_HINTS_MAX
    full = SwarmLink("demo", SWARM.public_key, HINTS[:most])
    assert parse_link(str(full)) == full
    with pytest.raises(ConfigError, match=f"at most {most} peers"):
        parse_link(str(SwarmLink("demo", SWARM.public_key, HINTS[: most + 1])))


def test_all_that_a_link_may_carry_is_written_and_read() -> None:
    link = SwarmLink("demo", SWARM.public_key, HINTS[:2], b"secret", PEER.public_key, ("a.b", "c"))
    key, meeting, invite = map(encode_base32, (SWARM.public_key, PEER.public_key, b"secret"))
    assert str(link) == (
        f"swarm:demo?k={key}&r={meeting}&b={HINTS[0]}&b={HINTS[1]}&d=a.b&d=c&i={invite}"
    )
    assert parse_link(str(link)) == link
    assert link.public == SwarmLink(
        "demo", SWARM.public_key, HINTS[:2], b"", PEER.public_key, ("a.b", "c")
    )


@pytest.mark.parametrize("text", [f"{PEER.peer_id}", f"{PEER.peer_id}@", "@host:1", "junk@host:1"])
def test_a_hint_is_a_peer_at_an_address(text: str) -> None:
    with pytest.raises(ConfigError):
        Hint.parse(text)
    assert Hint.parse(f"{PEER.peer_id}@host:1") == Hint(PEER.peer_id, "host:1")


def test_a_link_s_invite_is_not_printed_with_it() -> None:
    assert "secret" not in repr(SwarmLink("demo", SWARM.public_key, (), b"secret"))


def test_swarms_and_networks_have_ids_of_their_own() -> None:
    assert LINK.swarm_id == swarm_id(SWARM.public_key) != swarm_id(PEER.public_key)
    assert network_id("main") != network_id("lab")
    assert len({len(each) for each in (LINK.swarm_id, network_id("main"), b"x" * 32)}) == 1
    assert LINK.tag == encode_base32(LINK.swarm_id[:10])


def test_a_link_that_a_shell_has_cut_is_remarked_on() -> None:
    assert "put it in single quotes" in cut_note(str(LINK), LINK)
    assert cut_note(f"{LINK}&r=x", LINK) == ""
    with_peers = SwarmLink("demo", SWARM.public_key, HINTS[:1])
    assert cut_note("swarm:demo?k=x", with_peers) == ""


def test_a_name_is_given_back_as_it_is() -> None:
    assert check_name("a" * 64) == "a" * 64
    with pytest.raises(ConfigError):
        check_name("a" * 65)


def test_a_manifest_is_signed_by_the_key_that_it_names() -> None:
    with pytest.raises(ConfigError, match="by the swarm key that it names"):
        sign_manifest(make_manifest(swarm_key=PEER.public_key), SWARM)
    body = encode_record(make_manifest(swarm_key=PEER.public_key))
    signed = Signed(body, SWARM.public_key, SWARM.sign("manifest/1", body))
    with pytest.raises(MalformedMessage, match="names another swarm key"):
        open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=1_500_000)


def test_a_manifest_counts_from_a_day_before_it_was_made_until_the_second_it_expires() -> None:
    manifest = make_manifest()
    signed = sign_manifest(manifest, SWARM)
    first, end = manifest.created_at - limits.MANIFEST_CLOCK_SKEW_S, manifest.expires_at
    for now in (first, end - 1):
        assert open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=now) == manifest
    for now, why in ((first - 1, "in the future"), (end, r"expired 0\.0 days ago")):
        with pytest.raises(Refused, match=why):
            open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=now)
    late = end + 100_000 * 86_400
    with pytest.raises(Refused, match=r"expired 100000\.0 days ago"):
        open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=late)


def test_a_manifest_without_an_end_counts_for_ever() -> None:
    manifest = make_manifest(expires_at=0)
    signed = sign_manifest(manifest, SWARM)
    assert open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=9e12) == manifest


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "x"},
        {"task_version": 2},
        {"strategy": "x"},
        {"strategy_version": 2},
        {"topology": "ring"},
    ],
)
def test_peers_that_train_otherwise_do_not_mix(changes: dict[str, object]) -> None:
    assert compatibility_key(make_manifest(**changes)) != compatibility_key(make_manifest())
