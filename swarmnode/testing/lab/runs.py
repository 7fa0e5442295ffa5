"""One run of an algorithm, from a few settings to its figures: ``swarmnode simulate --strategy``.

``python -m swarmnode.testing.lab JSON`` runs the :class:`Run` that the JSON describes, and says
how it ended as one JSON object on standard output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from swarmnode.errors import ConfigError
from swarmnode.ipc.lr_schedule import members_factor, shorten_warmup
from swarmnode.strategies.base import Needs
from swarmnode.strategies.registry import build_strategy, check_strategy, find_strategy
from swarmnode.strategies.topology import build_graph
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.codecs import RAW
from swarmnode.testing.lab.descent import TaskOptimizer, by_recipe
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.faults import Cut, Faults, Outage
from swarmnode.testing.lab.tasks import Adam, LabTask, Optimizer, Quadratic, Sgd
from swarmnode.testing.lab.text import TextTask
from swarmnode.worker.model.state import build_task

Point = dict[str, float]

# Crashed nodes are gone, and a network is in two halves, for these parts of a run.
_OUTAGE = (0.4, 0.7)
_CUT = (0.5, 0.75)
_POINTS = 100  # of the history
_WINDOWS = 128  # of held-out text: a tenth of a second for a small model
_DIVERGED = 1e6  # times the square norm that it began with
_SOLVED = 1e-12  # of a task whose optimum is known exactly
# Adam suits methods that take many steps between exchanges; those two average at every step.
_GOSSIP = frozenset({"pair-average", "a2cid2"})


class Run(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What to run. Times are local steps of the fastest node.

    Attributes:
        crashes: nodes that are gone from 40 to 70 % of the run.
        partition: the nodes cannot reach the other half from 50 to 75 % of the run.
        spread: how many times slower the slowest node is; the others lie between.
        dirichlet: alpha of the labels' split over nodes, task digits; 0: equal in kind.
        settings: of the strategy; where they say nothing, bytes-lm has its own, as in swarms.
        optimizer: of digits and bytes-lm; empty: for bytes-lm the task's own, and its learning
            rate as in a swarm that ends with the run; for digits adam, but sgd with strategies
            that exchange at every step.
        lr: 0: 0.1/L for lsq; 0.05 (sgd) or 0.01 (adam) for digits; for bytes-lm that of the task
            for so many nodes, 0.003 with an optimizer that is named.
        guarded: whether nodes weigh what comes in pairs before it counts, as daemons do.
        target: lsq ends when its error is as small as that.
    """

    strategy: str
    settings: dict[str, Any] = {}
    task: Literal["lsq", "digits", "bytes-lm"] = "lsq"
    topology: str = "matching"
    nodes: int = 16
    steps: int = 500
    seed: int = 1
    loss: float = 0.0
    latency: float = 0.0
    crashes: int = 0
    partition: bool = False
    spread: float = 1.0
    dirichlet: float = 0.0
    optimizer: Literal["", "sgd", "adam"] = ""
    lr: float = 0.0
    codec: str = RAW
    guarded: bool = True
    target: float = _SOLVED


@dataclass(frozen=True)
class Outcome:
    """How a run ended; ``history`` has a point for every hundredth of it.

    Figures are those of the end, but ``consensus`` is the mean over the second half.
    """

    figures: dict[str, Any]
    history: list[Point]


def parse_run(text: str) -> Run:
    """Return the run that a JSON object describes. Raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=Run)
    except msgspec.ValidationError as error:
        raise ConfigError(f"expected a run, got {text[:200]!r}: {error}") from error


def build_arena(run: Run) -> Arena:
    """Return the arena of a run, at time 0.

    Raises:
        ConfigError: the strategy is not for the task, or a setting is wrong.
    """
    found = find_strategy(run.strategy)
    graph = build_graph(run.topology, run.nodes)
    task = _build_task(run)
    settings = settings_of(run, task)
    check_strategy(run.strategy, settings, task.facts)
    optimizer = None if found.needs is Needs.GRADIENT else _build_optimizer(run, task)
    half_ago = -1 / max(run.nodes - 1, 1)
    return Arena(
        task,
        lambda x: build_strategy(run.strategy, settings, x),
        graph=graph,
        optimizer=optimizer,
        seed=run.seed,
        speeds=[run.spread ** (half_ago * number) for number in range(run.nodes)],
        faults=_build_faults(run),
        codec=run.codec,
        guarded=run.guarded,
    )


def settings_of(run: Run, task: LabTask) -> dict[str, Any]:
    """Return what a run says of its strategy, and what suits its task."""
    if isinstance(task, TextTask):
        return task.text.suited(run.strategy, run.settings)
    return run.settings


def execute(run: Run) -> Outcome:
    """Run to the end, to the target, or until it has diverged. Raises ConfigError."""
    arena = build_arena(run)
    size_max = _DIVERGED * (1 + float(arena.x.square().sum()))
    point_every = max(1, run.steps // _POINTS)
    history: list[Point] = []
    has_diverged = False
    while arena.now < run.steps and not has_diverged:
        arena.run(1.0)
        x = arena.x
        has_diverged = not float(x.square().sum()) < size_max
        is_done = arena.now >= run.steps or has_diverged or _is_solved(arena, run)
        if not has_diverged and (is_done or round(arena.now) % point_every == 0):
            history.append({"t": arena.now, **arena.measure()})
        if is_done:
            break
    return Outcome(_figures(arena, run, history, has_diverged=has_diverged), history)


def _figures(arena: Arena, run: Run, history: list[Point], *, has_diverged: bool) -> dict[str, Any]:
    last = {name: value for name, value in (history or [{}])[-1].items() if name != "t"}
    if last:  # consensus goes up and down with the gradients: what it is like in the long run
        second_half = [point["consensus"] for point in history[len(history) // 2 :]]
        last["consensus"] = sum(second_half) / len(second_half)
    mixing = arena.observed().mixing()
    tally = arena.tally
    figures = {
        "strategy": run.strategy,
        **({} if has_diverged else last),
        "gradients": tally.gradients,
        "exchanges": tally.exchanges,
        "aborted": tally.aborted,
        "bytes": tally.bytes,
        "diverged": has_diverged,
        "t": arena.now,
        "lambda2": mixing.lambda2,
        "chi1": mixing.chi1,
        "chi2": mixing.chi2,
        "digest": arena.digest(),
    }
    return {name: _jsonable(value) for name, value in figures.items()}


def _jsonable(value: Any) -> Any:
    """Return None for what JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_solved(arena: Arena, run: Run) -> bool:
    if arena.task.optimum is None:
        return False
    return arena.measure()["error"] <= run.target


def _build_task(run: Run) -> LabTask:
    if run.dirichlet and run.task != "digits":
        raise ConfigError(f"--alpha is the split of labels of task digits, and this is {run.task}")
    if run.task == "lsq":
        return Quadratic.lsq(run.nodes, run.seed)
    if run.task == "bytes-lm":
        text = build_task(run.task, {"probe_windows": _WINDOWS}, "")
        return TextTask(
            text, run.nodes, seed=run.seed, model_seed=run.seed, clip_norm=text.recipe().clip_norm
        )
    return Digits(run.nodes, run.seed, dirichlet=run.dirichlet or None)


def _build_optimizer(run: Run, task: LabTask) -> Optimizer:
    if run.task == "lsq":
        assert task.facts.smoothness is not None
        return Sgd(task.x, run.lr or 0.1 / task.facts.smoothness)
    if isinstance(task, TextTask) and not run.optimizer:
        return _as_in_swarms(run, task)
    name = run.optimizer or ("sgd" if run.strategy in _GOSSIP else "adam")
    if name == "sgd":
        return Sgd(task.x, run.lr or 0.05, momentum=0.9)
    return Adam(task.x, run.lr or (0.003 if run.task == "bytes-lm" else 0.01))


def _as_in_swarms(run: Run, task: TextTask) -> Optimizer:
    tokens = run.nodes * task.text.tokens_per_batch  # of all nodes, in a step of each
    recipe = msgspec.structs.replace(task.text.recipe(), target_tokens=tokens * run.steps)
    lr = run.lr or task.text.config.lr * members_factor(recipe, run.nodes)
    return TaskOptimizer(task.text, task.x, by_recipe(shorten_warmup(recipe), lr, tokens))


def _build_faults(run: Run) -> Faults:
    begin, end = (share * run.steps for share in _OUTAGE)
    if run.crashes >= run.nodes:
        raise ConfigError(f"expected fewer than {run.nodes} nodes to crash, got {run.crashes}")
    return Faults(
        loss=run.loss,
        latency=run.latency,
        outages=tuple(Outage(number, begin, end) for number in range(run.crashes)),
        cut=Cut(_CUT[0] * run.steps, _CUT[1] * run.steps) if run.partition else None,
    )
