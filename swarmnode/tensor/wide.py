"""RAW64, the one codec of float64: every value as it is (proto/codecs.md), in numpy.

Models of float64 are convex ones of a few thousand numbers, so no kernel of the extension has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swarmnode.tensor.formats import Format, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Doubles = NDArray[np.float64]

_REFUSED_BYTE = 0xFF  # eight of them are a NaN


class WideKernels:
    """Encode and decode, as :class:`swarmnode.tensor.codec.Kernels` says."""

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
