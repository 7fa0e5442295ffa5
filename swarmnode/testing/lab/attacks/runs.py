"""``swarmnode simulate --attack``: one attack with guards, without them, and the same run in peace.

Each seed is three runs of the same nodes, data and meetings::

    clean        with guards; the attackers behave
    undefended   with the attack, guards off
    defended     with the attack, guards as shipped

What is said of a run are the honest nodes' own models on held-out examples: accuracy for digits,
loss for language models. ``worst`` is the worst honest node of any seed. A node's figure is the
mean over eight moments of the last tenth of a run: one whose data are few has a bad moment now and
then in the best of swarms, until its next mean. Of twenty nodes on digits (seed 3) in peace the
worst has .87 to .96, in twenty moments one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta as Range

from swarmnode.errors import ConfigError
from swarmnode.strategies.registry import build_strategy
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.attacks.impostors import LyingMembers
from swarmnode.testing.lab.attacks.named import ATTACKS, NONE, find_attacks
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.runs import Run, build_arena, settings_of
from swarmnode.testing.lab.text import TextTask

_SEEDS_MAX = 64
_MOMENTS, _JUDGED_SHARE = 8, 0.1


class AttackRun(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What to run: ``run`` once for each of ``seeds``, with so many ``attackers``.

    ``attack``: a name or several joined by commas, which attackers take in turn.
    """

    run: Run
    attack: str
    attackers: Annotated[int, Range(ge=1)]
    seeds: Annotated[list[Annotated[int, Range(ge=0)]], Range(min_length=1, max_length=_SEEDS_MAX)]


@dataclass(frozen=True)
class _Ended:
    """One run: each honest node's figure, and what honest nodes made of each other."""

    figures: list[float]
    commits: int
    contacts: int
    refused: int
    banned: int


def parse_attack(text: str) -> AttackRun:
    """Return the runs that a JSON object describes. Raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=AttackRun)
    except msgspec.ValidationError as error:
        raise ConfigError(f"expected a run of an attack, got {text[:200]!r}: {error}") from error


def known_attacks() -> dict[str, Any]:
    """Return all attacks by name, each with what it is."""
    return {
        name: f"{each.what} (adaptive)" if each.is_adaptive else each.what
        for name, each in ATTACKS.items()
    }


def execute_attack(asked: AttackRun) -> dict[str, Any]:
    """Run all of it and return the figures. Raises ConfigError."""
    names = find_attacks(asked.attack)
    _check(asked)
    clean, undefended, defended = [], [], []
    judged_by = ""
    for seed in asked.seeds:
        run = msgspec.structs.replace(asked.run, seed=seed)
        behaving = [NONE] * asked.attackers
        turns = [names[place % len(names)] for place in range(asked.attackers)]
        judged_by, found = _run(run, behaving, guarded=True)
        clean.append(found)
        undefended.append(_run(run, turns, guarded=False)[1])
        defended.append(_run(run, turns, guarded=True)[1])
    figures = [figure for each in defended for figure in each.figures]
    worst = min(figures) if judged_by == "accuracy" else max(figures)
    return {
        "nodes": asked.run.nodes,
        "attackers": asked.attackers,
        "attack": ",".join(names),
        "strategy": asked.run.strategy,
        "task": asked.run.task,
        "measure": judged_by,
        "clean": _mean(clean),
        "undefended": _mean(undefended),
        "mean": _mean(defended),
        "worst": _finite(worst),
        "honest_refused": _share(
            sum(e.refused for e in defended), sum(e.contacts for e in defended)
        ),
        "honest_banned": sum(each.banned for each in defended),
        "commits_share": _share(sum(e.commits for e in defended), sum(e.commits for e in clean)),
        "seeds": asked.seeds,
    }


def _check(asked: AttackRun) -> None:
    run = asked.run
    if run.task == "lsq":
        raise ConfigError(
            "--attack: expected --task digits or bytes-lm, got lsq, where no model is held out"
        )
    if run.nodes - asked.attackers < 2:
        raise ConfigError(
            f"--attackers: expected at most {run.nodes - 2}, so that two honest nodes of"
            f" {run.nodes} are left, got {asked.attackers}; add --nodes"
        )
    if run.crashes or run.partition:
        raise ConfigError("--attack: expected neither --crashes nor --partition beside it")


def _run(run: Run, attacks: list[str], *, guarded: bool) -> tuple[str, _Ended]:
    """Return by what nodes are judged, and how the run ended."""
    arena = build_arena(msgspec.structs.replace(run, guarded=guarded))
    task = arena.task
    assert isinstance(task, Digits | TextTask)
    n_honest = run.nodes - len(attacks)
    arena.checks_ranges = guarded
    settings = settings_of(run, task)
    impostors = LyingMembers(arena, attacks, lambda x: build_strategy(run.strategy, settings, x))
    task.mislabel(impostors.mislabelled)
    arena.impostors = impostors
    arena.run(run.steps * (1 - _JUDGED_SHARE))
    totals = [0.0] * n_honest
    for _ in range(_MOMENTS):
        arena.run(run.steps * _JUDGED_SHARE / _MOMENTS)
        totals = [total + task.judge(x) for total, x in zip(totals, task.x, strict=False)]
    return task.judged_by, _ended(arena, [total / _MOMENTS for total in totals])


def _ended(arena: Arena, figures: list[float]) -> _Ended:
    n_honest = len(figures)
    tally = arena.tally
    met = sum(count for edge, count in tally.edges.items() if max(edge) < n_honest)
    shared = sum(count for number, count in tally.means.items() if number < n_honest)
    refused = sum(
        count for (who, whom), count in tally.refusals.items() if max(who, whom) < n_honest
    )
    return _Ended(
        figures=figures,
        commits=2 * met + shared,
        contacts=met + shared + refused,
        refused=refused,
        banned=sum(count for pair, count in tally.bans.items() if max(pair) < n_honest),
    )


def _mean(runs: list[_Ended]) -> float | None:
    figures = [figure for each in runs for figure in each.figures]
    return _finite(sum(figures) / len(figures))


def _finite(value: float) -> float | None:
    """Return None for what is no number: a model that has none left."""
    return round(value, 6) if math.isfinite(value) else None


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
