"""Scales, integers and nibbles, which the blocks of several codecs are made of, in numpy.

See :mod:`swarmnode.tensor.reference_blocks`. All arithmetic is float32, rounded to nearest even at
every step, but for sums of squares, which are float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swarmnode.tensor.formats import Format, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bits = NDArray[np.uint32]
    Bytes = NDArray[np.uint8]

ABS_MASK = np.uint32(0x7FFFFFFF)
HALF_BITS = np.uint32(16)
HALF = np.float32(0.5)
Q4_OFFSET = 8
_BF16_MAX = np.uint32(0x7F7F)
# Below this many levels a block is zero, so that no denormal ever becomes a code.
_SCALE_MIN = np.float32(2.0**-124)
_COUNTED_BITS_MIN = np.uint32(0x0D800000)  # 2**-100
_LANES = 8
# The outer two of three levels with the least square error for a Gaussian, in units of its root
# mean square: J. Max, "Quantizing for minimum distortion", 1960; S. Lloyd, "Least squares
# quantization in PCM", 1982.
_TRIT_LEVEL = np.float32(float.fromhex("0x1.39587cp+0"))  # 1.2240


def counted(magnitudes: Bits) -> Bits:
    """Return magnitudes, where smaller than 2**-100 zero: too small for sums without denormals."""
    return np.where(magnitudes < _COUNTED_BITS_MIN, np.uint32(0), magnitudes)


def rounded_to_bf16(bits: Bits) -> Bits:
    """Round magnitudes to nearest even; what would be infinite becomes the largest."""
    is_odd = bits >> HALF_BITS & np.uint32(1)
    rounded: Bits = np.minimum((bits + np.uint32(0x7FFF) + is_odd) >> HALF_BITS, _BF16_MAX)
    return rounded


def mean_scale_bits(fmt: Format, magnitudes: Bits) -> Bits:
    """Return the mean of each block's magnitudes, [n_blocks, 64], in bfloat16.

    Terms are divided first, so that no sum overflows; sums are in the order of the contract.
    """
    terms = counted(magnitudes).view(np.float32) * np.float32(2.0**-6)
    lanes = terms[:, :16] + terms[:, 16:32] + terms[:, 32:48] + terms[:, 48:]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    means = np.ascontiguousarray(lanes[:, 0]).view(np.uint32)
    bits: Bits = np.minimum(rounded_to_bf16(means), np.uint32(fmt.scale_bits_max))
    return bits


def rms_scale_bits(fmt: Format, magnitudes: Bits) -> Bits:
    """Return the larger level of each block of magnitudes, [n_blocks, block_elems], in bfloat16.

    It is ``_TRIT_LEVEL`` times their root mean square. Squares are exact in float64; partial sum i
    of eight has those of elements i, i + 8, i + 16 ..., in this order, and so are they summed.
    """
    squares = magnitudes.view(np.float32).astype(np.float64) ** 2
    rows = squares.reshape(len(magnitudes), fmt.block_elems // _LANES, _LANES)
    lanes = np.zeros((len(magnitudes), _LANES))
    for row in range(rows.shape[1]):
        lanes += rows[:, row]
    sums = np.add.accumulate(lanes, axis=1)[:, -1]
    rms = np.sqrt(sums / fmt.block_elems).astype(np.float32)
    with np.errstate(over="ignore"):  # what would be infinite becomes the largest
        levels = _TRIT_LEVEL * rms
    return rounded_to_bf16(levels.view(np.uint32))


def bf16_values(scale_bits: Bits) -> Floats:
    return (scale_bits << HALF_BITS).view(np.float32)


def integer_scale_bits(fmt: Format, amax_bits: Bits) -> Bits:
    """Return amax / levels rounded up to bfloat16, so that no code exceeds ``levels``."""
    with np.errstate(under="ignore"):
        exact = amax_bits.view(np.float32) / np.float32(fmt.levels)
    rounded_up = (exact.view(np.uint32) + np.uint32(0xFFFF)) >> HALF_BITS
    bits: Bits = np.minimum(rounded_up, np.uint32(fmt.scale_bits_max))
    bits[exact < _SCALE_MIN] = 0
    return bits


def integer_codes(blocks: Floats, scale_bits: Bits) -> NDArray[np.int8]:
    inverse = np.zeros(len(blocks), dtype=np.float32)
    np.divide(np.float32(1.0), bf16_values(scale_bits), out=inverse, where=scale_bits != 0)
    with np.errstate(all="ignore"):
        t = blocks * inverse[:, None]
        codes: NDArray[np.int8] = np.trunc(t + np.copysign(HALF, t)).astype(np.int8)
    return codes


def nibbles_packed(nibbles: Bytes, group_elems: int) -> Bytes:
    """Nibbles [n_blocks, n] to bytes [n_blocks, n / 2]: t and t + half of each group share one."""
    groups = nibbles.reshape(len(nibbles), nibbles.shape[1] // group_elems, group_elems)
    half = group_elems // 2
    packed: Bytes = groups[..., :half] | groups[..., half:] << np.uint8(4)
    return packed.reshape(len(nibbles), nibbles.shape[1] // 2)


def nibbles_unpacked(packed: Bytes, group_elems: int) -> Bytes:
    """The opposite of :func:`nibbles_packed`."""
    n_blocks, n_bytes = packed.shape
    groups = packed.reshape(n_blocks, 2 * n_bytes // group_elems, group_elems // 2)
    nibbles = np.concatenate((groups & np.uint8(0x0F), groups >> np.uint8(4)), axis=-1)
    return nibbles.reshape(n_blocks, 2 * n_bytes)


def nibbles_check(packed: Bytes) -> Verdict:
    is_invalid = bool((((packed & 0x0F) == 0) | ((packed >> 4) == 0)).any())
    return Verdict.INVALID_CODE if is_invalid else Verdict.VALID
