"""``swarmnode bench fidelity --only daemons``: a real swarm against synchronous all-reduce.

Four daemons on loopback, each with a worker, train ``bytes-lm`` with the strategy ``streaming``.
Then the same first weights are trained on the same batches by ``torch.distributed`` over gloo, in
as many processes, with the mean of all gradients at every step. Every node draws its own batches:
the swarm is created with other data than the nodes have, so that no shards are dealt out, and what
a node has trained on follows from its identity alone. All are held until the last one is there, so
that each begins with the first weights and not with a peer's snapshot. Copies of snapshots, which
an all-reduce does not have, are switched off; every other byte between the nodes counts.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from swarmnode.cli.demo_run import DemoNode
from swarmnode.cli.finding import Check, Finding, Plot, Series, Table
from swarmnode.cli.node_process import free_addresses
from swarmnode.cli.worker_tools import run_offline, stream_offline
from swarmnode.errors import DeadlineExceeded, SwarmNodeError, WorkerError
from swarmnode.ids import PeerId
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.store.swarms import read_manifest

_SWARM = "fidelity"
_STRATEGY = "streaming"
_ALLREDUCE = "swarmnode.testing.fidelity.allreduce"
# One thread each, as the ranks have. A byte a second: no copies of snapshots within this run.
_SETTINGS = b"""\
threads = 1
lan = false
snapshot_upload_bytes_per_s = 1
snapshot_download_bytes_per_s = 1
"""
_OTHER_TEXT = b"Some text that no node of this swarm has. " * 100
_POLL_S = 0.1
_START_DEADLINE_S = 180.0
_STEP_S_MAX = 1.0  # on the slowest machine
_STOP_DEADLINE_S = 10.0
_CURVE_EVERY = 60  # steps between points of the picture


@dataclass(frozen=True)
class _Plan:
    n_nodes: int
    steps: int
    config: dict[str, int]  # of the task

    @property
    def deadline_s(self) -> float:
        return 60.0 + self.steps * _STEP_S_MAX


_FULL = _Plan(4, 3200, {"probe_windows": 128})
_QUICK = _Plan(2, 64, {"dim": 16, "layers": 1, "heads": 2, "context": 16, "probe_windows": 4})

Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class _Run:
    """What one of the two ways has come to. Losses are those of the held-out probe."""

    mean_loss: float  # of the mean of all models
    node_losses: list[float]
    sent_bytes: list[float]  # by node
    curve: Curve  # the mean over the nodes
    took_s: float
    made_with: dict[str, str] = field(default_factory=dict)


def run_daemons(*, is_quick: bool) -> Finding:
    """Run both and compare.

    Raises:
        SwarmNodeError: a node or a rank failed, or took too long.
    """
    plan = _QUICK if is_quick else _FULL
    folder = Path(tempfile.mkdtemp(prefix="swarmnode-fidelity-"))
    try:
        swarm = _Swarm(folder, plan)
        trio.run(swarm.train)
        ours = swarm.evaluate()
        theirs = _all_reduce(swarm, plan)
        return _compare(plan, ours, theirs, swarm, is_quick=is_quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Swarm:
    """The nodes, and what they have come to."""

    def __init__(self, folder: Path, plan: _Plan) -> None:
        self._plan = plan
        self._folder = folder
        self.nodes = [
            DemoNode(f"n{number}", folder / f"node{number}", address)
            for number, address in enumerate(free_addresses(plan.n_nodes))
        ]
        self.took_s = 0.0
        self.planes: list[dict[str, int]] = []

    @property
    def manifest(self) -> Any:
        """The rules that all nodes trained by."""
        return read_manifest(_SWARM, self.nodes[0].paths)

    async def train(self) -> None:
        """Create the swarm, train all nodes from one moment on, and save their models."""
        link = await self._create()
        try:
            for node in self.nodes:
                await node.start(link, "--steps", str(self._plan.steps))
            await self._hold_until_all_are_there()
            began_s = trio.current_time()
            for node in self.nodes:
                await node.ask("POST", "/resume")
            await self._wait("all steps of every node", self._plan.deadline_s, self._have_ended)
            self.took_s = trio.current_time() - began_s
            self._check_beginnings()
            self.planes = [dict(node.status["sent_bytes"]) for node in self.nodes]
            for node in self.nodes:
                await node.ask("POST", "/snapshot")
            async with trio.open_nursery() as nursery:
                for node in self.nodes:
                    nursery.start_soon(node.interrupt, _STOP_DEADLINE_S)
        finally:
            for node in self.nodes:
                node.kill_if_running()

    async def _create(self) -> str:
        other = self._folder / "other-text"
        other.mkdir()
        write_atomic(other / "text.txt", _OTHER_TEXT)
        for node in self.nodes:
            make_private_dir(node.home)
            write_atomic(node.home / "config.toml", _SETTINGS)
        config = [f"--set={key}={value}" for key, value in self._plan.config.items()]
        options = ("--task", "bytes-lm", "--strategy", _STRATEGY, "--data", str(other), *config)
        return await self.nodes[0].create(_SWARM, *options)

    async def _hold_until_all_are_there(self) -> None:
        """Pause each before its worker has loaded; go on when all know all."""

        async def are_there() -> bool:
            for node in self.nodes:
                if node.status.get("state") != "paused":
                    with contextlib.suppress(SwarmNodeError):  # it is still starting
                        await node.ask("POST", "/pause")
            others = self._plan.n_nodes - 1
            return all(
                node.status.get("state") == "paused" and node.status["peers_connected"] >= others
                for node in self.nodes
            )

        await self._wait("all nodes to be there", _START_DEADLINE_S, are_there)

    async def _have_ended(self) -> bool:
        return all(node.status.get("state") == "stopped" for node in self.nodes)

    async def _wait(self, what: str, deadline_s: float, is_so: Any) -> None:
        with trio.move_on_after(deadline_s):
            while not await is_so():
                await trio.sleep(_POLL_S)
                for node in self.nodes:
                    await node.poll()
            return
        raise DeadlineExceeded(f"waiting for {what}", deadline_s)

    def _check_beginnings(self) -> None:
        """Another start than from the first weights would compare two different things."""
        for node in self.nodes:
            log = (node.home / "daemon.log").read_text(errors="replace")
            if log.count("from step 0 on") != 1:
                raise WorkerError(f"expected {node.name} to begin at step 0, once: run it again")

    def evaluate(self) -> _Run:
        """Measure the models that were saved."""
        snapshots = [str(node.paths.swarm(_SWARM).snapshots) for node in self.nodes]
        found = run_offline("evaluate", *snapshots)
        steps = [model["step"] for model in found["models"]]
        if steps != [self._plan.steps] * len(self.nodes):
            raise WorkerError(f"expected all nodes to have taken all steps, got {steps}")
        return _Run(
            mean_loss=found["mean_loss"],
            node_losses=[model["loss"] for model in found["models"]],
            sent_bytes=[float(sum(planes.values())) for planes in self.planes],
            curve=_mean_curve([node.curve for node in self.nodes], self._plan),
            took_s=self.took_s,
        )


def _all_reduce(swarm: _Swarm, plan: _Plan) -> _Run:
    """Train the same by all-reduce: its mean model is every rank's."""
    manifest = swarm.manifest
    peers = [PeerId.parse(node.status["peer"]) for node in swarm.nodes]
    job = {
        "task": manifest.task,
        "config": manifest.task_config,
        "swarm_seed": manifest.seed,
        # As a daemon tells its worker: a node's own stream of batches follows from its identity.
        "shard_seeds": [int.from_bytes(bytes(peer)[:4], "big") for peer in peers],
        "steps": plan.steps,
    }
    began_s = time.monotonic()
    answers = list(stream_offline(msgspec.json.encode(job).decode(), module=_ALLREDUCE))
    *points, end = answers
    curve = [(point["step"], point["eval_loss"]) for point in points]
    return _Run(
        mean_loss=curve[-1][1],
        node_losses=[curve[-1][1]] * plan.n_nodes,
        sent_bytes=[float(sent) for sent in end["sent_bytes"]],
        curve=_thin(curve),
        took_s=time.monotonic() - began_s,
        made_with=end["made_with"],
    )


def _mean_curve(curves: list[Curve], plan: _Plan) -> Curve:
    """Return the mean over the nodes at every so many steps, of the newest loss at each."""
    steps = [*range(_CURVE_EVERY, plan.steps, _CURVE_EVERY), plan.steps]
    points = []
    for step in steps:
        newest = [[loss for at, loss in curve if at <= step][-1:] for curve in curves]
        if all(newest):
            points.append((step, round(statistics.fmean(found[0] for found in newest), 5)))
    return points


def _thin(curve: Curve) -> Curve:
    kept = [(step, round(loss, 5)) for step, loss in curve[:-1] if step % _CURVE_EVERY == 0]
    return [*kept, (curve[-1][0], round(curve[-1][1], 5))]


# --- what comes of it ----------------------------------------------------------------------------


def _compare(plan: _Plan, ours: _Run, theirs: _Run, swarm: _Swarm, *, is_quick: bool) -> Finding:
    sent, reduced = statistics.fmean(ours.sent_bytes), statistics.fmean(theirs.sent_bytes)
    tokens = swarm.nodes[0].status["tokens"] // plan.steps
    numel = swarm.manifest.numel
    computed = 2 * (plan.n_nodes - 1) / plan.n_nodes * 4 * numel * plan.steps
    planes = ", ".join(
        f"{name} {statistics.fmean(p[name] for p in swarm.planes) / 1e6:.2f}"
        for name in swarm.planes[0]
    )
    return Finding(
        name="daemons",
        title="Real daemons against synchronous all-reduce",
        source="A. Douillard et al., “Streaming DiLoCo with overlapping communication”,"
        " arXiv:2501.18512, over the pairs of NoLoCo, arXiv:2506.10911",
        claim="Training that exchanges a hundredth of the bytes reaches the loss of data"
        " parallelism on the same tokens.",
        experiment=f"{plan.n_nodes} daemons with a worker each, over TCP on loopback, `bytes-lm` of"
        f" {numel:,} parameters, strategy `{_STRATEGY}` with its defaults, {plan.steps:,} steps of"
        f" {tokens:,} tokens for every node; against torch.distributed over gloo, a rank for each"
        " node, from the same first weights on the same batches, gradients averaged in float32 at"
        " every step. Loss in nats per byte on the same held-out text. Bytes are all that a node's"
        " sessions have sent, by the daemon's own counters (in MB, a mean over the nodes:"
        f" {planes}), without copies of snapshots, which are switched off; for a rank what the"
        f" kernel counted on its sockets. 2 (n−1)/n of the gradients would be {computed / 1e6:,.0f}"
        " MB.",
        seeds=[swarm.manifest.seed],
        checks=[
            _check(
                "loss of the mean model over all-reduce's",
                ours.mean_loss / theirs.mean_loss,
                high=1.02,
            ),
            _check("bytes sent by a node over those of a rank", sent / reduced, high=0.01),
            _check(
                "the rank's bytes over 2 (n−1)/n · 4 · parameters · steps",
                reduced / computed,
                low=0.98,
                high=1.05,
            ),
        ],
        table=Table(
            header=[
                "run",
                "loss, mean model",
                "loss, mean of nodes",
                "best node",
                "worst node",
                "MB sent by a node",
                "s",
            ],
            rows=[_row("streaming", ours), _row("all-reduce", theirs)],
        ),
        plots=[
            Plot(
                name="loss",
                title="Held-out loss over tokens",
                x="million tokens of all nodes",
                y="nats per byte",
                series=[
                    Series(name="streaming, mean of nodes", points=_by_tokens(ours, plan, tokens)),
                    Series(
                        name="streaming, mean model, at the end",
                        style="dots",
                        points=[(_by_tokens(ours, plan, tokens)[-1][0], ours.mean_loss)],
                    ),
                    Series(
                        name="all-reduce", points=_by_tokens(theirs, plan, tokens), style="dashes"
                    ),
                ],
            )
        ],
        wall_s=round(ours.took_s + theirs.took_s, 1),
        made_with=theirs.made_with,
        is_quick=is_quick,
    )


def _check(
    what: str, value: float, *, low: float | None = None, high: float | None = None
) -> Check:
    return Check(what=what, value=float(f"{value:.4g}"), low=low, high=high)


def _row(name: str, run: _Run) -> list[str]:
    losses = [run.mean_loss, statistics.fmean(run.node_losses)]
    losses += [min(run.node_losses), max(run.node_losses)]
    sent_mb = statistics.fmean(run.sent_bytes) / 1e6
    return [name, *(f"{loss:.4f}" for loss in losses), f"{sent_mb:,.2f}", f"{run.took_s:.0f}"]


def _by_tokens(run: _Run, plan: _Plan, tokens: int) -> list[tuple[float, float]]:
    return [(step * tokens * plan.n_nodes / 1e6, loss) for step, loss in run.curve]
