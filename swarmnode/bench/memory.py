"""``swarmnode bench memory``: what a worker and its daemon hold while they exchange.

Two nodes train a linear model with Adam, whose own share is four times the model: weights,
gradients and two moments, beside one example as long as the model. What is counted is the largest
that each process has had in memory, slots that both see in both of them.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import trio

from swarmnode.bench.kit import run_in_folder
from swarmnode.bench.step import task_options
from swarmnode.errors import DeadlineExceeded
from swarmnode.processes.node_process import NodeProcess, free_addresses

_FLOAT32_BYTES = 4
_MB = 1e6
_DEADLINE_S = 300.0
_POLL_S = 0.5
_EXCHANGES = 2  # applied, before anything is read
# Of steps that take no time: each fragment is met several times a minute.
_EVERY = {"streaming": 4, "sparse": 4, "a2cid2": 0, "one-byte": 0}  # 0: it has no rounds


def run_memory_bench(params: int, strategy: str) -> dict[str, Any]:
    """Return what the larger of two nodes held, with ``params`` float32 and this strategy.

    Raises:
        SwarmNodeError: a node failed, or there was no exchange in time.
    """
    return run_in_folder(_measure, params, strategy)


def format_memory_bench(result: dict[str, Any]) -> str:
    """Return the result as text."""
    return (
        f"{result['strategy']}, {result['params']:,} parameters: the worker holds"
        f" {result['worker_rss_over_model']:.2f} times the model at the most, a snapshot takes"
        f" {result['snapshot_extra_over_model']:.2f} times beside that, the daemon"
        f" {result['daemon_rss_mb']:.0f} MB"
    )


async def _measure(folder: Path, params: int, strategy: str) -> dict[str, Any]:
    nodes = [NodeProcess(folder / str(i), a) for i, a in enumerate(free_addresses(2))]
    every = _EVERY.get(strategy, 8)
    options = [*task_options(params, adam=True), "--strategy", strategy]
    options += ["--set", f"strategy.every={every}"] if every else []
    link = await nodes[0].create("bench", *options)
    try:
        for node in nodes:
            await node.start(link)
        await _until_exchanged(nodes)
        before = [_peak_bytes(node.status["worker_pid"]) for node in nodes]
        for node in nodes:
            await node.ask("POST", "/snapshot")
        after = [_peak_bytes(node.status["worker_pid"]) for node in nodes]
        daemons = [_peak_bytes(_pid(node)) for node in nodes]
    finally:
        for node in nodes:
            node.kill_if_running()
    model_bytes = params * _FLOAT32_BYTES
    extra = [b - a for a, b in zip(before, after, strict=True)]
    return {
        "params": params,
        "strategy": strategy,
        "worker_rss_over_model": max(after) / model_bytes,
        "daemon_rss_mb": max(daemons) / _MB,
        "snapshot_extra_over_model": max(extra) / model_bytes,
        "exchanges_applied": statistics.fmean(_applied(node) for node in nodes),
    }


async def _until_exchanged(nodes: list[NodeProcess]) -> None:
    with trio.move_on_after(_DEADLINE_S):
        while not all(_applied(node) >= _EXCHANGES for node in nodes):
            await trio.sleep(_POLL_S)
            for node in nodes:
                await node.poll()
        return
    raise DeadlineExceeded(f"waiting for {_EXCHANGES} exchanges", _DEADLINE_S)


def _applied(node: NodeProcess) -> float:
    """Return how many exchanges it has applied, or rounds of a strategy that has only a log."""
    status = node.status
    return float(
        status.get("exchanges_applied", 0) or status.get("strategy", {}).get("rounds_closed", 0)
    )


def _pid(node: NodeProcess) -> int:
    assert node.process is not None
    return node.process.pid


def _peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had. Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
