"""Arenas in one line, as the tests of algorithms and the experiments of fidelity have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from swarmnode.strategies.base import Strategy
from swarmnode.strategies.topology import build_graph
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.tasks import Adam, Optimizer, Sgd, Walk

Settings = dict[str, Any]
StrategyClass = Callable[[Settings, torch.Tensor], Strategy]

ADAM_LR = 1e-2
SGD_LR, SGD_MOMENTUM = 0.05, 0.9


def still(
    strategy: StrategyClass,
    settings: Settings,
    *,
    n: int,
    graph: str = "ring",
    seed: int = 0,
    numel: int = 8,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Arena:
    """Return an arena of random vectors in which nothing moves but by exchanges.

    ``options``, here and below, are those of :class:`Arena`.
    """
    task = Walk(n, numel, seed, dtype=dtype)
    return Arena(
        task,
        lambda x: strategy(settings, x),
        graph=build_graph(graph, n),
        optimizer=Sgd(task.x, 0.0),
        seed=seed,
        **options,
    )


def walk(
    strategy: StrategyClass,
    settings: Settings,
    *,
    n: int = 64,
    lr: float = 0.01,
    seed: int = 1,
    numel: int = 64,
    pull: float = 0.0,
    **options: Any,
) -> Arena:
    """Return an arena of random walks that start at 0: gradients are N(0, 1), and ``pull`` x."""
    task = Walk(n, numel, seed, noise=1.0, pull=pull)
    task.x.zero_()
    optimizer = Sgd(task.x, lr)
    return Arena(task, lambda x: strategy(settings, x), optimizer=optimizer, seed=seed, **options)


def digits(
    strategy: StrategyClass,
    settings: Settings,
    *,
    n: int,
    seed: int = 1,
    optimizer: Callable[[torch.Tensor], Optimizer] = lambda x: Adam(x, ADAM_LR),
    graph: str = "matching",
    dirichlet: float | None = None,
    **options: Any,
) -> Arena:
    """Return an arena that trains digits, with Adam unless told otherwise."""
    task = Digits(n, seed, dirichlet=dirichlet)
    return Arena(
        task,
        lambda x: strategy(settings, x),
        graph=build_graph(graph, n),
        optimizer=optimizer(task.x),
        seed=seed,
        **options,
    )


def momentum_sgd(x: torch.Tensor) -> Optimizer:
    """Return the optimizer of the gossip papers."""
    return Sgd(x, SGD_LR, momentum=SGD_MOMENTUM)


def slow_variance(arena: Arena) -> float:
    """Return the variance between the slow weights of the nodes, mean over coordinates."""
    phi = np.stack([node.strategy.buffers()["phi"].numpy() for node in arena.up])
    return float(phi.var(0, ddof=1).mean())
