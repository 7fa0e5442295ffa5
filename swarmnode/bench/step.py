"""``swarmnode bench step``: what exchanges cost a training worker.

Two nodes train at the same time on this machine, once each in a swarm of its
own, once together. The ratio of their steps per second is the price of the
exchanges: copies to and from the slots, the daemon's codec and sockets, and
whatever cores and memory bandwidth they take from the workers.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from swarmnode.bench.kit import run_in_folder
from swarmnode.errors import DeadlineExceeded
from swarmnode.processes.node_process import NodeProcess, free_addresses

_START_DEADLINE_S = 120.0
_SETTLE_S = 3.0
# Of all parameters together. With SGD a larger one leads a long model astray. Adam, which moves all
# of them equally far, would not move them further than what a codec leaves out, and no peer takes a
# model that is not better.
_LR, _ADAM_LR = 0.01, 10.0


def run_step_bench(seconds: float, rounds: int, every: int, params: int = 0) -> dict[str, Any]:
    """Return medians over ``rounds`` interleaved pairs of measurements of ``seconds`` each.

    ``params``: of a linear model; 0: a small GPT.

    Raises:
        SwarmNodeError: a node failed.
    """
    options = ["--set", f"strategy.every={every}", *(task_options(params))]
    found = run_in_folder(_measure, seconds, rounds, options)
    return {"params": params, "every": every, "rounds": rounds} | found


def task_options(params: int, *, adam: bool = False) -> list[str]:
    """Return what ``create`` is told of what is trained.

    A linear model of so many parameters has steps as short as they get: one example, and SGD.
    """
    if not params:
        return ["--task", "bytes-lm"]
    lr = (_ADAM_LR if adam else _LR) / params
    optimizer = "adam" if adam else "sgd"
    settings = {"dim": params, "batch": 1, "lr": lr, "optimizer": optimizer}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return ["--task", "synthetic", *words]


def format_step_bench(result: dict[str, Any]) -> str:
    """Return the result as text."""
    return (
        f"a step takes {result['step_ms_alone']:.2f} ms without exchanges,"
        f" {result['step_ms_exchanging']:.2f} ms with one every {result['every']} steps:"
        f" {result['ratio']:.3f} times ({result['exchanges_per_s']:.1f} exchanges a second);"
        f" {_pauses_in_words(result)}"
    )


def _pauses_in_words(result: dict[str, Any]) -> str:
    if result["pause_ms_p50"] is None:
        return "no step waited for a view or a merge"
    return (
        f"of steps that waited for a view or a merge the median waited"
        f" {result['pause_ms_p50']:.2f} ms, the longest {result['pause_ms_max']:.2f} ms"
    )


@dataclass(frozen=True)
class _Seen:
    """Of two nodes; pauses are None where there was none."""

    step_ms: float
    exchanges_per_s: float
    pause_ms_p50: float | None
    pause_ms_max: float | None


async def _measure(folder: Path, seconds: float, rounds: int, options: list[str]) -> dict[str, Any]:
    apart: list[_Seen] = []
    joined: list[_Seen] = []
    for number in range(rounds):
        for name, found in (("apart", apart), ("joined", joined)):
            home = folder / f"{number}-{name}"
            found.append(await _run_pair(home, seconds, options, together=name == "joined"))
            shutil.rmtree(home, ignore_errors=True)
    alone, together = (statistics.median(seen.step_ms for seen in f) for f in (apart, joined))
    medians = [seen.pause_ms_p50 for seen in joined if seen.pause_ms_p50 is not None]
    longest = [seen.pause_ms_max for seen in joined if seen.pause_ms_max is not None]
    return {
        "step_ms_alone": alone,
        "step_ms_exchanging": together,
        "ratio": together / alone,
        "exchanges_per_s": statistics.median(seen.exchanges_per_s for seen in joined),
        "pause_ms_p50": statistics.median(medians) if medians else None,
        "pause_ms_max": max(longest) if longest else None,
    }


async def _run_pair(folder: Path, seconds: float, options: list[str], *, together: bool) -> _Seen:
    """Return what two nodes do that train at once."""
    nodes = [NodeProcess(folder / str(i), a) for i, a in enumerate(free_addresses(2))]
    links = [await nodes[0].create("bench", *options)]
    links.append(links[0] if together else await nodes[1].create("bench", *options))
    try:
        for node, link in zip(nodes, links, strict=True):
            await node.start(link)
        await _wait_until_training(nodes)
        await trio.sleep(_SETTLE_S)
        return await _seen(nodes, seconds)
    finally:
        for node in nodes:
            node.kill_if_running()


async def _wait_until_training(nodes: list[NodeProcess]) -> None:
    with trio.move_on_after(_START_DEADLINE_S):
        while not all(node.is_training and node.status["step"] > 0 for node in nodes):
            await trio.sleep(0.25)
            for node in nodes:
                await node.poll()
        return
    raise DeadlineExceeded("waiting for both nodes to train", _START_DEADLINE_S)


async def _seen(nodes: list[NodeProcess], seconds: float) -> _Seen:
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
    medians = [status["pause_median_s"] for status in last if status["pause_median_s"] is not None]
    longest = [status["pause_max_s"] for status in last if status["pause_max_s"] is not None]
    return _Seen(
        1e3 * took_s / max(1, statistics.fmean(steps)),
        statistics.fmean(committed) / took_s,
        1e3 * statistics.median(medians) if medians else None,
        1e3 * max(longest) if longest else None,
    )
