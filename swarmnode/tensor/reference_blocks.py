"""What whole blocks are made into, in numpy; see :mod:`swarmnode.tensor.reference`.

| class | codecs | scale | code |
|---|---|---|---|
| Plain | RAW32, BF16 | none | the value itself, or its upper half |
| Integers | Q8B64, Q4B64 | amax / levels, rounded up | round(value / scale) |
| Powers | E3M0 | amax | sign and power of two |
| Signs | SIGN64 | mean magnitude | sign |
| SignsAndSizes | Q2B64 | mean magnitude | sign, and one of two sizes |
| Trits | T3B320 | larger level, of the root mean square | zero or a sign; five in a byte |
| Largest | TK4 | amax / levels, rounded up | positions and integers of the largest |
| TwoSizes | TK2 | amax / levels, rounded up | a table; positions, sizes and signs of the largest |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from swarmnode.tensor.formats import CodecId, Format, Verdict
from swarmnode.tensor.reference_numbers import (
    ABS_MASK,
    HALF,
    HALF_BITS,
    Q4_OFFSET,
    bf16_values,
    counted,
    integer_codes,
    integer_scale_bits,
    mean_scale_bits,
    nibbles_check,
    nibbles_packed,
    nibbles_unpacked,
    rms_scale_bits,
    rounded_to_bf16,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bits = NDArray[np.uint32]
    Bytes = NDArray[np.uint8]

_INFINITY_BITS = 0x7F800000
_INVALID_Q8_BYTE = 0x80
_POWERS_SCALE_BITS_MIN = np.uint32(0x08800000)  # 2**-110: no denormal has a level then
_POWERS_FACTOR = np.float32(2.0**7.5)  # moves the middle between two powers, in log2, to a power
_EXPONENT_BITS = np.uint32(23)
_EXPONENT_BIAS = 127
_POWERS = np.array([0.0, *(2.0**e for e in range(-6, 1))], dtype=np.float32)
# Four levels with the least square error for a Gaussian, in units of its mean magnitude: J. Max,
# "Quantizing for minimum distortion", 1960; S. Lloyd, "Least squares quantization in PCM", 1982.
_SIZE_THRESHOLD = np.float32(float.fromhex("0x1.3af4fp+0"))  # 1.2303
_SIZES = np.array([float.fromhex("0x1.22824p-1"), float.fromhex("0x1.e4817p+0")], np.float32)
_TRIT_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)[:, None]
_TRIT_CODES = 243
_TRITS = np.array([0.0, 1.0, -1.0], dtype=np.float32)
_POSITION_BITS = 12
_TABLE_BYTES = 4  # two levels of 16 bits
_TABLE_ROUNDS = 2  # of Lloyd, after the mean


class BlockCodec(Protocol):
    """One way to write whole blocks."""

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:
        """Return scale bits [n_blocks] and codes [n_blocks, code_bytes] of finite blocks."""

    def check(self, codes: Bytes) -> Verdict:
        """Say whether an encoder could have written these codes."""

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        """Whether the elements from ``n_used`` on are zero; codes: uint8 [1, code_bytes]."""

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        """Return the values, [n_blocks, block_elems]; all rules are kept."""


@dataclass(frozen=True, slots=True)
class Plain:
    """RAW32 and BF16. BF16 rounds to nearest even; what would be infinite becomes the largest."""

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:
        bits = blocks.view(np.uint32)
        if self.fmt.code_bytes == 2:
            sign = bits >> HALF_BITS & np.uint32(0x8000)
            bits = (rounded_to_bf16(amax_bits) | sign[:, 0]).astype("<u2")
        return np.zeros(0, dtype=np.uint32), bits.view(np.uint8).reshape(-1, self.fmt.code_bytes)

    def check(self, codes: Bytes) -> Verdict:
        magnitudes = self._bits(codes) & ABS_MASK
        return Verdict.INVALID_VALUE if (magnitudes >= _INFINITY_BITS).any() else Verdict.VALID

    def ends_at(self, codes: Bytes, n_used: int) -> bool:  # noqa: ARG002
        return True  # blocks of one element are whole

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:  # noqa: ARG002
        return self._bits(codes).view(np.float32)

    def _bits(self, codes: Bytes) -> Bits:
        flat = codes.reshape(-1)
        if self.fmt.code_bytes == 4:
            return flat.view("<u4")
        return flat.view("<u2").astype(np.uint32) << HALF_BITS


@dataclass(frozen=True, slots=True)
class Integers:
    """Q8B64 and Q4B64. Byte t of a Q4B64 block holds elements t and t + 32."""

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:
        scale_bits = integer_scale_bits(self.fmt, amax_bits)
        codes = integer_codes(blocks, scale_bits)
        if self.fmt.levels > 7:
            return scale_bits, codes.view(np.uint8)
        return scale_bits, nibbles_packed((codes + np.int8(Q4_OFFSET)).view(np.uint8), 64)

    def check(self, codes: Bytes) -> Verdict:
        if self.fmt.levels > 7:
            is_invalid = bool((codes == _INVALID_Q8_BYTE).any())
            return Verdict.INVALID_CODE if is_invalid else Verdict.VALID
        return nibbles_check(codes)

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        return not self._codes(codes).reshape(-1)[n_used:].any()

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        return self._codes(codes).astype(np.float32) * bf16_values(scale_bits)[:, None]

    def _codes(self, codes: Bytes) -> NDArray[np.int8]:
        if self.fmt.levels > 7:
            return codes.view(np.int8)
        return nibbles_unpacked(codes, 64).view(np.int8) - np.int8(Q4_OFFSET)


@dataclass(frozen=True, slots=True)
class Powers:
    """E3M0: level 1 to 7 is 2**(level - 7) of the scale; nibbles lie as those of Q4B64."""

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:
        scale_bits = np.where(amax_bits < _POWERS_SCALE_BITS_MIN, np.uint32(0), amax_bits)
        inverse = np.zeros(len(blocks), dtype=np.float32)
        np.divide(_POWERS_FACTOR, scale_bits.view(np.float32), out=inverse, where=scale_bits != 0)
        with np.errstate(under="ignore"):
            bits = (blocks * inverse[:, None]).view(np.uint32)
        exponents = ((bits & ABS_MASK) >> _EXPONENT_BITS).astype(np.int32)
        levels = np.maximum(exponents - _EXPONENT_BIAS, 0).astype(np.uint8)
        is_negative = (bits > ABS_MASK) & (levels > 0)
        nibbles = levels | np.where(is_negative, np.uint8(0), np.uint8(Q4_OFFSET))
        return scale_bits, nibbles_packed(nibbles, 64)

    def check(self, codes: Bytes) -> Verdict:
        return nibbles_check(codes)

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        padding = nibbles_unpacked(codes, 64).reshape(-1)[n_used:]
        return bool((padding == Q4_OFFSET).all())

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        values = np.concatenate((-_POWERS, _POWERS))[nibbles_unpacked(codes, 64)]
        scaled = values.reshape(-1, self.fmt.block_elems) * scale_bits.view(np.float32)[:, None]
        return scaled.astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class Signs:
    """SIGN64: bit i is the sign of element i."""

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:  # noqa: ARG002
        bits = blocks.view(np.uint32)
        scale_bits = mean_scale_bits(self.fmt, bits & ABS_MASK)
        return scale_bits, np.packbits(bits > ABS_MASK, axis=1, bitorder="little")

    def check(self, codes: Bytes) -> Verdict:  # noqa: ARG002
        return Verdict.VALID  # every bit is a sign

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        return not np.unpackbits(codes, bitorder="little")[n_used:].any()

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        signs = np.unpackbits(codes, axis=1, bitorder="little").astype(np.uint32)
        bits = signs << np.uint32(31) | (scale_bits << HALF_BITS)[:, None]
        return bits.view(np.float32)


@dataclass(frozen=True, slots=True)
class SignsAndSizes:
    """Q2B64: the signs of a block as those of SIGN64, then which of its elements are large.

    Magnitudes are compared as integers, which order them as numbers and flush no denormals.
    """

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:  # noqa: ARG002
        bits = blocks.view(np.uint32)
        magnitudes = bits & ABS_MASK
        scale_bits = mean_scale_bits(self.fmt, magnitudes)
        thresholds = (_SIZE_THRESHOLD * bf16_values(scale_bits)).view(np.uint32)
        planes = (bits > ABS_MASK, magnitudes > thresholds[:, None])
        return scale_bits, np.packbits(np.concatenate(planes, axis=1), axis=1, bitorder="little")

    def check(self, codes: Bytes) -> Verdict:  # noqa: ARG002
        return Verdict.VALID  # every two bits are a sign and a size

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        planes = np.unpackbits(codes, bitorder="little").reshape(2, self.fmt.block_elems)
        return not planes[:, n_used:].any()

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        planes = np.unpackbits(codes, axis=1, bitorder="little").astype(np.bool_)
        is_negative, is_large = np.split(planes, 2, axis=1)
        levels = _SIZES * bf16_values(scale_bits)[:, None]
        sizes = np.where(is_large, levels[:, 1:], levels[:, :1])
        return np.where(is_negative, -sizes, sizes)


@dataclass(frozen=True, slots=True)
class Trits:
    """T3B320: 0 for zero, 1 and 2 for the scale and its negative.

    Byte t of a block has those of elements t, t + 64, ... t + 256 in base 3, the lowest first. An
    element is zero up to half of the scale: up to the middle between the levels.
    """

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:  # noqa: ARG002
        bits = blocks.view(np.uint32)
        magnitudes = counted(bits & ABS_MASK)
        scale_bits = rms_scale_bits(self.fmt, magnitudes)
        thresholds = (HALF * bf16_values(scale_bits)).view(np.uint32)
        one_or_two = np.uint8(1) + (bits > ABS_MASK)
        trits = np.where(magnitudes > thresholds[:, None], one_or_two, np.uint8(0))
        digits = trits.reshape(-1, len(_TRIT_POWERS), self.fmt.code_bytes) * _TRIT_POWERS
        return scale_bits, digits.sum(axis=1, dtype=np.uint8)

    def check(self, codes: Bytes) -> Verdict:
        return Verdict.INVALID_CODE if (codes >= _TRIT_CODES).any() else Verdict.VALID

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        return not self._trits(codes).reshape(-1)[n_used:].any()

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        return _TRITS[self._trits(codes)] * bf16_values(scale_bits)[:, None]

    def _trits(self, codes: Bytes) -> Bytes:
        trits: Bytes = codes[:, None] // _TRIT_POWERS % np.uint8(3)
        return trits.reshape(len(codes), self.fmt.block_elems)


@dataclass(frozen=True, slots=True)
class Largest:
    """TK4: positions of 12 bits, two in three bytes, then nibbles; byte t has entries t, t + k/2.

    Of equal magnitudes the first ones are kept. The rest of a tile decodes to zero.
    """

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:
        positions = _largest(blocks.view(np.uint32) & ABS_MASK, self.fmt.kept_elems)
        scale_bits = integer_scale_bits(self.fmt, amax_bits)
        kept = np.take_along_axis(blocks, positions, axis=1)
        nibbles = (integer_codes(kept, scale_bits) + np.int8(Q4_OFFSET)).view(np.uint8)
        packed = nibbles_packed(nibbles, self.fmt.kept_elems)
        return scale_bits, np.concatenate((_positions_packed(positions), packed), axis=1)

    def check(self, codes: Bytes) -> Verdict:
        positions, nibbles = self._entries(codes)
        if (nibbles == 0).any():
            return Verdict.INVALID_CODE
        is_ascending = (np.diff(positions, axis=1) > 0).all()
        return Verdict.VALID if is_ascending else Verdict.INVALID_POSITION

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        positions, nibbles = self._entries(codes)
        return bool((nibbles[positions >= n_used] == Q4_OFFSET).all())

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        positions, nibbles = self._entries(codes)
        kept = (nibbles.view(np.int8) - np.int8(Q4_OFFSET)).astype(np.float32)
        blocks = np.zeros((len(codes), self.fmt.block_elems), dtype=np.float32)
        np.put_along_axis(blocks, positions, kept * bf16_values(scale_bits)[:, None], axis=1)
        return blocks

    def _entries(self, codes: Bytes) -> tuple[NDArray[np.int64], Bytes]:
        """Return positions and nibbles, both [n_blocks, kept_elems]."""
        position_bytes = self.fmt.kept_elems * _POSITION_BITS // 8
        triples = codes[:, :position_bytes].reshape(-1, 3).astype(np.int64)
        pairs = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
        positions = np.stack((pairs & 0xFFF, pairs >> _POSITION_BITS), axis=-1)
        nibbles = nibbles_unpacked(codes[:, position_bytes:], self.fmt.kept_elems)
        return positions.reshape(len(codes), self.fmt.kept_elems), nibbles


@dataclass(frozen=True, slots=True)
class TwoSizes:
    """TK2: a table of two levels, low bits and high bits of positions, then two bits an entry.

    Positions are in the form of Elias and Fano: the low bits of entry i as they are, and bit
    (position >> low_bits) + i of the high ones set. Two bits: whether it has the larger level, and
    whether it is negative.
    """

    fmt: Format

    def quantize(self, blocks: Floats, amax_bits: Bits) -> tuple[Bits, Bytes]:
        positions = _largest(blocks.view(np.uint32) & ABS_MASK, self.fmt.kept_elems)
        scale_bits = integer_scale_bits(self.fmt, amax_bits)
        kept = np.take_along_axis(blocks, positions, axis=1)
        table, is_large = _two_levels(_magnitudes(kept, scale_bits, self.fmt.levels))
        is_negative = kept.view(np.uint32) > ABS_MASK
        pairs = np.stack((is_large, is_negative), axis=-1).reshape(len(blocks), 2 * kept.shape[1])
        planes = (
            table.astype("<u2").view(np.uint8),
            self._packed(positions),
            np.packbits(pairs, axis=1, bitorder="little"),
        )
        return scale_bits, np.concatenate(planes, axis=1)

    def check(self, codes: Bytes) -> Verdict:
        table = self._table(codes)
        if (table[:, 0] > table[:, 1]).any() or (table[:, 1] > self.fmt.levels).any():
            return Verdict.INVALID_CODE
        high = self._high_bits(codes)
        if (high.sum(axis=1) != self.fmt.kept_elems).any():
            return Verdict.INVALID_POSITION
        positions = self._positions(codes)
        is_ascending = (np.diff(positions, axis=1) > 0).all()
        is_inside = (positions[:, -1] < self.fmt.block_elems).all()
        return Verdict.VALID if is_ascending and is_inside else Verdict.INVALID_POSITION

    def ends_at(self, codes: Bytes, n_used: int) -> bool:
        is_large, is_negative = self._pairs(codes)
        return not (is_large | is_negative)[self._positions(codes) >= n_used].any()

    def dequantize(self, scale_bits: Bits, codes: Bytes) -> Floats:
        is_large, is_negative = self._pairs(codes)
        table = self._table(codes).astype(np.float32) * bf16_values(scale_bits)[:, None]
        sizes = np.where(is_large, table[:, 1:], table[:, :1])
        blocks = np.zeros((len(codes), self.fmt.block_elems), dtype=np.float32)
        values = np.where(is_negative, -sizes, sizes)
        np.put_along_axis(blocks, self._positions(codes), values, axis=1)
        return blocks

    @property
    def _high_at(self) -> int:
        return _TABLE_BYTES + self.fmt.kept_elems * self.fmt.low_bits // 8

    @property
    def _pairs_at(self) -> int:
        return self.fmt.code_bytes - self.fmt.kept_elems // 4

    def _packed(self, positions: NDArray[np.int64]) -> Bytes:
        n_blocks, n_kept = positions.shape
        shifts = np.arange(self.fmt.low_bits)
        bits = positions[..., None] >> shifts & 1
        low = bits.reshape(n_blocks, n_kept * self.fmt.low_bits).astype(np.uint8)
        high = np.zeros((n_blocks, n_kept + (self.fmt.block_elems >> self.fmt.low_bits)), np.uint8)
        np.put_along_axis(high, (positions >> self.fmt.low_bits) + np.arange(n_kept), 1, axis=1)
        return np.packbits(np.concatenate((low, high), axis=1), axis=1, bitorder="little")

    def _table(self, codes: Bytes) -> NDArray[np.int64]:
        """Return both levels of each block, [n_blocks, 2]."""
        raw = np.ascontiguousarray(codes[:, :_TABLE_BYTES])
        return raw.view("<u2").astype(np.int64)

    def _high_bits(self, codes: Bytes) -> Bytes:
        raw = codes[:, self._high_at : self._pairs_at]
        return np.unpackbits(raw, axis=1, bitorder="little")

    def _positions(self, codes: Bytes) -> NDArray[np.int64]:
        """Return [n_blocks, kept_elems] of codes with as many high bits."""
        n_kept = self.fmt.kept_elems
        raw = np.unpackbits(codes[:, _TABLE_BYTES : self._high_at], axis=1, bitorder="little")
        low = raw.reshape(len(codes), n_kept, self.fmt.low_bits).astype(np.int64)
        high = self._high_bits(codes).nonzero()[1].reshape(len(codes), n_kept) - np.arange(n_kept)
        positions: NDArray[np.int64] = (low << np.arange(self.fmt.low_bits)).sum(axis=2)
        return positions + (high << self.fmt.low_bits)

    def _pairs(self, codes: Bytes) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which entries have the larger level, and which are negative."""
        bits = np.unpackbits(codes[:, self._pairs_at :], axis=1, bitorder="little")
        pairs = bits.reshape(len(codes), self.fmt.kept_elems, 2).astype(np.bool_)
        return pairs[..., 0], pairs[..., 1]


_BLOCK_CODECS: Mapping[CodecId, Callable[[Format], BlockCodec]] = {
    CodecId.RAW32: Plain,
    CodecId.BF16: Plain,
    CodecId.Q8B64: Integers,
    CodecId.Q4B64: Integers,
    CodecId.E3M0: Powers,
    CodecId.Q2B64: SignsAndSizes,
    CodecId.T3B320: Trits,
    CodecId.SIGN64: Signs,
    CodecId.TK4: Largest,
    CodecId.TK2: TwoSizes,
}


def block_codec(fmt: Format) -> BlockCodec:
    """Return what writes and reads the blocks of a format."""
    return _BLOCK_CODECS[fmt.codec](fmt)


def _magnitudes(kept: Floats, scale_bits: Bits, levels: int) -> NDArray[np.int64]:
    """Return |kept| in units of the scale, [n_blocks, kept_elems], halves rounded up."""
    inverse = np.zeros(len(kept), dtype=np.float32)
    np.divide(np.float32(1.0), bf16_values(scale_bits), out=inverse, where=scale_bits != 0)
    with np.errstate(under="ignore"):
        t = np.abs(kept) * inverse[:, None]
    sizes: NDArray[np.int64] = np.minimum(np.trunc(t + HALF), np.float32(levels)).astype(np.int64)
    return sizes


def _two_levels(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return two levels for each row, and which of its sizes have the larger one.

    They are parted at their mean first, then _TABLE_ROUNDS times in the middle between the means
    of both parts: Lloyd's algorithm, in integers.
    """
    n = sizes.shape[1]
    is_large = n * sizes > sizes.sum(axis=1, keepdims=True)
    for _ in range(_TABLE_ROUNDS):
        is_large = 2 * sizes > _part_means(sizes, is_large).sum(axis=1, keepdims=True)
    return _part_means(sizes, is_large), is_large


def _part_means(sizes: NDArray[np.int64], is_large: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rounded means of the small and of the large ones of each row, [n_blocks, 2].

    The smallest is never among the large ones; if nothing is, the larger mean is the smaller one.
    """
    n_large = is_large.sum(axis=1)
    n_small = sizes.shape[1] - n_large
    large = (sizes * is_large).sum(axis=1)
    small = (2 * (sizes.sum(axis=1) - large) + n_small) // (2 * n_small)
    n_divided = np.maximum(n_large, 1)
    larger = np.where(n_large > 0, (2 * large + n_divided) // (2 * n_divided), small)
    means: NDArray[np.int64] = np.stack((small, larger), axis=1)
    return means


def _largest(magnitudes: Bits, kept_elems: int) -> NDArray[np.int64]:
    """Return where the largest of each row are, ascending; of equals, the first ones."""
    smallest_kept = np.partition(magnitudes, -kept_elems, axis=1)[:, -kept_elems, None]
    is_larger = magnitudes > smallest_kept
    is_tie = magnitudes == smallest_kept
    ties_left = kept_elems - is_larger.sum(axis=1, keepdims=True)
    is_kept = is_larger | (is_tie & (is_tie.cumsum(axis=1) <= ties_left))
    positions: NDArray[np.int64] = is_kept.nonzero()[1].reshape(len(magnitudes), kept_elems)
    return positions


def _positions_packed(positions: NDArray[np.int64]) -> Bytes:
    pairs = positions[:, ::2] | positions[:, 1::2] << _POSITION_BITS
    triples = np.stack((pairs, pairs >> 8, pairs >> 16), axis=-1) & 0xFF
    return triples.astype(np.uint8).reshape(len(positions), positions.shape[1] // 2 * 3)
