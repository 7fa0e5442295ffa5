"""A swarm's run beside that of an all-reduce: the finding of daemons.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmnode.bench.fidelity.finding import Check, Finding, Plot, Series, Table

Curve = list[tuple[int, float]]

_HEADER = ["run", "loss, mean model", "loss, mean of nodes", "best node", "worst node"]
_HEADER += ["MB sent by a node", "s"]


@dataclass(frozen=True)
class Setting:
    """What both have trained.

    Attributes:
        tokens_per_step: of one node.
        planes: what each node has sent, in bytes by plane.
        exchanges: how many each node has committed and aborted.
    """

    strategy: str
    steps: int
    tokens_per_step: int
    numel: int
    seed: int
    planes: Sequence[dict[str, int]]
    exchanges: Sequence[tuple[int, int]]

    @property
    def n_nodes(self) -> int:
        """How many nodes, or ranks, there are."""
        return len(self.planes)

    @property
    def reduced_bytes(self) -> float:
        """What a rank sends at least: a scattered and gathered mean of every gradient."""
        return 2 * (self.n_nodes - 1) / self.n_nodes * 4 * self.numel * self.steps


@dataclass(frozen=True)
class Run:
    """What one of the two ways has come to. Losses are those of the held-out probe.

    Attributes:
        mean_loss: of the mean of all models.
        sent_bytes: by each node.
        curve: (step, loss), a mean over the nodes.
    """

    mean_loss: float
    node_losses: list[float]
    sent_bytes: list[float]
    curve: Curve
    took_s: float
    made_with: dict[str, str] = field(default_factory=dict)


def compare(setting: Setting, ours: Run, theirs: Run, *, is_quick: bool) -> Finding:
    """Return the finding."""
    return Finding(
        name="daemons",
        title="Real daemons against synchronous all-reduce",
        source="A. Douillard et al., “Streaming DiLoCo with overlapping communication”,"
        " arXiv:2501.18512, over the pairs of NoLoCo, arXiv:2506.10911",
        claim="Training that exchanges a hundredth of the bytes reaches the loss of data"
        " parallelism on the same tokens.",
        experiment=_experiment(setting),
        seeds=[setting.seed],
        checks=_checks(setting, ours, theirs),
        table=Table(header=_HEADER, rows=[_row("streaming", ours), _row("all-reduce", theirs)]),
        plots=[_plot(setting, ours, theirs)],
        wall_s=round(ours.took_s + theirs.took_s, 1),
        made_with=theirs.made_with,
        is_quick=is_quick,
    )


def _experiment(setting: Setting) -> str:
    planes = ", ".join(
        f"{name} {statistics.fmean(sent[name] for sent in setting.planes) / 1e6:.2f}"
        for name in setting.planes[0]
    )
    committed, aborted = (
        statistics.fmean(counts) for counts in zip(*setting.exchanges, strict=True)
    )
    return (
        f"{setting.n_nodes} daemons with a worker each, over TCP on loopback, `bytes-lm` of"
        f" {setting.numel:,} parameters, strategy `{setting.strategy}` in pairs,"
        f" {setting.steps:,} steps of {setting.tokens_per_step:,} tokens for every node; against"
        " torch.distributed over gloo, a rank for each node, from the same first weights on the"
        " same batches, gradients averaged in float32 at every step. Loss in nats per byte on the"
        " same held-out text; the mean model is what a merge of all nodes gives in the end. Bytes"
        " are all that a node's sessions have sent, by the daemon's own counters (in MB, a mean"
        f" over the nodes: {planes}; in {committed:,.0f} exchanges, {aborted:,.1f} more came to"
        " nothing), without copies of snapshots, which are switched off; for a rank what the"
        " kernel counted on its sockets. 2 (n−1)/n of all gradients are"
        f" {setting.reduced_bytes / 1e6:,.0f} MB."
    )


def _checks(setting: Setting, ours: Run, theirs: Run) -> list[Check]:
    sent, reduced = statistics.fmean(ours.sent_bytes), statistics.fmean(theirs.sent_bytes)
    of_nodes = statistics.fmean(ours.node_losses)
    return [
        _check("loss of the mean model over all-reduce's", ours.mean_loss / theirs.mean_loss, 1.02),
        _check("mean of the nodes' losses over all-reduce's", of_nodes / theirs.mean_loss),
        _check("bytes sent by a node over those of a rank", sent / reduced, 0.01),
        _check("a rank's bytes over 2 (n−1)/n of all gradients", reduced / setting.reduced_bytes),
    ]


def _check(what: str, value: float, high: float | None = None) -> Check:
    return Check(what=what, value=float(f"{value:.4g}"), high=high)


def _row(name: str, run: Run) -> list[str]:
    losses = [run.mean_loss, statistics.fmean(run.node_losses)]
    losses += [min(run.node_losses), max(run.node_losses)]
    sent_mb = statistics.fmean(run.sent_bytes) / 1e6
    return [name, *(f"{loss:.4f}" for loss in losses), f"{sent_mb:,.2f}", f"{run.took_s:.0f}"]


def _plot(setting: Setting, ours: Run, theirs: Run) -> Plot:
    per_step = setting.tokens_per_step * setting.n_nodes / 1e6

    def by_tokens(curve: Curve) -> list[tuple[float, float]]:
        return [(round(step * per_step, 4), loss) for step, loss in curve]

    end = (round(setting.steps * per_step, 4), round(ours.mean_loss, 5))
    return Plot(
        name="loss",
        title="Held-out loss over tokens",
        x="million tokens of all nodes",
        y="nats per byte",
        series=[
            Series(name="streaming, mean of nodes", points=by_tokens(ours.curve)),
            Series(name="all-reduce", points=by_tokens(theirs.curve), style="dashes"),
            Series(name="streaming, mean model", points=[end], style="dots"),
        ],
    )
