"""The manifest of a node's swarm on disk, and for whoever asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from swarmnode.config import NodeConfig, Paths
from swarmnode.daemon.discovery.rendezvous import MANIFEST_SERVICE, ManifestKeeper, parse_version
from swarmnode.env import Env
from swarmnode.errors import (
    AuthenticationFailed,
    ConfigError,
    MalformedMessage,
    Overloaded,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink, sign_manifest
from swarmnode.testing.swarm import SWARM_KEY, make_identity, make_manifest
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import ManifestReply, ManifestRequest, Signed

NOW_UNIX_S = 1_000_000.0
ASKER: PeerId = make_identity(7).peer_id


def write(paths: Paths, data: bytes) -> Path:
    path = paths.swarm("sim").manifest
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def signed(**changes: object) -> bytes:
    return encode_record(sign_manifest(structs.replace(make_manifest(), **changes), SWARM_KEY))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return NodeConfig(home=tmp_path).paths


@pytest.fixture
def services() -> Services:
    return Services()


@pytest.fixture
def keeper(paths: Paths, services: Services) -> ManifestKeeper:
    link = SwarmLink("sim", SWARM_KEY.public_key, ())
    return ManifestKeeper(link, paths, Env(lambda: 0.0, lambda: NOW_UNIX_S), services)


def test_without_a_file_there_is_none(keeper: ManifestKeeper) -> None:
    assert keeper.load() is None


def test_what_was_saved_is_loaded(keeper: ManifestKeeper, paths: Paths) -> None:
    write(paths, signed())
    assert keeper.load() == make_manifest()


def forged() -> bytes:
    good = decode_record(signed(), Signed)
    return encode_record(Signed(good.body.replace(b"Q8", b"Q4"), good.public_key, good.signature))


def of_another_swarm() -> bytes:
    other = Identity.from_seed(b"o" * 32)
    manifest = structs.replace(make_manifest(), swarm_key=other.public_key)
    return encode_record(sign_manifest(manifest, other))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", ConfigError, "damaged"),
        (signed()[:-3], ConfigError, "damaged"),
        (forged(), AuthenticationFailed, "tampered"),
        (of_another_swarm(), Refused, "another swarm"),
        (signed(expires_at=int(NOW_UNIX_S) - 86_400), Refused, "expired 1.0 days ago"),
        (signed(created_at=int(NOW_UNIX_S) + 10**6), Refused, "clock"),
        (signed(min_version="999.0"), Refused, "git pull in its clone"),
        (signed(name="mis"), Refused, "'mis'"),
    ],
)
def test_what_is_wrong_with_the_file_is_said(
    keeper: ManifestKeeper, paths: Paths, data: bytes, error: type[SwarmNodeError], words: str
) -> None:
    write(paths, data)
    with pytest.raises(error, match=words):
        keeper.load()


async def test_who_asks_gets_it_as_it_was_signed(
    keeper: ManifestKeeper, paths: Paths, services: Services
) -> None:
    answer = services.request_handler(MANIFEST_SERVICE)
    assert answer is not None
    request = encode_record(ManifestRequest(SWARM_KEY.public_key))
    with pytest.raises(Overloaded, match="yet"):  # come again: not a refusal
        await answer(ASKER, request)
    write(paths, signed())
    keeper.load()
    reply = decode_record(await answer(ASKER, request), ManifestReply)
    assert encode_record(reply.manifest) == signed()
    with pytest.raises(Overloaded):
        await answer(ASKER, encode_record(ManifestRequest(bytes(32))))
    with pytest.raises(MalformedMessage):
        await answer(ASKER, b"\xc1")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1.2.0rc1", (1, 2)), ("0.10", (0, 10)), ("", ()), ("x", ()), ("1", (1,)), ("0.0", ())],
)
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers
