"""``swarmnode bench learning``: a swarm between one node alone and data parallelism.

Both baselines have the best of three learning rates, with a cosine decay, in the same run; a swarm
has one, by the rule that ``create`` goes by: averaging the models of n nodes lowers the noise as a
batch n times larger would, and a larger batch bears a larger rate, about the square root of n, with
a bound. All of it is measured on text that none has trained on. What needs torch runs in processes
of its own, one for each core.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from swarmnode.bench.learning.jobs import Job, Trained
from swarmnode.bench.learning.outcome import Outcome, SeedResult, combine, format_seed
from swarmnode.bench.learning.plan import Plan, Swarm
from swarmnode.errors import WorkerError
from swarmnode.processes.worker_tools import stream_offline
from swarmnode.strategies.installed import DEFAULT_STRATEGY

TASK_LR = 6e-3  # that of bytes-lm, for one node

# Measured on sources of Python over 1,200 steps: one node alone at .003, .006, .012 comes to 2.219,
# 2.199, 2.180; data parallelism of four at .006, .012 to 1.817, 1.786. So both have the best of
# these, whatever the number of nodes.
BASELINE_LRS = (TASK_LR, 2 * TASK_LR, 4 * TASK_LR)

_FACTOR_MAX = 4.0

Engine = Literal["daemons", "lab"]

_MODULE = "swarmnode.testing.learning"

TASK_LR = 6e-3  # that of bytes-lm, for one node

# Measured on sources of Python over 1,200 steps: one node alone at .003, .006, .012 comes to 2.219,
# 2.199, 2.180; data parallelism of four at .006, .012 to 1.817, 1.786. So both have the best of
# these, whatever the number of nodes.
BASELINE_LRS = (TASK_LR, 2 * TASK_LR, 4 * TASK_LR)

_FACTOR_MAX = 4.0


def run_learning_bench(
    plan: Plan, seeds: Sequence[int], engine: Engine, say: Callable[[str], None]
) -> Outcome:
    """Train all of it and return the figures; ``say`` gets a line for each seed.

    Raises:
        SwarmNodeError: a run failed, or the strategy does not suit.
    """
    swarms = _swarms(plan, seeds, engine)
    baselines = [
        _baselines(plan, seed, swarm.model_seed) for seed, swarm in zip(seeds, swarms, strict=True)
    ]
    trained = train_all([job for jobs in baselines for job in jobs])
    results = []
    for seed, swarm, jobs in zip(seeds, swarms, baselines, strict=True):
        runs = [(job, trained.pop(0)) for job in jobs]
        results.append(_result(plan, seed, swarm, runs))
        say(format_seed(results[-1]))
    return combine(
        results,
        nodes=plan.nodes,
        steps=plan.steps,
        strategy=plan.strategy or DEFAULT_STRATEGY,
        engine=engine,
    )


def train_all(jobs: Sequence[Job]) -> list[Trained]:
    """Run jobs in processes, one for each core; return what they have come to, in order.

    Raises:
        SwarmNodeError: one failed.
    """
    shares = deal_jobs(jobs, len(os.sched_getaffinity(0)))
    done: dict[int, Trained] = {}
    with ThreadPoolExecutor(len(shares)) as pool:
        for numbers, answers in zip(
            shares, pool.map(lambda share: _train([jobs[i] for i in share]), shares), strict=True
        ):
            done.update(zip(numbers, answers, strict=True))
    return [done[number] for number in range(len(jobs))]


def deal_jobs(jobs: Sequence[Job], n_processes: int) -> list[list[int]]:
    """Return the numbers of the jobs of each process: the longest first, to who has least."""
    shares: list[list[int]] = [[] for _ in range(min(n_processes, len(jobs)))]
    costs = [0] * len(shares)
    for number in sorted(range(len(jobs)), key=lambda i: (-jobs[i].cost, i)):
        least = costs.index(min(costs))
        shares[least].append(number)
        costs[least] += jobs[number].cost
    return shares


def _train(jobs: list[Job]) -> list[Trained]:
    text = msgspec.json.encode(jobs).decode()
    answers = [msgspec.convert(each, Trained) for each in stream_offline(text, module=_MODULE)]
    if len(answers) != len(jobs):
        raise WorkerError(f"expected {len(jobs)} trained models, got {len(answers)}: run it again")
    return answers


def _swarms(plan: Plan, seeds: Sequence[int], engine: Engine) -> list[Swarm]:
    if engine == "daemons":
        from swarmnode.bench.learning.daemons import train_daemons

        return [train_daemons(plan) for _ in seeds]
    jobs = [
        Job(
            kind="laboratory",
            nodes=plan.nodes,
            steps=plan.steps,
            lr=TASK_LR * lr_factor(plan.nodes),
            seed=seed,
            model_seed=seed,
            data=plan.data,
            strategy=plan.strategy or DEFAULT_STRATEGY,
            settings=plan.settings,
        )
        for seed in seeds
    ]
    return [
        Swarm(trained, trained.exchange_bytes, job.model_seed)
        for job, trained in zip(jobs, train_all(jobs), strict=True)
    ]


def _baselines(plan: Plan, seed: int, model_seed: int) -> list[Job]:
    """Return those of one node alone and of data parallelism, at three rates each."""
    return [
        Job(
            kind="data-parallel",
            nodes=nodes,
            steps=plan.steps,
            lr=lr,
            seed=seed,
            model_seed=model_seed,
            data=plan.data,
        )
        for nodes in (1, plan.nodes)
        for lr in BASELINE_LRS
    ]


def _result(plan: Plan, seed: int, swarm: Swarm, runs: Sequence[tuple[Job, Trained]]) -> SeedResult:
    alone, alone_lr = _best(runs, 1)
    data_parallel, data_parallel_lr = _best(runs, plan.nodes)
    return SeedResult(
        seed=seed,
        alone=alone,
        alone_lr=alone_lr,
        data_parallel=data_parallel,
        data_parallel_lr=data_parallel_lr,
        swarm=swarm.trained,
        sent_bytes=swarm.sent_bytes,
    )


def _best(runs: Sequence[tuple[Job, Trained]], nodes: int) -> tuple[float, float]:
    """Return (loss, rate) of the best run over so many nodes."""
    return min((trained.mean_loss, job.lr) for job, trained in runs if job.nodes == nodes)


def lr_factor(n_members: int) -> float:
    """Return by how much a swarm of so many takes larger steps than one node alone."""
    return min(math.sqrt(n_members), _FACTOR_MAX)
