"""How large a vector is, and whether that is plausible beside one's own.

Codecs carry any finite number, 3e38 too, and one such exchange destroys every model that it
reaches. So the receiver of a vector compares it with what it sends itself: the largest element
by VECTOR_LARGEST_RATIO_MAX, the norm by VECTOR_NORM_RATIO_MAX. It says nothing of a vector that is
wrong and of the usual size.

What counts as one's own is the larger of the vector that is sent and a tenth of the weights; see
:func:`own_scale`. What is measured of float32 has equal bits on every machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from swarmnode.tensor.codec import get_measure

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from swarmnode.tensor.codec import Codec

# A vector of a peer against one's own. Honest ones of the same swarm differ by a factor of ten
# or so; until what strangers send is judged by what it does to the loss, these two stop what
# ruins a model at one blow (3e38, 1e30, a norm times 1,000).
_VECTOR_LARGEST_RATIO_MAX = 1e4
_VECTOR_NORM_RATIO_MAX = 100.0
# Own differences are tiny, or zero, right after a node has caught up, and those of others are
# not: a tenth of the weights' own scale counts as one's own vector at the least.
_VECTOR_WEIGHTS_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Magnitude:
    """``largest``: of the absolute values; ``square_sum``: the norm, squared."""

    largest: float = 0.0
    square_sum: float = 0.0

    @property
    def norm(self) -> float:
        """The Euclidean norm."""
        return math.sqrt(self.square_sum)

    def __add__(self, other: Magnitude) -> Magnitude:
        """Return that of two vectors, one after the other."""
        return Magnitude(max(self.largest, other.largest), self.square_sum + other.square_sum)


@dataclass(frozen=True, slots=True)
class Scale:
    """Of the weights, over a sample: the root of the mean square, and the largest value."""

    rms: float = 0.0
    largest: float = 0.0


UNKNOWN = Scale()  # it is not known how large the weights are


def measure(values: Buffer) -> Magnitude:
    """Return the magnitude of contiguous float32. Cost: one pass over them."""
    return Magnitude(*get_measure()(values))


def own_scale(own: Magnitude, weights: Scale, numel: int) -> Magnitude:
    """Return what a vector of ``numel`` elements is compared with.

    Args:
        own: of the vector that this node sends; nothing where it sends none.
        weights: of this node's model; nothing where it is not known.

    Where both are zero, a model that begins with zeros, it is a vector of ones.
    """
    share = _VECTOR_WEIGHTS_SHARE
    floor = Magnitude(share * weights.largest, (share * weights.rms) ** 2 * numel)
    found = Magnitude(max(own.largest, floor.largest), max(own.square_sum, floor.square_sum))
    return found if found.square_sum > 0 else Magnitude(1.0, float(numel))


def refusal(theirs: Magnitude, own: Magnitude, what: str) -> str:
    """Return why a vector is refused beside ``own``, see :func:`own_scale`; empty: it is not."""
    largest_max = _VECTOR_LARGEST_RATIO_MAX * own.largest
    if not theirs.largest <= largest_max:  # NaN is refused, too
        return f"{what}: expected values up to {largest_max:.3g}, got {theirs.largest:.3g}"
    norm_max = _VECTOR_NORM_RATIO_MAX * own.norm
    if not theirs.norm <= norm_max:
        return f"{what}: expected a norm up to {norm_max:.3g}, got {theirs.norm:.3g}"
    return ""


class PayloadPart(Protocol):
    """Elements of a payload that one codec writes.

    ``view``: the number of the one that they are of. ``is_scaled``: its values are as large as
    the weights' in every honest payload; others are not measured.
    """

    @property
    def codec(self) -> Codec: ...
    @property
    def view(self) -> int: ...
    @property
    def is_scaled(self) -> bool: ...


class Sizes:
    """How large each view of a payload is, over the parts that were decoded or measured.

    Each view on its own: a huge difference would hide beside the weights.
    """

    def __init__(self) -> None:
        self._found: dict[int, Magnitude] = defaultdict(Magnitude)
        self._numel: dict[int, int] = defaultdict(int)

    def decode(self, part: PayloadPart, payload: Buffer, out: Buffer) -> None:
        """Decode a part of a payload and take it in, in one pass over the memory.

        Raises:
            MalformedMessage, LocalProtocolError: as :meth:`Codec.decode`; nothing is taken in.
        """
        if not part.is_scaled:
            part.codec.decode(payload, out)
            return
        found = Magnitude(*part.codec.decode_measured(payload, out))
        self._found[part.view] += found
        self._numel[part.view] += memoryview(out).nbytes // part.codec.value_bytes

    def measure(self, part: PayloadPart, payload: Buffer, numel: int) -> None:
        """Check a part of a payload and take it in, and keep nothing of what it decodes to.

        Raises:
            MalformedMessage: as :meth:`Codec.measure`; nothing is taken in.
        """
        if not part.is_scaled:
            part.codec.validate(payload, numel)
            return
        self._found[part.view] += Magnitude(*part.codec.measure(payload, numel))
        self._numel[part.view] += numel

    def refusal(self, own: Sizes, weights: Scale) -> str:
        """Return why these are refused beside those that this node sends; empty: they are not.

        Args:
            own: of whole views; without a view where this node sends none.
            weights: of this node's model, as its worker says.
        """
        for view, theirs in self._found.items():
            numel = max(self._numel[view], own._numel.get(view, 0))
            beside = own_scale(own._found.get(view, Magnitude()), weights, numel)
            why = refusal(theirs, beside, f"view {view}")
            if why:
                return why
        return ""
