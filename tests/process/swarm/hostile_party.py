"""Six real nodes on loopback, one of which is hostile, and what the five others come to.

All train the same tiny language model for as many steps and MEASURED_S_MIN, from the same first
weights: what a run comes to is counted a step, in exchanges, bytes and seconds of CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmnode.config import Paths
from swarmnode.ipc.spawn import worker_command, worker_environment
from tests.kits.daemon_kit import Daemon
from tests.process.life_kit import Party, peer_of

N_HONEST = 5
HOSTILE = "hostile"  # its home
TASK = "bytes-lm"
MODEL = {"dim": 32, "layers": 1, "heads": 2, "context": 32, "batch": 8, "probe_windows": 32}
DEADLINE_S = 400.0  # twelve processes on a machine with more to do
# What patience with a member may cost at once is some seconds: much of a run that is over in 20.
MEASURED_S_MIN = 90.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Setting:
    """How nodes train, by names and values of settings, and for how many steps each.

    ``cpu_percent``: of a core that a worker takes, so that a step has a time of its own.
    """

    strategy: str
    settings: tuple[tuple[str, Any], ...]
    steps: int
    cpu_percent: int = 30


@dataclass(frozen=True)
class Outcome:
    """What the honest nodes came to, over all of them.

    Attributes:
        commits: exchanges that count, with each other only; of groups and gatherings all; each is
            counted at every honest member of it.
        steps: that they took meanwhile.
        loss: mean held-out loss in the end, in nats a byte.
        memory_bytes: the most that any daemon had, without its worker.
        cpu_s: of all daemons, without their workers.
        restarts: of workers.
        half_applied: exchanges.
        refused: payloads.
    """

    commits: int
    steps: int
    loss: float
    memory_bytes: int
    cpu_s: float
    restarts: int
    half_applied: int
    refused: int

    @property
    def commits_per_step(self) -> float:
        """Steps are what a node does, however busy the machine is with other things."""
        return self.commits / self.steps

    @property
    def cpu_per_step(self) -> float:
        """Seconds that a daemon takes for a step of its worker's."""
        return self.cpu_s / self.steps


class HostileDaemon(Daemon):
    """A node with an attack of ``tests/kits/hostile``."""

    def __init__(self, attack: str, home: Path, link: str, env: Mapping[str, str]) -> None:
        self._attack = attack
        super().__init__(home, link, env=env)

    def command(self) -> list[str]:
        return worker_command("tests.kits.hostile.program", self._attack, *self.arguments())


def run(folder: Path, attack: str, setting: Setting) -> Outcome:
    """Train until each honest node has taken its steps beside the others."""
    folder.mkdir(parents=True, exist_ok=True)
    with hostile_swarm(folder, attack, setting) as (_, nodes):
        outcome = _measure(nodes, setting)
    print(f"{setting.strategy} {attack}: {outcome}")
    return outcome


@contextmanager
def hostile_swarm(
    folder: Path, attack: str, setting: Setting, **changes: Any
) -> Iterator[tuple[Party, list[Daemon]]]:
    """Start all, and give the party and the honest ones once all of them train.

    ``changes``: of the manifest.
    """
    party = Party(folder, **(manifest_of(setting) | changes))
    party.settings["SWARMNODE_CPU_PERCENT"] = str(setting.cpu_percent)
    try:
        first = party.join("creator")
        honest = [first, *(party.join(f"n{n}", via=first) for n in range(1, N_HONEST))]
        link = party.link(first)
        party.nodes.append(HostileDaemon(attack, folder / HOSTILE, link, party.env()))
        for node in party.nodes:
            node.wait(lambda s: s["peers_connected"] >= N_HONEST, "all others", DEADLINE_S)
            node.wait(lambda s: s["state"] == "training", "training", DEADLINE_S)
        yield party, honest
    finally:
        party.close()


def manifest_of(setting: Setting) -> dict[str, Any]:
    """Return what the manifest says of the task, as ``swarmnode create`` would find it."""
    words = ("describe", f"--task={TASK}", f"--config={json.dumps(MODEL)}")
    words += (f"--strategy={setting.strategy}",)
    words += (f"--strategy-settings={json.dumps(dict(setting.settings))}",)
    described = subprocess.run(
        worker_command("swarmnode.worker.offline", *words),
        env=worker_environment(),
        capture_output=True,
        check=True,
    )
    found = json.loads(described.stdout.splitlines()[-1])
    return {
        "task": TASK,
        "task_version": found["version"],
        "task_config": found["config"],
        "numel": found["numel"],
        "layout_hash": bytes.fromhex(found["layout_hash"]),
        "data_hash": bytes.fromhex(found["data_hash"]),
        "probe_hash": bytes.fromhex(found["probe_hash"]),
        "strategy": found["strategy"],
        "strategy_version": found["strategy_version"],
        "strategy_settings": found["strategy_settings"],
    }


def _measure(nodes: list[Daemon], setting: Setting) -> Outcome:
    names, steps, began_s = {str(peer_of(node)) for node in nodes}, setting.steps, time.monotonic()
    before = [node.status() for node in nodes]
    commits_before, cpu_before_s = _commits(nodes, names), sum(map(_cpu_s, nodes))
    for node, status in zip(nodes, before, strict=True):
        until = status["step"] + steps
        node.wait(lambda s, until=until: s["step"] >= until, "steps", DEADLINE_S)
    ends_s = began_s + MEASURED_S_MIN
    nodes[0].wait(lambda s: time.monotonic() >= ends_s, "the end", DEADLINE_S)
    after = [node.status() for node in nodes]
    commits = _commits(nodes, names) - commits_before
    if setting.strategy == "sparse":  # of gatherings nothing stands in the history
        commits = sum(
            a["exchanges_committed"] - b["exchanges_committed"]
            for a, b in zip(after, before, strict=True)
        )
    return Outcome(
        commits=commits,
        steps=sum(a["step"] - b["step"] for a, b in zip(after, before, strict=True)),
        loss=sum(status["eval_loss"] for status in after) / len(after),
        memory_bytes=max(map(_memory_bytes, nodes)),
        cpu_s=sum(map(_cpu_s, nodes)) - cpu_before_s,
        restarts=sum(status["worker_restarts"] for status in after),
        half_applied=sum(status["exchanges_half_applied"] for status in after),
        refused=sum(status["payloads_refused"] for status in after),
    )


def _commits(nodes: list[Daemon], honest: Collection[str]) -> int:
    return sum(
        entry.get("outcome") == "committed" and ("present" in entry or entry["peer"] in honest)
        for node in nodes
        for entry in _history(node)
    )


def _history(node: Daemon) -> list[dict[str, Any]]:
    path = Paths(node.home).history
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    return [json.loads(line) for line in whole.splitlines()]


def _memory_bytes(node: Daemon) -> int:
    """Return the most memory that a daemon has had."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if "VmHWM" in line)


def _cpu_s(node: Daemon) -> float:
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
