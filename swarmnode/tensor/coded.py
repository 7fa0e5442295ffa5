"""A long vector as one run of bytes: the payloads of its chunks, one after the other.

Chunks of CODEC_CHUNK_ELEMS keep what is encoded and decoded in the cache, and let a caller do
something else in between. Both sides know the number of elements, so no lengths are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from swarmnode import limits
from swarmnode.tensor.codec import Codec
from swarmnode.tensor.layout import chunks

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FLOAT32_BYTES = 4

_Part = tuple[memoryview, memoryview]


def coded_bytes(codec: Codec, numel: int) -> int:
    """Return the size of ``numel`` elements in bytes."""
    return sum(codec.payload_bytes(end - begin) for begin, end in _chunks(numel))


def parts(codec: Codec, data: Buffer, values: Buffer) -> Iterator[_Part]:
    """Yield what belongs together of both: the payload of a chunk, and its float32.

    Args:
        data: exactly ``coded_bytes(codec, numel)`` bytes.
        values: contiguous float32 [numel].
    """
    coded, floats = memoryview(data).cast("B"), memoryview(values).cast("B")
    numel, at = floats.nbytes // _FLOAT32_BYTES, 0
    for begin, end in _chunks(numel):
        size = codec.payload_bytes(end - begin)
        yield coded[at : at + size], floats[begin * _FLOAT32_BYTES : end * _FLOAT32_BYTES]
        at += size


def sizes(codec: Codec, data: Buffer, numel: int) -> Iterator[tuple[memoryview, int]]:
    """Yield the payload of each chunk, and how many elements it has."""
    coded, at = memoryview(data).cast("B"), 0
    for begin, end in _chunks(numel):
        size = codec.payload_bytes(end - begin)
        yield coded[at : at + size], end - begin
        at += size


def kept_positions(codec: Codec, data: Buffer, numel: int, elems_max: int) -> frozenset[int]:
    """Return which of the first elements of a message are not 0, up to ``elems_max``.

    Cost: one chunk is decoded.
    """
    payload, n_elems = next(sizes(codec, data, numel))
    values = memoryview(bytearray(n_elems * _FLOAT32_BYTES))
    codec.decode(payload, values)
    return frozenset(i for i, value in enumerate(values.cast("f")[:elems_max]) if value)


def _chunks(numel: int) -> Iterator[tuple[int, int]]:
    return chunks(numel, limits.CODEC_CHUNK_ELEMS)
