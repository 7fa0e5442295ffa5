"""Models that began apart, and what one merge at the end is worth."""

from __future__ import annotations

from collections.abc import Callable

import torch

from swarmnode.bench.fidelity.figures import check, mean, number
from swarmnode.bench.fidelity.finding import Finding, Plot, Table
from swarmnode.strategies import merge
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tensor.layout import Layout
from swarmnode.testing.fidelity.kit import Point, line
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.isolation import is_isolated
from swarmnode.testing.lab.setups import SGD_LR, digits, momentum_sgd
from swarmnode.testing.lab.tasks import Sgd

Rule = Callable[[list[torch.Tensor], Layout], torch.Tensor]

_DEEP = (64, 64, 64, 64, 64, 64, 10)  # widths: the effect grows with depth
_N = 8
_MET = 3  # random peers that a node averages with
_STEPS = 2  # before each round


def _plain(vectors: list[torch.Tensor], layout: Layout) -> torch.Tensor:
    del layout
    return merge.mean(vectors)


def vanishing_variance(quick: bool) -> Finding:
    """Eight nodes from eight inits that average with three random peers all the time."""
    seeds = [1] if quick else [1, 2, 3]
    rounds = 6 if quick else 60
    runs: dict[str, tuple[Rule, bool]] = {
        "mean": (_plain, False),
        "variance-corrected": (merge.variance_corrected, False),
        "mean, one init for all": (_plain, True),
    }
    curves = {
        name: [_train(rule, rounds, seed, same_init=same) for seed in seeds]
        for name, (rule, same) in runs.items()
    }
    at_30 = {
        name: [curve[min(30, rounds) - 1][1] for curve in found] for name, found in curves.items()
    }
    rows = [
        [name, *map(number, (mean(at_30[name]), mean(c[-1][1] for c in found)))]
        for name, found in curves.items()
    ]
    return Finding(
        name="vanishing-variance",
        title="Strangers can average, if the variance is put back",
        source="“Vanishing Variance Problem in Fully Decentralized Neural-Network Systems”,"
        " arXiv:2404.04616",
        claim="The mean of n models that have nothing in common has an n-th of their variance, so"
        " gossip between nodes with inits of their own stands still for long; rescaling the mean"
        " to the variance of its parts removes that.",
        experiment=f"Digits on {_N} nodes, six layers of tanh, eight different inits, momentum SGD;"
        f" after every {_STEPS} steps each averages with {_MET} random peers. Accuracy of the"
        " nodes, their mean.",
        seeds=seeds,
        checks=[
            check("accuracy at round 30, mean, the best seed", max(at_30["mean"]), high=0.4),
            check(
                "accuracy at round 30, corrected, the worst seed",
                min(at_30["variance-corrected"]),
                low=0.9,
            ),
        ],
        table=Table(header=["rule", "accuracy at round 30", "in the end"], rows=rows),
        plots=[
            Plot(
                name="accuracy",
                title="Eight inits that average with random peers",
                x="rounds",
                y="accuracy of a node",
                series=[line(name, found[0]) for name, found in curves.items()],
            )
        ],
    )


def _train(rule: Rule, rounds: int, seed: int, *, same_init: bool) -> list[Point]:
    """Return the mean accuracy of the nodes after each round."""
    task = Digits(_N, seed, widths=_DEEP, same_init=same_init)
    optimizer = momentum_sgd(task.x)
    generator = torch.Generator().manual_seed(seed)
    all_nodes = list(range(_N))
    curve = []
    for number_ in range(1, rounds + 1):
        for _ in range(_STEPS):
            task.x -= optimizer.steps(all_nodes, task.gradients(all_nodes)[1])
        before = task.x.clone()
        for node in all_nodes if not is_isolated() else ():
            others = [i for i in torch.randperm(_N, generator=generator).tolist() if i != node]
            task.x[node] = rule([before[i] for i in (node, *others[:_MET])], task.layout)
        accuracy = task.measure(task.x.mean(0), all_nodes)["local_accuracy"]
        curve.append((float(number_), accuracy))
    return curve


def final_merge(quick: bool) -> Finding:
    """Sixteen nodes with uneven labels that hardly talk, and one mean at the end."""
    seeds = [1] if quick else [1, 2, 3]
    steps = 40 if quick else 2000
    # Steps between exchanges: none; a fifth of an exchange in 20 steps; one in 20 steps.
    runs = {"never": 10**6, "every 100 steps": 100, "every 20 steps": 20}
    rows, merged, local = [], {}, {}
    for name, every in runs.items():
        found = []
        for seed in seeds:
            arena = digits(
                PairAverage,
                {"every": every},
                n=16,
                seed=seed,
                dirichlet=0.1,
                optimizer=lambda x: Sgd(x, SGD_LR),
            )
            arena.run(steps)
            found.append((arena.measure(), arena.tally.exchanges))
        merged[name] = mean(figures["accuracy"] for figures, _ in found)
        local[name] = mean(figures["local_accuracy"] for figures, _ in found)
        exchanges = mean(count for _, count in found)
        rows.append([name, *map(number, (exchanges, local[name], merged[name]))])
    sparse = "every 100 steps"
    return Finding(
        name="final-merge",
        title="One merge at the end",
        source="“On the Surprising Effectiveness of a Single Global Merging in Decentralized"
        " Learning”, arXiv:2507.06542",
        claim="Nodes with uneven data that exchange rarely end far below a single global mean of"
        " their models; with no exchange at all even that mean is poor.",
        experiment=f"Digits on 16 nodes, labels split by Dirichlet(0.1), SGD, {steps:,} steps,"
        " random pairs; accuracy of the nodes, and of the mean of all models.",
        seeds=seeds,
        checks=[
            check("accuracy of the mean, exchanges rare", merged[sparse], low=0.91),
            check("what the mean gains, exchanges rare", merged[sparse] - local[sparse], low=0.05),
            check("accuracy of the mean, no exchange", merged["never"], low=0.5, high=0.8),
        ],
        table=Table(header=["exchanges", "number", "accuracy of a node", "merged"], rows=rows),
        plots=[],
    )
