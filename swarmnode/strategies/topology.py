"""Graphs that exchanges run on, how well they mix (lambda2, chi1, chi2), and flows between them.

Source: A. Nabli and E. Oyallon, "DADAO: Decoupled Accelerated Decentralized Asynchronous
Optimization", ICML 2023, for chi1 and chi2. With rates r_ij, in exchanges per unit of time on the
edge ij, and the Laplacian Λ = Σ r_ij (e_i − e_j)(e_i − e_j)ᵀ::

    lambda2 = smallest eigenvalue of Λ but one           0 in a graph of several parts
    chi1 = 1 / lambda2                                   how slowly the slowest part mixes
    chi2 = ½ max over edges (e_i − e_j)ᵀ Λ⁺ (e_i − e_j)  effective resistance, at most chi1

numpy alone, no torch: the daemon's metrics use it as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from swarmnode.errors import ConfigError

Edge = tuple[int, int]  # (i, j), i < j

TOPOLOGIES = (
    "ring",
    "torus",
    "complete",
    "star",
    "exponential",
    "matching",  # no graph: the seeded matching of the round
    "path",
    "grid",
)

Matrix = NDArray[np.float64]

_TERMS = 9  # of Taylor's series, see exponential


@dataclass(frozen=True)
class Mixing:
    """How well a graph mixes; infinite chi where it has several parts."""

    lambda2: float
    chi1: float
    chi2: float

    @property
    def acceleration(self) -> float:
        """√(chi1 chi2): what an accelerated algorithm pays in place of chi1."""
        return math.sqrt(self.chi1 * self.chi2)


@dataclass(frozen=True)
class Graph:
    """An undirected graph over nodes 0 to n − 1 with a rate for each edge.

    Attributes:
        rates: exchanges per unit of time on each edge, above 0.
    """

    n: int
    rates: Mapping[Edge, float]

    def __post_init__(self) -> None:
        for i, j in self.rates:
            if not 0 <= i < j < self.n:
                raise ConfigError(f"expected edges (i, j) with 0 <= i < j < {self.n}, got {(i, j)}")

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges in ascending order."""
        return tuple(sorted(self.rates))

    def neighbours(self, node: int) -> dict[int, float]:
        """Return the rate of each edge of ``node`` by the other end, in ascending order."""
        return {(j if i == node else i): self.rates[i, j] for i, j in self.edges if node in (i, j)}

    def scaled(self, factor: float) -> Graph:
        """Return the same graph with every rate multiplied."""
        return Graph(self.n, {edge: factor * rate for edge, rate in self.rates.items()})

    def with_node_rate(self, rate: float) -> Graph:
        """Return it with rates such that node i starts ``rate``/2 exchanges per unit of time.

        Each start goes to a neighbour at random, so r_ij = rate/2 (1/deg_i + 1/deg_j): on a
        regular graph every node takes part in ``rate`` exchanges per unit.
        """
        degrees = [0] * self.n
        for i, j in self.rates:
            degrees[i] += 1
            degrees[j] += 1
        return Graph(
            self.n,
            {(i, j): rate / 2 * (1 / degrees[i] + 1 / degrees[j]) for i, j in self.rates},
        )

    def laplacian(self) -> NDArray[np.float64]:
        """Return Λ: [n, n]."""
        matrix = np.zeros((self.n, self.n))
        for (i, j), rate in self.rates.items():
            matrix[i, i] += rate
            matrix[j, j] += rate
            matrix[i, j] -= rate
            matrix[j, i] -= rate
        return matrix

    def mixing(self) -> Mixing:
        """Return lambda2, chi1 and chi2. Cost: O(n³)."""
        if self.n < 2:
            return Mixing(math.inf, 0.0, 0.0)
        matrix = self.laplacian()
        values = np.linalg.eigvalsh(matrix)
        lambda2 = float(values[1])
        if lambda2 <= 1e-12 * float(values[-1]):
            return Mixing(0.0, math.inf, math.inf)
        inverse = np.linalg.pinv(matrix, hermitian=True)
        ends = np.array(self.edges)
        i, j = ends[:, 0], ends[:, 1]
        resistances = inverse[i, i] + inverse[j, j] - 2 * inverse[i, j]
        return Mixing(lambda2, 1 / lambda2, float(resistances.max()) / 2)


def observed(n: int, exchanges: Mapping[Edge, int], duration: float) -> Graph:
    """Return the graph that ``exchanges`` (completed ones by edge) ran on for ``duration``."""
    return Graph(n, {edge: count / duration for edge, count in exchanges.items() if count})


def complete_mixing(n: int, rate: float) -> Mixing:
    """Return the mixing of ``n`` nodes of which each meets any other, ``rate`` times per unit.

    What ``build_graph("complete", n).with_node_rate(rate).mixing()`` finds, at no cost.
    """
    if n < 2:
        return Mixing(math.inf, 0.0, 0.0)
    lambda2 = n * rate / (n - 1)
    return Mixing(lambda2, 1 / lambda2, 1 / lambda2)


def graph_over(topology: str, n: int) -> Graph | None:
    """Return the graph that a manifest's ``topology`` means among ``n`` members, by rank.

    None where all members meet all others: it is empty or ``matching``, or there is one member.
    Edges such as ``0-1 1-2`` that go beyond the members are absent.

    Raises:
        ConfigError: no such graph, or an edge from a node to itself.
    """
    if n < 2 or not topology:
        return None
    if not topology[0].isdigit():
        return build_graph(topology, n)
    edges = [parse_edge(text) for text in topology.split()]
    return Graph(n, dict.fromkeys(sorted(edge for edge in edges if edge[1] < n), 1.0))


def parse_edge(text: str) -> Edge:
    """Return the edge ``i-j`` with the smaller end first. Raises ConfigError."""
    ends = text.split("-")
    if len(ends) != 2 or not all(end.isascii() and end.isdigit() for end in ends):
        raise ConfigError(f"expected an edge of a topology as 0-1, got {text!r}")
    i, j = sorted(map(int, ends))
    if i == j:
        raise ConfigError(f"expected an edge between two nodes of a topology, got {text!r}")
    return i, j


def build_graph(name: str, n: int) -> Graph | None:
    """Return the graph ``name`` over ``n`` nodes with a rate of 1 on each edge.

    None for ``matching``: all members meet all others, by the seeded matching of the round.

    Raises:
        ConfigError: no such graph, or fewer than 2 nodes.
    """
    if n < 2:
        raise ConfigError(f"expected a graph of at least 2 nodes, got {n}")
    makers: dict[str, Callable[[int], Iterable[Edge]]] = {
        "ring": _ring,
        "torus": _torus,
        "complete": lambda n: combinations(range(n), 2),
        "star": lambda n: ((0, j) for j in range(1, n)),
        "exponential": _exponential,
        "path": lambda n: ((i, i + 1) for i in range(n - 1)),
        "grid": lambda n: _lattice(*_sides(n), wraps=False),
    }
    if name == "matching":
        return None
    if name not in makers:
        raise ConfigError(f"expected a topology among {', '.join(TOPOLOGIES)}, got {name!r}")
    edges = {(min(edge), max(edge)) for edge in makers[name](n)}
    return Graph(n, dict.fromkeys(sorted(edges), 1.0))


def _ring(n: int) -> Iterable[Edge]:
    return ((i, (i + 1) % n) for i in range(n))


def _exponential(n: int) -> Iterable[Edge]:
    """Hops of 1, 2, 4, ... places."""
    hops = [1 << k for k in range((n - 1).bit_length())]
    return ((i, (i + hop) % n) for i in range(n) for hop in hops)


def _torus(n: int) -> Iterable[Edge]:
    return _lattice(*_sides(n), wraps=True)


def _sides(n: int) -> tuple[int, int]:
    """Return the most square rows and columns with rows x columns = n."""
    rows = next(rows for rows in range(math.isqrt(n), 0, -1) if n % rows == 0)
    return rows, n // rows


def _lattice(rows: int, columns: int, *, wraps: bool) -> Iterable[Edge]:
    for row in range(rows):
        for column in range(columns):
            here = row * columns + column
            for down, right in ((1, 0), (0, 1)):
                r, c = row + down, column + right
                if not wraps and (r == rows or c == columns):
                    continue
                there = (r % rows) * columns + c % columns
                if there != here:
                    yield here, there


def exponential(m: Matrix, elapsed: float) -> Matrix:
    """Return exp(m elapsed), to rounding: Taylor's series of a small part of it, squared.

    Of at most 1/8 in norm, nine terms leave 1e-16. torch.linalg.matrix_exp and scipy do the same
    at four and thirty times the cost, and two of these are needed for every exchange.
    """
    identity = np.eye(len(m))
    size = elapsed * float(np.abs(m).sum(axis=0).max())
    squarings = math.ceil(math.log2(max(1.0, 8 * size)))
    part = m * (elapsed / 2**squarings)
    result: Matrix = identity + part / _TERMS
    for term in range(_TERMS - 1, 0, -1):
        result = identity + part @ result / term
    for _ in range(squarings):
        result = result @ result
    return result
