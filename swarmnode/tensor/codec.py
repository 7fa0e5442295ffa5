"""Encode, decode and merge vectors of float32, or float64 (proto/codecs.md).

| codec | bits an element | for |
|---|---|---|
| RAW32 | 32 | what must stay exact |
| BF16 | 16 | weights; small tensors |
| Q8B64 | 8.25 | weights; best as the difference to a reference |
| Q4B64 | 4.25 | differences |
| E3M0 | 4.125 | outer gradients |
| Q2B64 | 2.25 | outer gradients of groups |
| T3B320 | 1.65 | the same in fewer bits |
| SIGN64 | 1.25 | sums with error feedback |
| TK4 | 0.254 | sums with error feedback; TK4Kn keeps n of 4096 instead of 64 |
| TK2 | 0.168 | the same in fewer bits, with two sizes for the values of each 4096; TK2Kn |
| RAW64 | 64 | models of float64; it takes no other values, and they no other codec |

Means of several payloads, and their inner products, are made without decoding any of them whole.

The work is done by the C extension, on the best instruction set that this
machine runs; ``SWARMNODE_NATIVE`` forces another by name. Without the
extension the numpy reference does it, and one warning says so. numpy is not
imported otherwise, but for RAW64: models of float64 are small. Every way gives the same bits.

Where a docstring here says float32, RAW64 has float64.

Buffers are anything that exports contiguous bytes or float32: bytes,
bytearray, memoryview, mmap, numpy. Alignment does not matter. The GIL is
released meanwhile: callers must not write to a buffer that is in use here.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from swarmnode.errors import ConfigError, LocalProtocolError, MalformedMessage, WorkerError
from swarmnode.tensor.formats import FORMATS, CodecId, Format, Verdict, find_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Buffer

CODEC_NAMES: Final = tuple(FORMATS)

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_FLOAT_FORMATS = {4: frozenset({"f", "<f", "=f", "@f"}), 8: frozenset({"d", "<d", "=d", "@d"})}
_BYTE_FORMATS = frozenset({"B", "b", "c"})
_FAULTS = {
    Verdict.INVALID_SCALE: "a scale is negative, not finite or too large",
    Verdict.INVALID_CODE: "a code is outside the range of the codec",
    Verdict.INVALID_PADDING: "the padding of the last block is not zero",
    Verdict.INVALID_VALUE: "a value is NaN or infinite",
    Verdict.INVALID_POSITION: "positions do not ascend, or are too many or too few",
}
_logger = logging.getLogger(__name__)


class Kernels(Protocol):
    """What does the work: :mod:`swarmnode.tensor.reference`, or the extension on one ISA."""

    def encode(
        self, fmt: Format, values: Buffer, payload: Buffer, reference: Buffer | None, /
    ) -> int: ...
    def validate(self, fmt: Format, payload: Buffer, n_elems: int, /) -> int: ...
    def decode(
        self, fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None, /
    ) -> int: ...
    def decode_measured(
        self, fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None, /
    ) -> tuple[int, float, float]: ...
    def merge(
        self,
        fmt: Format,
        payload: Buffer,
        target: Buffer,
        reference: Buffer | None,
        own: float,
        peer: float,
        /,
    ) -> int: ...


class VectorKernels(Kernels, Protocol):
    """Those of float32, which also measure vectors, and make one of several payloads."""

    def largest_and_square_sum(self, values: Buffer, /) -> tuple[float, float]: ...
    def measure_payload(
        self, fmt: Format, payload: Buffer, n_elems: int, /
    ) -> tuple[int, float, float]: ...
    def mean(
        self,
        fmt: Format,
        payloads: tuple[Buffer, ...],
        weights: tuple[float, ...],
        divisor: float,
        n_elems: int,
        out: Buffer,
        /,
    ) -> tuple[int, int]: ...
    def products(
        self, fmt: Format, payloads: tuple[Buffer, ...], n_elems: int, gram: Buffer, /
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """One codec on one instruction set; stateless, free to share between threads.

    A ``reference`` is a finite float32 vector that both sides have, as long as the values: then
    the difference to it is what is encoded, and what is decoded is reference plus difference.

    Attributes:
        name: as :func:`get_codec` takes it.
        isa: the instruction set that does the work, one of :func:`available_isas`.
        bits_per_elem: on the wire, scales included.
        block_elems: a vector may be cut into payloads of its own at multiples of this.
        value_bytes: of each value: 4, float32, or 8, float64.
        takes_reference: whether ``reference`` may be given.
        needs_error_feedback: only for messages that every consumer sees, from a sender that adds
            what one left out to the next; a strategy with random partners must refuse it.
    """

    name: str
    isa: str
    bits_per_elem: float
    block_elems: int
    value_bytes: int
    takes_reference: bool
    needs_error_feedback: bool
    _format: Format = field(repr=False)
    _kernels: Kernels = field(repr=False)

    def payload_bytes(self, n_elems: int) -> int:
        """Return the exact size of the payload of ``n_elems`` elements."""
        return self._format.payload_bytes(n_elems)

    def encode(self, values: Buffer, payload: Buffer, reference: Buffer | None = None) -> None:
        """Quantize.

        Args:
            values: float32 [n_elems].
            payload: writable, exactly ``payload_bytes(n_elems)`` bytes.
            reference: float32 [n_elems].

        Raises:
            WorkerError: a value is NaN or infinite, or its difference to the reference is;
                ``payload`` then holds bytes that no decoder accepts.
            LocalProtocolError: a buffer has the wrong size, type or layout.
        """
        n_elems = self._count_elems(values)
        self._check_own_payload(payload, n_elems)
        self._check_reference(reference, n_elems)
        refused = self._kernels.encode(self._format, values, payload, reference)
        self._check_finite(refused, n_elems)

    def decode(self, payload: Buffer, out: Buffer, reference: Buffer | None = None) -> None:
        """Check a foreign payload, then write every value of ``out``: float32 [n_elems].

        Every value written is finite.

        Raises:
            MalformedMessage: the payload breaks a rule; ``out`` is as it was.
            LocalProtocolError: ``out`` is not writable contiguous float32, or ``reference`` is
                not of its length.
        """
        self._check_room(payload, out, reference)
        self._judge(self._kernels.decode(self._format, payload, out, reference))

    def decode_measured(
        self, payload: Buffer, out: Buffer, reference: Buffer | None = None
    ) -> tuple[float, float]:
        """Decode, and return how large ``out`` is now, as :func:`get_measure` has it, in one pass.

        Raises:
            MalformedMessage, LocalProtocolError: as :meth:`decode`.
        """
        self._check_room(payload, out, reference)
        verdict, largest, square_sum = self._kernels.decode_measured(
            self._format, payload, out, reference
        )
        self._judge(verdict)
        return largest, square_sum

    def merge(
        self,
        payload: Buffer,
        target: Buffer,
        own_weight: float,
        peer_weight: float,
        reference: Buffer | None = None,
    ) -> None:
        """Check a foreign payload, then set ``target`` to own * target + peer * decoded, in place.

        Both weights are rounded to float32; each element takes two products and one sum, each
        rounded, on every machine. With weights (-1, 1) that is the rounded difference decoded -
        target, so the two sides of a pair get exact negatives.

        Args:
            payload: bytes from a peer.
            target: float32 [n_elems].
            own_weight, peer_weight: finite as float32.
            reference: float32 [n_elems].

        Raises:
            MalformedMessage: the payload breaks a rule; ``target`` is as it was.
            LocalProtocolError: ``target`` is not writable contiguous float32, ``reference`` is
                not of its length, or a weight is not finite.
        """
        if not (_is_finite_float32(own_weight) and _is_finite_float32(peer_weight)):
            raise LocalProtocolError(
                f"expected finite float32 weights, got {own_weight} and {peer_weight}"
            )
        self._check_room(payload, target, reference)
        self._judge(
            self._kernels.merge(self._format, payload, target, reference, own_weight, peer_weight)
        )

    def measure(self, payload: Buffer, n_elems: int) -> tuple[float, float]:
        """Return how large the values of a payload are, as :meth:`decode_measured`; keep none.

        Raises:
            MalformedMessage: the payload breaks a rule.
        """
        self._check_size(payload, n_elems)
        verdict, largest, square_sum = self._of_vectors().measure_payload(
            self._format, payload, n_elems
        )
        self._judge(verdict)
        return largest, square_sum

    def encode_mean(
        self,
        payloads: Sequence[Buffer],
        weights: Sequence[float],
        divisor: float,
        out: Buffer,
        n_elems: int,
    ) -> None:
        """Write the payload of the sum of payloads by weight over ``divisor``; decode none whole.

        The same payloads and weights in the same order give the same bytes on every machine: each
        element takes one product and one sum in float64 for each payload, then one division and
        one rounding to float32, which is encoded.

        Args:
            payloads: 1 to 64, of ``n_elems`` elements each.
            weights: as many; finite.
            divisor: not 0.
            out: writable, exactly ``payload_bytes(n_elems)`` bytes.

        Raises:
            MalformedMessage: a payload breaks a rule; ``out`` is as it was.
            WorkerError: as :meth:`encode`.
        """
        for payload in payloads:
            self._check_size(payload, n_elems)
        self._check_own_payload(out, n_elems)
        verdict, refused = self._of_vectors().mean(
            self._format, tuple(payloads), tuple(map(float, weights)), divisor, n_elems, out
        )
        self._judge(verdict)
        self._check_finite(refused, n_elems)

    def add_products(self, payloads: Sequence[Buffer], n_elems: int, gram: Buffer) -> None:
        """Add the inner products of what 1 to 64 payloads hold, the first with itself and all
        others, and so on, to the upper triangle of ``gram``: writable float64 [n, n].

        They are summed in float64 over blocks of 4096 elements, with equal bits on every machine.

        Raises:
            MalformedMessage: a payload breaks a rule; ``gram`` is as it was.
        """
        for payload in payloads:
            self._check_size(payload, n_elems)
        self._judge(self._of_vectors().products(self._format, tuple(payloads), n_elems, gram))

    def validate(self, payload: Buffer, n_elems: int) -> None:
        """Check a foreign payload of ``n_elems`` elements.

        Raises:
            MalformedMessage: its size, a scale, a code or the padding breaks a rule.
        """
        self._check_size(payload, n_elems)
        self._judge(self._kernels.validate(self._format, payload, n_elems))

    def part(self, payload: Buffer, begin: int, end: int) -> bytearray:
        """Return the payload of elements ``begin`` to ``end`` (exclusive) of the one of a vector.

        ``begin`` is a multiple of ``block_elems``; ``end`` too, unless the vector ends there.
        """
        fmt = self._format
        view = memoryview(payload).cast("B")
        n_blocks = view.nbytes // (fmt.scale_bytes + fmt.code_bytes)
        first, last = begin // fmt.block_elems, -(-end // fmt.block_elems)
        codes = n_blocks * fmt.scale_bytes  # where they begin
        found = bytearray(view[first * fmt.scale_bytes : last * fmt.scale_bytes])
        found += view[codes + first * fmt.code_bytes : codes + last * fmt.code_bytes]
        return found

    def _judge(self, verdict: int) -> None:
        if verdict != Verdict.VALID:
            raise MalformedMessage(f"{self.name} payload: {_FAULTS[Verdict(verdict)]}")

    def _check_finite(self, refused: int, n_elems: int) -> None:
        """Raise WorkerError where an encoder has refused a block; -1: it has not."""
        if refused < 0:
            return
        first = refused * self.block_elems
        last = min(first + self.block_elems, n_elems) - 1
        which = f"elements {first} to {last} hold" if last > first else f"element {first} is"
        raise WorkerError(
            f"{self.name}: expected finite values, {which} NaN or "
            "infinity; nothing is sent: lower the learning rate or resume from a snapshot"
        )

    def _of_vectors(self) -> VectorKernels:
        if self._format.codec is CodecId.RAW64:
            raise LocalProtocolError(f"{self.name}: groups average float32 only")
        return _vector_kernels(self.isa)

    def _check_room(self, payload: Buffer, out: Buffer, reference: Buffer | None) -> None:
        n_elems = self._count_elems(out, writable=True)
        self._check_reference(reference, n_elems)
        self._check_size(payload, n_elems)

    def _check_size(self, payload: Buffer, n_elems: int) -> None:
        size_bytes = memoryview(payload).nbytes
        if size_bytes != self.payload_bytes(n_elems):
            raise MalformedMessage(
                f"{self.name} payload of {n_elems} elements: expected "
                f"{self.payload_bytes(n_elems)} bytes, got {size_bytes}"
            )

    def _check_reference(self, reference: Buffer | None, n_elems: int) -> None:
        if reference is None:
            return
        if not self.takes_reference:
            raise LocalProtocolError(f"{self.name} takes no reference: encode the values alone")
        reference_elems = self._count_elems(reference)
        if reference_elems != n_elems:
            raise LocalProtocolError(
                f"{self.name}: expected a reference of {n_elems} elements, got {reference_elems}"
            )

    def _check_own_payload(self, payload: Buffer, n_elems: int) -> None:
        view = memoryview(payload)
        expected_bytes = self.payload_bytes(n_elems)
        if view.readonly or not view.c_contiguous or view.nbytes != expected_bytes:
            raise LocalProtocolError(
                f"{self.name}: expected a writable buffer of {expected_bytes} bytes, got "
                f"{view.nbytes} bytes (readonly={view.readonly})"
            )

    def _count_elems(self, floats: Buffer, *, writable: bool = False) -> int:
        view = memoryview(floats)
        fits = view.format in _FLOAT_FORMATS[self.value_bytes] or (
            view.format in _BYTE_FORMATS and view.nbytes % self.value_bytes == 0
        )
        if not fits or not view.c_contiguous or (writable and view.readonly):
            raise LocalProtocolError(
                f"{self.name}: expected a contiguous {'writable ' if writable else ''}buffer of "
                f"float{8 * self.value_bytes}, got format {view.format!r}, {view.nbytes} bytes, "
                f"contiguous={view.c_contiguous}, readonly={view.readonly}"
            )
        return view.nbytes // self.value_bytes


@cache
def get_codec(name: str, isa: str | None = None) -> Codec:
    """Return the codec ``name`` on the active instruction set, or on ``isa``.

    Raises:
        ConfigError: no such codec, or this machine cannot run ``isa``.
    """
    fmt = find_format(name)
    if fmt is None:
        raise ConfigError(f"no codec {name!r}: choose {_or(CODEC_NAMES)}")
    isa = active_isa() if isa is None else isa
    vector_kernels = _vector_kernels(isa)
    kernels = _wide_kernels() if fmt.codec is CodecId.RAW64 else vector_kernels
    return Codec(
        name,
        isa,
        bits_per_elem=fmt.bits_per_elem,
        block_elems=fmt.block_elems,
        value_bytes=fmt.value_bytes,
        takes_reference=fmt.takes_reference,
        needs_error_feedback=fmt.needs_error_feedback,
        _format=fmt,
        _kernels=kernels,
    )


@cache
def get_measure(isa: str | None = None) -> Callable[[Buffer], tuple[float, float]]:
    """Return what measures float32 on the active instruction set, or on ``isa``.

    It returns the largest absolute value and the sum of squares of a contiguous buffer, with equal
    bits on all of them. A NaN makes the sum one, and does not count in the largest.

    Raises:
        ConfigError: this machine cannot run ``isa``.
    """
    return _vector_kernels(active_isa() if isa is None else isa).largest_and_square_sum


@cache
def active_isa() -> str:
    """Return the name of the instruction set that encodes and decodes in this process.

    Raises:
        ConfigError: ``SWARMNODE_NATIVE`` names one that this machine cannot run.
    """
    forced = os.environ.get("SWARMNODE_NATIVE", "")
    if forced and forced not in available_isas():
        raise ConfigError(
            f"SWARMNODE_NATIVE={forced!r} cannot run here: "
            f"choose {_or(available_isas())}, or unset it"
        )
    return forced or available_isas()[0]


@cache
def available_isas() -> tuple[str, ...]:
    """Return what this machine can run, fastest first; ``numpy`` is always the last."""
    return (*_native_kernels(), "numpy")


def _vector_kernels(isa: str) -> VectorKernels:
    if isa not in available_isas():
        raise ConfigError(f"no instruction set {isa!r} here: choose {_or(available_isas())}")
    return _native_kernels().get(isa) or _reference_kernels()


@cache
def _native_kernels() -> Mapping[str, VectorKernels]:
    """Return the extension's instruction sets, best first; none, and one warning, without it."""
    try:
        from swarmnode.tensor import native
    except ImportError as error:
        _logger.warning(
            "the C extension is missing (%s): tensors are encoded in numpy, ten to thirty times "
            "slower; install a wheel, or a C compiler, and install swarmnode anew",
            error,
        )
        return {}
    return native.kernels_by_isa()


@cache
def _reference_kernels() -> VectorKernels:
    from swarmnode.tensor import reference  # imports numpy, 25 MB that an idle daemon saves

    return reference


@cache
def _wide_kernels() -> Kernels:
    from swarmnode.tensor.reference import WideKernels  # numpy, as above

    return WideKernels()


def _is_finite_float32(number: float) -> bool:
    return abs(number) <= _FLOAT32_MAX  # false for NaN, too


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
