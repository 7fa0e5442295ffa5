"""Signatures for simulations: they hold nobody back, and cost a hundredth of real ones.

Anybody could make one, so they prove nothing; they do differ for every key, domain and body,
which is what honest cores rely on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from swarmnode.errors import AuthenticationFailed
from swarmnode.ids import PeerId


@dataclass(frozen=True)
class ToyIdentity:
    """Stands in for :class:`swarmnode.protocol.identity.Identity`."""

    public_key: bytes
    peer_id: PeerId

    @classmethod
    def from_seed(cls, seed: bytes) -> ToyIdentity:
        """Return the same identity for the same 32 bytes."""
        public_key = hashlib.sha256(b"toy\0" + seed).digest()
        return cls(public_key, PeerId.from_public_key(public_key))

    def sign(self, domain: str, body: bytes) -> bytes:
        """Return 64 bytes that follow from the public key, the domain and the body."""
        return _signature(self.public_key, domain, body)


def toy_verify(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
    """Check a toy signature. Raises AuthenticationFailed that names ``what`` was forged."""
    if _signature(public_key, domain, body) != signature:
        raise AuthenticationFailed(f"{what}: the signature does not match its key")


def _signature(public_key: bytes, domain: str, body: bytes) -> bytes:
    return hashlib.blake2b(domain.encode() + b"\0" + body, key=public_key).digest()
