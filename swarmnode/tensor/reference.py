"""The codecs in numpy: the specification in its shortest form, and the way without a C compiler.

Same functions, same bytes and same floats as the C extension, ten to thirty
times slower. All arithmetic is float32, rounded to nearest even at every
step; nothing here may be fused or widened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swarmnode.tensor.formats import BLOCK_ELEMS, SCALE_BYTES, Format, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

_ABS_MASK = np.uint32(0x7FFFFFFF)
_INFINITY_BITS = 0x7F800000
# Below this many levels a block is zero, so that no denormal ever becomes a code.
_SCALE_MIN = np.float32(2.0**-124)
_HALF = np.float32(0.5)
_Q4_OFFSET = 8
_INVALID_Q8_BYTE = 0x80
_REFUSED_BYTE = 0xFF


def encode(fmt: Format, values: Buffer, payload: Buffer) -> int:
    """Quantize; return -1, or the index of the first block with a NaN or infinity.

    Then the whole payload is 0xFF, which no decoder accepts.
    """
    flat = _floats(values)
    out = _bytes(payload)
    blocks = np.zeros((-(-flat.size // BLOCK_ELEMS), BLOCK_ELEMS), dtype=np.float32)
    blocks.reshape(-1)[: flat.size] = flat
    amax_bits = (blocks.view(np.uint32) & _ABS_MASK).max(axis=1)
    refused = np.flatnonzero(amax_bits >= _INFINITY_BITS)
    if refused.size:
        out[:] = _REFUSED_BYTE
        return int(refused[0])
    scale_bits = _scale_bits(fmt, amax_bits)
    scales = _scales_from_bits(scale_bits)
    inverse = np.zeros_like(scales)
    np.divide(np.float32(1.0), scales, out=inverse, where=scale_bits != 0)
    with np.errstate(all="ignore"):
        t = blocks * inverse[:, None]
        codes = np.trunc(t + np.copysign(_HALF, t)).astype(np.int8)
    n_scale_bytes = len(blocks) * SCALE_BYTES
    out[:n_scale_bytes] = scale_bits.astype("<u2").view(np.uint8)
    out[n_scale_bytes:] = _packed(fmt, codes).reshape(-1)
    return -1


def validate(fmt: Format, payload: Buffer, n_elems: int) -> Verdict:
    """Say whether a foreign payload of ``n_elems`` elements keeps every rule."""
    scale_bits, packed = _planes(fmt, payload)
    if (scale_bits > fmt.scale_bits_max).any():
        return Verdict.INVALID_SCALE
    if fmt.bits == 8:
        invalid = packed == _INVALID_Q8_BYTE
    else:
        invalid = ((packed & 0x0F) == 0) | ((packed >> 4) == 0)
    if invalid.any():
        return Verdict.INVALID_CODE
    if _unpacked(fmt, packed[-1:]).reshape(-1)[n_elems % BLOCK_ELEMS or BLOCK_ELEMS :].any():
        return Verdict.INVALID_PADDING
    return Verdict.VALID


def decode(fmt: Format, payload: Buffer, out: Buffer) -> Verdict:
    """Write ``code * scale`` for every element of ``out``, or nothing if the payload is invalid."""
    target = _floats(out)
    verdict = validate(fmt, payload, target.size)
    if verdict is Verdict.VALID:
        target[:] = _decoded(fmt, payload, target.size)
    return verdict


def merge(
    fmt: Format, payload: Buffer, target: Buffer, own_weight: float, peer_weight: float
) -> Verdict:
    """Set target to ``own_weight * target + peer_weight * decoded``: two products, then the sum."""
    own = _floats(target)
    verdict = validate(fmt, payload, own.size)
    if verdict is Verdict.VALID:
        with np.errstate(all="ignore"):
            own_part = np.float32(own_weight) * own
            peer_part = np.float32(peer_weight) * _decoded(fmt, payload, own.size)
            own[:] = own_part + peer_part
    return verdict


def _floats(buffer: Buffer) -> Floats:
    return np.frombuffer(memoryview(buffer), dtype=np.dtype("<f4"))


def _bytes(buffer: Buffer) -> Bytes:
    return np.frombuffer(memoryview(buffer), dtype=np.uint8)


def _scale_bits(fmt: Format, amax_bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return amax / levels rounded up to bfloat16, so that no code exceeds ``levels``."""
    with np.errstate(under="ignore"):
        exact = amax_bits.view(np.float32) / np.float32(fmt.levels)
    rounded_up = (exact.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)
    bits: NDArray[np.uint32] = np.minimum(rounded_up, np.uint32(fmt.scale_bits_max))
    bits[exact < _SCALE_MIN] = 0
    return bits


def _scales_from_bits(scale_bits: NDArray[np.uint32]) -> Floats:
    return (scale_bits << np.uint32(16)).view(np.float32)


def _planes(fmt: Format, payload: Buffer) -> tuple[NDArray[np.uint32], Bytes]:
    """Return scale bits [n_blocks] and codes [n_blocks, bytes of a block]."""
    raw = _bytes(payload)
    block_code_bytes = BLOCK_ELEMS * fmt.bits // 8
    n_blocks = raw.size // (SCALE_BYTES + block_code_bytes)
    scales, codes = raw[: n_blocks * SCALE_BYTES], raw[n_blocks * SCALE_BYTES :]
    return scales.view("<u2").astype(np.uint32), codes.reshape(n_blocks, block_code_bytes)


def _packed(fmt: Format, codes: NDArray[np.int8]) -> Bytes:
    """Codes [n_blocks, 64] to bytes: byte t of a Q4B64 block holds elements t and t + 32."""
    if fmt.bits == 8:
        return codes.view(np.uint8)
    nibbles = (codes + np.int8(_Q4_OFFSET)).view(np.uint8)
    return nibbles[:, :32] | nibbles[:, 32:] << np.uint8(4)


def _unpacked(fmt: Format, packed: Bytes) -> NDArray[np.int8]:
    """The opposite of :func:`_packed`."""
    if fmt.bits == 8:
        return packed.view(np.int8)
    nibbles = np.concatenate((packed & 0x0F, packed >> 4), axis=1)
    return nibbles.view(np.int8) - np.int8(_Q4_OFFSET)


def _decoded(fmt: Format, payload: Buffer, n_elems: int) -> Floats:
    scale_bits, packed = _planes(fmt, payload)
    scales = _scales_from_bits(scale_bits)
    codes = _unpacked(fmt, packed).astype(np.float32)
    with np.errstate(under="ignore"):
        values: Floats = (codes * scales[:, None]).reshape(-1)[:n_elems]
    return values
