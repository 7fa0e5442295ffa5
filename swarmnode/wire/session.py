"""Payloads of the session's control frames: HELLO, OPEN, RESET and GOODBYE."""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.wire.frames import FrameKind, encode_frame
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.records import Digest, ShortText

PROTOCOL_VERSION_MIN = 1
PROTOCOL_VERSION_MAX = 1

Version = Annotated[int, Meta(ge=1, le=65535)]
_SERVICE = re.compile(r"[a-z0-9][a-z0-9._/@-]*")
_OPEN = struct.Struct(">BI")
_CODE = struct.Struct(">H")
DEADLINE_MS_MAX = 2**32 - 1


class Priority(IntEnum):
    """Planes of a session, the most urgent first."""

    CONTROL = 0  # requests, gossip offers
    STATE = 1  # CRDT deltas, digests
    BULK = 2  # tensors, blobs


class ResetCode(IntEnum):
    """Why one stream ended early."""

    CANCELLED = 0  # its user has no more use for it
    REFUSED = 1  # the handler says no; the reason is its own
    FAILED = 2  # the handler raised something unexpected
    OVERLOADED = 3  # try again later, or elsewhere
    NO_SERVICE = 4  # nothing is registered under this name
    DEADLINE = 5  # the deadline that the OPEN frame carried has passed


class GoodbyeCode(IntEnum):
    """Why a session ended."""

    DONE = 0
    WRONG_PEER = 1  # the key does not belong to the peer that was expected
    WRONG_NETWORK = 2
    WRONG_VERSION = 3
    PROTOCOL_ERROR = 4
    TIMEOUT = 5
    KEY_IN_USE = 6  # another running node with the same key answers: see proto/session.md


class Hello(msgspec.Struct, frozen=True):
    """First frame of each side; ``expected`` is empty if any peer will do.

    ``instance`` is chosen anew at each start: two that differ and both answer are two nodes
    with one copied key. ``is_probe``: the dialler only wants to know that we answer here;
    the connection takes the place of no other.
    """

    version_min: Version
    version_max: Version
    network: Digest
    software: ShortText
    expected: Annotated[bytes, Meta(max_length=32)] = b""
    instance: Annotated[bytes, Meta(max_length=16)] = b""
    is_probe: bool = False


def encode_hello(hello: Hello) -> bytes:
    """Return the HELLO frame."""
    return encode_frame(FrameKind.HELLO, 0, encode_record(hello))


def decode_hello(payload: bytes | memoryview) -> Hello:
    """Read a HELLO payload. Raises MalformedMessage."""
    hello = decode_record(payload, Hello)
    if len(hello.expected) not in (0, 32):
        raise MalformedMessage(f"HELLO expects a peer id of {len(hello.expected)} bytes")
    return hello


def check_service_name(service: str) -> bool:
    """Tell whether ``service`` can name a service."""
    return len(service) <= limits.SERVICE_NAME_BYTES_MAX and _SERVICE.fullmatch(service) is not None


def encode_open(stream_id: int, service: str, priority: Priority, deadline_ms: int) -> bytes:
    """Return the OPEN frame of a stream."""
    payload = _OPEN.pack(priority, deadline_ms) + service.encode("ascii")
    return encode_frame(FrameKind.OPEN, stream_id, payload)


def decode_open(payload: bytes) -> tuple[str, Priority, int]:
    """Return (service, priority, deadline in ms). Raises MalformedMessage."""
    priority, deadline_ms = _OPEN.unpack_from(payload)
    service = payload[_OPEN.size :].decode("ascii", "replace")
    if not check_service_name(service):
        raise MalformedMessage(f"OPEN frame: {printable(service)!r} is no service name")
    if priority not in Priority.__members__.values():
        raise MalformedMessage(f"OPEN frame: priority {priority}, expected 0, 1 or 2")
    return service, Priority(priority), deadline_ms


def encode_reset(stream_id: int, code: ResetCode, reason: str) -> bytes:
    """Return the RESET frame of a stream; a long reason is cut."""
    return encode_frame(FrameKind.RESET, stream_id, _encode_reason(code, reason))


def encode_goodbye(code: GoodbyeCode, reason: str) -> bytes:
    """Return the GOODBYE frame; a long reason is cut."""
    return encode_frame(FrameKind.GOODBYE, 0, _encode_reason(code, reason))


def decode_reason(payload: bytes) -> tuple[int, str]:
    """Return (code, reason) of a RESET or GOODBYE; an unknown code is legal, its text is kept."""
    code: int = _CODE.unpack_from(payload)[0]
    return code, printable(payload[_CODE.size :].decode("utf-8", "replace"))


def printable(text: str) -> str:
    """Return ``text`` as one line that cannot steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _encode_reason(code: int, reason: str) -> bytes:
    text = printable(reason).encode("utf-8")[: limits.REASON_BYTES_MAX]
    # A character that the cut went through is dropped whole.
    return _CODE.pack(code) + text.decode("utf-8", "ignore").encode("utf-8")
