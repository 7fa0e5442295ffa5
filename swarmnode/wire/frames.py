"""Frames: what the records of a session carry.

The plaintexts of all records of one direction, in order, form one stream of
bytes, and that stream is a sequence of frames. A frame may begin in one
record and end in a later one; how the bytes were cut never matters.

======= ====== ============ =======================================================
kind    value  stream id    payload
======= ====== ============ =======================================================
HELLO   1      0            msgpack record ``Hello`` (``wire/session.py``)
OPEN    2      new          u8 priority, u32 deadline in ms (0: none), service name
DATA    3      open         1 to 524,288 bytes
CREDIT  4      open         u32 number of further bytes that may be sent
END     5      open         none: this side sends no more DATA
RESET   6      open         u16 code, reason in UTF-8: both directions end now
PING    7      0            8 bytes
PONG    8      0            the 8 bytes of the PING
GOODBYE 9      0            u16 code, reason in UTF-8: the session ends now
ACK     10     0            u64 bytes of whole records that were opened so far
======= ====== ============ =======================================================

Header, 9 bytes, big-endian: u8 kind, u32 stream id, u32 payload length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage


class FrameKind(IntEnum):
    """What a frame is."""

    HELLO = 1
    OPEN = 2
    DATA = 3
    CREDIT = 4
    END = 5
    RESET = 6
    PING = 7
    PONG = 8
    GOODBYE = 9
    ACK = 10


FRAME_HEADER = struct.Struct(">BII")
FRAME_HEADER_BYTES = FRAME_HEADER.size
_CREDIT = struct.Struct(">I")
_ACK = struct.Struct(">Q")
PING_BYTES = 8

Frame = tuple[int, int, bytes | memoryview]

# kind: (belongs to a stream, fewest payload bytes, most payload bytes)
_SHAPES: dict[int, tuple[bool, int, int]] = {
    FrameKind.HELLO: (False, 1, limits.FRAME_CONTROL_BYTES_MAX),
    FrameKind.OPEN: (True, 6, 5 + limits.SERVICE_NAME_BYTES_MAX),
    FrameKind.DATA: (True, 1, limits.FRAME_DATA_BYTES_MAX),
    FrameKind.CREDIT: (True, _CREDIT.size, _CREDIT.size),
    FrameKind.END: (True, 0, 0),
    FrameKind.RESET: (True, 2, 2 + limits.REASON_BYTES_MAX),
    FrameKind.PING: (False, PING_BYTES, PING_BYTES),
    FrameKind.PONG: (False, PING_BYTES, PING_BYTES),
    FrameKind.GOODBYE: (False, 2, 2 + limits.REASON_BYTES_MAX),
    FrameKind.ACK: (False, _ACK.size, _ACK.size),
}


def encode_frame(kind: FrameKind, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame."""
    return FRAME_HEADER.pack(kind, stream_id, len(payload)) + payload


def encode_credit(stream_id: int, n_bytes: int) -> bytes:
    """Return the CREDIT frame that allows ``n_bytes`` more."""
    return encode_frame(FrameKind.CREDIT, stream_id, _CREDIT.pack(n_bytes))


def decode_credit(payload: bytes | memoryview) -> int:
    """Return the number of bytes that a CREDIT frame's payload allows; never 0."""
    n_bytes: int = _CREDIT.unpack(payload)[0]
    if n_bytes == 0:
        raise MalformedMessage("CREDIT frame that allows 0 bytes")
    return n_bytes


def encode_ack(received_bytes: int) -> bytes:
    """Return the ACK frame for ``received_bytes`` since the session began."""
    return encode_frame(FrameKind.ACK, 0, _ACK.pack(received_bytes))


def decode_ack(payload: bytes | memoryview) -> int:
    """Return how many bytes an ACK frame's payload acknowledges."""
    received_bytes: int = _ACK.unpack(payload)[0]
    return received_bytes


def check_header(kind: int, stream_id: int, payload_bytes: int) -> None:
    """Refuse a header that no frame can have.

    Raises:
        MalformedMessage: unknown kind, or a stream id where none belongs or the reverse.
        LimitExceeded: the payload is longer than its kind allows.
    """
    shape = _SHAPES.get(kind)
    if shape is None:
        raise MalformedMessage(f"frame kind {kind}: expected 1 to {max(_SHAPES)}")
    has_stream, fewest, most = shape
    if (stream_id != 0) != has_stream:
        raise MalformedMessage(f"{FrameKind(kind).name} frame with stream id {stream_id}")
    if payload_bytes > most:
        raise LimitExceeded(
            f"{FrameKind(kind).name} frame of {payload_bytes} bytes, at most {most} are allowed"
        )
    if payload_bytes < fewest:
        raise MalformedMessage(
            f"{FrameKind(kind).name} frame of {payload_bytes} bytes, expected at least {fewest}"
        )


class FrameParser:
    """Cuts a stream of bytes into frames.

    DATA comes out in pieces as it arrives; every other frame comes out whole.
    ``data_left`` is how much of the current DATA frame is still to come, for
    stream ``data_stream``: a shell may decrypt that much straight to where it
    belongs and report it with :meth:`skip_data`.
    """

    __slots__ = ("_header", "_partial", "data_left", "data_stream")

    def __init__(self) -> None:
        self._partial = bytearray()  # of a header, or of the payload that belongs to _header
        self._header: tuple[int, int, int] | None = None  # of a frame that is not DATA
        self.data_left = 0
        self.data_stream = 0

    def skip_data(self, n_bytes: int) -> None:
        """Note that the next ``n_bytes`` of the DATA frame were taken another way."""
        assert 0 < n_bytes <= self.data_left
        self.data_left -= n_bytes

    def feed(self, data: memoryview) -> Iterator[Frame]:
        """Yield (kind, stream id, payload) for what ``data`` completes.

        DATA payloads are views of ``data``: use them before asking for the next.

        Raises:
            MalformedMessage, LimitExceeded: no frame of ours; nothing more can be read.
        """
        position = 0
        end = len(data)
        while position < end:
            if self.data_left:
                piece = data[position : position + self.data_left]
                position += len(piece)
                self.data_left -= len(piece)
                yield FrameKind.DATA, self.data_stream, piece
            elif self._header is None:
                position, is_complete = self._feed_header(data, position)
                if is_complete:
                    yield self._complete()
            else:
                position = self._collect(data, position, self._header[2])
                if len(self._partial) == self._header[2]:
                    yield self._complete()

    def _feed_header(self, data: memoryview, position: int) -> tuple[int, bool]:
        """Read a header, or as much of it as is there.

        Return the position behind it, and whether it is a whole frame by itself.
        """
        if self._partial or len(data) - position < FRAME_HEADER_BYTES:
            position = self._collect(data, position, FRAME_HEADER_BYTES)
            if len(self._partial) < FRAME_HEADER_BYTES:
                return position, False
            header = FRAME_HEADER.unpack(self._partial)
            self._partial.clear()
        else:
            header = FRAME_HEADER.unpack_from(data, position)
            position += FRAME_HEADER_BYTES
        check_header(*header)
        if header[0] == FrameKind.DATA:
            _, self.data_stream, self.data_left = header
            return position, False
        self._header = header
        return position, header[2] == 0

    def _collect(self, data: memoryview, position: int, wanted: int) -> int:
        """Add to the partial bytes until they are ``wanted``; return the position behind them."""
        piece = data[position : position + wanted - len(self._partial)]
        self._partial += piece
        return position + len(piece)

    def _complete(self) -> Frame:
        assert self._header is not None
        kind, stream_id, _ = self._header
        payload = bytes(self._partial)
        self._partial.clear()
        self._header = None
        return kind, stream_id, payload
