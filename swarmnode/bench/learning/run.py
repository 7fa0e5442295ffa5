"""``swarmnode bench learning``: a swarm between one node alone and data parallelism.

Both baselines have the best of three learning rates, with a cosine decay, and of the last weights
and their EMA, in the same run; a swarm has one rate, by the rule that ``create`` goes by
(``ipc/lr_schedule.py``). All of it is measured on text that none has trained on. What needs torch
runs in processes of its own, one for each core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from swarmnode.bench.learning.jobs import Job, Trained
from swarmnode.bench.learning.outcome import Outcome, SeedResult, combine, format_seed
from swarmnode.bench.learning.plan import Plan, Swarm
from swarmnode.errors import WorkerError
from swarmnode.ipc.lr_schedule import MEMBERS_EXPONENT, MEMBERS_MAX, members_factor
from swarmnode.processes.worker_tools import stream_offline
from swarmnode.strategies.installed import DEFAULT_STRATEGY
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.runtime import core_count

TASK_LR = 0.02  # that of bytes-lm, for one node

# Measured on sources of Python over 1,200 steps, a loop without the rest of a node: one node alone
# at .012 and .02 comes to 1.812 and 1.807, data parallelism of four at .02 to 1.582; with short
# convolutions in the model, which move all of it down: alone at .006, .012, .02, .03 to 1.789,
# 1.748, 1.729, 1.766, data parallelism at .012, .025 to 1.556, 1.538. So both have the best of
# these, whatever the number of nodes.
BASELINE_LRS = (TASK_LR / 2, TASK_LR, 2 * TASK_LR)

Engine = Literal["daemons", "lab"]

_MODULE = "swarmnode.testing.learning"
_RECIPE = Recipe(members_exponent=MEMBERS_EXPONENT, members_max=MEMBERS_MAX)


def swarm_lr(n_members: int) -> float:
    """Return the highest learning rate of a swarm of so many, by the rule of real swarms."""
    return TASK_LR * members_factor(_RECIPE, n_members)


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
    shares = deal_jobs(jobs, core_count())
    done: dict[int, Trained] = {}
    with ThreadPoolExecutor(len(shares)) as pool:
        for numbers, answers in zip(
            shares, pool.map(lambda share: _train([jobs[i] for i in share]), shares), strict=True
        ):
            done.update(zip(numbers, answers, strict=True))
    return [done[number] for number in range(len(jobs))]


def deal_jobs(jobs: Sequence[Job], n_processes: int) -> list[list[int]]:
    """Return each process's jobs by number: the longest first, to the process with the least."""
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
            lr=swarm_lr(plan.nodes),
            seed=seed,
            model_seed=seed,
            data=plan.data,
            config=plan.config,
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
        job for nodes in (1, plan.nodes) for job in baseline_jobs(plan, nodes, seed, model_seed)
    ]


def baseline_jobs(plan: Plan, nodes: int, seed: int, model_seed: int) -> list[Job]:
    """Return data parallelism of so many nodes, at three rates; of one it is that node alone."""
    return [
        Job(
            kind="data-parallel",
            nodes=nodes,
            steps=plan.steps,
            lr=lr,
            seed=seed,
            model_seed=model_seed,
            data=plan.data,
            config=plan.config,
        )
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
