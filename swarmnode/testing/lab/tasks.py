"""What is trained in the laboratory: every node's parameters are a row of one matrix.

The gradients of all nodes that step at the same moment are computed at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from swarmnode.strategies.base import TaskFacts
from swarmnode.strategies.context import LossAt
from swarmnode.tensor.layout import Layout

# Logistic regression, for methods that measure losses only.
DIM = 30
_SAMPLES = 2000
_BATCH = 64


class LabTask(ABC):
    """One thing to train on ``n`` nodes.

    Attributes:
        x: [n, numel], the parameters; row i is the storage of node i's.
        optimum: the x that minimises the mean objective, [numel]; None: it is not known.
        facts: what strategies are told of it.
        loss_trivial: on the public probe, of a model that has learnt nothing; None: not known.
        has_poisson_steps: whether nodes step at random times, as the theory has it.
    """

    x: torch.Tensor
    optimum: torch.Tensor | None = None
    facts: TaskFacts
    loss_trivial: float | None = None
    has_poisson_steps = False

    def public_probe(self) -> LossAt | None:
        """Return what parameters are worth on examples that all nodes share; None: there is no
        such thing."""
        return None

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.x.shape[0]

    @property
    def layout(self) -> Layout:
        """One tensor, unless the task says more."""
        return Layout.of([("x", (self.x.shape[1],), "float32")])

    @abstractmethod
    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw a batch for each of ``nodes``; return (losses [k], gradients [k, numel]) at x."""

    @abstractmethod
    def probe(self, node: int) -> Callable[[], float]:
        """Draw a batch for ``node``; return what its loss is at x as it will be then."""

    @abstractmethod
    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        """Return figures of the mean model [numel] and of the nodes that are alive, by name."""


class Quadratic(LabTask):
    """f_i(x) = ½ xᵀ H_i x − c_iᵀ x in float64: the optimum of the mean is known exactly.

    ``error`` is Σ ‖x_i − x*‖² over the nodes, what the theory bounds.
    """

    has_poisson_steps = True

    def __init__(self, hessians: torch.Tensor, slopes: torch.Tensor, *, name: str) -> None:
        """``hessians``: float64 [n, d, d], symmetric positive; ``slopes``: float64 [n, d]."""
        self._h, self._c = hessians, slopes
        self.x = torch.zeros_like(slopes)
        self.optimum = torch.linalg.solve(hessians.sum(0), slopes.sum(0))
        spectra = torch.linalg.eigvalsh(hessians)
        self.facts = TaskFacts(name, float(spectra.min()), float(spectra.max()))

    @classmethod
    def lsq(cls, n: int, seed: int, *, dim: int = 5, samples: int = 50) -> Quadratic:
        """Least squares: node i fits b_i = A_i w_i + 0.1 ε with rows, w_i and ε ~ N(0, 1)."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        rows, truths = normal(n, samples, dim), normal(n, dim)
        labels = torch.einsum("nsd,nd->ns", rows, truths) + 0.1 * normal(n, samples)
        hessians = torch.einsum("nsd,nse->nde", rows, rows) / samples
        slopes = torch.einsum("nsd,ns->nd", rows, labels) / samples
        return cls(hessians, slopes, name="lsq")

    @classmethod
    def conditioned(cls, n: int, kappa: float, seed: int, *, dim: int = 4) -> Quadratic:
        """Every H_i has eigenvalues from 1/kappa to 1 along axes of its own."""
        generator = torch.Generator().manual_seed(seed)
        axes = torch.linalg.qr(torch.randn(n, dim, dim, generator=generator).double())[0]
        values = torch.linspace(1 / kappa, 1.0, dim, dtype=torch.float64)
        hessians = axes @ torch.diag(values) @ axes.mT
        truths = torch.randn(n, dim, generator=generator).double()
        return cls(hessians, torch.einsum("nde,ne->nd", hessians, truths), name="lsq")

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        if len(nodes) == 1:  # at random times no two nodes step together
            (i,) = nodes
            pulled = self._h[i] @ self.x[i]
            gradient = pulled - self._c[i]
            return ((pulled / 2 - self._c[i]) @ self.x[i])[None], gradient[None]
        chosen = list(nodes)
        x, c = self.x[chosen], self._c[chosen]
        pulled = torch.einsum("nde,ne->nd", self._h[chosen], x)
        return ((pulled / 2 - c) * x).sum(1), pulled - c

    def probe(self, node: int) -> Callable[[], float]:
        return lambda: float((self._h[node] @ self.x[node] / 2 - self._c[node]) @ self.x[node])

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        del mean
        assert self.optimum is not None
        return {"error": float((self.x[list(alive)] - self.optimum).square().sum())}


class Walk(LabTask):
    """Vectors that start at N(0, 1) and whose gradient is ``pull`` x + ``noise`` N(0, 1).

    Without either nothing moves but by exchanges. With noise alone each is a random walk: the
    one thing whose stationary variance under outer steps is known in closed form.
    """

    def __init__(
        self,
        n: int,
        numel: int,
        seed: int,
        *,
        pull: float = 0.0,
        noise: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, numel, generator=self._generator, dtype=dtype)
        self._pull, self._noise = pull, noise
        self.facts = TaskFacts("walk")

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[list(nodes)]
        gradients = self._pull * x
        if self._noise:
            drawn = torch.randn(x.shape, generator=self._generator, dtype=x.dtype)
            gradients += self._noise * drawn
        return self._pull / 2 * x.square().sum(1), gradients

    def probe(self, node: int) -> Callable[[], float]:
        return lambda: self._pull / 2 * float(self.x[node].square().sum())

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        del mean, alive
        return {}


class Optimizer(ABC):
    """A local optimizer for all nodes at once; its state is per node."""

    @abstractmethod
    def steps(self, nodes: Sequence[int], gradients: torch.Tensor) -> torch.Tensor:
        """Return v = x_before − x_after: [k, numel] for gradients [k, numel]."""

    @abstractmethod
    def forget(self, node: int) -> None:
        """Begin anew for a node that lost its state."""


class Sgd(Optimizer):
    """Stochastic gradient descent with heavy-ball momentum."""

    def __init__(self, x: torch.Tensor, lr: float, momentum: float = 0.0) -> None:
        self._lr, self._momentum = lr, momentum
        self._m = torch.zeros_like(x) if momentum else None

    def steps(self, nodes: Sequence[int], gradients: torch.Tensor) -> torch.Tensor:
        if self._m is None:
            return self._lr * gradients
        chosen = list(nodes)
        moved = self._m[chosen].mul_(self._momentum).add_(gradients)
        self._m[chosen] = moved
        return moved.mul_(self._lr)

    def forget(self, node: int) -> None:
        if self._m is not None:
            self._m[node] = 0


class Adam(Optimizer):
    """Adam with bias correction, without weight decay."""

    def __init__(
        self, x: torch.Tensor, lr: float, betas: tuple[float, float] = (0.9, 0.99)
    ) -> None:
        self._lr, self._betas = lr, betas
        self._m, self._v = torch.zeros_like(x), torch.zeros_like(x)
        self._count = torch.zeros(x.shape[0], 1, dtype=x.dtype)

    def steps(self, nodes: Sequence[int], gradients: torch.Tensor) -> torch.Tensor:
        chosen = list(nodes)
        b1, b2 = self._betas
        m = self._m[chosen].lerp_(gradients, 1 - b1)
        v = self._v[chosen].mul_(b2).addcmul_(gradients, gradients, value=1 - b2)
        self._m[chosen], self._v[chosen] = m, v
        self._count[chosen] += 1
        count = self._count[chosen]
        scale = (v / (1 - b2**count)).sqrt_().add_(1e-8)
        return (m / (1 - b1**count)).div_(scale).mul_(self._lr)

    def forget(self, node: int) -> None:
        self._m[node], self._v[node], self._count[node] = 0, 0, 0


class Logistic(LabTask):
    """Logistic regression on 2,000 samples of 30 numbers; every node draws batches from all.

    ``loss`` is that of the mean model over all samples.
    """

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(_SAMPLES, DIM, generator=generator)
        truth = torch.randn(DIM, generator=generator)
        noise = torch.rand(_SAMPLES, generator=generator)
        self.labels = (torch.sigmoid(2 * self.rows @ truth) > noise).float()
        self._generators = [torch.Generator().manual_seed(1000 + i) for i in range(n)]
        self.x = torch.zeros(n, DIM)
        self.facts = TaskFacts("logit")

    def loss(self, x: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of x [DIM] on samples: a scalar with gradients."""
        return torch.nn.functional.binary_cross_entropy_with_logits(rows @ x, labels)

    def probe(self, node: int) -> Callable[[], float]:
        chosen = torch.randint(_SAMPLES, (_BATCH,), generator=self._generators[node])
        rows, labels = self.rows[chosen].double(), self.labels[chosen].double()
        return lambda: float(self.loss(self.x[node].double(), rows, labels))

    def gradients(self, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError(f"only losses are measured here, asked for gradients of {nodes}")

    def measure(self, mean: torch.Tensor, alive: Sequence[int]) -> dict[str, float]:
        del alive
        return {"loss": float(self.loss(mean, self.rows, self.labels))}
