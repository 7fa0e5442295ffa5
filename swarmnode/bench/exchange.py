"""``swarmnode bench exchange``: one exchange between two daemons, and where its time goes.

Two processes run a whole node each: TLS session over loopback TCP, peer book,
exchange core, codec, commit. Only the worker is replaced, by one that intents
again soon after the last exchange was applied and lends the same vector at once,
so that nothing but the exchange is measured. Afterwards the same processes all-reduce
as many float32 with gloo, if torch is installed: both meet the same machine.

The vector is one tile of numbers over and over, on Linux the same memory mapped as often: so 500
million take 64 MiB, and two nodes hold little more than what came from each other. What an
exchange writes to one of these places (the numbers as its codec has them) is in all of them; the
codec makes the same of those again.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import trio

from swarmnode import limits
from swarmnode.bench.kit import write_manifest
from swarmnode.bench.member import (
    BenchWorker,
    Gloo,
    Vector,
    own_cpu_s,
    own_memory_bytes,
    run_member,
    run_members,
    running_node,
    wait_until,
)
from swarmnode.ipc.control import Apply, Configure, Release, ToWorker, Weigh, Weighed
from swarmnode.protocol.gossip.events import Finished
from swarmnode.tensor.codec import get_codec

_WARM_UP = 2
_DEADLINE_S = 300.0
_TOO_FEW = "too few exchanges were committed"
_PAUSE_S = 0.15
_FLOAT32_BYTES = 4
# More than a processor keeps: reading it again is as dear as reading other numbers.
_TILE_NUMEL = 64 * limits.MIB // _FLOAT32_BYTES
_MAP_FIXED = 0x10  # of Linux
_PIECE_NUMEL = 1 << 20  # compared at once: a whole vector more would be the most of the memory


def run_exchange_bench(n_params: int, codec: str, repeats: int) -> dict[str, Any]:
    """Return medians over ``repeats`` exchanges of ``n_params`` float32 in both directions.

    Raises:
        WorkerError: one of the two processes failed.
    """
    get_codec(codec)
    with tempfile.TemporaryDirectory(prefix="swarmnode-bench-") as folder:
        write_manifest([Path(folder) / side for side in "01"], numel=n_params, codec=codec)
        arguments = (folder, str(n_params), str(_WARM_UP + repeats))
        results = run_members("swarmnode.bench.exchange", 2, *arguments)
    return _summary(n_params, codec, results)


def format_exchange_bench(result: dict[str, Any]) -> str:
    """Return the result as text."""
    wall_s = result["wall_s_p50"]
    lines = [
        f"{result['params']:,} float32 both ways, {result['codec']}:"
        f" {wall_s * 1e3:.1f} ms median, {result['cpu_s'] * 1e3:.0f} ms CPU on both sides,"
        f" {result['bytes_sent'] / 1e6:.1f} MB sent by each, error {result['rel_error']:.2e},"
        f" {result['memory_bytes'] / 1e9:.2f} GB on both sides",
    ]
    if result["gloo_s_p50"] is not None:
        gloo_s = result["gloo_s_p50"]
        lines.append(
            f"  gloo, float32: {gloo_s * 1e3:.1f} ms median, {result['gloo_cpu_s'] * 1e3:.0f} ms"
            f" CPU; it takes {gloo_s / wall_s:.2f} times as long"
        )
    for name, seconds in result["phases"].items():
        lines.append(f"  {name:<16} {seconds * 1e3:7.1f} ms  {seconds / wall_s:6.1%}")
    return "\n".join(lines)


def _summary(n_params: int, codec: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    both = list(zip(*(result["took_s"][_WARM_UP:] for result in results), strict=True))
    wall_s = statistics.median(max(pair) for pair in both)
    phases = {
        name: statistics.fmean(result["phases"][name] for result in results)
        for name in results[0]["phases"]
    }
    phases["rest_s"] = max(0.0, wall_s - sum(phases.values()))
    return {
        "params": n_params,
        "codec": codec,
        "wall_s_p50": wall_s,
        "cpu_s": sum(result["cpu_s"] for result in results),
        "bytes_sent": results[0]["bytes_sent"],
        "memory_bytes": sum(result["memory_bytes"] for result in results),
        "rel_error": max(result["rel_error"] for result in results),
        "exchanges": len(both),
        "phases": phases,
        **_gloo_summary([result["gloo"] for result in results]),
    }


def _gloo_summary(sides: list[list[tuple[float, float]]]) -> dict[str, float | None]:
    """Medians over the all-reduces of both sides; None where torch is missing."""
    both = list(zip(*(side[_WARM_UP:] for side in sides), strict=True))
    if not both:
        return {"gloo_s_p50": None, "gloo_cpu_s": None}
    return {
        "gloo_s_p50": statistics.median(max(wall_s for wall_s, _ in pair) for pair in both),
        "gloo_cpu_s": statistics.median(sum(cpu_s for _, cpu_s in pair) for pair in both),
    }


# --- one side, in its own process ---------------------------------------------------------


class _Exchanger(BenchWorker):
    """Intends to exchange the same vector again and again."""

    def __init__(self, side: int, n_params: int, pause_s: float) -> None:
        self._tile = _tile(side, n_params)
        slot = _slot(n_params, len(self._tile))
        super().__init__(slot[0], slot)
        self._restore()
        self._pause_s = pause_s
        self._other = _tile(1 - side, n_params)
        self.rel_errors: list[float] = []  # of the first exchange

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[BenchWorker]:
        """Intend at once, too."""
        async with super().start(configure):
            self.intend("pair")
            yield self

    async def send(self, message: ToWorker) -> None:
        """Take an exchange and post the next intent."""
        await super().send(message)
        if isinstance(message, Weigh):
            self.say(Weighed(message.slot, message.generation))
        if isinstance(message, Apply) and not self.rel_errors:
            self.rel_errors.append(_rel_error(self.slot, self._other))
        if isinstance(message, Apply | Release):
            self._restore()
            # Both sides are done with the copy, which a real worker makes in its own
            # process, before the slower one makes its offer.
            await trio.sleep(self._pause_s)
            self.intend("pair")

    def _restore(self) -> None:
        tile, own = self._tile, self.values
        own[: len(tile)] = tile
        rest = own[len(own) - len(own) % len(tile) :]  # where the tile is not mapped
        rest[:] = tile[: len(rest)]


def _tile(side: int, n_params: int) -> Vector:
    can_map = hasattr(os, "memfd_create")
    numel = min(n_params, _TILE_NUMEL) if can_map else n_params
    return np.random.default_rng(side).standard_normal(numel, dtype=np.float32)


def _slot(n_params: int, tile_numel: int) -> Vector:
    """Return two rows: own values, of which every tile is the same memory, and room."""
    memory = mmap.mmap(-1, 2 * n_params * _FLOAT32_BYTES)
    slot = np.frombuffer(memory, np.float32).reshape(2, n_params)
    if n_params > tile_numel:
        _map_tiles(slot.ctypes.data, tile_numel * _FLOAT32_BYTES, n_params // tile_numel)
    return slot


def _map_tiles(address: int, tile_bytes: int, n_tiles: int) -> None:
    """Let one tile appear so often from this address on. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.memfd_create("swarmnode-bench")
    try:
        os.truncate(fd, tile_bytes)
        for at in range(address, address + n_tiles * tile_bytes, tile_bytes):
            how = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd)
            size = ctypes.c_size_t(tile_bytes)
            if libc.mmap(ctypes.c_void_p(at), size, *how, ctypes.c_long(0)) != at:
                raise OSError(ctypes.get_errno(), "the tile cannot be mapped")
    finally:
        os.close(fd)


async def _run_side(folder: Path, n_params: int, exchanges: int, side: int) -> dict[str, Any]:
    worker = _Exchanger(side, n_params, _PAUSE_S * (1 + side))
    finished: list[Finished] = []
    async with running_node(folder, side, worker, finished.append) as node:
        await wait_until(partial(_has_done, finished, _WARM_UP), _TOO_FEW, _DEADLINE_S)
        before_cpu_s, totals = own_cpu_s(), node.exchange_totals()
        before = totals.phases()
        await wait_until(partial(_has_done, finished, exchanges), _TOO_FEW, _DEADLINE_S)
        cpu_s, after = own_cpu_s() - before_cpu_s, totals.phases()
        # The other side may want a last one of this one.
        (folder / f"done-{side}").touch()
        await wait_until((folder / f"done-{1 - side}").exists, _TOO_FEW, _DEADLINE_S)
    measured = exchanges - _WARM_UP
    memory_bytes = own_memory_bytes()  # before gloo works in the worker's memory
    return {
        "took_s": [one.ended - one.started for one in _committed(finished)][:exchanges],
        "cpu_s": cpu_s / measured,
        "bytes_sent": totals.payload_sent_bytes // totals.committed,
        "rel_error": worker.rel_errors[0],
        "memory_bytes": memory_bytes,
        "phases": {name: (after[name] - before[name]) / measured for name in after},
        "gloo": await trio.to_thread.run_sync(
            _all_reduces, folder, side, worker.slot[0], exchanges
        ),
    }


def _all_reduces(folder: Path, side: int, values: Vector, count: int) -> list[tuple[float, float]]:
    """Return how long each of ``count`` all-reduces took, and how much CPU time of this process."""
    if find_spec("torch") is None:
        return []
    gloo = Gloo(folder, side, members=2)
    room, taken = gloo.tensor(values), []
    for _ in range(count):
        gloo.all_say(True)
        began_s, cpu_s = time.monotonic(), own_cpu_s()
        gloo.add_up(room)
        taken.append((time.monotonic() - began_s, own_cpu_s() - cpu_s))
    gloo.leave()
    return taken


def _committed(finished: list[Finished]) -> list[Finished]:
    return [one for one in finished if one.outcome == "committed"]


def _has_done(finished: list[Finished], count: int) -> bool:
    return len(_committed(finished)) >= count


def _rel_error(slot: Vector, other: Vector) -> float:
    """‖mean − exact mean‖ / ‖exact mean‖, where the other side has this tile over and over."""
    error = exact = 0.0
    for begin in range(0, slot.shape[1], _PIECE_NUMEL):
        own, theirs = slot[:, begin : begin + _PIECE_NUMEL]
        at = begin % len(other)  # a tile is whole pieces, or all that there is
        exact_mean = (own + other[at : at + len(own)]) / 2
        mean = own + np.float32(0.5) * (theirs - own)
        error += float(np.square(mean - exact_mean).sum())
        exact += float(np.square(exact_mean).sum())
    return math.sqrt(error / exact)


def _main(arguments: list[str]) -> None:
    folder, n_params, exchanges, side = arguments
    run_member(_run_side, Path(folder), int(n_params), int(exchanges), int(side))


if __name__ == "__main__":
    _main(sys.argv[1:])
