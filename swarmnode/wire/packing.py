"""Typed records to msgpack bytes and back, with hard limits on the way in.

The unpacker refuses anything larger than ``limits`` allows before a
Python object is built; ``msgspec.convert`` then checks types and ranges.
Unknown fields are ignored (a newer minor version may add some), an unknown
message is refused.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
import msgspec

from swarmnode import limits
from swarmnode.errors import MalformedMessage

RecordT = TypeVar("RecordT")


def encode_record(record: msgspec.Struct) -> bytes:
    """Return the msgpack bytes of a record: a map in field order, so always the same bytes."""
    return _encoder.encode(record)


def _plain_bytes(value: object) -> bytes:
    """A PeerId is bytes with manners; on the wire it is just its bytes."""
    if isinstance(value, bytes):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is no wire type")


# Straight from records: by way of builtins and msgpack it took five to seven times as long.
_encoder = msgspec.msgpack.Encoder(enc_hook=_plain_bytes)


def decode_record(data: bytes | memoryview, record_type: type[RecordT]) -> RecordT:
    """Read one record of ``record_type`` (a Struct or a union of tagged ones).

    Raises:
        MalformedMessage: the bytes are too many, no msgpack, or not of that type.
    """
    if len(data) > limits.MESSAGE_BYTES_MAX:
        raise MalformedMessage(
            f"message of {len(data)} bytes, at most {limits.MESSAGE_BYTES_MAX} are allowed"
        )
    try:
        plain: Any = msgpack.unpackb(
            data,
            strict_map_key=True,
            max_str_len=limits.TEXT_BYTES_MAX,
            max_bin_len=limits.MESSAGE_BYTES_MAX,
            max_array_len=limits.ARRAY_ENTRIES_MAX,
            max_map_len=limits.MAP_ENTRIES_MAX,
            max_ext_len=0,
        )
        return msgspec.convert(plain, record_type, builtin_types=(bytes,))
    except (
        msgpack.exceptions.UnpackException,
        msgspec.ValidationError,
        ValueError,  # msgpack reports trailing bytes, bad UTF-8 and limits this way
        RecursionError,  # nested deeper than the unpacker's own stack
    ) as error:
        raise MalformedMessage(f"expected a {_name(record_type)}: {error}") from error


def _name(record_type: Any) -> str:
    return getattr(record_type, "__name__", str(record_type))
