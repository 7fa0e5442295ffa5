"""What the codecs look like on the wire, apart from the arithmetic (proto/codecs.md).

The payload of n elements is one scale for each block of ``block_elems``, then
the codes of all blocks. Elements that fill up the last block are zero. RAW32
and BF16 have blocks of one element and no scales, so nothing to fill up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

# TK4 and TK2 keep so many of each tile unless their names say otherwise: TK4 takes a quarter of a
# bit an element then.
KEPT_ELEMS_DEFAULT = 64
KEPT_ELEMS_MAX = 2048
_TILE_ELEMS = 4096
_TOP_K_NAME = re.compile(r"(TK[24])K([1-9][0-9]{0,3})")
# Of TK2, so that each of its planes ends at a byte.
_TK2_KEPT_STEP = 8


class Verdict(IntEnum):
    """What validation says of a payload; the numbers are those of ``native/include/sn_codec.h``."""

    VALID = 0
    INVALID_SCALE = 1
    INVALID_CODE = 2
    INVALID_PADDING = 3
    INVALID_VALUE = 4
    INVALID_POSITION = 5


class CodecId(IntEnum):
    """The numbers of the codecs in the contract; also those of ``sn_codec.h``."""

    RAW32 = 1
    BF16 = 2
    Q8B64 = 3
    Q4B64 = 4
    E3M0 = 5
    SIGN64 = 6
    TK4 = 7
    TK2 = 8
    RAW64 = 9  # numpy's alone: no kernel of the extension has it
    Q2B64 = 10
    T3B320 = 11


@dataclass(frozen=True, slots=True)
class Format:
    """One codec's shape.

    Attributes:
        name: what manifests and commands call it.
        codec: its number; with ``kept_elems`` all that the kernels need to know.
        block_elems: elements that share a scale; vectors may be cut at multiples of it.
        scale_bytes: of one block: 0, 2 (bfloat16) or 4 (float32).
        code_bytes: of one block.
        scale_bits_max: the largest scale that decodes to finite values only.
        levels: the largest code, where codes are integers; of TK2 the largest entry of its table.
        kept_elems: of each block, where not all are.
        low_bits: of a position, that TK2 writes as they are.
        value_bytes: of each value that is encoded: 4, float32, or 8, float64.
        takes_reference: values can be encoded as the difference to a vector that both sides have.
        needs_error_feedback: the error is as large as the values, so what was not sent must be
            added to what is sent next; only right where every consumer sees every message.
    """

    name: str
    codec: CodecId
    block_elems: int
    scale_bytes: int
    code_bytes: int
    scale_bits_max: int = 0
    levels: int = 0
    kept_elems: int = 0
    low_bits: int = 0
    value_bytes: int = 4
    takes_reference: bool = False
    needs_error_feedback: bool = False

    @property
    def bits_per_elem(self) -> float:
        """Bits on the wire for one element of a whole block, scale included."""
        return 8 * (self.scale_bytes + self.code_bytes) / self.block_elems

    def payload_bytes(self, n_elems: int) -> int:
        """Return the exact size of the payload of ``n_elems`` elements."""
        n_blocks = -(-n_elems // self.block_elems)
        return n_blocks * (self.scale_bytes + self.code_bytes)


def _tk4(name: str, kept_elems: int) -> Format:
    """A position of 12 bits and a code of four for every element that is kept."""
    return Format(
        name,
        CodecId.TK4,
        _TILE_ELEMS,
        scale_bytes=2,
        code_bytes=2 * kept_elems,
        scale_bits_max=0x7E12,
        levels=7,
        kept_elems=kept_elems,
        needs_error_feedback=True,
    )


def _tk2(name: str, kept_elems: int) -> Format:
    """A table of two, low and high bits of the positions, and two bits for each element kept."""
    low_bits = (_TILE_ELEMS // kept_elems).bit_length() - 1
    position_bits = kept_elems * low_bits + kept_elems + (_TILE_ELEMS >> low_bits)
    return Format(
        name,
        CodecId.TK2,
        _TILE_ELEMS,
        scale_bytes=2,
        code_bytes=4 + position_bits // 8 + kept_elems // 4,
        scale_bits_max=0x7800,
        levels=32767,
        kept_elems=kept_elems,
        low_bits=low_bits,
        needs_error_feedback=True,
    )


def _integers(name: str, codec: CodecId, bits: int, scale_bits_max: int) -> Format:
    """Blocks of 64 signed integers; times ``levels`` the largest scale is a finite float32."""
    return Format(
        name,
        codec,
        block_elems=64,
        scale_bytes=2,
        code_bytes=64 * bits // 8,
        scale_bits_max=scale_bits_max,
        levels=2 ** (bits - 1) - 1,
        takes_reference=True,
    )


_E3M0 = Format(
    "E3M0",
    CodecId.E3M0,
    block_elems=256,
    scale_bytes=4,
    code_bytes=128,
    scale_bits_max=0x7F7FFFFF,
    takes_reference=True,
)
_Q2B64 = Format(
    "Q2B64",
    CodecId.Q2B64,
    block_elems=64,
    scale_bytes=2,
    code_bytes=16,
    scale_bits_max=0x7F07,
    takes_reference=True,
)
_T3B320 = Format(
    "T3B320",
    CodecId.T3B320,
    block_elems=320,
    scale_bytes=2,
    code_bytes=64,
    scale_bits_max=0x7F7F,
    takes_reference=True,
)
_SIGN64 = Format(
    "SIGN64",
    CodecId.SIGN64,
    block_elems=64,
    scale_bytes=2,
    code_bytes=8,
    scale_bits_max=0x7F7F,
    needs_error_feedback=True,
)

FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("RAW32", CodecId.RAW32, block_elems=1, scale_bytes=0, code_bytes=4),
        Format("BF16", CodecId.BF16, block_elems=1, scale_bytes=0, code_bytes=2),
        _integers("Q8B64", CodecId.Q8B64, bits=8, scale_bits_max=0x7C01),
        _integers("Q4B64", CodecId.Q4B64, bits=4, scale_bits_max=0x7E12),
        _E3M0,
        _Q2B64,
        _T3B320,
        _SIGN64,
        _tk4("TK4", KEPT_ELEMS_DEFAULT),
        _tk2("TK2", KEPT_ELEMS_DEFAULT),
    )
}
# For models of float64, which has no other; so it is not offered where codecs are chosen.
_RAW64 = Format("RAW64", CodecId.RAW64, block_elems=1, scale_bytes=0, code_bytes=8, value_bytes=8)


def find_format(name: str) -> Format | None:
    """Return the format ``name``, or None if there is none.

    ``TK4Kn`` is TK4 that keeps n of each 4096 elements; n is even, 2 to 2048, and 64 has the one
    name TK4, so that equal codecs have equal names. ``TK2Kn`` likewise, n a multiple of 8.
    """
    if name == _RAW64.name:
        return _RAW64
    if name in FORMATS:
        return FORMATS[name]
    match = _TOP_K_NAME.fullmatch(name)
    if match is None or int(match[2]) in (0, KEPT_ELEMS_DEFAULT):
        return None
    kept_elems = int(match[2])
    make, step = (_tk4, 2) if match[1] == "TK4" else (_tk2, _TK2_KEPT_STEP)
    is_legal = kept_elems % step == 0 and kept_elems <= KEPT_ELEMS_MAX
    return make(name, kept_elems) if is_legal else None
