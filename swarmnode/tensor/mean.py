"""The mean of several payloads by weight, in float64, and through their codec.

It imports numpy, which an idle daemon spares: import it where a mean is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swarmnode.tensor.codec import Codec

if TYPE_CHECKING:
    from typing_extensions import Buffer


class WeightedMean:
    """Sums payloads of ``n_elems`` elements in the order in which they are added.

    The same payloads and weights in the same order give the same bits on every machine: each
    element takes one product and one sum in float64, then one division and one rounding to float32,
    which the codec encodes.
    """

    def __init__(self, codec: Codec, n_elems: int) -> None:
        self._codec = codec
        self._sum = np.zeros(n_elems, np.float64)
        self._values = np.empty(n_elems, np.float32)
        self._term = np.empty(n_elems, np.float64)
        self._weight = 0.0

    def add(self, payload: Buffer, weight: float) -> None:
        """Add one payload. ``weight``: above 0. Raises MalformedMessage: it breaks a rule."""
        self._codec.decode(payload, self._values.data)
        np.multiply(self._values, weight, out=self._term, dtype=np.float64)
        self._sum += self._term
        self._weight += weight

    def result(self) -> bytearray:
        """Return the mean as a payload of the codec."""
        np.divide(self._sum, self._weight, out=self._sum)
        self._values[:] = self._sum
        payload = bytearray(self._codec.payload_bytes(self._values.size))
        self._codec.encode(self._values.data, payload)
        return payload
