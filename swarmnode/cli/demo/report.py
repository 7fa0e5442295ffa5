"""What the demo leaves behind: an export, some text, a picture, and the figures, audited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swarmnode.cli.demo.picture import Line, Picture, Point, paced, write_picture
from swarmnode.cli.demo.run import SWARM_NAME, DemoRun
from swarmnode.cli.demo.view import LiveView
from swarmnode.processes.audit import Audit, audit_histories
from swarmnode.processes.worker_tools import run_offline, stream_offline
from swarmnode.store.files import read_history
from swarmnode.store.swarms import read_manifest

Curve = list[tuple[int, float]]


def report(run: DemoRun, out: Path, view: LiveView) -> dict[str, Any]:
    """Evaluate, compare with one node alone, export, draw; return the figures."""
    data = ("--data-dir", str(run.settings.data)) if run.settings.data is not None else ()
    evaluated = run_offline("evaluate", *map(str, run.snapshots), *data)
    losses = [model["loss"] for model in evaluated["models"]]
    steps = [model["step"] for model in evaluated["models"]]
    view.say(f"now one node alone for the same {max(steps)} steps")
    alone = _train_alone(run, max(steps), data)
    text = run_offline("generate", str(out / "model"), "--prompt", "The ", "--length", "200", *data)
    if not write_picture(_picture(run, losses, alone), out):
        view.say("no loss.png without matplotlib: pip install '.[plot]' in the clone of swarmnode")
    audit = audit_histories(
        {node.status["peer"]: read_history(node.paths.history) for node in run.nodes}
    )
    figures = {
        "nodes": len(run.nodes),
        "steps": max(steps),
        "steps_by_node": steps,
        "tokens": sum(node.status["tokens"] for node in run.nodes),
        "loss_start": max(node.curve[0][1] for node in run.nodes if node.curve),
        "loss_end": sum(losses) / len(losses),
        "loss_by_node": losses,
        "loss_merged": evaluated["mean_loss"],
        "loss_alone": alone[-1][1],
        "exchanges_committed": audit.committed,
        "exchanges_aborted": audit.aborted,
        "exchanges_half_applied": len(audit.half_applied),
        "exchanges_lost_in_kill": audit.lost_in_kill,
        "bytes_sent": sum(node.row().sent_bytes for node in run.nodes),
        "consensus_distance": evaluated["consensus_distance"],
        "joined_late": run.nodes[-1].name,
        "joined_late_s": run.joined_late_s,
        "newcomer_loss": run.newcomer_loss,
        "killed": run.victim.name,
        "killed_at_step": run.killed_at_step,
        "rejoined": run.rejoined_s is not None,
        "rejoined_s": run.rejoined_s,
        "leave_s_max": max(run.leave_s),
        "export_dir": str((out / "model").absolute()),
    }
    _say_figures(figures, audit, text["text"], out, view)
    return figures


def _train_alone(run: DemoRun, steps: int, data: tuple[str, ...]) -> Curve:
    """One node, the swarm's first weights, as many steps as a node of the swarm took."""
    import msgspec

    manifest = read_manifest(SWARM_NAME, run.nodes[0].paths)
    lines = stream_offline(
        "alone",
        *("--task", manifest.task),
        *("--config", msgspec.json.encode(manifest.task_config).decode()),
        *("--steps", str(steps)),
        *("--swarm-seed", str(manifest.seed)),
        *data,
    )
    return [(line["step"], line["eval_loss"]) for line in lines]


def _picture(run: DemoRun, losses: Sequence[float], alone: Curve) -> Picture:
    """Return what is drawn: the figures that are printed are its last points."""
    lines = []
    for node, loss in zip(run.nodes, losses, strict=True):
        name = f"{node.name}, killed and restarted" if node is run.victim else node.name
        last = node.points[-1]
        end = Point(last.at_s, node.swarm_tokens, node.status["step"], loss)
        lines.append(Line(name, [*node.points, end], loss))
    pace = run.nodes[0].points  # the first node has taken the most steps
    return Picture(
        nodes=lines,
        alone=Line("one node alone", paced(alone, pace, len(lines)), alone[-1][1]),
        killed=run.victim.name,
        killed_at=run.killed_at,
        loss=sum(losses) / len(losses),
    )


def _say_figures(
    figures: dict[str, Any], audit: Audit, text: str, out: Path, view: LiveView
) -> None:
    spread = max(figures["loss_by_node"]) / figures["loss_end"] - 1
    rejoined = figures["rejoined_s"]
    view.say(
        f"\nswarm loss {figures['loss_end']:.4f} (was {figures['loss_start']:.4f}), one node alone"
        f" {figures['loss_alone']:.4f} after the same {figures['steps']} steps"
    )
    view.say(
        f"worst node {spread:+.1%} of the swarm's loss, mean of all models"
        f" {figures['loss_merged']:.4f}, consensus distance {figures['consensus_distance']:.3g}"
    )
    view.say(
        f"{audit.committed} exchanges committed, {audit.aborted} aborted,"
        f" {len(audit.half_applied)} half applied; {figures['bytes_sent'] / 1e6:.1f} MB sent"
    )
    view.say(
        f"{figures['killed']} killed at step {figures['killed_at_step']},"
        f" back after {'never' if rejoined is None else f'{rejoined:.1f} s'};"
        f" Ctrl-C ended each node within {figures['leave_s_max']:.2f} s"
    )
    view.say(f"\n--- 200 bytes from {out / 'model'} ---\n{text}\n---\npicture: {out / 'loss.png'}")
