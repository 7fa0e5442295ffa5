"""``swarmnode bench fidelity --only default``: what ``create`` gives by default, on real nodes.

Swarms of 2, 4 and 8 real daemons with a worker each learn two texts on which no setting was
chosen by its loss, three times each, by the task's own recipe and strategy. Beside each swarm are
one node alone and data parallelism from the same first weights. With exchange switched off a node
of a swarm is one that trains alone at the swarm's learning rate: that is what the laboratory trains
for it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from swarmnode.bench.fidelity.figures import check, claim, mean, number, short, standard_error
from swarmnode.bench.fidelity.finding import Check, Finding, Plot, Series, Table
from swarmnode.bench.fidelity.versions import made_with
from swarmnode.bench.learning.corpora import describe_untuned, read_untuned, write_texts
from swarmnode.bench.learning.daemons import train_daemons
from swarmnode.bench.learning.jobs import CONFIG, Job, Trained
from swarmnode.bench.learning.outcome import SeedResult, combine
from swarmnode.bench.learning.plan import Plan, Swarm
from swarmnode.bench.learning.run import baseline_jobs, swarm_lr, train_all
from swarmnode.strategies.installed import DEFAULT_STRATEGY

_NAME = "default"
_NEVER: dict[str, Any] = {"every": 10**6}  # steps of a round: no exchange
_SHARE = 0.4  # of the gain; how much more it is, is a finding
_EXCHANGED, _SENT = 1 / 80, 1 / 40  # of data parallelism's bytes


@dataclass(frozen=True)
class Size:
    """How many nodes take how many steps, and how often that is repeated on each text."""

    nodes: tuple[int, ...]
    steps: int
    seeds: tuple[int, ...]
    texts: int


# Of the task's own size. A smaller model takes such steps in a few milliseconds, and all of them in
# the seconds between two reports of a member, by which the others know how far the swarm is.
FULL_SIZE = Size((2, 4, 8), 1200, (1, 2, 3), 2)
QUICK_SIZE = Size((2,), 40, (1,), 1)


@dataclass(frozen=True)
class Case:
    """One swarm with its baselines; ``isolated``: the loss of a node of it without exchange."""

    text: str
    nodes: int
    result: SeedResult
    isolated: float

    def share(self, loss: float) -> float:
        """Return what of data parallelism's gain over one node alone a loss keeps."""
        return (self.result.alone - loss) / (self.result.alone - self.result.data_parallel)


def run_default(*, is_quick: bool) -> Finding:
    """Train all of it and judge.

    Raises:
        SwarmNodeError: a node or a baseline failed, or took too long.
    """
    size = QUICK_SIZE if is_quick else FULL_SIZE
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="swarmnode-default-"))
    try:
        cases = _train_cases(size, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = judge(cases, size)
    return msgspec.structs.replace(
        found,
        wall_s=round(time.monotonic() - began_s, 1),
        made_with=made_with(),
        is_quick=is_quick,
        fails_isolated=None if is_quick else fails_isolated(cases, size),
    )


def _train_cases(size: Size, folder: Path) -> list[Case]:
    texts = list(write_texts(read_untuned(), folder).items())[: size.texts]
    plans = [
        (text, seed, Plan(nodes, size.steps, "", data=str(data)))
        for nodes in size.nodes
        for text, data in texts
        for seed in size.seeds
    ]
    swarms = [train_daemons(plan) for _, _, plan in plans]
    jobs = [
        _jobs(plan, seed, swarm.model_seed)
        for (_, seed, plan), swarm in zip(plans, swarms, strict=True)
    ]
    trained = train_all([job for each in jobs for job in each])
    cases = []
    for (text, seed, plan), swarm, each in zip(plans, swarms, jobs, strict=True):
        runs = [(job, trained.pop(0)) for job in each]
        cases.append(_case(text, seed, plan, swarm, runs))
    return cases


def _jobs(plan: Plan, seed: int, model_seed: int) -> list[Job]:
    """Return the baselines of a swarm, and last a node of it that never exchanges."""
    isolated = Job(
        kind="laboratory",
        nodes=1,
        steps=plan.steps,
        lr=swarm_lr(plan.nodes),
        seed=seed,
        model_seed=model_seed,
        data=plan.data,
        config=plan.config,
        strategy=DEFAULT_STRATEGY,
        settings=_NEVER,
    )
    return [
        *baseline_jobs(plan, 1, seed, model_seed),
        *baseline_jobs(plan, plan.nodes, seed, model_seed),
        isolated,
    ]


def _case(
    text: str, seed: int, plan: Plan, swarm: Swarm, runs: Sequence[tuple[Job, Trained]]
) -> Case:
    *baselines, (_, isolated) = runs
    half = len(baselines) // 2  # of one node alone, then of all
    alone, parallel = (
        min((trained.mean_loss, job.lr) for job, trained in part)
        for part in (baselines[:half], baselines[half:])
    )
    result = SeedResult(
        seed=seed,
        alone=alone[0],
        alone_lr=alone[1],
        data_parallel=parallel[0],
        data_parallel_lr=parallel[1],
        swarm=swarm.trained,
        sent_bytes=swarm.sent_bytes,
    )
    return Case(text, plan.nodes, result, isolated.own_loss)


# --- what it says --------------------------------------------------------------------------------

_HEADER = ["nodes", "text", "alone", "data parallel", "own models", "mean model"]
_HEADER += ["share, own", "share, mean", "exchanges", "exchanged", "all sent", "MB sent by a node"]


def judge(cases: Sequence[Case], size: Size) -> Finding:
    """Return the finding, but for its time and what it was made with."""
    counts = ", ".join(map(str, size.nodes))
    return Finding(
        name=_NAME,
        title="The default of create: two texts, 2, 4 and 8 nodes",
        source="What a user of `swarmnode create --task bytes-lm --tokens N` gets",
        claim=f"Own models keep {_SHARE:.0%} and more of what data parallelism gains over one node"
        f" alone, for 1/{1 / _EXCHANGED:.0f} of its bytes in exchanges and 1/{1 / _SENT:.0f} in all"
        " that a node sends. How much more they keep is a finding, not a claim.",
        experiment=f"Real daemons with a worker each, over TCP on loopback: {counts} of them,"
        f" `bytes-lm` with {_config()} ({cases[0].result.swarm.numel:,} parameters),"
        f" {size.steps} steps, strategy and recipe as `create` gives them, {len(size.seeds)} swarms"
        f" on each text: {describe_untuned()}. Losses are held out, in nats per byte; one node"
        " alone and data parallelism have the best of three learning rates with a cosine, and"
        " of the last weights and their EMA. The share is what is kept of the distance between"
        " those two, by the nodes' own models and by their mean. Bytes are parts of one model in"
        " float32 a step: those of exchanges, and everything that a node sent, snapshots and"
        " control too. All nodes share the cores of one machine; how many exchanges a node had is"
        " beside what it kept."
        " Means over texts and seeds, with their standard error.",
        seeds=list(size.seeds),
        checks=_checks(cases, size, lambda case: case.result.swarm.own_loss, sends=True),
        table=Table(header=_HEADER, rows=[_row(each, size.steps) for each in _groups(cases)]),
        plots=[_plot(cases, size)],
    )


def _checks(
    cases: Sequence[Case], size: Size, own_loss: Callable[[Case], float], *, sends: bool
) -> list[Check]:
    shares = [
        claim(
            f"share of data parallelism's gain, own models, {nodes} nodes",
            [case.share(own_loss(case)) for case in cases if case.nodes == nodes],
            low=_SHARE,
        )
        for nodes in size.nodes
    ]
    parts = [_parts(each, size.steps) for each in _groups(cases)] if sends else [(0.0, 0.0)]
    exchanged, sent = (max(values) for values in zip(*parts, strict=True))
    return [
        *shares,
        check("bytes of exchanges over data parallelism's, the most", exchanged, high=_EXCHANGED),
        check("all bytes over data parallelism's, the most", sent, high=_SENT),
    ]


def fails_isolated(cases: Sequence[Case], size: Size) -> list[str]:
    """Return what is not as expected of nodes that never exchange."""
    found = _checks(cases, size, lambda case: case.isolated, sends=False)
    return [check.what for check in found if not check.holds]


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    """Return those of one text and number of nodes together."""
    keys = dict.fromkeys((case.nodes, case.text) for case in cases)
    return [[case for case in cases if (case.nodes, case.text) == key] for key in keys]


def _parts(cases: Sequence[Case], steps: int) -> tuple[float, float]:
    """Return the bytes of exchanges, and of everything, over those of data parallelism."""
    found = combine(
        [case.result for case in cases],
        nodes=cases[0].nodes,
        steps=steps,
        strategy=DEFAULT_STRATEGY,
        engine="daemons",
    )
    return found.exchange_bytes_ratio, found.bytes_ratio


def _row(cases: Sequence[Case], steps: int) -> list[str]:
    results = [case.result for case in cases]
    losses = (
        [each.alone for each in results],
        [each.data_parallel for each in results],
        [each.swarm.own_loss for each in results],
        [each.swarm.mean_loss for each in results],
    )
    sent = mean(each.sent_bytes for each in results)
    return [
        str(cases[0].nodes),
        cases[0].text,
        *(f"{mean(values):.4f}" for values in losses),
        *(
            _with_error([case.share(loss) for case, loss in zip(cases, values, strict=True)])
            for values in losses[2:]
        ),
        number(mean(each.swarm.committed for each in results)),
        *(f"1/{1 / part:.0f}" for part in _parts(cases, steps)),
        number(sent / 1e6),
    ]


def _with_error(values: Sequence[float]) -> str:
    error = f" ± {standard_error(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{error}"


def _config() -> str:
    return ", ".join(f"{name} {value}" for name, value in CONFIG.items())


def _plot(cases: Sequence[Case], size: Size) -> Plot:
    lines: dict[str, Callable[[Case], float]] = {
        "one node alone": lambda case: case.result.alone,
        "own models": lambda case: case.result.swarm.own_loss,
        "mean model": lambda case: case.result.swarm.mean_loss,
        "data parallel": lambda case: case.result.data_parallel,
    }

    def points(of: Callable[[Case], float]) -> list[tuple[float, float]]:
        return [
            (float(n), short(mean(of(case) for case in cases if case.nodes == n)))
            for n in size.nodes
        ]

    return Plot(
        name="loss",
        title="Held-out loss, mean of two texts",
        x="nodes",
        y="nats per byte",
        series=[Series(name=name, points=points(of)) for name, of in lines.items()],
    )
