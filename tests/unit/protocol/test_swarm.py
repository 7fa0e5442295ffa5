"""Links and manifests: what is accepted, and the one line that says why not."""

from __future__ import annotations

import msgspec
import pytest

from swarmnode.errors import AuthenticationFailed, ConfigError, Refused
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import (
    Hint,
    SwarmLink,
    compatibility_key,
    open_manifest,
    parse_link,
    sign_manifest,
)
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
