"""What the demo leaves behind: an export, some text, a picture, and the figures, audited.

The audit holds the exchange histories of several nodes against each other. The promise is that an
exchange counts on both sides or on neither, and that all nodes that finish a group mean hold the
same one. A node that gave to a mean and did not finish it takes over what the others have: that is
counted, and breaks no promise. A node that was killed has lost what it did since its last snapshot,
and may have lost what it had not written to its history; a worker that dies takes with it what had
committed and was not merged yet. Both are counted apart, because no protocol can prevent them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmnode import limits
from swarmnode.cli.demo.picture import Line, Picture, Point, paced, write_picture
from swarmnode.cli.demo.run import SWARM_NAME, DemoRun
from swarmnode.cli.demo.view import LiveView
from swarmnode.processes.worker_tools import run_offline, stream_offline
from swarmnode.store.files import read_history
from swarmnode.store.swarms import read_manifest

Curve = list[tuple[int, float]]

Entry = Mapping[str, Any]
# A worker merges in the order of the views, so that an exchange is passed over by those at most
# whose slots were lent before its own was.
_OVERTAKEN_MAX = limits.SLOTS_PER_WORKER - 1


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


@dataclass(frozen=True)
class Audit:
    """Distinct exchanges over all nodes."""

    committed: int
    aborted: int
    declined: int
    half_applied: tuple[str, ...]  # ids: one living side applied it, the other did not
    lost_in_kill: int
    # The last commits of a node, whose worker had not said that it merged them when the node
    # left or its history was read.
    unconfirmed: int
    left_behind: int = 0  # living contributors of group means that did not finish them


@dataclass
class _Account:
    """One node's history, read in its order."""

    # Outcome, partners, and the hash of a group mean.
    outcomes: dict[str, tuple[str, tuple[str, ...], str]] = field(default_factory=dict)
    # Committed and not merged yet, to how many later ones have been merged.
    pending: dict[str, int] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)  # too many later ones were merged before it
    lost: set[str] = field(default_factory=set)  # committed, and gone with a worker or a boot
    uncertain: set[str] = field(default_factory=set)  # of a boot that may have been killed
    last_boot: int = 0
    was_killed: bool = False

    def take(self, entry: Entry) -> None:
        xid = entry["xid"]
        self._note_boot(entry["boot"])
        match entry["event"]:
            case "applied":
                self._merged(xid)
            case "lost":
                self.pending.pop(xid, None)
                self.lost.add(xid)
            case "finished":
                peers = (entry["peer"],) if "peer" in entry else tuple(entry["present"])
                self.outcomes[xid] = (entry["outcome"], peers, entry.get("result", ""))
                if entry["outcome"] == "committed" and xid not in self.lost:
                    self.pending[xid] = 0

    def close(self, *, is_gone: bool) -> None:
        """What is more than a worker's slots can hold cannot be on its way any more."""
        if is_gone:
            self._note_kill()
        for xid in list(self.pending)[: -limits.SLOTS_PER_WORKER]:
            self.skipped.add(xid)
            del self.pending[xid]

    def _note_boot(self, boot: int) -> None:
        if self.last_boot not in (0, boot):
            self.was_killed = True
            self._note_kill()
        self.last_boot = boot

    def _note_kill(self) -> None:
        self.lost.update(self.pending)
        self.pending.clear()
        self.uncertain.update(self.outcomes)

    def _merged(self, xid: str) -> None:
        if xid not in self.pending:
            return
        for earlier in list(self.pending):
            if earlier == xid:
                break
            self.pending[earlier] += 1
            if self.pending[earlier] > _OVERTAKEN_MAX:
                self.skipped.add(earlier)
                del self.pending[earlier]
        del self.pending[xid]


def audit_histories(
    histories: Mapping[str, Iterable[Entry]], *, killed: Collection[str] = ()
) -> Audit:
    """Compare the histories of the nodes, given by peer id; each in order of writing.

    A node with several boots counts as killed; ``killed`` names those that never came back.
    """
    accounts = {node: _Account(was_killed=node in killed) for node in histories}
    for node, entries in histories.items():
        for entry in entries:
            accounts[node].take(entry)
        accounts[node].close(is_gone=node in killed)
    half: dict[str, None] = {}
    lost: set[str] = set()
    behind: set[tuple[str, str]] = set()
    for node, account in accounts.items():
        half.update(dict.fromkeys(account.skipped))
        lost |= account.lost
        for xid, (outcome, peers, result) in account.outcomes.items():
            if outcome != "committed":
                continue
            for peer in peers:
                if peer == node or peer not in accounts:
                    continue
                theirs = accounts[peer].outcomes.get(xid)
                if theirs is not None and theirs[0] == "committed":
                    half.update({xid: None} if theirs[2] != result else {})
                elif xid in account.uncertain or (theirs is None and accounts[peer].was_killed):
                    lost.add(xid)
                elif result:
                    behind.add((xid, peer))
                else:
                    half[xid] = None
    return Audit(
        **_count_outcomes(accounts.values()),
        half_applied=tuple(half),
        lost_in_kill=len(lost - half.keys()),
        unconfirmed=sum(len(account.pending) for account in accounts.values()),
        left_behind=len(behind),
    )


def _count_outcomes(accounts: Iterable[_Account]) -> dict[str, int]:
    """Count distinct exchanges by the best that became of them."""
    found: dict[str, set[str]] = {}
    for account in accounts:
        for xid, (outcome, *_) in account.outcomes.items():
            found.setdefault(xid, set()).add(outcome)
    best = [
        next(kind for kind in ("committed", "aborted", "declined") if kind in outcomes)
        for outcomes in found.values()
    ]
    return {kind: best.count(kind) for kind in ("committed", "aborted", "declined")}
