"""``swarmnode bench fidelity --only daemons``: a real swarm against synchronous all-reduce.

Four daemons on loopback, each with a worker, train ``bytes-lm`` with ``streaming`` in pairs.
Then the same first weights are trained on the same batches by ``torch.distributed`` over gloo, in
as many processes, with the mean of all gradients at every step. Every node draws its own batches:
the swarm is created with other data than the nodes have, so that no shards are dealt out, and what
a node has trained on follows from its identity alone. All are held until the last one is there, so
that each begins with the first weights and not with a peer's snapshot. Copies of snapshots, which
an all-reduce does not have, are switched off; every other byte between the nodes counts.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmnode.bench.fidelity.compare import Curve, Run, Setting, compare
from swarmnode.bench.fidelity.finding import Finding
from swarmnode.bench.together import Together
from swarmnode.errors import WorkerError
from swarmnode.ids import PeerId
from swarmnode.processes.node_process import NodeProcess, free_addresses
from swarmnode.processes.stopping import run_async
from swarmnode.processes.worker_tools import run_offline, stream_offline
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.store.swarms import read_manifest
from swarmnode.wire.swarm import Manifest

_SWARM = "fidelity"
_STRATEGY = "streaming"
_STRATEGY_OPTIONS = ("--strategy", _STRATEGY, "--set=strategy.meet=pair")
_ALLREDUCE = "swarmnode.testing.fidelity.allreduce"
# A thread of the CPU, as the ranks have. A byte a second: no copies of snapshots in this run.
_SETTINGS = b"""\
device = "cpu"
threads = 1
lan = false
snapshot_upload_bytes_per_s = 1
snapshot_download_bytes_per_s = 1
"""
# The ranks of the all-reduce know no recipe.
_PLAIN_RECIPE = (
    "--schedule=constant",
    "--set=recipe.warmup_tokens=0",
    "--set=recipe.clip_norm=0.0",
    "--set=recipe.ema_share=0.0",
)
_OTHER_TEXT = b"Some text that no node of this swarm has. " * 100
_STEP_S_MAX = 1.0  # on the slowest machine
_CURVE_EVERY = 60  # steps between points of the picture


@dataclass(frozen=True)
class Plan:
    """How many nodes take how many steps; ``config`` is the task's."""

    n_nodes: int
    steps: int
    config: dict[str, int]

    @property
    def deadline_s(self) -> float:
        """How long the training may take."""
        return 60.0 + self.steps * _STEP_S_MAX


FULL_PLAN = Plan(4, 3200, {"probe_windows": 128})
QUICK_PLAN = Plan(2, 192, {"dim": 16, "layers": 1, "heads": 2, "context": 16, "probe_windows": 64})


def run_daemons(*, is_quick: bool) -> Finding:
    """Run both and compare.

    Raises:
        SwarmNodeError: a node or a rank failed, or took too long.
    """
    plan = QUICK_PLAN if is_quick else FULL_PLAN
    folder = Path(tempfile.mkdtemp(prefix="swarmnode-fidelity-"))
    try:
        ours, theirs, setting = run_both(folder, plan)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return compare(setting, ours, theirs, is_quick=is_quick)


def run_both(folder: Path, plan: Plan) -> tuple[Run, Run, Setting]:
    """Train a swarm with its homes in ``folder``, then the same by all-reduce.

    Raises:
        SwarmNodeError: a node or a rank failed, or took too long.
    """
    swarm = _Swarm(folder, plan)
    run_async(swarm.train)
    manifest = swarm.manifest
    setting = Setting(
        strategy=_STRATEGY,
        steps=plan.steps,
        tokens_per_step=swarm.nodes[0].status["tokens"] // plan.steps,
        numel=manifest.numel,
        seed=manifest.seed,
        planes=swarm.planes,
        exchanges=[
            (node.status["exchanges_committed"], node.status["exchanges_aborted"])
            for node in swarm.nodes
        ],
    )
    return swarm.evaluate(), _all_reduce(swarm, plan), setting


class _Swarm:
    """The nodes, and what they have come to."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self._folder = folder
        self.nodes = [
            NodeProcess(folder / f"n{number}", address)
            for number, address in enumerate(free_addresses(plan.n_nodes))
        ]
        self.took_s = 0.0
        self.planes: list[dict[str, int]] = []

    @property
    def manifest(self) -> Manifest:
        """The rules that all nodes trained by."""
        return read_manifest(_SWARM, self.nodes[0].paths)

    async def train(self) -> None:
        """Create the swarm, train all nodes from one moment on, and save their models."""
        link = await self._create()
        try:
            for node in self.nodes:
                # The creator of a swarm remembers the folder; here it only names the rules.
                await node.start(link, "--no-data", "--steps", str(self._plan.steps))
            together = Together(self.nodes)
            self.took_s = await together.train(self._plan.deadline_s)
            self.planes = [dict(node.status["sent_bytes"]) for node in self.nodes]
            await together.save_and_stop()
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
        options = ("--task", "bytes-lm", "--data", str(other), *config)
        return await self.nodes[0].create(_SWARM, *options, *_STRATEGY_OPTIONS, *_PLAIN_RECIPE)

    def evaluate(self) -> Run:
        """Measure the models that were saved."""
        snapshots = [str(node.paths.swarm(_SWARM).snapshots) for node in self.nodes]
        found = run_offline("evaluate", *snapshots)
        steps = [model["step"] for model in found["models"]]
        if steps != [self._plan.steps] * len(self.nodes):
            raise WorkerError(f"expected all nodes to have taken all steps, got {steps}")
        return Run(
            mean_loss=found["mean_loss"],
            node_losses=[model["loss"] for model in found["models"]],
            sent_bytes=[float(sum(planes.values())) for planes in self.planes],
            curve=_mean_curve([node.curve for node in self.nodes], self._plan),
            took_s=self.took_s,
        )


def _all_reduce(swarm: _Swarm, plan: Plan) -> Run:
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
    return Run(
        mean_loss=curve[-1][1],
        node_losses=[curve[-1][1]] * plan.n_nodes,
        sent_bytes=[float(sent) for sent in end["sent_bytes"]],
        curve=_thin(curve),
        took_s=time.monotonic() - began_s,
        made_with=end["made_with"],
    )


def _mean_curve(curves: list[Curve], plan: Plan) -> Curve:
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
