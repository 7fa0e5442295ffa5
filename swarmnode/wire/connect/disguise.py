"""A few bytes in the shape of the first messages of TLS, for lines that let nothing else begin.

Some firewalls look at how a connection begins, and cut what is no ClientHello. What a relayed
connection has to say first lies in one, as its session ticket, which is opaque in every TLS; the
answer ends the key of a ServerHello. Both are well formed, so a parser finds nothing wrong. It
is no secret: a closer look shows whose it is.

A session begins with a real ClientHello: its record says 3.1, as TLS 1.3 asks, and this one 3.3,
which TLS 1.3 allows.
"""

from __future__ import annotations

import hashlib
from typing import Final

from swarmnode.errors import MalformedMessage
from swarmnode.wire.connect.relay import LEG_AS_TLS

HEADER_BYTES: Final = 5  # of a TLS record: what it begins with, and its length
PAYLOAD_BYTES_MAX: Final = 64

_X25519: Final = b"\x00\x1d"
_BEFORE_KEY: Final = (
    b"\x00\x2b\x00\x03\x02\x03\x04"  # supported_versions: 1.3
    b"\x00\x0a\x00\x04\x00\x02" + _X25519  # supported_groups
    + b"\x00\x0d\x00\x04\x00\x02\x08\x07"  # signature_algorithms: Ed25519
    b"\x00\x33\x00\x26\x00\x24" + _X25519 + b"\x00\x20"  # key_share
)  # fmt: skip
_SUITES: Final = b"\x00\x06\x13\x01\x13\x02\x13\x03\x01\x00"  # those of TLS 1.3; no compression


def wrap(payload: bytes) -> bytes:
    """Return a ClientHello with ``payload`` in it."""
    assert 0 < len(payload) <= PAYLOAD_BYTES_MAX
    ticket = b"\x00\x23" + len(payload).to_bytes(2, "big") + payload
    extensions = _BEFORE_KEY + _noise(b"key", payload) + ticket
    body = b"\x03\x03" + _noise(b"random", payload)
    body += b"\x20" + _noise(b"session", payload) + _SUITES
    return _record(1, body + len(extensions).to_bytes(2, "big") + extensions)


def rest_bytes(header: bytes) -> int:
    """Return how much of a ClientHello follows its header. Raises MalformedMessage."""
    n_bytes = int.from_bytes(header[3:HEADER_BYTES], "big")
    if not _FIXED_BYTES < n_bytes <= _FIXED_BYTES + PAYLOAD_BYTES_MAX:
        raise MalformedMessage(f"expected a TLS 1.3 greeting or a leg's, got {n_bytes} bytes")
    return n_bytes


def unwrap(hello: bytes) -> bytes:
    """Return what was wrapped. Raises MalformedMessage: it is a ClientHello of another kind."""
    payload = hello[HEADER_BYTES + _FIXED_BYTES :]
    if not 0 < len(payload) <= PAYLOAD_BYTES_MAX or wrap(payload) != hello:
        raise MalformedMessage("expected the greeting of a leg, got another in the shape of TLS")
    return payload


def wrap_answer(word: int) -> bytes:
    """Return a ServerHello whose last byte is ``word``."""
    seed = bytes([word])
    key = _noise(b"key", seed)[:-1] + seed
    extensions = b"\x00\x2b\x00\x02\x03\x04\x00\x33\x00\x24" + _X25519 + b"\x00\x20" + key
    body = b"\x03\x03" + _noise(b"random", seed) + b"\x00\x13\x01\x00"
    return _record(2, body + len(extensions).to_bytes(2, "big") + extensions)


def unwrap_answer(hello: bytes) -> int:
    """Return the word. Raises MalformedMessage."""
    if wrap_answer(hello[-1]) != hello:
        raise MalformedMessage("expected the answer of a relay in the shape of TLS")
    return hello[-1]


def _record(kind: int, body: bytes) -> bytes:
    message = bytes([kind]) + len(body).to_bytes(3, "big") + body
    return LEG_AS_TLS + len(message).to_bytes(2, "big") + message


def _noise(name: bytes, seed: bytes) -> bytes:
    return hashlib.sha256(name + seed).digest()


_FIXED_BYTES: Final = len(wrap(b"-")) - HEADER_BYTES - 1
ANSWER_BYTES: Final = len(wrap_answer(0))
