"""What the codecs look like on the wire, apart from the arithmetic (proto/codecs.md).

The payload of n elements is ``n_blocks`` = ceil(n / 64) scales of two bytes
(bfloat16, little endian), then the codes of all blocks. Elements that fill up
the last block are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

BLOCK_ELEMS = 64
SCALE_BYTES = 2


class Verdict(IntEnum):
    """What validation says of a payload; the numbers are those of ``native/include/sn_codec.h``."""

    VALID = 0
    INVALID_SCALE = 1
    INVALID_CODE = 2
    INVALID_PADDING = 3


@dataclass(frozen=True, slots=True)
class Format:
    """One codec's shape.

    ``levels`` is the largest code. ``scale_bits_max`` is the largest bfloat16 whose
    product with ``levels`` is a finite float32.
    """

    name: str
    bits: int
    levels: int
    scale_bits_max: int

    @property
    def bits_per_elem(self) -> float:
        """Bits on the wire for one element of a whole block, scale included."""
        return self.bits + 8 * SCALE_BYTES / BLOCK_ELEMS

    def payload_bytes(self, n_elems: int) -> int:
        """Return the exact size of the payload of ``n_elems`` elements."""
        n_blocks = -(-n_elems // BLOCK_ELEMS)
        return n_blocks * (SCALE_BYTES + BLOCK_ELEMS * self.bits // 8)


FORMATS = {
    "Q8B64": Format("Q8B64", bits=8, levels=127, scale_bits_max=0x7C01),
    "Q4B64": Format("Q4B64", bits=4, levels=7, scale_bits_max=0x7E12),
}
