"""``swarmnode bench exchange``: one exchange between two daemons, and where its time goes.

Two processes run a whole node each: TLS session over loopback TCP, peer book,
exchange core, codec, commit. Only the worker is replaced, by one that intents
again soon after the last exchange was applied and lends the same vector at once,
so that nothing but the exchange is measured.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from swarmnode.bench.kit import SWARM, swarm_identity, write_manifest
from swarmnode.config import NodeConfig
from swarmnode.daemon.app.node import Node, TrainingChoice
from swarmnode.env import real_env
from swarmnode.errors import SwarmNodeError, WorkerError
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Configure,
    FromWorker,
    PostedIntent,
    Release,
    SlotReady,
    TakeView,
    ToWorker,
    Weigh,
    Weighed,
    WorkerReady,
)
from swarmnode.ipc.records import ViewShape
from swarmnode.ipc.spawn import worker_command
from swarmnode.net.tcp import TcpTransport
from swarmnode.processes.children import child
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.files import write_atomic
from swarmnode.tensor.codec import get_codec

_WARM_UP = 2
_DEADLINE_S = 300.0
_PAUSE_S = 0.15
Vector = npt.NDArray[np.float32]


def run_exchange_bench(n_params: int, codec: str, repeats: int) -> dict[str, Any]:
    """Return medians over ``repeats`` exchanges of ``n_params`` float32 in both directions.

    Raises:
        WorkerError: one of the two processes failed.
    """
    get_codec(codec)
    with tempfile.TemporaryDirectory(prefix="swarmnode-bench-") as folder:
        write_manifest([Path(folder) / side for side in "01"], numel=n_params, codec=codec)
        arguments = (folder, str(n_params), str(_WARM_UP + repeats))
        with ExitStack() as stack:
            sides = [
                stack.enter_context(
                    child(
                        worker_command("swarmnode.bench.exchange", *arguments, str(side)),
                        stdout=subprocess.PIPE,
                    )
                )
                for side in (0, 1)
            ]
            results = [_result_of(process) for process in sides]
    return _summary(n_params, codec, results)


def format_exchange_bench(result: dict[str, Any]) -> str:
    """Return the result as text."""
    wall_s = result["wall_s_p50"]
    lines = [
        f"{result['params']:,} float32 both ways, {result['codec']}:"
        f" {wall_s * 1e3:.1f} ms median, {result['cpu_s'] * 1e3:.0f} ms CPU on both sides,"
        f" {result['bytes_sent'] / 1e6:.1f} MB sent by each, error {result['rel_error']:.2e}",
    ]
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
        "rel_error": max(result["rel_error"] for result in results),
        "exchanges": len(both),
        "phases": phases,
    }


def _result_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise WorkerError(f"a node of the benchmark ended with status {process.returncode}")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


# --- one side, in its own process ---------------------------------------------------------


class _BenchWorker:
    """Intents to exchange the same vector again and again; implements ``WorkerLink``."""

    pid = None

    def __init__(self, values: Vector, pause_s: float) -> None:
        self._values = values
        self._pause_s = pause_s
        self._slot = np.zeros((2, values.size), np.float32)
        self._slot[0] = values
        self._round = 0
        self._send, self._receive = trio.open_memory_channel[FromWorker](8)
        self.first_mean: Vector | None = None

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[_BenchWorker]:
        """Be ready at once."""
        self._send.send_nowait(
            WorkerReady(
                layout_hash=configure.layout_hash,
                numel=self._values.size,
                payload_numel=self._values.size,
                slots=1,
                step=0,
                tokens=0,
                device="bench",
                torch_version="",
                threads=1,
            )
        )
        self._intent()
        yield self

    async def send(self, message: ToWorker) -> None:
        """Lend the vector, take an exchange and post the next intent."""
        await trio.lowlevel.checkpoint()
        if isinstance(message, TakeView):
            lent = SlotReady(message.ticket, 0, generation=self._round, step=0, tokens=0)
            self._send.send_nowait(lent)
        if isinstance(message, Weigh):
            self._send.send_nowait(Weighed(message.slot, message.generation))
        if isinstance(message, Apply):
            if self.first_mean is None:
                own, theirs = self._slot
                self.first_mean = self._values + np.float32(0.5) * (theirs - own)
            self._send.send_nowait(Applied(xid=message.xid, step=0, staleness_steps=0))
        if isinstance(message, Apply | Release):
            self._slot[0] = self._values
            # Both sides are done with the copy, which a real worker makes in its own
            # process, before the slower one makes its offer.
            await trio.sleep(self._pause_s)
            self._intent()

    async def receive(self) -> FromWorker:
        """Return the next message."""
        return await self._receive.receive()

    def slot_view(self, slot: int, generation: int) -> memoryview:  # noqa: ARG002
        """Return the one slot."""
        return self._slot.data.cast("B")

    def _intent(self) -> None:
        self._round += 1
        views = (ViewShape("x", "", self._values.size),)
        self._send.send_nowait(
            PostedIntent(
                self._round, "pair", "x", 0, self._round, "matching", views, step=self._round
            )
        )


def _vector(side: int, n_params: int) -> Vector:
    return np.random.default_rng(side).standard_normal(n_params, dtype=np.float32)


def _identity(side: int) -> Identity:
    return Identity.from_seed(bytes([side + 1]) * 32)


async def _run_side(folder: Path, n_params: int, exchanges: int, side: int) -> dict[str, Any]:
    worker = _BenchWorker(_vector(side, n_params), _PAUSE_S * (1 + side))
    finished: list[Finished] = []
    address_file = folder / "address"
    hints = () if side == 0 else (Hint(_identity(0).peer_id, await _read_when_there(address_file)),)
    node = Node(
        config=NodeConfig(
            home=folder / str(side), listen="127.0.0.1:0", metrics="off", dashboard="off"
        ),
        link=SwarmLink(SWARM, swarm_identity().public_key, hints),
        identity=_identity(side),
        boot_epoch=1,
        transport=TcpTransport(),
        start_worker=worker.start,
        env=real_env(trio.current_time),
        training=TrainingChoice(),
        on_finished=finished.append,
    )
    async with trio.open_nursery() as nursery:
        address = await nursery.start(node.run)
        if side == 0:
            write_atomic(address_file, address.encode())
        await _wait_for(finished, _WARM_UP)
        before_cpu_s, totals = _cpu_s(), node.exchange_totals()
        before = totals.phases()
        await _wait_for(finished, exchanges)
        cpu_s, after = _cpu_s() - before_cpu_s, totals.phases()
        nursery.cancel_scope.cancel()
    measured = exchanges - _WARM_UP
    return {
        "took_s": [one.ended - one.started for one in _committed(finished)][:exchanges],
        "cpu_s": cpu_s / measured,
        "bytes_sent": totals.payload_sent_bytes // totals.committed,
        "rel_error": _rel_error(worker, side, n_params),
        "phases": {name: (after[name] - before[name]) / measured for name in after},
    }


async def _read_when_there(path: Path) -> str:
    file = trio.Path(path)
    with trio.fail_after(60):
        while not await file.exists():  # noqa: ASYNC110 -- another process writes it
            await trio.sleep(0.05)
    return await file.read_text()


def _committed(finished: list[Finished]) -> list[Finished]:
    return [one for one in finished if one.outcome == "committed"]


async def _wait_for(finished: list[Finished], count: int) -> None:
    with trio.move_on_after(_DEADLINE_S):
        while len(_committed(finished)) < count:  # noqa: ASYNC110 -- only reads a counter
            await trio.sleep(0.02)
        return
    raise WorkerError(f"only {len(_committed(finished))} of {count} exchanges were committed")


def _rel_error(worker: _BenchWorker, side: int, n_params: int) -> float:
    """‖mean − exact mean‖ / ‖exact mean‖ after the first exchange."""
    assert worker.first_mean is not None
    own, other = _vector(side, n_params), _vector(1 - side, n_params)
    exact = (own + other) / 2
    return float(np.linalg.norm(worker.first_mean - exact) / np.linalg.norm(exact))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _main(arguments: list[str]) -> None:
    folder, n_params, exchanges, side = arguments
    begun = time.perf_counter()
    try:
        result = trio.run(_run_side, Path(folder), int(n_params), int(exchanges), int(side))
    except* SwarmNodeError as errors:
        sys.exit(f"swarmnode: after {time.perf_counter() - begun:.0f} s: {errors.exceptions[0]}")
    print(json.dumps(result))


if __name__ == "__main__":
    _main(sys.argv[1:])
