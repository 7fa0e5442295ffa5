"""Fragments of the flat vector, which are exchanged at different times.

Source: A. Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, section 2:
fragments of about equal size that are strided over the depth of the model, so that each holds
something of every part of it. Deviation: atoms are tensors, and parts of large ones, where the
paper deals whole transformer layers; a vector is all that is known here, and the peak of what is
sent at once is then close to 1/P for any model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from swarmnode.tensor.layout import Layout

_GRAIN_ELEMS = 64  # of the codecs' blocks
_ATOMS_PER_FRAGMENT = 8  # at the least: fragments differ by an eighth of their size at most


@dataclass(frozen=True)
class Fragment:
    """Some ranges [begin, end) of a flat vector, in ascending order."""

    spans: tuple[tuple[int, int], ...]

    @property
    def numel(self) -> int:
        """Elements in all ranges together."""
        return sum(end - begin for begin, end in self.spans)

    def gather(self, flat: torch.Tensor) -> torch.Tensor:
        """Return a copy of the elements of this fragment: [numel]."""
        return torch.cat([flat[begin:end] for begin, end in self.spans])

    def add(self, flat: torch.Tensor, values: torch.Tensor, alpha: float = 1.0) -> None:
        """Add ``alpha`` times ``values`` [numel] to the elements of this fragment, in place."""
        for part, own in self._parts(flat, values):
            part.add_(own, alpha=alpha)

    def put(self, flat: torch.Tensor, values: torch.Tensor) -> None:
        """Set the elements of this fragment to ``values`` [numel]."""
        for part, own in self._parts(flat, values):
            part.copy_(own)

    def _parts(
        self, flat: torch.Tensor, values: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        done = 0
        for begin, end in self.spans:
            yield flat[begin:end], values[done : done + end - begin]
            done += end - begin


def cut(layout: Layout, n: int) -> tuple[Fragment, ...]:
    """Return ``n`` fragments that share out the vector; fewer if it is too short.

    The same layout gives the same fragments on every node. In the order of the layout each atom
    goes to the fragment that has the fewest elements yet: equal ones are dealt in turn.
    """
    largest = -(-layout.numel // (n * _ATOMS_PER_FRAGMENT))
    largest = -(-largest // _GRAIN_ELEMS) * _GRAIN_ELEMS
    spans: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    sizes = [0] * n
    for begin, end in _atoms(layout, largest):
        least = sizes.index(min(sizes))
        sizes[least] += end - begin
        own = spans[least]
        if own and own[-1][1] == begin:
            own[-1] = (own[-1][0], end)
        else:
            own.append((begin, end))
    return tuple(Fragment(tuple(own)) for own in spans if own)


def _atoms(layout: Layout, largest: int) -> Iterator[tuple[int, int]]:
    for _, begin, end in layout.spans():
        for at in range(begin, end, largest):
            yield at, min(at + largest, end)
