"""How a session begins, and how it goes on over another channel: HELLO, and resumption.

Resumption: which peer may take a session over, and from which byte on. The records of one
direction are one stream of sealed bytes, whatever channel carries them. Each side keeps what it has
sealed until the other has it (ACK), so that a session whose channel broke, or whose better path has
been found, goes on where it was. Nothing is sealed twice, so no nonce is used twice. One side, the
asker, has opened a fresh channel::

    asker     MAGIC | name | nonce_a
    partner                           nonce_p                  or a word in its place
    asker     received_a | proof_a                             reads no old channel any more
    partner                           received_p | proof_p     nor does the partner from here on

``name`` and the proofs' key follow from the session's secret: an eavesdropper learns nothing of it,
and one that repeats them meets another nonce. ``received`` is how many bytes of whole records each
side has opened; the other goes on sending from there. If both ask at once, the client's asking
counts: it answers the server's with BUSY_NONCE. A partner that does not know the session answers
UNKNOWN_NONCE. A mere end of the channel says nothing: ways break.
"""

from __future__ import annotations

import hmac
import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, RemoteProtocolError, VersionMismatch
from swarmnode.ids import PeerId
from swarmnode.protocol.session.records import Role
from swarmnode.wire.session import GoodbyeCode, Hello, printable


class HelloRefused(Exception):
    """We refuse the peer: send GOODBYE ``code`` with the error's text, then raise the error."""

    def __init__(self, code: GoodbyeCode, error: RemoteProtocolError) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error


def check_identity(expected: PeerId | None, actual: PeerId) -> None:
    """Refuse a peer that proved another identity than the one that was dialled.

    Raises:
        HelloRefused: with an AuthenticationFailed that names both.
    """
    if expected is not None and actual != expected:
        raise HelloRefused(
            GoodbyeCode.WRONG_PEER,
            AuthenticationFailed(
                f"expected peer {expected}, but {actual} answered: the address may belong to "
                "another node now",
                peer=str(actual),
            ),
        )


def check_hello(own: Hello, theirs: Hello, *, own_id: PeerId, peer: PeerId) -> int:
    """Return the version that both sides speak.

    Raises:
        HelloRefused: another network, no common version, or the peer wants another node.
    """
    if theirs.network != own.network:
        raise HelloRefused(
            GoodbyeCode.WRONG_NETWORK,
            VersionMismatch(
                f"expected network {own.network.hex()[:16]}…, the peer belongs to "
                f"{theirs.network.hex()[:16]}…",
                peer=str(peer),
            ),
        )
    version = min(own.version_max, theirs.version_max)
    if version < max(own.version_min, theirs.version_min):
        raise HelloRefused(
            GoodbyeCode.WRONG_VERSION,
            VersionMismatch(
                f"expected protocol version {own.version_min} to {own.version_max}, "
                f"{printable(theirs.software)} speaks {theirs.version_min} to "
                f"{theirs.version_max}: update the older one",
                peer=str(peer),
            ),
        )
    if theirs.expected and theirs.expected != own_id:
        raise HelloRefused(
            GoodbyeCode.WRONG_PEER,
            AuthenticationFailed(
                f"the peer expected {PeerId(theirs.expected)}, but this node is {own_id}",
                peer=str(peer),
            ),
        )
    return version


def error_from_goodbye(code: int, reason: str, peer: PeerId) -> RemoteProtocolError:
    """Return what a GOODBYE in place of a HELLO means for us."""
    message = f"{peer.short} refused this node: {reason or 'no reason given'}"
    if code in (GoodbyeCode.WRONG_NETWORK, GoodbyeCode.WRONG_VERSION):
        return VersionMismatch(message, peer=str(peer))
    if code == GoodbyeCode.WRONG_PEER:
        return AuthenticationFailed(message, peer=str(peer))
    return RemoteProtocolError(message, peer=str(peer))


MAGIC: Final = b"swarmrs1"
NAME_BYTES = 16
NONCE_BYTES = 16
# Two that a partner never draws:
BUSY_NONCE: Final = bytes(NONCE_BYTES)  # "I am asking you at this moment"
UNKNOWN_NONCE: Final = b"\xff" * NONCE_BYTES  # "I know no such session"
PROOF_BYTES = 32
URGENT_BYTES_MAX = 256  # ACK, PING and PONG in one record
_RESERVE_BYTES = 32 * URGENT_BYTES_MAX  # what can become due while a ring's worth is under way
_OFFSET = struct.Struct(">Q")
ASK_BYTES = len(MAGIC) + NAME_BYTES + NONCE_BYTES
CLAIM_BYTES = _OFFSET.size + PROOF_BYTES


@dataclass(frozen=True, slots=True)
class ResumeKeys:
    """What both sides of a session know, and no other node."""

    name: bytes
    key: bytes

    @classmethod
    def of(cls, secret: bytes) -> ResumeKeys:
        """Derive them from the session's secret."""
        octets = HKDFExpand(SHA256(), NAME_BYTES + 32, b"swarmnode/1 resume").derive(secret)
        return cls(octets[:NAME_BYTES], octets[NAME_BYTES:])

    def ask(self, nonce: bytes) -> bytes:
        """Return the client's first message."""
        return MAGIC + self.name + nonce

    def claim(self, role: Role, nonces: bytes, received_bytes: int) -> bytes:
        """Return how much ``role`` has, with the proof that ``role`` itself says so."""
        offset = _OFFSET.pack(received_bytes)
        return offset + self._proof(role, nonces, offset)

    def check_claim(self, role: Role, nonces: bytes, claim: bytes) -> int:
        """Return how many bytes the other side, ``role``, has received.

        Raises:
            AuthenticationFailed: it is not that side.
        """
        offset, proof = claim[: _OFFSET.size], claim[_OFFSET.size :]
        if not hmac.compare_digest(proof, self._proof(role, nonces, offset)):
            raise AuthenticationFailed(f"resuming a session: the {role.value}'s proof is wrong")
        received_bytes: int = _OFFSET.unpack(offset)[0]
        return received_bytes

    def _proof(self, role: Role, nonces: bytes, offset: bytes) -> bytes:
        return hmac.digest(self.key, role.value.encode() + nonces + offset, "sha256")


def parse_ask(data: bytes) -> tuple[bytes, bytes]:
    """Return (name, nonce) of a first message that begins with MAGIC: [ASK_BYTES]."""
    body = data[len(MAGIC) :]
    return body[:NAME_BYTES], body[NAME_BYTES:]


class Unacknowledged:
    """What was sealed and may have to be sent again, in one piece of memory.

    A ring of whole turns. It starts over at its beginning as soon as there is room, so that on a
    fast path, where little is under way, the same few pages serve all the time.
    """

    def __init__(self, buffer: memoryview, turn_bytes_max: int) -> None:
        """``buffer``: writable; ``turn_bytes_max``: the most that one turn seals."""
        assert len(buffer) >= 2 * (turn_bytes_max + _RESERVE_BYTES)
        self._buffer = buffer
        self._turn_bytes_max = turn_bytes_max
        self._turns: deque[tuple[int, int]] = deque()  # (start in the buffer, bytes)
        self._start = 0  # of the next turn
        self.sent_bytes = 0  # sealed so far, in the whole session
        self.acknowledged_bytes = 0  # of these, what needs no keeping: whole turns

    def room(self) -> memoryview | None:
        """Return where the next turn is sealed to; None while too much is under way."""
        return self._room(self._turn_bytes_max, _RESERVE_BYTES)

    def urgent_room(self) -> memoryview | None:
        """Return where a few small frames are sealed to, also while :meth:`room` gives nothing.

        Without it two sides that wait for each other's ACK could not send theirs.
        """
        return self._room(URGENT_BYTES_MAX, 0)

    def _room(self, n_bytes: int, beside_bytes: int) -> memoryview | None:
        first = self._turns[0][0] if self._turns else None
        wanted = n_bytes + beside_bytes
        if first is None:
            self._start = 0
        elif first < self._start:  # what is kept lies before us
            is_at_end = len(self._buffer) - self._start < wanted
            # A side that starts over earlier than it must needs room for all that the peer takes
            # before it acknowledges: else each side would wait for the other.
            if first >= wanted + (0 if is_at_end else limits.ACK_EVERY_BYTES):
                self._start = 0
            elif is_at_end:
                return None
        elif first - self._start < wanted:
            return None
        return self._buffer[self._start : self._start + n_bytes]

    def keep(self, n_bytes: int) -> memoryview:
        """Keep the ``n_bytes`` that were sealed into :meth:`room`, and return them."""
        start, self._start = self._start, self._start + n_bytes
        self._turns.append((start, n_bytes))
        self.sent_bytes += n_bytes
        return self._buffer[start : self._start]

    def spare(self) -> list[tuple[int, int]]:
        """Return the parts of the buffer that hold nothing, as (start, end)."""
        n_bytes = len(self._buffer)
        if not self._turns:
            return [(0, n_bytes)]
        first = self._turns[0][0]
        if first < self._start:
            return [(0, first), (self._start, n_bytes)]
        return [(self._start, first)]

    def acknowledge(self, received_bytes: int) -> None:
        """Forget what the peer has. Raises RemoteProtocolError: it cannot have so much."""
        if received_bytes > self.sent_bytes:
            raise RemoteProtocolError(
                f"expected an acknowledgement of up to {self.sent_bytes} bytes, "
                f"got {received_bytes}"
            )
        while self._turns and self.acknowledged_bytes + self._turns[0][1] <= received_bytes:
            self.acknowledged_bytes += self._turns.popleft()[1]

    def since(self, received_bytes: int) -> list[memoryview]:
        """Return what was sealed after the first ``received_bytes``, in order.

        Raises:
            RemoteProtocolError: the peer said before that it had more, or cannot have so much.
        """
        if received_bytes < self.acknowledged_bytes:
            raise RemoteProtocolError(
                f"resuming a session: the peer had {self.acknowledged_bytes} bytes, now it says "
                f"{received_bytes}"
            )
        self.acknowledge(received_bytes)
        skip = received_bytes - self.acknowledged_bytes
        found = []
        for start, n_bytes in self._turns:
            found.append(self._buffer[start + skip : start + n_bytes])
            skip = 0
        return found
