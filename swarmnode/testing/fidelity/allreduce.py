"""Synchronous data parallelism with ``torch.distributed``, on the batches that daemons trained.

``python -m swarmnode.testing.fidelity.allreduce JSON`` starts one process for each rank, over gloo
on loopback. Each takes the stream of batches of one node of a swarm, from the same first weights;
at every step the gradients of all are averaged in float32. One JSON object a line, from rank 0: the
held-out loss every so many steps, and at the end what each rank has sent, as the kernel counted it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from swarmnode.errors import ConfigError, WorkerError
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.runtime import end_with_parent

_MODULE = "swarmnode.testing.fidelity.allreduce"
_STALLED_S = 120.0  # a step takes milliseconds; a rank that died does not come back
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
# Of struct tcp_info in Linux: tcpi_bytes_sent, since 4.19.
_TCP_INFO_BYTES, _BYTES_SENT_AT = 208, 200


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to train. ``shard_seeds``: those of the nodes, in order of the ranks."""

    task: str
    config: dict[str, Any]
    swarm_seed: int
    shard_seeds: list[int]
    steps: int


def main() -> int:
    """Train; return the exit status."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog=_MODULE)
    parser.add_argument("job")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--meet", help="a file that all ranks meet at")
    arguments = parser.parse_args()
    try:
        job = msgspec.json.decode(arguments.job, type=Job)
        if arguments.rank is None:
            _run_all(job)
        else:
            _run_rank(job, arguments.rank, arguments.meet)
    except Exception as error:  # noqa: BLE001 -- of one question: its answer says what went wrong
        kind, message = classify(error)
        print(json.dumps({"failed": kind, "message": message}), flush=True)
        return EXIT_STATUS[kind]
    return 0


def _run_all(job: Job) -> None:
    """Start the ranks; rank 0 says on our output what comes of it."""
    text = msgspec.json.encode(job).decode()
    with tempfile.TemporaryDirectory(prefix="swarmnode-allreduce-") as folder:
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(len(job.shard_seeds)):
                command = worker_command(
                    _MODULE, "--rank", str(rank), "--meet", str(Path(folder) / "meet"), text
                )
                quiet = None if rank == 0 else subprocess.DEVNULL
                environment = worker_environment() | _LOOPBACK
                ranks.append(subprocess.Popen(command, env=environment, stdout=quiet))
            statuses = [rank.wait() for rank in ranks]
        finally:
            for rank_process in ranks:
                rank_process.kill()
                rank_process.wait()
    if any(statuses):
        raise WorkerError(f"expected all ranks to end with status 0, got {statuses}")


def _run_rank(job: Job, rank: int, meet: str) -> None:
    """Be one rank from the first step to the last."""
    import torch
    import torch.distributed as dist

    from swarmnode.bench.fidelity.versions import made_with
    from swarmnode.worker.model.state import build_state, build_task

    torch.set_num_threads(1)  # ranks share the machine
    world = len(job.shard_seeds)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meet}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=_STALLED_S),
    )
    task = build_task(job.task, job.config)
    state = build_state(task, swarm_seed=job.swarm_seed, device="cpu")
    batches = state.batches(job.shard_seeds[rank])
    parameters = [p for p in state.model.parameters() if p.requires_grad]
    flat = torch.empty(sum(p.numel() for p in parameters))
    before_bytes = _sent_bytes()
    for step in range(1, job.steps + 1):
        with state.device.autocast():
            loss = task.loss(state.model, state.device.move(next(batches)))
        loss.backward()  # type: ignore[no-untyped-call]
        _average_gradients(parameters, flat, world)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        is_last = step == job.steps
        if rank == 0 and (step % task.eval_every_steps == 0 or is_last):
            _say({"step": step, "eval_loss": state.evaluate()})
    sent_bytes = _sent_bytes() - before_bytes
    digest = hashlib.sha256(state.arena.flat.numpy().tobytes()).hexdigest()
    ends: list[Any] = [None] * world
    dist.all_gather_object(ends, (sent_bytes, digest))
    if len({digest for _, digest in ends}) > 1:
        raise WorkerError("expected the same weights at all ranks, got different ones")
    if rank == 0:
        _say({"sent_bytes": [sent for sent, _ in ends], "made_with": made_with()})
    _end_together(f"{meet}-end", rank, world)


def _end_together(meet: str, rank: int, world: int) -> NoReturn:
    """Leave when all ranks have what they need, without taking gloo down.

    Its threads take the end of a peer in the middle of theirs for a failure, and abort.
    """
    import torch.distributed as dist

    store = dist.FileStore(meet, world)  # type: ignore[attr-defined]  # documented, unlisted
    store.set(str(rank), "done")
    store.wait([str(other) for other in range(world)])
    sys.stdout.flush()
    os._exit(0)


def _average_gradients(parameters: list[Any], flat: Any, world: int) -> None:
    """Replace the gradients by their mean over all ranks; ``flat``: [sum of their numel]."""
    import torch.distributed as dist

    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        flat[begin:end] = parameter.grad.flatten()
        begin = end
    dist.all_reduce(flat)
    flat.div_(world)
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.grad.copy_(flat[begin:end].view_as(parameter))
        begin = end


def _sent_bytes() -> int:
    """Return what the TCP sockets of this process have sent so far, payload and gloo's headers."""
    if not sys.platform.startswith("linux"):
        raise ConfigError("what a socket has sent is only known on Linux")
    total = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # no socket, or closed meanwhile
            copy = os.dup(int(entry.name))
            with socket.socket(fileno=copy) as sock:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            if len(info) == _TCP_INFO_BYTES:
                total += struct.unpack_from("=Q", info, _BYTES_SENT_AT)[0]
    return total


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line, allow_nan=False), flush=True)


if __name__ == "__main__":
    sys.exit(main())
