"""Swarms that learn two texts, beside one node alone and data parallelism, each at its best.

What the findings of on_texts.py are made of. A run is made once in a process, whatever asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from swarmnode.bench.fidelity.figures import mean, ratio
from swarmnode.bench.learning.corpora import read_corpora
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.descent import AdamW, cosine
from swarmnode.testing.lab.isolation import is_isolated
from swarmnode.testing.lab.setups import Settings, StrategyClass
from swarmnode.testing.lab.text import Prose

EVERY = 20  # steps between two meetings
DILOCO, STREAMING_DILOCO, FULL_PRECISION = "DiLoCo", "Streaming DiLoCo, E3M0", "the same, fp32"
NOLOCO, STREAMING = "NoLoCo, fp32", "streaming in pairs, E3M0"

_OUTER: Settings = {"every": EVERY, "momentum": 0.5}
_GROUP: Settings = {**_OUTER, "meet": "group", "beta": 0.7, "gamma": 0.0, "nesterov": True}
ARMS: dict[str, tuple[StrategyClass, Settings]] = {
    DILOCO: (DiLoCo, {**_OUTER, "lr": 0.7}),
    STREAMING_DILOCO: (Streaming, _GROUP),
    FULL_PRECISION: (Streaming, {**_GROUP, "delta_codec": "RAW32"}),
    NOLOCO: (NoLoCo, {"every": EVERY}),
    STREAMING: (Streaming, {"every": EVERY, "meet": "pair"}),
}

# What averages has the rate that was the best of those tried on another text, for one node alone
# and for four (tests/algorithms/uneven_kit.py); baselines have the best of three around it.
_LR = 0.016
_BASELINE_LRS = (0.006, 0.012, 0.024)
_BETAS, _WEIGHT_DECAY = (0.9, 0.95), 0.01
_EMA_SHARE = 0.05  # of the steps that the mean of the weights is over
_RUNS_MAX = 512  # of all findings together, with and without exchange


@dataclass(frozen=True)
class Size:
    """How many nodes take how many steps, and how often that is repeated on each text."""

    nodes: tuple[int, ...]
    steps: int
    seeds: tuple[int, ...]


FULL = Size((2, 4, 8), 300, (7, 8, 9))
QUICK = Size((2,), 40, (1,))


@dataclass(frozen=True)
class Run:
    """How nodes ended: held-out losses in nats per byte, and what one of them has sent."""

    own: float
    mean: float
    sent_bytes: float


@dataclass(frozen=True)
class Case:
    """A swarm of one seed on one text, and its baselines."""

    swarm: Run
    alone: float
    parallel: Run

    @property
    def share_own(self) -> float:
        """Return what the nodes' own models keep of data parallelism's gain over one node."""
        return ratio(self.alone - self.swarm.own, self.alone - self.parallel.own)

    @property
    def share_mean(self) -> float:
        """Return the same of the mean model."""
        return ratio(self.alone - self.swarm.mean, self.alone - self.parallel.own)


def cases(arm: str, nodes: int, size: Size) -> list[Case]:
    """Return a case for each text and seed, in the same order for every arm."""
    found = []
    for text in read_corpora():
        alone, parallel = (_best(text, n, size) for n in (1, nodes))
        for place, seed in enumerate(size.seeds):
            # Without exchange an arm is nodes that train alone, and all arms are the same.
            met = None if is_isolated() else arm
            run = _train(met, text, nodes, size.steps, seed)
            found.append(Case(run, alone[place].own, parallel[place]))
    return found


@lru_cache(maxsize=_RUNS_MAX)
def _train(arm: str | None, text: str, nodes: int, steps: int, seed: int) -> Run:
    """Train a swarm; None: one whose nodes never meet."""
    strategy, settings = ARMS[arm or STREAMING]
    task = Prose(nodes, seed, (read_corpora()[text],))
    arena = Arena(
        task,
        partial(strategy, settings),
        optimizer=AdamW(task.x, cosine(_LR, steps), _BETAS, _WEIGHT_DECAY),
        seed=seed,
    )
    arena.run(steps)
    found = arena.measure()
    return Run(found["own_loss"], found["loss"], arena.tally.bytes / nodes)


@lru_cache(maxsize=_RUNS_MAX)
def _best(text: str, nodes: int, size: Size) -> list[Run]:
    """Return data parallelism of so many nodes for each seed, at the rate that is best on all."""
    by_rate = [
        [_synchronous(text, nodes, size.steps, seed, lr) for seed in size.seeds]
        for lr in _BASELINE_LRS
    ]
    return min(by_rate, key=lambda runs: mean(run.own for run in runs))


def _synchronous(text: str, nodes: int, steps: int, seed: int, lr: float) -> Run:
    """Train with the mean gradient of all at every step; take the better of weights and EMA."""
    task = Prose(nodes, seed, (read_corpora()[text],))
    x = task.x[:1].clone()
    averaged = x.clone()
    optimizer = AdamW(x, cosine(lr, steps), _BETAS, _WEIGHT_DECAY)
    for _ in range(steps):
        task.x.copy_(x.expand_as(task.x))
        _, gradients = task.gradients(range(nodes))
        x -= optimizer.steps([0], gradients.mean(0, keepdim=True))
        averaged.lerp_(x, 1 / max(1.0, _EMA_SHARE * steps))
    loss = min(task.evaluate(x[0]), task.evaluate(averaged[0]))
    reduced_bytes = steps * 2 * (nodes - 1) / nodes * 4 * x.shape[1]
    return Run(loss, loss, reduced_bytes)
