"""Records: how a session protects its bytes, with keys that the TLS handshake exported.

A record is ``u32 n | n bytes``, where the n bytes are ciphertext and a 16-byte
tag. The 4 bytes of the length are the additional data, the nonce is the
record's number XOR the direction's IV, and nothing else goes over the wire::

    epoch      = record number // REKEY_RECORDS
    key | iv   = HKDF-Expand-SHA256(secret, "swarmnode/1 CIPHER ROLE key" | u32 epoch, 32 + 12)
    nonce      = iv XOR record number (96 bits, big-endian)

ROLE is the TLS role of the sender, so the two directions never share a key.
Both sides count records, so a change of key needs no message.

Source: RFC 8446, sections 5.3 and 7.5; RFC 5869. Deviation: no TLS content
type and no padding, and keys follow from the exporter by epoch number rather
than from each other.
"""

from __future__ import annotations

import struct
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LimitExceeded, MalformedMessage

# GCM's bound is 2^20 records of this size under one key; a change of key costs microseconds.
REKEY_RECORDS = 64 * limits.KIB

EXPORTER_LABEL = b"EXPORTER-swarmnode-session-1"
SECRET_BYTES = 32
LENGTH_BYTES = 4
TAG_BYTES = 16
RECORD_OVERHEAD_BYTES = LENGTH_BYTES + TAG_BYTES
RECORD_BYTES_MAX = limits.RECORD_PLAINTEXT_BYTES_MAX + RECORD_OVERHEAD_BYTES
_KEY_BYTES = 32
_IV_BYTES = 12
_LENGTH = struct.Struct(">I")


class Role(Enum):
    """Which side of the TLS handshake a node was; the value is the key schedule's label."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Role:
        """The role of the peer."""
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


class CipherName(Enum):
    """The AEADs that protect records, by the label in the key schedule."""

    AES_256_GCM = "aes-256-gcm"
    CHACHA20_POLY1305 = "chacha20-poly1305"


_AEADS: dict[CipherName, type[AESGCM] | type[ChaCha20Poly1305]] = {
    CipherName.AES_256_GCM: AESGCM,
    CipherName.CHACHA20_POLY1305: ChaCha20Poly1305,
}


def traffic_key(secret: bytes, cipher: CipherName, sender: Role, epoch: int) -> tuple[bytes, bytes]:
    """Return (key, iv) for what ``sender`` sends in ``epoch``."""
    label = f"swarmnode/1 {cipher.value} {sender.value} key".encode("ascii")
    info = label + epoch.to_bytes(4, "big")
    material = HKDFExpand(SHA256(), _KEY_BYTES + _IV_BYTES, info).derive(secret)
    return material[:_KEY_BYTES], material[_KEY_BYTES:]


class _Direction:
    """The key and the counter of one direction."""

    __slots__ = ("_aead", "_cipher", "_iv", "_number", "_rekey_records", "_secret", "_sender")

    def __init__(
        self,
        secret: bytes,
        cipher: CipherName,
        sender: Role,
        rekey_records: int = REKEY_RECORDS,
    ) -> None:
        self._secret = secret
        self._cipher = cipher
        self._sender = sender
        self._rekey_records = rekey_records
        self._number = 0

    @property
    def records(self) -> int:
        """How many records went this way."""
        return self._number

    def _start_epoch(self, epoch: int) -> None:
        key, iv = traffic_key(self._secret, self._cipher, self._sender, epoch)
        self._aead = _AEADS[self._cipher](key)
        self._iv = int.from_bytes(iv, "big")

    def _next_nonce(self) -> bytes:
        number = self._number
        if number % self._rekey_records == 0:
            self._start_epoch(number // self._rekey_records)
        self._number = number + 1
        return (self._iv ^ number).to_bytes(_IV_BYTES, "big")


class Sealer(_Direction):
    """Turns plaintext into records."""

    __slots__ = ()

    def seal_into(self, plaintext: memoryview, out: memoryview) -> int:
        """Write one record into ``out``; return its size, RECORD_OVERHEAD_BYTES more than given.

        ``plaintext`` holds 1 to RECORD_PLAINTEXT_BYTES_MAX bytes and does not overlap ``out``.
        """
        sealed_bytes = len(plaintext) + TAG_BYTES
        assert TAG_BYTES < sealed_bytes <= limits.RECORD_PLAINTEXT_BYTES_MAX + TAG_BYTES
        length = _LENGTH.pack(sealed_bytes)
        end = LENGTH_BYTES + sealed_bytes
        out[:LENGTH_BYTES] = length
        nonce = self._next_nonce()  # first: it may put another key in place
        self._aead.encrypt_into(nonce, plaintext, length, out[LENGTH_BYTES:end])
        return end


class Opener(_Direction):
    """Turns records back into plaintext."""

    __slots__ = ()

    def open_into(self, record: memoryview, out: memoryview) -> None:
        """Decrypt one whole record into ``out``, which has exactly the plaintext's size.

        Raises:
            AuthenticationFailed: the record is not the next one that the peer sealed.
        """
        nonce = self._next_nonce()
        try:
            self._aead.decrypt_into(nonce, record[LENGTH_BYTES:], record[:LENGTH_BYTES], out)
        except InvalidTag as error:
            raise AuthenticationFailed(
                f"record {self._number - 1} was changed on its way, or sealed with another key"
            ) from error


def plaintext_bytes(header: memoryview) -> int:
    """Return the plaintext size of the record that starts with the 4 bytes ``header``.

    Raises:
        MalformedMessage, LimitExceeded: no record has this length.
    """
    sealed_bytes: int = _LENGTH.unpack(header)[0]
    if sealed_bytes <= TAG_BYTES:
        raise MalformedMessage(f"record of {sealed_bytes} bytes, expected more than {TAG_BYTES}")
    if sealed_bytes > limits.RECORD_PLAINTEXT_BYTES_MAX + TAG_BYTES:
        raise LimitExceeded(
            f"record of {sealed_bytes} bytes, at most "
            f"{limits.RECORD_PLAINTEXT_BYTES_MAX + TAG_BYTES} are allowed"
        )
    return sealed_bytes - TAG_BYTES
