"""Which node we are and which key signed what: Ed25519 keys and domain-separated signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from swarmnode.errors import AuthenticationFailed
from swarmnode.ids import PeerId


class Signer(Protocol):
    """What signs; :class:`Identity` is one, and the simulator has a cheaper one."""

    @property
    def public_key(self) -> bytes:
        """32 bytes whose SHA-256 is the peer id."""

    @property
    def peer_id(self) -> PeerId:
        """The peer that signs."""

    def sign(self, domain: str, body: bytes) -> bytes:
        """Return 64 bytes."""


class Verify(Protocol):
    """What a signature is checked with: :func:`verify`, or what belongs to another signer."""

    def __call__(
        self, public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str
    ) -> None:
        """Raise AuthenticationFailed unless the signature is that of the key."""


@dataclass(frozen=True)
class Identity:
    """A private key and what follows from it."""

    private_key: Ed25519PrivateKey
    public_key: bytes
    peer_id: PeerId

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Build the identity whose Ed25519 private key is the 32-byte ``seed``."""
        private_key = Ed25519PrivateKey.from_private_bytes(seed)
        public_key = private_key.public_key().public_bytes_raw()
        return cls(private_key, public_key, PeerId.from_public_key(public_key))

    @classmethod
    def generate(cls) -> Identity:
        """Make a new one from the operating system's randomness."""
        return cls.from_seed(Ed25519PrivateKey.generate().private_bytes_raw())

    def seed(self) -> bytes:
        """Return the 32 secret bytes, for the key file and nothing else."""
        return self.private_key.private_bytes_raw()

    def sign(self, domain: str, body: bytes) -> bytes:
        """Sign ``body`` for one purpose: a signature never counts in another ``domain``."""
        return self.private_key.sign(_message(domain, body))


def verify(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
    """Check a signature. Raises AuthenticationFailed that names ``what`` was forged."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(signature, _message(domain, body))
    except (InvalidSignature, ValueError) as error:
        raise AuthenticationFailed(f"{what}: the signature does not match its key") from error


def _message(domain: str, body: bytes) -> bytes:
    return b"swarmnode/" + domain.encode("ascii") + b"\0" + body
