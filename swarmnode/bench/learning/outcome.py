"""The figures of ``swarmnode bench learning``, from what its runs have come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from swarmnode.bench.learning.jobs import Trained

_FLOAT32_BYTES = 4


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed has come to.

    Attributes:
        alone, data_parallel: held-out losses at the best learning rate.
        alone_lr, data_parallel_lr: that rate.
        swarm: its losses and exchanges.
        sent_bytes: all that a node has sent, a mean over the nodes.
    """

    seed: int
    alone: float
    alone_lr: float
    data_parallel: float
    data_parallel_lr: float
    swarm: Trained
    sent_bytes: float

    @property
    def share_own(self) -> float | None:
        """See ``share``."""
        return share(self.alone, self.data_parallel, self.swarm.own_loss)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed; losses in nats per byte, a mean over the seeds.

    Attributes:
        share_own, share_mean: of the gain of data parallelism, what the swarm keeps; None: it
            gained nothing, as in runs that are too short.
        bytes_per_node: all that a node has sent.
        bytes_ratio: that over data parallelism's float32, one model a step.
        exchange_bytes_ratio: the same of exchanges alone, without snapshots, state and control.
        committed, aborted: exchanges of a node.
    """

    nodes: int
    steps: int
    strategy: str
    engine: str
    alone: float
    data_parallel: float
    swarm_own: float
    swarm_mean: float
    share_own: float | None
    share_mean: float | None
    bytes_per_node: int
    bytes_ratio: float
    exchange_bytes_ratio: float
    committed: float
    aborted: float
    seeds: list[int]


def share(alone: float, data_parallel: float, swarm: float) -> float | None:
    """Return (alone − swarm) / (alone − data parallel); None where that gains nothing."""
    if not data_parallel < alone:
        return None
    return round((alone - swarm) / (alone - data_parallel), 4)


def combine(
    results: Sequence[SeedResult], *, nodes: int, steps: int, strategy: str, engine: str
) -> Outcome:
    """Return the means over the seeds, and the shares of the mean losses."""

    def mean(figures: Sequence[float]) -> float:
        return statistics.fmean(figures)

    alone = mean([each.alone for each in results])
    data_parallel = mean([each.data_parallel for each in results])
    own = mean([each.swarm.own_loss for each in results])
    of_mean = mean([each.swarm.mean_loss for each in results])
    sent_bytes = mean([each.sent_bytes for each in results])
    exchanged_bytes = mean([each.swarm.exchange_bytes for each in results])
    reduced_bytes = _FLOAT32_BYTES * results[0].swarm.numel * steps
    return Outcome(
        nodes=nodes,
        steps=steps,
        strategy=strategy,
        engine=engine,
        alone=round(alone, 5),
        data_parallel=round(data_parallel, 5),
        swarm_own=round(own, 5),
        swarm_mean=round(of_mean, 5),
        share_own=share(alone, data_parallel, own),
        share_mean=share(alone, data_parallel, of_mean),
        bytes_per_node=round(sent_bytes),
        bytes_ratio=float(f"{sent_bytes / reduced_bytes:.4g}"),
        exchange_bytes_ratio=float(f"{exchanged_bytes / reduced_bytes:.4g}"),
        committed=round(mean([each.swarm.committed for each in results]), 1),
        aborted=round(mean([each.swarm.aborted for each in results]), 1),
        seeds=[each.seed for each in results],
    )


def format_seed(result: SeedResult) -> str:
    """Return a line about one seed."""
    return (
        f"seed {result.seed}: alone {result.alone:.4f} (lr {result.alone_lr:g}), data parallel"
        f" {result.data_parallel:.4f} (lr {result.data_parallel_lr:g}), swarm"
        f" {result.swarm.own_loss:.4f} own, {result.swarm.mean_loss:.4f} mean:"
        f" share {_percent(result.share_own)}"
    )


def format_outcome(outcome: Outcome) -> str:
    """Return it as lines for a person."""
    return "\n".join(
        (
            f"{outcome.nodes} nodes, {outcome.steps} steps each, {outcome.strategy},"
            f" engine {outcome.engine}, seeds {', '.join(map(str, outcome.seeds))}",
            f"held-out loss: one node alone {outcome.alone:.4f}, data parallel"
            f" {outcome.data_parallel:.4f}, swarm {outcome.swarm_own:.4f} own,"
            f" {outcome.swarm_mean:.4f} mean model",
            f"of the gain of data parallelism the swarm keeps {_percent(outcome.share_own)} (own"
            f" models), {_percent(outcome.share_mean)} (mean model)",
            f"bytes of a node: {outcome.bytes_per_node / 1e6:.2f} MB, {_part(outcome.bytes_ratio)}"
            f" of data parallelism's float32; exchanges alone"
            f" {_part(outcome.exchange_bytes_ratio)}",
            f"exchanges of a node: {outcome.committed:g} committed, {outcome.aborted:g} aborted",
        )
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return all of it for ``--json``."""
    found: dict[str, Any] = msgspec.to_builtins(outcome)
    return found


def _percent(part: float | None) -> str:
    return "unknown: nothing was gained" if part is None else f"{part:.0%}"


def _part(ratio: float) -> str:
    return f"1/{1 / ratio:.0f}" if ratio else "nothing"
