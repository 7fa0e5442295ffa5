"""Which peers get a session and which do not, and what both sides are told."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    ChannelBroken,
    DeadlineExceeded,
    MalformedMessage,
    SwarmNodeError,
    VersionMismatch,
)
from swarmnode.ids import PeerId
from swarmnode.net import handshake, tls
from swarmnode.net.channel import Channel
from swarmnode.net.handshake import Link, establish
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import CipherName, Role
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire.session import Hello
from tests.kits.session_kit import ALICE, BOB, NETWORK_ID, session_pair

Outcome = Link | SwarmNodeError


@dataclass(frozen=True)
class Side:
    """What one side of a handshake wants."""

    network_id: bytes = NETWORK_ID
    expected: PeerId | None = None


async def attempt(channel: Channel, identity: Identity, role: Role, side: Side) -> Outcome:
    """Run one side of a handshake; close the channel if nothing came of it."""
    try:
        return await establish(
            channel,
            identity=identity,
            network_id=side.network_id,
            role=role,
            expected=side.expected,
        )
    except SwarmNodeError as error:
        await channel.aclose()
        return error


async def both(client: Side | None = None, server: Side | None = None) -> tuple[Outcome, Outcome]:
    """Return how a handshake went for (Alice, the client, and Bob)."""
    alice_end, bob_end = MemoryNetwork().link("alice", "bob")
    outcomes: dict[Role, Outcome] = {}

    async def run(end: Channel, identity: Identity, role: Role, side: Side | None) -> None:
        outcomes[role] = await attempt(end, identity, role, side or Side())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, alice_end, ALICE, Role.CLIENT, client)
        nursery.start_soon(run, bob_end, BOB, Role.SERVER, server)
    return outcomes[Role.CLIENT], outcomes[Role.SERVER]


async def test_each_side_learns_the_others_identity() -> None:
    client, server = await both(Side(expected=BOB.peer_id))
    assert isinstance(client, Link)
    assert isinstance(server, Link)
    assert (client.peer, server.peer) == (BOB.peer_id, ALICE.peer_id)
    assert client.version == server.version == 1


async def test_a_wrong_key_is_refused_and_both_sides_are_told_which_peer_was_expected() -> None:
    stranger = Identity.from_seed(b"s" * 32).peer_id
    client, server = await both(Side(expected=stranger))
    for outcome in (client, server):
        assert isinstance(outcome, AuthenticationFailed)
        assert str(stranger) in str(outcome)
        assert str(BOB.peer_id) in str(outcome)


async def test_a_listener_may_expect_a_peer_too() -> None:
    """With a simultaneous open both sides know the peer that they want."""
    client, server = await both(Side(expected=BOB.peer_id), Side(expected=BOB.peer_id))
    assert isinstance(client, AuthenticationFailed)
    assert isinstance(server, AuthenticationFailed)


async def test_another_network_is_named_on_both_sides() -> None:
    client, server = await both(server=Side(network_id=b"m" * 32))
    assert isinstance(client, VersionMismatch)
    assert isinstance(server, VersionMismatch)
    for outcome in (client, server):
        assert (b"n" * 8).hex() in str(outcome)
        assert (b"m" * 8).hex() in str(outcome)


def speak_versions(monkeypatch: pytest.MonkeyPatch, *ranges: tuple[int, int]) -> None:
    """Let the sides, in the order in which they make their HELLO, speak these versions."""
    remaining = iter(ranges)

    def hello(**fields: Any) -> Hello:
        low, high = next(remaining)
        return Hello(**(fields | {"version_min": low, "version_max": high}))

    monkeypatch.setattr(handshake, "Hello", hello)


async def test_another_protocol_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    speak_versions(monkeypatch, (1, 1), (2, 5))
    for outcome in await both():
        assert isinstance(outcome, VersionMismatch)
        assert "update the older one" in str(outcome)


async def test_the_newest_common_version_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    speak_versions(monkeypatch, (1, 4), (2, 7))
    client, server = await both()
    assert isinstance(client, Link)
    assert isinstance(server, Link)
    assert client.version == server.version == 4


@pytest.mark.parametrize("slow_side", list(Role))
async def test_a_side_without_aes_instructions_decides(
    slow_side: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ChaCha20 is fast enough everywhere, AES without instructions nowhere."""
    original = tls._suites

    def suites(role: Role) -> bytes:
        monkeypatch.setattr(tls, "_aes_is_fast", lambda: role is not slow_side)
        return original(role)

    monkeypatch.setattr(tls, "_suites", suites)
    tls._context.cache_clear()
    alice_end, bob_end = MemoryNetwork().link("alice", "bob")
    results: list[tls.TlsResult] = []

    async def shake(end: Channel, who: Identity, role: Role) -> None:
        results.append(await tls.shake_hands(end, who, role))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shake, alice_end, ALICE, Role.CLIENT)
        nursery.start_soon(shake, bob_end, BOB, Role.SERVER)
    tls._context.cache_clear()
    assert {result.cipher for result in results} == {CipherName.CHACHA20_POLY1305}
    assert results[0].secret == results[1].secret


async def test_a_silent_stranger_is_given_ten_seconds(
    autojump_clock: MockClock,
) -> None:
    _, bob_end = MemoryNetwork().link("stranger", "bob")
    start = trio.current_time()
    with pytest.raises(DeadlineExceeded, match="TLS handshake and HELLO: no result within 10 s"):
        await establish(
            bob_end, identity=BOB, network_id=NETWORK_ID, role=Role.SERVER, expected=None
        )
    assert trio.current_time() - start == limits.HANDSHAKE_S


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(100),
        b"\x16\x03\x01\x00\x00",
        b"\x00" * 64,
        b"SSH-2.0-x\r\n",
    ],
)
async def test_garbage_is_refused_at_its_first_bytes(garbage: bytes) -> None:
    stranger_end, bob_end = MemoryNetwork().link("stranger", "bob")
    await stranger_end.send_all(memoryview(garbage))
    with pytest.raises(MalformedMessage, match="expected a TLS record"):
        await establish(
            bob_end, identity=BOB, network_id=NETWORK_ID, role=Role.SERVER, expected=None
        )


async def test_garbage_inside_a_tls_record_fails_the_handshake() -> None:
    stranger_end, bob_end = MemoryNetwork().link("stranger", "bob")
    await stranger_end.send_all(memoryview(b"\x16\x03\x01\x00\x20" + b"\x5a" * 32))
    with pytest.raises(AuthenticationFailed, match="TLS handshake failed"):
        await establish(
            bob_end, identity=BOB, network_id=NETWORK_ID, role=Role.SERVER, expected=None
        )


async def test_a_channel_that_ends_early_is_named() -> None:
    stranger_end, bob_end = MemoryNetwork().link("stranger", "bob")
    await stranger_end.send_all(memoryview(b"\x16\x03"))
    await stranger_end.aclose()
    with pytest.raises(ChannelBroken, match="closed after 2 of 5 expected bytes"):
        await establish(
            bob_end, identity=BOB, network_id=NETWORK_ID, role=Role.SERVER, expected=None
        )


# --- certificates that are not ours ------------------------------------------------------------


def certificate(subject_key: object, issuer_key: object, name: str) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    algorithm = hashes.SHA256() if isinstance(issuer_key, ec.EllipticCurvePrivateKey) else None
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(subject_key.public_key())  # type: ignore[attr-defined]
        .serial_number(7)
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2021, 1, 1))  # expired: no peer cares
        .sign(issuer_key, algorithm)  # type: ignore[arg-type]
    )


def stranger_context(key: object | None, chain: list[x509.Certificate]) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_alpn_protos([tls.ALPN])
    context.set_verify(SSL.VERIFY_NONE)
    if key is not None:
        context.use_certificate(chain[0])
        context.use_privatekey(key)  # type: ignore[arg-type]
        for extra in chain[1:]:
            context.add_extra_chain_cert(extra)
    return context


async def result_for_stranger(
    context: SSL.Context, monkeypatch: pytest.MonkeyPatch
) -> SwarmNodeError | PeerId:
    """Let a client with ``context`` connect to Bob; return what Bob makes of it."""
    genuine = tls._context
    monkeypatch.setattr(
        tls, "_context", lambda who, role: context if role is Role.CLIENT else genuine(who, role)
    )
    client, server = await both()
    if isinstance(server, Link):
        return server.peer
    assert isinstance(client, SwarmNodeError)
    return server


async def test_an_expired_certificate_is_as_good_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    context = stranger_context(key, [certificate(key, key, "x")])
    result = await result_for_stranger(context, monkeypatch)
    assert result == PeerId.from_public_key(key.public_key().public_bytes_raw())


async def test_no_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = await result_for_stranger(stranger_context(None, []), monkeypatch)
    assert isinstance(result, AuthenticationFailed)


async def test_another_kind_of_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    context = stranger_context(key, [certificate(key, key, "x")])
    result = await result_for_stranger(context, monkeypatch)
    assert isinstance(result, AuthenticationFailed)


async def test_a_chain_of_certificates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    chain = [certificate(key, key, "x"), certificate(other, other, "y")]
    result = await result_for_stranger(stranger_context(key, chain), monkeypatch)
    assert isinstance(result, AuthenticationFailed)


async def test_another_application_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    context = stranger_context(key, [certificate(key, key, "x")])
    context.set_alpn_protos([b"h2"])
    assert isinstance(await result_for_stranger(context, monkeypatch), VersionMismatch)


async def test_a_session_knows_which_side_dialled() -> None:
    async with session_pair() as (alice, bob):
        assert (alice.outbound, bob.outbound) == (True, False)
        assert (alice.peer, bob.peer) == (BOB.peer_id, ALICE.peer_id)
        assert alice.channel_description == "memory mem:bob"
