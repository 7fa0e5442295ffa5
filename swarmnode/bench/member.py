"""What benchmarks of exchanges have in common: members that are processes of their own.

Each runs a whole node: TLS sessions over loopback TCP, peer book, cores, codec and commit. Only the
worker is replaced, by one that lends the same vector at once, so that nothing else is measured. All
find each other at the address of the first, which it leaves in the folder that they share.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import trio

from swarmnode.bench.kit import SWARM, swarm_identity
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
    SlotReady,
    TakeView,
    ToWorker,
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

if TYPE_CHECKING:
    import torch

Vector = npt.NDArray[np.float32]

_ADDRESS_FILE = "address"
_ADDRESS_DEADLINE_S = 60.0
_LOOK_S = 0.02


def run_members(module: str, members: int, *arguments: str) -> list[dict[str, Any]]:
    """Return what so many processes of a module say last; the number of each is its last argument.

    Raises:
        WorkerError: one of them failed.
    """
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                child(worker_command(module, *arguments, str(number)), stdout=subprocess.PIPE)
            )
            for number in range(members)
        ]
        return [_result_of(process) for process in processes]


def _result_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise WorkerError(f"a member of the benchmark ended with status {process.returncode}")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


# --- one member, in its own process -------------------------------------------------------


def run_member(main: Callable[..., Awaitable[dict[str, Any]]], *arguments: object) -> None:
    """Print what ``main`` finds out, for :func:`run_members`; ends the process if it fails."""
    begun = time.perf_counter()
    try:
        result = trio.run(main, *arguments)
    except* SwarmNodeError as errors:
        sys.exit(f"swarmnode: after {time.perf_counter() - begun:.0f} s: {errors.exceptions[0]}")
    print(json.dumps(result))


class BenchWorker:
    """Lends one vector at once; implements ``WorkerLink``. When it intends is for others to say."""

    pid = None

    def __init__(self, values: Vector, slot: Vector | None = None) -> None:
        """``slot``: where own views and room for others' lie, two rows; new ones unless given."""
        self.values = values
        self.slot = np.zeros((2, values.size), np.float32) if slot is None else slot
        self.started = trio.Event()
        self._round = 0
        self._send, self._receive = trio.open_memory_channel[FromWorker](8)

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[BenchWorker]:
        """Be ready at once."""
        self.say(
            WorkerReady(
                layout_hash=configure.layout_hash,
                numel=self.values.size,
                payload_numel=self.values.size,
                slots=1,
                step=0,
                tokens=0,
                device="bench",
                torch_version="",
                threads=1,
            )
        )
        self.started.set()
        yield self

    def say(self, message: FromWorker) -> None:
        """Let the daemon have a message."""
        self._send.send_nowait(message)

    def intend(self, kind: Literal["pair", "group"], merge: str = "mean") -> None:
        """Post the next intent."""
        self._round = number = self._round + 1
        selector: Literal["matching", "all"] = "all" if kind == "group" else "matching"
        views = (ViewShape("x", "", self.values.size),)
        self.say(
            PostedIntent(number, kind, "x", 0, number, selector, views, merge=merge, step=number)
        )

    async def send(self, message: ToWorker) -> None:
        """Lend the vector, and take what comes."""
        await trio.lowlevel.checkpoint()
        if isinstance(message, TakeView):
            self.say(SlotReady(message.ticket, 0, generation=self._round, step=0, tokens=0))
        if isinstance(message, Apply):
            self.say(Applied(xid=message.xid, step=0, staleness_steps=0))

    async def receive(self) -> FromWorker:
        """Return the next message."""
        return await self._receive.receive()

    def slot_view(self, slot: int, generation: int) -> memoryview:  # noqa: ARG002
        """Return the one slot."""
        return self.slot.data.cast("B")


@asynccontextmanager
async def running_node(
    folder: Path,
    number: int,
    worker: BenchWorker,
    on_finished: Callable[[Finished], None] = lambda _finished: None,
) -> AsyncIterator[Node]:
    """Run the node of a member, in its home of ``folder``, beside the block."""
    node = Node(
        config=NodeConfig(
            home=folder / str(number), listen="127.0.0.1:0", metrics="off", dashboard="off"
        ),
        link=SwarmLink(SWARM, swarm_identity().public_key, await _hints(folder, number)),
        identity=_identity(number),
        boot_epoch=1,
        transport=TcpTransport(),
        start_worker=worker.start,
        env=real_env(trio.current_time, trio.to_thread.run_sync),
        training=TrainingChoice(),
        on_finished=on_finished,
    )
    async with trio.open_nursery() as nursery:
        address = await nursery.start(node.run)
        if number == 0:
            write_atomic(folder / _ADDRESS_FILE, address.encode())
        yield node
        nursery.cancel_scope.cancel()


def _identity(number: int) -> Identity:
    return Identity.from_seed(bytes([number + 1]) * 32)


async def _hints(folder: Path, number: int) -> tuple[Hint, ...]:
    """Return where the first member is found, when it has said so."""
    if number == 0:
        return ()
    file = folder / _ADDRESS_FILE
    await wait_until(file.exists, "the first member has no address", _ADDRESS_DEADLINE_S)
    return (Hint(_identity(0).peer_id, file.read_text()),)


async def wait_until(is_there: Callable[[], bool], why_not: str, limit_s: float) -> None:
    """Wait for what another task or process does. Raises WorkerError, which says ``why_not``."""
    with trio.move_on_after(limit_s):
        while not is_there():  # noqa: ASYNC110 -- it may be of another process
            await trio.sleep(_LOOK_S)
        return
    raise WorkerError(f"{why_not} after {limit_s:.0f} s")


class Gloo:
    """The same members, as torch connects them; its calls block."""

    def __init__(self, folder: Path, number: int, members: int) -> None:
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # wherever the machine's name leads
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/gloo", rank=number, world_size=members
        )
        self._torch = torch

    def all_say(self, is_so: bool) -> bool:
        """Return whether all members call this with True; they leave it together."""
        said = self._torch.tensor([is_so], dtype=self._torch.int32)
        self._torch.distributed.all_reduce(said, op=self._torch.distributed.ReduceOp.MIN)
        return bool(said[0])

    def tensor(self, values: Vector) -> torch.Tensor:
        """Return the same memory."""
        return self._torch.from_numpy(values)

    def add_up(self, values: torch.Tensor) -> None:
        """Sum up the tensors of all members in place."""
        self._torch.distributed.all_reduce(values)

    def leave(self) -> None:
        """End all connections."""
        self._torch.distributed.destroy_process_group()


def own_memory_bytes() -> int:
    """Return the memory that this process takes, what is mapped more than once counted once.

    Where the system does not say: the most that it had, counted as often as it was mapped.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def own_cpu_s() -> float:
    """Return the CPU time that this process has taken."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
