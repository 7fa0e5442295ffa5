"""Sizes of the views of a payload, as its chunks come, and whether they are plausible.

What is compared is each view on its own: a huge difference would hide beside the weights. What
counts as too large, and beside what, is ``tensor/magnitude.py``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from swarmnode.tensor.magnitude import Magnitude, Scale, measure, own_scale, refusal

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FLOAT32_BYTES = 4


class Sizes:
    """How large each view is, over the chunks that were added."""

    def __init__(self) -> None:
        self._found: dict[int, Magnitude] = defaultdict(Magnitude)
        self._numel: dict[int, int] = defaultdict(int)

    def add(self, view: int, values: Buffer) -> None:
        """Take in a chunk of float32 of the view with this number."""
        self._found[view] += measure(values)
        self._numel[view] += memoryview(values).nbytes // _FLOAT32_BYTES

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
