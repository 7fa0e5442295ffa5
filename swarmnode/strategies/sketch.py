"""A short word about slow weights, by which members see whether they hold the same.

All whose lineage is the same hold the same slow weights, but for one that took them over of a peer
that lied: what is given names its place itself, and no hash of it is known to others, as the last
bits may differ between kinds of hardware. So each says the projection of a sample on signs that
follow from the place (the AMS sketch: N. Alon, Y. Matias, M. Szegedy, "The space complexity of
approximating the frequency moments", 1996, with one row): it differs by about the length of what
two differ in. Who prepares weights for one place is found out at the next, which has other elements
and signs.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

# What is looked at of larger models, up to twice as many: a millisecond, beside rounds of seconds.
SAMPLE_ELEMS = 2**16


def sketch(weights: torch.Tensor, place: bytes) -> tuple[float, float] | None:
    """Return the projection of a sample of ``weights`` [numel], and the length of the sample.

    ``place``: where the weights stand in their lineage. None: they are no numbers.
    """
    stride = max(1, weights.numel() // SAMPLE_ELEMS)
    drawn = hashlib.shake_256(place)
    first = int.from_bytes(drawn.digest(8), "big") % stride
    sample = weights[first::stride].to("cpu", torch.float64).numpy()
    bits = np.frombuffer(drawn.digest(8 + -(-len(sample) // 8)), np.uint8)[8:]
    signs = 1.0 - 2.0 * np.unpackbits(bits, count=len(sample))
    projection, length = float((sample * signs).sum()), float(np.sqrt(np.square(sample).sum()))
    return (projection, length) if math.isfinite(length) else None
