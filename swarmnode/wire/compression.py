"""Messages of the shared state as they travel: from a size on, compressed with Zstandard.

What a newcomer fetches is many small records with the same keys, names and swarm. Signatures and
hashes do not shrink, all else nearly vanishes. ``swarmnode bench state`` measures it: 100 members
are 448 kB for a newcomer, and 159 kB compressed, for 0.7 ms of CPU on both sides together where
checking the signatures costs a hundred. Format and figures: ``proto/crdt.md``, section 4.

Everything in these messages is known to every member, so lengths give away nothing that an
encrypted session has to hide.
"""

from __future__ import annotations

from typing import Any

import zstandard

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage
from swarmnode.wire import crdt
from swarmnode.wire.packing import decode_record, encode_record

_LEVEL = 1  # 3 saves another half per cent, for 1.4 times the CPU
_MESSAGE: Any = crdt.Message  # msgspec reads unions, which mypy does not know as types
_ENVELOPE: Any = crdt.Envelope


def encode_message(message: crdt.Message) -> bytes:
    """Return what is sent: the plain encoding, or what holds it compressed if that is less."""
    plain = encode_record(message)
    if len(plain) < limits.STATE_COMPRESS_BYTES_MIN:
        return plain
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
    if len(plain) > limits.STATE_EXPANSION_MAX * len(frame):
        return plain  # a reader would take it for an attack
    packed = encode_record(crdt.Compressed(frame))
    return min(plain, packed, key=len)


def decode_message(data: bytes | memoryview) -> crdt.Message:
    """Read what :func:`encode_message` or another implementation wrote.

    Raises:
        MalformedMessage: it is none, or the compressed one inside is none.
        LimitExceeded: it would become too large; found before memory is spent on it.
    """
    message: crdt.Envelope = decode_record(data, _ENVELOPE)
    if isinstance(message, crdt.Compressed):
        unpacked: crdt.Message = decode_record(_decompress(message.frame), _MESSAGE)
        return unpacked
    return message


def _decompress(frame: bytes) -> bytes:
    try:
        _check_header(frame)
        unpacker = zstandard.ZstdDecompressor(max_window_size=limits.MESSAGE_BYTES_MAX)
        # Gives as many bytes as the header says: fewer or more are an error.
        return unpacker.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedMessage(f"expected one whole Zstandard frame: {error}") from error


def _check_header(frame: bytes) -> None:
    """Look at what the frame says of itself: so many bytes would be allocated at once."""
    header = zstandard.get_frame_parameters(frame)
    if header.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        raise MalformedMessage("a Zstandard frame that says its size was expected, it does not")
    allowed_bytes = min(limits.MESSAGE_BYTES_MAX, limits.STATE_EXPANSION_MAX * len(frame))
    if header.content_size > allowed_bytes:
        raise LimitExceeded(
            f"a compressed message of {len(frame)} bytes may become {allowed_bytes}, "
            f"this one says {header.content_size}"
        )
    if header.window_size > limits.MESSAGE_BYTES_MAX:
        raise LimitExceeded(
            f"a Zstandard window of at most {limits.MESSAGE_BYTES_MAX} bytes was expected, "
            f"this one has {header.window_size}"
        )
