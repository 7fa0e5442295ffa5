"""Views and merges in pieces, so that no local step waits long for a large vector.

An engine may take local steps wherever ``viewing`` or ``applying`` yields, and asks nothing else
of the strategy meanwhile but ``after_step``. So the pieces of a view are those of neighbouring
steps, and what is merged reaches the model piece by piece. That is right where all that is done to
an element follows from what was sent and came of that element, and what a local step adds to it
survives:

- A pair adds half of ``theirs - own`` to each element, with ``own`` as it was sent, be it sent one
  step later than its neighbour: for each element the mean of the swarm stays where it is.
- Outer steps take ``phi - theta`` of each element as it was when its piece was sent, and put that
  theta back from under what was learnt since. Slow weights, momentum and lineage change with no
  step, so those of a view are all of one moment.
- What counts a merge - lineage, weights, tokens - changes with its last piece. Then the next intent
  may follow; what reads slow weights whole, a peer that catches up or a snapshot, waits for it.

A strategy whose vectors flow between steps, or whose merge looks at tensors as a whole, has one
piece: that is the default of :class:`Strategy`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch

from swarmnode.strategies.base import Exchange, Intent, Strategy

# A megabyte of float32: what one operation leaves is in the cache for the next, and the calls of
# torch cost little beside it. Half a millisecond, for a merge of five vectors.
PIECE_ELEMS = 2**18
# On a GPU calls cost more than what they do: of fifty million elements ten milliseconds with the
# above, half a millisecond with this.
GPU_PIECE_ELEMS = 2**23


class InPieces(Strategy):
    """A strategy that views and merges in pieces; both methods are generators."""

    @abstractmethod
    def viewing(self, intent: Intent, name: str, out: torch.Tensor) -> Iterator[int]:
        """See :class:`Strategy`."""

    @abstractmethod
    def applying(self, exchange: Exchange) -> Iterator[None]:
        """See :class:`Strategy`."""

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        for _ in self.viewing(intent, name, out):
            pass

    def apply(self, exchange: Exchange) -> None:
        for _ in self.applying(exchange):
            pass


def piece_elems(vector: torch.Tensor) -> int:
    """Return how many elements a piece has where ``vector`` lies."""
    return GPU_PIECE_ELEMS if vector.is_cuda else PIECE_ELEMS


def pieces(numel: int, elems: int = PIECE_ELEMS) -> Iterator[slice]:
    """Yield where the pieces of a vector lie, of so many elements each."""
    for begin in range(0, numel, elems):
        yield slice(begin, min(begin + elems, numel))


def pieces_of(vector: torch.Tensor) -> Iterator[slice]:
    """Yield where the pieces of ``vector`` lie."""
    return pieces(vector.numel(), piece_elems(vector))


def copying(values: torch.Tensor, out: torch.Tensor) -> Iterator[int]:
    """Copy ``values`` [numel] into ``out`` in pieces; yield how many elements are there."""
    for at in pieces_of(out):
        out[at].copy_(values[at])
        yield at.stop
