"""``swarmnode bench group``: a mean over several daemons, beside an all-reduce of gloo.

Each member is a process with a whole node: TLS sessions over loopback TCP, the runs of groups,
codec, rule and commit. Only the worker is replaced, by one that lends the same vector at once. In
between the same processes all-reduce as many float32 with gloo, so both meet the same machine.

A round lasts from the first intent of a member to the last mean that a worker is handed.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trio

from swarmnode.bench.kit import write_manifest
from swarmnode.bench.member import (
    BenchWorker,
    Gloo,
    Vector,
    own_cpu_s,
    run_member,
    run_members,
    running_node,
)
from swarmnode.daemon.app.node import Node
from swarmnode.errors import WorkerError
from swarmnode.ipc.control import Apply, Drop, Release, ToWorker
from swarmnode.tensor.codec import get_codec

_WARM_UP = 2
_DEADLINE_S = 300.0
_AGAIN_S = 0.2  # until all know all
_DRAWN_ELEMS = 2**20  # then they repeat: drawing fifty million takes longer than averaging them


@dataclass(frozen=True)
class Plan:
    """What is measured; ``repeats``: rounds in which all members took part."""

    members: int
    params: int
    codec: str
    merge: str
    repeats: int


@dataclass(frozen=True)
class Taken:
    """One round as one member saw it, by the clock that all processes have in common."""

    began_s: float
    ended_s: float
    cpu_s: float
    sent_bytes: int
    gloo_s: float
    gloo_cpu_s: float


def run_group_bench(
    members: int, params: int, codec: str, merge: str, repeats: int
) -> dict[str, Any]:
    """Return medians over ``repeats`` rounds of ``members`` with ``params`` float32 each.

    Raises:
        WorkerError: one of the processes failed.
    """
    plan = Plan(members, params, get_codec(codec).name, merge, repeats)
    with tempfile.TemporaryDirectory(prefix="swarmnode-bench-") as folder:
        homes = [Path(folder) / str(number) for number in range(members)]
        write_manifest(homes, numel=params, codec=codec)
        described = json.dumps(asdict(plan))
        results = run_members("swarmnode.bench.group", members, folder, described)
    return _summary(plan, results)


def format_group_bench(result: dict[str, Any]) -> str:
    """Return the result as text."""
    wall_s, gloo_s = result["wall_s_p50"], result["gloo_s_p50"]
    return (
        f"{result['members']} members with {result['params']:,} float32, {result['codec']},"
        f" {result['merge']}: {wall_s * 1e3:.1f} ms median, {result['cpu_s'] * 1e3:.0f} ms CPU of"
        f" all, {result['bytes_sent'] / 1e6:.1f} MB sent by each, error {result['rel_error']:.2e}\n"
        f"gloo, float32: {gloo_s * 1e3:.1f} ms median, {result['gloo_cpu_s'] * 1e3:.0f} ms CPU;"
        f" a mean takes {wall_s / gloo_s:.2f} times as long"
    )


def _summary(plan: Plan, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rounds = [
        [Taken(**each) for each in taken]
        for taken in zip(*(result["rounds"][_WARM_UP:] for result in results), strict=True)
    ]
    walls = [
        max(each.ended_s for each in taken) - min(each.began_s for each in taken)
        for taken in rounds
    ]
    return {
        "members": plan.members,
        "params": plan.params,
        "codec": plan.codec,
        "merge": plan.merge,
        "wall_s_p50": statistics.median(walls),
        "gloo_s_p50": statistics.median(max(each.gloo_s for each in taken) for taken in rounds),
        "cpu_s": statistics.median(sum(each.cpu_s for each in taken) for taken in rounds),
        "gloo_cpu_s": statistics.median(sum(each.gloo_cpu_s for each in taken) for taken in rounds),
        "bytes_sent": round(
            statistics.fmean(each.sent_bytes for taken in rounds for each in taken)
        ),
        "rel_error": max(result["rel_error"] for result in results),
        "rounds": len(rounds),
    }


# --- one member, in its own process -------------------------------------------------------


class _Averager(BenchWorker):
    """Posts an intent when it is asked to, and waits for what comes of it."""

    def __init__(self, values: Vector, merge: str) -> None:
        super().__init__(values)
        self._merge = merge
        self._ended = trio.Event()
        self.ended_s = 0.0
        self.present = 0  # members in the last mean; 0: nothing came of it

    async def average(self) -> None:
        """Post the next intent; return when something came of it, or nothing."""
        self._ended = trio.Event()
        self.intend("group", self._merge)
        await self._ended.wait()

    async def send(self, message: ToWorker) -> None:
        """Note what came, and when."""
        await super().send(message)
        if isinstance(message, Apply | Release | Drop):
            self.ended_s = time.monotonic()
            self.present = len(message.present) if isinstance(message, Apply) else 0
            self._ended.set()

    def refill(self) -> None:
        """Own values in both halves: an exchange changes the first, and gloo works in the other."""
        self.slot[:] = self.values

    @property
    def room(self) -> Vector:
        """The second half of the slot, where a mean comes."""
        room: Vector = self.slot[1]
        return room


def _drawn(number: int, params: int) -> Vector:
    rng = np.random.default_rng(number)
    return rng.standard_normal(min(params, _DRAWN_ELEMS), dtype=np.float32)


async def _run_member(folder: Path, plan: Plan, number: int) -> dict[str, Any]:
    worker = _Averager(np.resize(_drawn(number, plan.params), plan.params), plan.merge)
    async with running_node(folder, number, worker) as node:
        gloo = await trio.to_thread.run_sync(Gloo, folder, number, plan.members)
        await worker.started.wait()
        with trio.move_on_after(_DEADLINE_S) as scope:
            result = await _take_rounds(node, worker, gloo, plan)
        if scope.cancelled_caught:
            raise WorkerError("the members did not average often enough")
    gloo.leave()
    return result


async def _take_rounds(node: Node, worker: _Averager, gloo: Gloo, plan: Plan) -> dict[str, Any]:
    """Average and all-reduce in turns, until enough rounds had all members."""
    rounds: list[Taken] = []
    rel_error = 0.0
    in_thread = trio.to_thread.run_sync
    while len(rounds) < _WARM_UP + plan.repeats:
        worker.refill()
        await in_thread(gloo.all_say, True)
        began_s, cpu_s, sent_bytes = time.monotonic(), own_cpu_s(), _sent_bytes(node)
        await worker.average()
        cpu_s, sent_bytes = own_cpu_s() - cpu_s, _sent_bytes(node) - sent_bytes
        if not await in_thread(gloo.all_say, worker.present == plan.members):
            await trio.sleep(_AGAIN_S)
            continue
        rel_error = max(rel_error, _rel_error(worker.room, plan))
        worker.refill()
        room = gloo.tensor(worker.room)
        await in_thread(gloo.all_say, True)
        gloo_began_s, gloo_cpu_s = time.monotonic(), own_cpu_s()
        await in_thread(gloo.add_up, room)
        gloo_s, gloo_cpu_s = time.monotonic() - gloo_began_s, own_cpu_s() - gloo_cpu_s
        rounds.append(Taken(began_s, worker.ended_s, cpu_s, sent_bytes, gloo_s, gloo_cpu_s))
    return {"rounds": [asdict(each) for each in rounds], "rel_error": rel_error}


def _sent_bytes(node: Node) -> int:
    sent, _ = node.view.training().handlers.round_bytes()
    return sent


def _rel_error(mean: Vector, plan: Plan) -> float:
    """‖mean − exact mean‖ / ‖exact mean‖ of the elements that are drawn."""
    drawn = [_drawn(number, plan.params) for number in range(plan.members)]
    exact = np.mean(drawn, axis=0, dtype=np.float64)
    return float(np.linalg.norm(mean[: exact.size] - exact) / np.linalg.norm(exact))


def _main(arguments: list[str]) -> None:
    folder, described, number = arguments
    plan = Plan(**json.loads(described))
    run_member(_run_member, Path(folder), plan, int(number))


if __name__ == "__main__":
    _main(sys.argv[1:])
