"""A swarm of unequal nodes that learns texts in the laboratory, and what it is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from swarmnode.strategies.base import Intent, StepInfo, Strategy
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.streaming import OWN_DATA, Streaming
from swarmnode.tasks.text import load_corpus
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.descent import AdamW, cosine
from swarmnode.testing.lab.faults import Faults, Outage
from swarmnode.testing.lab.text import Prose

torch.set_num_threads(1)  # its vectors are small, and the tests run beside each other

Make = Callable[[torch.Tensor], Strategy]

# Between two means the slowest node of these tests takes two steps.
_STREAMING = {
    "meet": "group",
    "every": 40,
    "fragments": 2,
    "overlap": 0,
    "gamma": 0.0,
    "local_share": 0.0,
    "nesterov": True,
    "momentum": 0.5,
    "beta": 0.7,
}
_DILOCO = {"every": 40, "lr": 0.7, "momentum": 0.5}
_PAIRS = {"meet": "pair", "every": 40, "fragments": 2, "overlap": 0}
_LR = 0.016  # the best of those that were tried on such a model, for four nodes that average
_LR_ALONE = 0.008
_POINTS = 10_000  # into which a schedule is cut
_DOWN = 15  # steps for which a killed node is away
_TURN = 5.0  # units of time between two looks at the tokens


class _Uncalled(Streaming):
    """Comes when it is due itself, in rounds of its own length, and counts as much as any other."""

    def on_call(self, lineage: int) -> None:
        pass

    def weight(self, intent: Intent) -> float:
        return 1.0

    def set_round_steps(self, steps: int) -> None:
        pass


class _Unweighted(Streaming):
    """Counts as much as its partner, whatever either has learnt from."""

    def after_step(self, info: StepInfo) -> list[Intent]:
        return [replace(intent, weight=1.0) for intent in super().after_step(info)]


DEFAULT: Make = partial(Streaming, {})
STREAMING: Make = partial(Streaming, _STREAMING)
UNCALLED: Make = partial(_Uncalled, _STREAMING)
DILOCO: Make = partial(DiLoCo, _DILOCO)
PAIRS: Make = partial(Streaming, _PAIRS)
UNWEIGHTED: Make = partial(_Unweighted, _PAIRS)
OFTEN: Make = partial(Streaming, OWN_DATA)


def dialects() -> tuple[bytes, ...]:
    """Return four texts that share few words: capitals, turned around, cases swapped."""
    text = load_corpus("")
    return text, text.upper(), text[::-1], text.swapcase().replace(b" ", b"_")


def swarm_loss(
    make: Make,
    steps: int,
    speeds: Sequence[float] = (1.0,) * 4,
    *,
    texts: Sequence[bytes] = (),
    faults: Faults = Faults(),  # noqa: B008  frozen
    guarded: bool = False,
    seed: int = 1,
) -> float:
    """Return the mean loss of the nodes' own models after so many steps of all together.

    The learning rate decays by the steps of the swarm, as a recipe has it. ``guarded``: means are
    by the strategy's rule, as those of nodes are; else they are plain.
    """
    task = Prose(len(speeds), seed, texts or (load_corpus(""),))
    arenas: list[Arena] = []
    rate = _schedule(_LR, lambda: arenas[0].tally.gradients / steps)
    optimizer = AdamW(task.x, rate, (0.9, 0.95), 0.01)
    arena = Arena(
        task, make, optimizer=optimizer, seed=seed, speeds=speeds, faults=faults, guarded=guarded
    )
    arenas.append(arena)
    while arena.tally.gradients < steps:
        left = steps - arena.tally.gradients
        arena.run(max(1.0, min(_TURN, left // sum(speeds))))
    return arena.measure()["own_loss"]


def share(make: Make, steps: int, texts: Sequence[bytes] = ()) -> float:
    """Return what a swarm keeps of the distance from one node alone to data parallelism."""
    alone = alone_loss(steps, texts)
    return (alone - swarm_loss(make, steps, texts=texts)) / (alone - parallel_loss(steps, texts))


def kills(n_nodes: int, every: int, until: int) -> Faults:
    """Return faults: one node after the other is killed, and comes back with a snapshot."""
    times = range(every, until, every)
    return Faults(outages=tuple(Outage(k % n_nodes, t, t + _DOWN) for k, t in enumerate(times)))


def parallel_loss(steps: int, texts: Sequence[bytes] = ()) -> float:
    """Return what data parallelism comes to with so many steps of four nodes together."""
    return _synchronous(Prose(4, 1, texts or (load_corpus(""),)), steps // 4, _LR)


def alone_loss(steps: int, texts: Sequence[bytes] = ()) -> float:
    """Return what one node comes to alone in a quarter of the steps, on all of the texts."""
    task = Prose(1, 1, texts or (load_corpus(""),), is_mixed=True)
    return _synchronous(task, steps // 4, _LR_ALONE)


def _synchronous(task: Prose, steps: int, lr: float) -> float:
    x = task.x[:1].clone()
    taken = [0]
    optimizer = AdamW(x, _schedule(lr, lambda: taken[0] / steps), (0.9, 0.95), 0.01)
    for taken[0] in range(steps):
        task.x.copy_(x.expand_as(task.x))
        _, gradients = task.gradients(range(task.n))
        x -= optimizer.steps([0], gradients.mean(0, keepdim=True))
    return task.evaluate(x[0])


def _schedule(lr: float, progress: Callable[[], float]) -> Callable[[int], float]:
    rate = cosine(lr, _POINTS)
    return lambda _step: rate(int(_POINTS * min(1.0, progress())))
