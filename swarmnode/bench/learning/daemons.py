"""Real daemons learn: what ``create`` gives by default, on one machine.

As many nodes as asked for, each a daemon and a worker of its own over TCP on loopback, with one
thread each. The swarm has an end in tokens, so that its learning rate decays. All are held until
the last one is there, so that every node begins with the first weights. Everything that they send
counts, copies of snapshots too.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
from pathlib import Path

import msgspec
import trio

from swarmnode.bench.learning.jobs import TASK, Evaluation, Trained
from swarmnode.bench.learning.plan import Plan, Swarm
from swarmnode.bench.together import Together
from swarmnode.errors import WorkerError
from swarmnode.processes.client import ControlClient
from swarmnode.processes.node_process import NodeProcess, free_addresses
from swarmnode.processes.stopping import run_async
from swarmnode.processes.worker_tools import run_offline
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.store.swarms import read_manifest

_SWARM = "learning"
_MODULE = "swarmnode.testing.learning"
_SETTINGS = b'device = "cpu"\nthreads = 1\nlan = false\n'
_SENT = re.compile(
    rb'^swarmnode_exchange_bytes_total\{[^}]*direction="sent"[^}]*\} (\S+)', re.MULTILINE
)
_STEP_S_MAX = 0.5  # of one node, with all others on the slowest machine
_START_S = 60.0


def train_daemons(plan: Plan) -> Swarm:
    """Train a swarm of real nodes and measure the models that they end with.

    Raises:
        SwarmNodeError: a node failed, or took too long.
    """
    folder = Path(tempfile.mkdtemp(prefix="swarmnode-learning-"))
    try:
        return run_async(_Run(folder, plan).train)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One swarm, with its homes in ``folder``."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self._nodes = [
            NodeProcess(folder / f"n{number}", address)
            for number, address in enumerate(free_addresses(plan.nodes))
        ]

    async def train(self) -> Swarm:
        """Create it, let all nodes train, measure."""
        plan = self._plan
        data = ("--data", plan.data) if plan.data else ()
        link = await self._create(data)
        together = Together(self._nodes)
        try:
            for node in self._nodes:
                await node.start(link, *data, "--steps", str(plan.steps))
            await together.train(_START_S + plan.steps * plan.nodes * _STEP_S_MAX)
            self._check_steps()
            exchange_bytes = [await _exchange_bytes(node) for node in self._nodes]
            await together.save_and_stop()
        finally:
            for node in self._nodes:
                node.kill_if_running()
        measured = await trio.to_thread.run_sync(self._measure)
        return Swarm(
            trained=msgspec.structs.replace(
                measured,
                exchange_bytes=statistics.fmean(exchange_bytes),
                committed=self._mean("exchanges_committed"),
                aborted=self._mean("exchanges_aborted"),
            ),
            sent_bytes=statistics.fmean(
                sum(node.status["sent_bytes"].values()) for node in self._nodes
            ),
            model_seed=read_manifest(_SWARM, self._nodes[0].paths).seed,
        )

    async def _create(self, data: tuple[str, ...]) -> str:
        for node in self._nodes:
            make_private_dir(node.home)
            write_atomic(node.home / "config.toml", _SETTINGS)
        plan = self._plan
        options = [f"--set={key}={value}" for key, value in plan.config.items()]
        options += [f"--set=strategy.{k}={json.dumps(v)}" for k, v in plan.settings.items()]
        options.append(f"--tokens={plan.target_tokens}")
        if plan.strategy:
            options.append(f"--strategy={plan.strategy}")
        return await self._nodes[0].create(_SWARM, f"--task={TASK}", *data, *options)

    def _check_steps(self) -> None:
        steps = [node.status["step"] for node in self._nodes]
        if steps != [self._plan.steps] * len(steps):
            raise WorkerError(
                f"expected {self._plan.steps} steps of every node, got {steps}: run it again"
            )

    def _mean(self, name: str) -> float:
        return statistics.fmean(node.status[name] for node in self._nodes)

    def _measure(self) -> Trained:
        asked = Evaluation(
            snapshots=[str(node.paths.swarm(_SWARM).snapshots) for node in self._nodes],
            config=self._plan.config,
            data=self._plan.data,
        )
        answer = run_offline(msgspec.json.encode(asked).decode(), module=_MODULE)
        return msgspec.convert(answer, Trained)


async def _exchange_bytes(node: NodeProcess) -> float:
    """Return what a node has sent for exchanges so far, by its own metric."""
    client = ControlClient(node.paths)
    page = await trio.to_thread.run_sync(client.get_bytes, "/metrics")
    found = _SENT.search(page)
    if found is None:
        raise WorkerError(f"expected exchange_bytes_total among the metrics of {node.home.name}")
    return float(found[1])
