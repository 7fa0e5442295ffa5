"""The codecs in numpy: the specification in its shortest form, and the way without a C compiler.

Same functions, same bytes and same floats as the C extension, ten to thirty
times slower. All arithmetic is float32, rounded to nearest even at every
step; nothing here may be fused or widened. What a block is made into is in
:mod:`swarmnode.tensor.reference_blocks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swarmnode.tensor.formats import Format, Verdict
from swarmnode.tensor.reference_blocks import block_codec
from swarmnode.tensor.reference_numbers import ABS_MASK

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from swarmnode.tensor.reference_blocks import Bits, Bytes, Floats

    Doubles = NDArray[np.float64]

_INFINITY_BITS = 0x7F800000
_FLOAT32_MAX = np.finfo(np.float32).max
_REFUSED_BYTE = 0xFF
_COLUMNS = 8
_PRODUCT_ELEMS = 4096  # of 64 vectors in float64 it takes 2 MB: it stays in the cache


def encode(fmt: Format, values: Buffer, payload: Buffer, reference: Buffer | None) -> int:
    """Quantize; return -1, or the index of the first block with a NaN or infinity.

    Then the whole payload is 0xFF, which no decoder accepts.
    """
    flat = _floats(values)
    if reference is not None:
        with np.errstate(all="ignore"):
            flat = flat - _floats(reference)
    out = _bytes(payload)
    blocks = np.zeros((-(-flat.size // fmt.block_elems), fmt.block_elems), dtype=np.float32)
    blocks.reshape(-1)[: flat.size] = flat
    magnitudes = blocks.view(np.uint32) & ABS_MASK
    amax_bits = magnitudes.max(axis=1) if fmt.block_elems > 1 else magnitudes[:, 0]
    refused = np.flatnonzero(amax_bits >= _INFINITY_BITS)
    if refused.size:
        out[:] = _REFUSED_BYTE
        return int(refused[0])
    scale_bits, codes = block_codec(fmt).quantize(blocks, amax_bits)
    n_scale_bytes = len(blocks) * fmt.scale_bytes
    out[:n_scale_bytes] = scale_bits.astype(f"<u{fmt.scale_bytes or 4}").view(np.uint8)
    out[n_scale_bytes:] = codes.reshape(-1)
    return -1


def validate(fmt: Format, payload: Buffer, n_elems: int) -> Verdict:
    """Say whether a foreign payload of ``n_elems`` elements keeps every rule."""
    scale_bits, codes = _planes(fmt, payload)
    if (scale_bits > fmt.scale_bits_max).any():
        return Verdict.INVALID_SCALE
    blocks = block_codec(fmt)
    verdict = blocks.check(codes)
    n_rest = n_elems % fmt.block_elems
    if verdict is Verdict.VALID and n_rest and not blocks.ends_at(codes[-1:], n_rest):
        return Verdict.INVALID_PADDING
    return verdict


def decode(fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None) -> Verdict:
    """Write every element of ``out``, or nothing if the payload is invalid."""
    target = _floats(out)
    verdict = validate(fmt, payload, target.size)
    if verdict is Verdict.VALID:
        target[:] = _decoded(fmt, payload, reference, target.size)
    return verdict


def decode_measured(
    fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None
) -> tuple[Verdict, float, float]:
    """Decode; return what :func:`largest_and_square_sum` says of ``out``, too, if it is written."""
    verdict = decode(fmt, payload, out, reference)
    if verdict is not Verdict.VALID:
        return verdict, 0.0, 0.0
    return verdict, *largest_and_square_sum(out)


def merge(
    fmt: Format,
    payload: Buffer,
    target: Buffer,
    reference: Buffer | None,
    own_weight: float,
    peer_weight: float,
) -> Verdict:
    """Set target to ``own_weight * target + peer_weight * decoded``: two products, then the sum."""
    own = _floats(target)
    verdict = validate(fmt, payload, own.size)
    if verdict is Verdict.VALID:
        decoded = _decoded(fmt, payload, reference, own.size)
        with np.errstate(all="ignore"):
            own_part = np.float32(own_weight) * own
            peer_part = np.float32(peer_weight) * decoded
            own[:] = own_part + peer_part
    return verdict


def measure_payload(fmt: Format, payload: Buffer, n_elems: int) -> tuple[Verdict, float, float]:
    """Return what :func:`decode_measured` says of a payload, and keep nothing of what it holds."""
    return decode_measured(fmt, payload, np.empty(n_elems, np.float32).data, None)


def mean(
    fmt: Format,
    payloads: tuple[Buffer, ...],
    weights: tuple[float, ...],
    divisor: float,
    n_elems: int,
    out: Buffer,
) -> tuple[Verdict, int]:
    """Encode the sum by weight over ``divisor``; return what :func:`encode` does beside a Verdict.

    Each element takes a product and a sum for each payload in float64, in their order, then one
    division and one rounding to float32.
    """
    verdict = _judged(fmt, payloads, n_elems)
    if verdict is not Verdict.VALID:
        return verdict, -1
    summed = np.zeros(n_elems)
    for payload, weight in zip(payloads, weights, strict=True):
        summed += np.multiply(_decoded(fmt, payload, None, n_elems), weight, dtype=np.float64)
    with np.errstate(all="ignore"):
        values = (summed / divisor).astype(np.float32)
    return verdict, encode(fmt, values.data, out, None)


def products(fmt: Format, payloads: tuple[Buffer, ...], n_elems: int, gram: Buffer) -> Verdict:
    """Add the inner products of what payloads hold, see :func:`add_products`, if all are valid."""
    verdict = _judged(fmt, payloads, n_elems)
    if verdict is Verdict.VALID:
        rows = np.stack([_decoded(fmt, payload, None, n_elems) for payload in payloads])
        add_products(rows, _doubles(gram).reshape(len(rows), len(rows)))
    return verdict


def add_products(rows: Floats | Doubles, gram: Doubles) -> None:
    """Add the inner products of rows [n, m] to the upper triangle of float64 [n, n].

    A block of elements at a time, each summed as numpy does. The same blocks give the same bits on
    every machine: in float64 and in a fixed order, never that of a BLAS. Cost: n² m / 2 products.
    """
    for begin in range(0, rows.shape[1], _PRODUCT_ELEMS):
        # In memory row by row, whatever came: the order of a sum is that of the memory.
        wide = np.ascontiguousarray(rows[:, begin : begin + _PRODUCT_ELEMS], np.float64)
        for number, row in enumerate(wide):
            gram[number, number:] += np.add.reduce(wide[number:] * row, axis=1)


def _judged(fmt: Format, payloads: tuple[Buffer, ...], n_elems: int) -> Verdict:
    verdicts = (validate(fmt, payload, n_elems) for payload in payloads)
    return next((each for each in verdicts if each is not Verdict.VALID), Verdict.VALID)


def largest_and_square_sum(values: Buffer) -> tuple[float, float]:
    """Return the largest absolute value, NaN apart, and the sum of squares of float32.

    Eight columns in float64, each of every eighth element in order, then their sum in order: norms
    have equal bits on all machines, and members of a gathering clip by them. Squares are exact.
    """
    magnitudes = np.abs(_floats(values))
    rows = np.zeros((-(-magnitudes.size // _COLUMNS), _COLUMNS))
    with np.errstate(all="ignore"):
        rows.reshape(-1)[: magnitudes.size] = magnitudes
        columns = np.add.reduce(rows * rows, axis=0)  # row by row: pairs are added on the last axis
        square_sum = np.add.accumulate(columns)[-1]
    return float(np.fmax.reduce(magnitudes, initial=0.0)), float(square_sum)


def _floats(buffer: Buffer) -> Floats:
    return np.frombuffer(memoryview(buffer), dtype=np.dtype("<f4"))


def _bytes(buffer: Buffer) -> Bytes:
    return np.frombuffer(memoryview(buffer), dtype=np.uint8)


def _planes(fmt: Format, payload: Buffer) -> tuple[Bits, Bytes]:
    """Return scale bits [n_blocks] (none without scales) and codes [n_blocks, code_bytes]."""
    raw = _bytes(payload)
    n_blocks = raw.size // (fmt.scale_bytes + fmt.code_bytes)
    n_scale_bytes = n_blocks * fmt.scale_bytes
    scales = raw[:n_scale_bytes].view(f"<u{fmt.scale_bytes or 4}")
    codes = raw[n_scale_bytes:].reshape(n_blocks, fmt.code_bytes)
    return scales.astype(np.uint32), codes


def _decoded(fmt: Format, payload: Buffer, reference: Buffer | None, n_elems: int) -> Floats:
    scale_bits, codes = _planes(fmt, payload)
    with np.errstate(under="ignore"):
        blocks = block_codec(fmt).dequantize(scale_bits, codes)
    values: NDArray[np.float32] = blocks.reshape(-1)[:n_elems]
    if reference is None:
        return values
    with np.errstate(all="ignore"):  # saturates where reference and difference overflow
        sums: Floats = np.clip(_floats(reference) + values, -_FLOAT32_MAX, _FLOAT32_MAX)
    return sums


class WideKernels:
    """RAW64, every float64 as it is: kernels as :class:`swarmnode.tensor.codec.Kernels` has them.

    The extension has none: models of float64 are convex ones of a few thousand numbers.
    """

    def encode(self, fmt: Format, values: Buffer, payload: Buffer, reference: Buffer | None) -> int:
        """Copy; return -1, or the index of the first value that is not finite.

        Then the whole payload is 0xFF, which no decoder accepts.
        """
        del fmt, reference  # it takes none
        flat, out = _doubles(values), _doubles(payload)
        refused = np.flatnonzero(~np.isfinite(flat))
        if refused.size:
            out.view(np.uint8)[:] = _REFUSED_BYTE
            return int(refused[0])
        out[:] = flat
        return -1

    def validate(self, fmt: Format, payload: Buffer, n_elems: int) -> Verdict:
        """Say whether all values of a foreign payload are finite."""
        del fmt, n_elems
        return Verdict.VALID if np.isfinite(_doubles(payload)).all() else Verdict.INVALID_VALUE

    def decode(
        self, fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None
    ) -> Verdict:
        """Write every value of ``out``, or nothing if the payload is invalid."""
        del reference
        target = _doubles(out)
        verdict = self.validate(fmt, payload, target.size)
        if verdict is Verdict.VALID:
            target[:] = _doubles(payload)
        return verdict

    def decode_measured(
        self, fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None
    ) -> tuple[Verdict, float, float]:
        """Decode; return the largest absolute value written and the sum of squares, too.

        The sum is that of Python, in order: infinite where a square is too large.
        """
        verdict = self.decode(fmt, payload, out, reference)
        if verdict is not Verdict.VALID:
            return verdict, 0.0, 0.0
        numbers = _doubles(out).tolist()
        squares = sum(number * number for number in numbers)
        return verdict, max(map(abs, numbers), default=0.0), float(squares)

    def merge(
        self,
        fmt: Format,
        payload: Buffer,
        target: Buffer,
        reference: Buffer | None,
        own_weight: float,
        peer_weight: float,
    ) -> Verdict:
        """Set target to ``own_weight * target + peer_weight * decoded``: two products, one sum."""
        del reference
        own = _doubles(target)
        verdict = self.validate(fmt, payload, own.size)
        if verdict is Verdict.VALID:
            with np.errstate(all="ignore"):
                own[:] = own_weight * own + peer_weight * _doubles(payload)
        return verdict


def _doubles(buffer: Buffer) -> Doubles:
    return np.frombuffer(memoryview(buffer), dtype=np.dtype("<f8"))
