"""What rules over many vectors share: how those lie to each other, and mixtures of them.

A rule looks at the Gram matrix only, n² numbers, and answers with a :class:`Mix`: which vectors
are averaged with which coefficients, and how many extremes of each coordinate are dropped. So a
vector is read twice, whatever its length and the rule: once for the Gram matrix and once for the
mixture. Memory: what is given, and two blocks of [n, _BLOCK_ELEMS] in float64.

The same blocks give the same bits on every machine: products and sums are numpy's own loops, in
float64 and in a fixed order, never those of a BLAS; those of codecs, out of payloads, have them
too. This module and the rules beside it import no torch: the daemon, where the parts of a group's
mean are made, has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from swarmnode.tensor.codec import Codec

# Of 64 vectors in float64 it takes 2 MB: it stays in the cache.
_BLOCK_ELEMS = 4096

Rows = NDArray[np.float32] | NDArray[np.float64]
Gram = NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """What a rule is told of the vectors of a round, which have the numbers 0 to n − 1.

    Attributes:
        gram: float64 [n, n], the inner products.
        weights: of each in a mean, above 0.
        own: which of them is that of the node that applies the rule.
        seed: the same for all who apply the rule to the same vectors.
    """

    gram: Gram
    weights: tuple[float, ...]
    own: int = 0
    seed: str = ""

    @property
    def n(self) -> int:
        """How many vectors there are."""
        return len(self.weights)

    @property
    def n_hostile_max(self) -> int:
        """f: how many of them the rules expect to be hostile at the most, a quarter."""
        return self.n // 4

    @property
    def norms(self) -> NDArray[np.float64]:
        """Return the length of each: [n]."""
        return np.sqrt(np.diagonal(self.gram))

    def nearest(self, number: int, n_nearest: int) -> tuple[int, ...]:
        """Return the vectors that are nearest to one, itself among them, in ascending order.

        Of equally distant ones those with the smaller numbers.
        """
        squares = np.diagonal(self.gram)
        distances = squares - 2 * self.gram[number] + squares[number]
        distances[number] = -np.inf
        return tuple(sorted(np.argsort(distances, kind="stable")[:n_nearest].tolist()))


@dataclass(frozen=True)
class Mix:
    """A mean of mixtures: mixture j is Σ_i coefficients[j, i] x_i / divisors[j].

    Attributes:
        coefficients: float64 [k, n].
        divisors: [k], above 0.
        trim: of the k values of each coordinate so many of the largest and of the smallest are
            dropped, before the mean of the others is taken; below k / 2.
    """

    coefficients: NDArray[np.float64]
    divisors: tuple[float, ...]
    trim: int = 0

    @property
    def is_weighted_mean(self) -> bool:
        """Whether it is one mixture and nothing else, which codecs make out of payloads."""
        return len(self.divisors) == 1 and not self.trim

    def of(self, rows: Rows) -> Rows:
        """Return the mean, [m] in the type of ``rows`` [n, m]. Cost: k n m operations."""
        whole = np.concatenate([self._of_block(block) for block in _blocks(rows)])
        return whole if rows.dtype == whole.dtype else whole.astype(np.float32)

    def _of_block(self, block: Rows) -> NDArray[np.float64]:
        mixed = np.zeros((len(self.divisors), block.shape[1]))
        for mixture, coefficients, divisor in zip(
            mixed, self.coefficients, self.divisors, strict=True
        ):
            for number in np.flatnonzero(coefficients):
                mixture += np.multiply(block[number], coefficients[number], dtype=np.float64)
            mixture /= divisor
        if self.trim:
            mixed.sort(axis=0)
            mixed = mixed[self.trim : len(mixed) - self.trim]
        summed: NDArray[np.float64] = np.add.reduce(mixed, axis=0)
        return summed / len(mixed)


MixRule = Callable[[Round], tuple[Mix, ...]]
"""Returns a mix, or two candidates between which a public probe chooses; without one the last."""


def mean_of(weights: Sequence[float], chosen: Sequence[int] | None = None) -> Mix:
    """Return the mean by weight of the vectors with these numbers; None: of all."""
    return mixtures(weights, [range(len(weights)) if chosen is None else chosen])


def mean(about: Round) -> tuple[Mix, ...]:
    """Return the mean by weight: one member may make of it what it likes."""
    return (mean_of(about.weights),)


def mixtures(weights: Sequence[float], chosen: Sequence[Sequence[int]], trim: int = 0) -> Mix:
    """Return means by weight, one over each of ``chosen``, and their trimmed mean."""
    coefficients = np.zeros((len(chosen), len(weights)))
    for row, numbers in zip(coefficients, chosen, strict=True):
        for number in numbers:
            row[number] = weights[number]
    divisors = tuple(sum(weights[number] for number in numbers) for numbers in chosen)
    return Mix(coefficients, divisors, trim)


class Measured:
    """Sums up the Gram matrix of ``n`` vectors over their blocks."""

    def __init__(self, n: int) -> None:
        self._gram = np.zeros((n, n))

    def add(self, rows: Rows) -> None:
        """Take in some elements of all of them: [n, m]. Cost: n² m / 2 products."""
        from swarmnode.tensor.reference import add_products  # daemons have payloads, and no rows

        add_products(rows, self._gram)

    def add_payloads(self, codec: Codec, payloads: Sequence[Buffer], n_elems: int) -> None:
        """Take in as many elements of each as are coded here. Raises MalformedMessage."""
        codec.add_products(payloads, n_elems, self._gram.data)

    def gram(self) -> Gram:
        """Return the inner products: [n, n]."""
        upper = np.triu(self._gram, 1)
        return upper + upper.T + np.diag(np.diagonal(self._gram))


def _blocks(rows: Rows) -> Iterator[Rows]:
    for begin in range(0, max(1, rows.shape[1]), _BLOCK_ELEMS):
        yield rows[:, begin : begin + _BLOCK_ELEMS]
