"""``swarmnode bench metrics``: how long a page for Prometheus takes a node with many peers.

Whole daemons meet in the memory of this process, so that what is read is real: sessions,
failure detector, shared state. Workers and network are the simulation's.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import trio
from trio.testing import MockClock

from swarmnode.errors import DeadlineExceeded
from swarmnode.processes.stopping import run_async
from swarmnode.telemetry.exposition import render
from swarmnode.telemetry.remote import pack
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, sim_swarm
from swarmnode.wire.packing import encode_record

_PAGES = 100
_MEET_S = 60.0  # of virtual time


def run_metrics_bench(peers: int) -> dict[str, Any]:
    """Return the milliseconds of CPU of one page of a node with so many peers, by what is done.

    Raises:
        DeadlineExceeded: the nodes did not all meet.
    """
    with TemporaryDirectory() as home:
        return run_async(_measure, Path(home), peers, clock=MockClock(autojump_threshold=0))


def format_metrics_bench(result: dict[str, Any]) -> str:
    """Return the figures as lines for a person."""
    return "\n".join(
        f"{name:<22} {value:,.2f}" if isinstance(value, float) else f"{name:<22} {value:,}"
        for name, value in result.items()
    )


async def _measure(home: Path, peers: int) -> dict[str, Any]:
    async with sim_swarm(home, 1, worker=FakeWorker(np.zeros(0))) as swarm:
        node = swarm.nodes[0]
        for _ in range(peers):
            swarm.add(FakeWorker(np.zeros(0)), role="monitor")
            await swarm.start(len(swarm.nodes) - 1)
        await _all_meet(node, peers)
        pages = [_page_ms(node) for _ in range(_PAGES)]
        readings = node.running.readings.read()
        result = {
            "peers": peers,
            "sessions": len(node.running.view.node.network.sessions),
            "series": render(readings)[1].count(b"\n") - render(readings)[1].count(b"#"),
            "page_bytes": len(render(readings)[1]),
            "snapshot_bytes": len(encode_record(pack(readings))),
            "collect_cpu_ms_p50": statistics.median(collect for collect, _ in pages),
            "render_cpu_ms_p50": statistics.median(rendered for _, rendered in pages),
            "page_cpu_ms_p50": statistics.median(map(sum, pages)),
            "page_cpu_ms_p95": statistics.quantiles(map(sum, pages), n=20)[-1],
        }
        swarm.nursery.cancel_scope.cancel()
    return result


async def _all_meet(node: SimNode, peers: int) -> None:
    """Wait until the node has heard from each of its peers what it does."""
    with trio.move_on_after(_MEET_S):
        # Nothing tells of the moment when the last of them has spoken.
        while (  # noqa: ASYNC110
            node.running.readings.read().get("swarm_members", "monitor", "serving") != peers
        ):
            await trio.sleep(1)
        return
    raise DeadlineExceeded(f"meeting of {peers} peers", _MEET_S)


def _page_ms(node: SimNode) -> tuple[float, float]:
    """Return the CPU time of reading everything, and of writing it down.

    Neither waits for anything, so that on an idle machine it is the time that passes as well.
    """
    began_s = time.thread_time()
    readings = node.running.readings.read()
    read_s = time.thread_time()
    render(readings)
    return (read_s - began_s) * 1e3, (time.thread_time() - read_s) * 1e3
