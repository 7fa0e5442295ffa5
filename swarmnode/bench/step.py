"""``swarmnode bench step``: what exchanges cost a training worker.

Two nodes train at the same time on this machine, once each in a swarm of its
own, once together. The ratio of their steps per second is the price of the
exchanges: copies to and from the slots, the daemon's codec and sockets, and
whatever cores and memory bandwidth they take from the workers.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import trio

from swarmnode.errors import DeadlineExceeded
from swarmnode.processes.node_process import NodeProcess, free_addresses
from swarmnode.processes.stopping import run_async

_START_DEADLINE_S = 120.0
_SETTLE_S = 3.0
_STOP_DEADLINE_S = 10.0


def run_step_bench(seconds: float, rounds: int, every: int) -> dict[str, Any]:
    """Return medians over ``rounds`` interleaved pairs of measurements of ``seconds`` each.

    Raises:
        SwarmNodeError: a node failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="swarmnode-bench-"))
    try:
        return run_async(_measure, folder, seconds, rounds, every)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def format_step_bench(result: dict[str, Any]) -> str:
    """Return the result as text."""
    return (
        f"a step takes {result['step_ms_alone']:.2f} ms without exchanges,"
        f" {result['step_ms_exchanging']:.2f} ms with one every {result['every']} steps:"
        f" {result['ratio']:.3f} times ({result['exchanges_per_s']:.1f} exchanges a second)"
    )


async def _measure(folder: Path, seconds: float, rounds: int, every: int) -> dict[str, Any]:
    alone_ms: list[float] = []
    together_ms: list[float] = []
    rates: list[float] = []
    for number in range(rounds):
        apart, _ = await _run_pair(folder / f"{number}-apart", seconds, every, together=False)
        joined, rate = await _run_pair(folder / f"{number}-joined", seconds, every, together=True)
        alone_ms.append(apart)
        together_ms.append(joined)
        rates.append(rate)
    alone, together = statistics.median(alone_ms), statistics.median(together_ms)
    return {
        "step_ms_alone": alone,
        "step_ms_exchanging": together,
        "ratio": together / alone,
        "every": every,
        "exchanges_per_s": statistics.median(rates),
        "rounds": rounds,
    }


async def _run_pair(
    folder: Path, seconds: float, every: int, *, together: bool
) -> tuple[float, float]:
    """Return (milliseconds a step, exchanges a second) of two nodes that train at once."""
    nodes = [NodeProcess(folder / str(i), a) for i, a in enumerate(free_addresses(2))]
    options = ("--task", "bytes-lm", "--set", f"strategy.every={every}")
    links = [await nodes[0].create("bench", *options)]
    links.append(links[0] if together else await nodes[1].create("bench", *options))
    try:
        for node, link in zip(nodes, links, strict=True):
            await node.start(link)
        await _wait_until_training(nodes)
        await trio.sleep(_SETTLE_S)
        return await _rates(nodes, seconds)
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                await node.interrupt(_STOP_DEADLINE_S)


async def _wait_until_training(nodes: list[NodeProcess]) -> None:
    with trio.move_on_after(_START_DEADLINE_S):
        while not all(node.is_training and node.status["step"] > 0 for node in nodes):
            await trio.sleep(0.25)
            for node in nodes:
                await node.poll()
        return
    raise DeadlineExceeded("waiting for both nodes to train", _START_DEADLINE_S)


async def _rates(nodes: list[NodeProcess], seconds: float) -> tuple[float, float]:
    """Count steps between two reports: a worker reports once a second, with its own clock."""
    first = [await node.ask("GET", "/status") for node in nodes]
    begin = trio.current_time()
    await trio.sleep(seconds)
    last = [await node.ask("GET", "/status") for node in nodes]
    took_s = trio.current_time() - begin
    steps = [b["step"] - a["step"] for a, b in zip(first, last, strict=True)]
    committed = [
        b["exchanges_committed"] - a["exchanges_committed"]
        for a, b in zip(first, last, strict=True)
    ]
    return 1e3 * took_s / statistics.fmean(steps), statistics.fmean(committed) / took_s
