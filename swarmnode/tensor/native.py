"""The C extension, one object for each instruction set.

The import fails where it is missing, or was built from other sources than these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarmnode.tensor import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from swarmnode.tensor.formats import Format

# Those that came last. Without this look, what an older extension lacks is noticed when a peer's
# payload is measured: each one is refused then, and the swarm trains without ever exchanging.
_NEWEST = ("measure_payload", "mean", "products", "sha256_two")
_lacking = [name for name in _NEWEST if not hasattr(_native, name)]
if _lacking:
    raise ImportError(f"it is older than this swarmnode, and lacks {', '.join(_lacking)}")

sha256_two = _native.sha256_two


@dataclass(frozen=True, slots=True)
class NativeKernels:
    """The kernels of one instruction set: ``isa`` is an index into ``_native.isas()``.

    Results are those of :mod:`swarmnode.tensor.reference`. The extension checks sizes again,
    as memory safety must not rest on its callers.
    """

    isa: int

    def encode(self, fmt: Format, values: Buffer, payload: Buffer, reference: Buffer | None) -> int:
        """Return -1, or the index of the first block that is not finite."""
        return _native.encode(self.isa, fmt.codec, fmt.kept_elems, values, payload, reference)

    def validate(self, fmt: Format, payload: Buffer, n_elems: int) -> int:
        """Return a Verdict."""
        return _native.validate(self.isa, fmt.codec, fmt.kept_elems, payload, n_elems)

    def decode(self, fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None) -> int:
        """Return a Verdict; ``out`` is written if it is VALID."""
        return _native.decode(self.isa, fmt.codec, fmt.kept_elems, payload, out, reference)

    def decode_measured(
        self, fmt: Format, payload: Buffer, out: Buffer, reference: Buffer | None
    ) -> tuple[int, float, float]:
        """Return a Verdict, and of what is written the largest absolute value and square sum."""
        return _native.decode_measured(self.isa, fmt.codec, fmt.kept_elems, payload, out, reference)

    def merge(
        self,
        fmt: Format,
        payload: Buffer,
        target: Buffer,
        reference: Buffer | None,
        own: float,
        peer: float,
    ) -> int:
        """Return a Verdict; ``target`` is written if it is VALID."""
        return _native.merge(
            self.isa, fmt.codec, fmt.kept_elems, payload, target, reference, own, peer
        )

    def measure_payload(
        self, fmt: Format, payload: Buffer, n_elems: int
    ) -> tuple[int, float, float]:
        """Return what :meth:`decode_measured` does, and keep nothing of what a payload holds."""
        return _native.measure_payload(self.isa, fmt.codec, fmt.kept_elems, payload, n_elems)

    def mean(
        self,
        fmt: Format,
        payloads: tuple[Buffer, ...],
        weights: tuple[float, ...],
        divisor: float,
        n_elems: int,
        out: Buffer,
    ) -> tuple[int, int]:
        """Return a Verdict, and -1 or the index of the first block that is not finite."""
        return _native.mean(
            self.isa, fmt.codec, fmt.kept_elems, payloads, weights, divisor, n_elems, out
        )

    def products(
        self, fmt: Format, payloads: tuple[Buffer, ...], n_elems: int, gram: Buffer
    ) -> int:
        """Return a Verdict; the upper triangle of ``gram`` is added to if all are VALID."""
        return _native.products(self.isa, fmt.codec, fmt.kept_elems, payloads, n_elems, gram)

    def largest_and_square_sum(self, values: Buffer) -> tuple[float, float]:
        """Return the largest absolute value and the sum of squares."""
        return _native.measure(self.isa, values)


def kernels_by_isa() -> dict[str, NativeKernels]:
    """Return what processor and operating system support here, best first."""
    return {name: NativeKernels(index) for index, name in enumerate(_native.isas())}
