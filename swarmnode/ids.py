"""Identifiers of peers, and how they are written.

A peer is the SHA-256 of its Ed25519 public key. No node can claim another's
id without its key, and the id never depends on an address.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from swarmnode.errors import ConfigError

PEER_ID_BYTES = 32
PUBLIC_KEY_BYTES = 32
_PREFIX = "sn1"
_TEXT_LENGTH = len(_PREFIX) + 52  # 32 bytes in base32 without padding


class PeerId(bytes):
    """The 32 bytes that name a peer; ``str()`` gives ``sn1…``."""

    def __new__(cls, raw: bytes) -> PeerId:
        if len(raw) != PEER_ID_BYTES:
            raise ConfigError(f"a peer id has {PEER_ID_BYTES} bytes, these are {len(raw)}")
        return super().__new__(cls, raw)

    @classmethod
    def from_public_key(cls, public_key: bytes) -> PeerId:
        """Return the id that belongs to a raw 32-byte Ed25519 public key."""
        return cls(hashlib.sha256(public_key).digest())

    @classmethod
    def parse(cls, text: str) -> PeerId:
        """Read ``sn1…``. Raises ConfigError that names what was expected."""
        if not text.startswith(_PREFIX) or len(text) != _TEXT_LENGTH:
            raise ConfigError(
                f"expected a peer id of {_TEXT_LENGTH} characters that starts with "
                f"{_PREFIX!r}, got {text[:80]!r}"
            )
        return cls(decode_base32(text[len(_PREFIX) :], what="peer id"))

    def __str__(self) -> str:
        return _PREFIX + encode_base32(self)

    @property
    def short(self) -> str:
        """The first 12 characters: enough for a person to tell peers apart."""
        return str(self)[:12]

    def __repr__(self) -> str:
        return f"<PeerId {self.short}…>"


def encode_base32(raw: bytes) -> str:
    """Lower-case RFC 4648 base32 without padding: safe in links, files and speech."""
    return base64.b32encode(raw).decode("ascii").rstrip("=").lower()


def decode_base32(text: str, *, what: str) -> bytes:
    """Reverse of :func:`encode_base32`; ConfigError names ``what`` was expected."""
    padded = text.upper() + "=" * (-len(text) % 8)
    try:
        raw = base64.b32decode(padded)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{what}: not base32 ({error}): {text[:80]!r}") from error
    if encode_base32(raw) != text.lower():
        raise ConfigError(f"{what}: not in canonical base32: {text[:80]!r}")
    return raw
