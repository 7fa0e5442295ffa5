"""The TLS 1.3 handshake: both sides prove their Ed25519 key, and keys come out of it.

TLS is used for its handshake only. OpenSSL works on memory buffers and is fed
exactly one TLS record at a time, so not one byte behind the handshake is ever
taken for TLS; the records that follow are our own
(``protocol/session/records.py``). The standard ``ssl`` module cannot do this:
it cannot ask for and accept a self-signed client certificate.

Certificates are only an envelope for the key: names, dates and extensions are
neither meant nor checked. Exactly one certificate with an Ed25519 key is
accepted; whose key it should be is decided after the handshake, so that the
refused side can be told.

Source: RFC 8446; key export section 7.5.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, MalformedMessage, NoNodeKey, VersionMismatch
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import (
    EXPORTER_LABEL,
    SECRET_BYTES,
    CipherName,
    Role,
)

_TLS_CONTEXTS_CACHED_MAX = 64  # one node has one; a simulation has many

ALPN = b"swarmnode/1"
_SUITES = {
    CipherName.AES_256_GCM: b"TLS_AES_256_GCM_SHA384",
    CipherName.CHACHA20_POLY1305: b"TLS_CHACHA20_POLY1305_SHA256",
}
_CIPHERS = {suite.decode(): cipher for cipher, suite in _SUITES.items()}
_TLS_ALERT = 21
_TLS_TYPES = range(20, 24)  # change cipher spec, alert, handshake, application data
_BIO_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class TlsResult:
    """What the handshake proved and produced."""

    peer: PeerId
    secret: bytes  # 32 bytes, known to both sides only
    cipher: CipherName


TLS_HEADER_BYTES = 5


async def shake_hands(
    channel: Channel, identity: Identity, role: Role, header: bytes = b""
) -> TlsResult:
    """Run the handshake over ``channel``. The caller sets the deadline.

    ``header``: the first TLS_HEADER_BYTES that came, if they have been read already.

    Raises:
        NoNodeKey: the peer proved no Ed25519 key, or refused ours.
        AuthenticationFailed: it chose a cipher that was not offered.
        VersionMismatch: the peer does not speak this protocol.
        MalformedMessage: what came is not TLS.
        ChannelBroken: the channel ended.
    """
    connection = SSL.Connection(_context(identity, role), None)
    if role is Role.CLIENT:
        connection.set_connect_state()
    else:
        connection.set_accept_state()
    for _ in range(limits.TLS_HANDSHAKE_RECORDS_MAX):
        is_done = await _advance(channel, connection)
        # What a server's OpenSSL writes after the end are session tickets: no use here.
        if not is_done or role is Role.CLIENT:
            await _flush(channel, connection)
        if is_done:
            return _result(channel, connection)
        connection.bio_write(await _receive_tls_record(channel, header))
        header = b""
    raise MalformedMessage(
        f"{channel.description}: no handshake within {limits.TLS_HANDSHAKE_RECORDS_MAX} TLS records"
    )


def is_tls_alert(header: memoryview) -> bool:
    """Tell whether bytes where a record of ours should start are a TLS alert instead.

    A client is done before the server has checked the client's certificate.
    """
    return header[0] == _TLS_ALERT and header[1] == 3


async def _advance(channel: Channel, connection: SSL.Connection) -> bool:
    """Let OpenSSL work on what it has; return whether the handshake is complete."""
    try:
        connection.do_handshake()
    except SSL.WantReadError:
        return False
    except SSL.Error as error:
        await _flush(channel, connection)  # the alert tells the peer
        raise NoNodeKey(f"{channel.description}: TLS handshake failed: {_reason(error)}") from error
    return True


async def _flush(channel: Channel, connection: SSL.Connection) -> None:
    while True:
        try:
            data = connection.bio_read(_BIO_READ_BYTES)
        except SSL.WantReadError:
            return
        await channel.send_all(memoryview(data))


async def _receive_tls_record(channel: Channel, given: bytes) -> bytes:
    header = bytearray(given or TLS_HEADER_BYTES)
    if not given:
        await receive_exactly(channel, memoryview(header))
    length = int.from_bytes(header[3:], "big")
    if (
        header[0] not in _TLS_TYPES
        or header[1] != 3
        or not 0 < length <= limits.TLS_RECORD_BYTES_MAX
    ):
        raise MalformedMessage(
            f"{channel.description}: expected a TLS record, got bytes {header.hex()}"
        )
    body = bytearray(length)
    await receive_exactly(channel, memoryview(body))
    return bytes(header + body)


def _result(channel: Channel, connection: SSL.Connection) -> TlsResult:
    if connection.get_alpn_proto_negotiated() != ALPN:
        raise VersionMismatch(
            f"{channel.description}: expected protocol {ALPN.decode()}, the peer offers another"
        )
    certificate = connection.get_peer_certificate(as_cryptography=True)
    key = certificate.public_key() if certificate is not None else None
    # OpenSSL lists the certificate itself for a server only: what counts is that no other is there.
    chain = connection.get_peer_cert_chain(as_cryptography=True) or []
    if not isinstance(key, Ed25519PublicKey) or any(other != certificate for other in chain):
        raise NoNodeKey(f"{channel.description}: expected one certificate with an Ed25519 key")
    cipher = _CIPHERS.get(connection.get_cipher_name() or "")
    if cipher is None:
        raise AuthenticationFailed(
            f"{channel.description}: unexpected cipher {connection.get_cipher_name()}"
        )
    secret = connection.export_keying_material(EXPORTER_LABEL, SECRET_BYTES)
    return TlsResult(PeerId.from_public_key(key.public_bytes_raw()), secret, cipher)


def _accept_certificate(
    _connection: SSL.Connection, certificate: crypto.X509, _errno: int, depth: int, _ok: int
) -> bool:
    """Accept a self-made certificate with an Ed25519 key, whatever else it says."""
    key = certificate.to_cryptography().public_key()
    return depth == 0 and isinstance(key, Ed25519PublicKey)


def _select_alpn(_connection: SSL.Connection, offered: list[bytes]) -> Any:
    return ALPN if ALPN in offered else SSL.NO_OVERLAPPING_PROTOCOLS


@lru_cache(maxsize=_TLS_CONTEXTS_CACHED_MAX)
def _context(identity: Identity, role: Role) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_options(SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_tls13_ciphersuites(_suites(role))
    context.use_certificate(_certificate(identity))
    context.use_privatekey(identity.private_key)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _accept_certificate)
    context.set_alpn_protos([ALPN])
    context.set_alpn_select_callback(_select_alpn)
    return context


def _suites(role: Role) -> bytes:
    """Both sides must be fast: the client's order counts, and a slow server takes only one."""
    fast, other = CipherName.AES_256_GCM, CipherName.CHACHA20_POLY1305
    if not _aes_is_fast():
        fast, other = other, fast
        if role is Role.SERVER:
            return _SUITES[fast]
    return _SUITES[fast] + b":" + _SUITES[other]


@cache
def _aes_is_fast() -> bool:
    """Measure whether this CPU has AES instructions: without them ChaCha20 is faster."""
    data = bytes(16 * 1024)
    seconds = []
    for aead in (AESGCM(bytes(32)), ChaCha20Poly1305(bytes(32))):
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            aead.encrypt(bytes(12), data, None)
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
    return seconds[0] <= seconds[1]


def _certificate(identity: Identity) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "swarmnode")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(identity.private_key.public_key()).serial_number(1)
    # Clocks of volunteers are wrong, and a date adds nothing to a key.
    builder = builder.not_valid_before(datetime.datetime(2000, 1, 1))
    builder = builder.not_valid_after(datetime.datetime(9999, 12, 31))
    return builder.sign(identity.private_key, None)


def _reason(error: SSL.Error) -> str:
    """Return OpenSSL's own words for the first thing that went wrong."""
    if error.args and error.args[0]:
        return str(error.args[0][0][-1])
    return type(error).__name__
