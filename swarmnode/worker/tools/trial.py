"""A few steps of a swarm's task on this machine: what a step takes, and what memory.

For a person who looks at a swarm before joining it. A process of its own runs this, at low
priority, with a bound on its memory, and without a network: a task whose data would be fetched
cannot be tried. Nothing is written.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ipc.control import Configure
from swarmnode.worker.runtime import NICE, thread_count

_WARM_UP_STEPS = 2  # touch memory and fill caches: no measure of a step
_STEPS_MAX = 100
_SEGMENT_SLOTS = 2  # of SLOTS_PER_WORKER: so many are mostly in use, untouched ones cost nothing
_STATUS = Path("/proc/self/status")
# What a program in Python does before bytes leave the machine.
_NETWORK_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def confine(memory_bytes: int) -> None:
    """Give up the network, and memory above a bound, for the rest of this process.

    A process with a GPU is not bounded like that: the driver reserves more than it takes.
    """
    os.nice(NICE)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    sys.addaudithook(_refuse_network)
    if memory_bytes and not Path("/proc/driver/nvidia").exists():
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _NETWORK_EVENTS:
        del arguments
        raise ConfigError("its data would be fetched, and nothing is fetched before joining")


def try_steps(configure: Configure, *, steps_s: float) -> dict[str, Any]:
    """Return what a few steps took: at least one, for about ``steps_s`` seconds.

    Raises:
        SwarmNodeError: task, strategy or device do not do here.
    """
    import torch

    from swarmnode.worker.model.needs import state_bytes
    from swarmnode.worker.model.prepare import Surroundings, prepare_state, prepare_strategy
    from swarmnode.worker.training.learn import local_step

    threads = configure.threads or thread_count()
    torch.set_num_threads(threads)
    state = prepare_state(configure)
    strategy = prepare_strategy(configure, state)
    Surroundings(configure, state, strategy)
    batches = state.batches(configure.shard_seed)
    steps, took_s = _timed(
        lambda: local_step(state, strategy, next(batches)), steps_s, count=_STEPS_MAX
    )
    held = state_bytes(state, strategy)
    # A snapshot copies all of it but the gradients; slots have two halves.
    copied = held - state.arena.flat.nbytes
    segment = _SEGMENT_SLOTS * 2 * strategy.payload_numel() * strategy.x.element_size()
    is_cuda = state.device.torch_device.type == "cuda"
    gpu_bytes = torch.cuda.max_memory_reserved() + limits.GPU_CONTEXT_BYTES if is_cuda else 0
    return {
        "steps": steps,
        "seconds": took_s,
        "device": str(state.device),
        "threads": threads,
        "main_bytes": _peak_bytes() + copied + segment,
        "gpu_bytes": gpu_bytes,
        "parts": state.micro.fit.parts,
        "tokens": state.task.tokens_per_batch,
    }


def _timed(step: Callable[[], float], until_s: float, *, count: int) -> tuple[int, float]:
    """Return (steps, seconds): those after the first ones, if there is time for any."""
    begin_s = start_s = time.perf_counter()
    steps = 0
    for n in range(1, count + _WARM_UP_STEPS + 1):
        step()
        now_s = time.perf_counter()
        steps += 1
        if n <= _WARM_UP_STEPS and now_s - begin_s < until_s:
            start_s, steps = now_s, 0
        elif now_s - begin_s >= until_s:
            break
    return steps, time.perf_counter() - start_s


def _peak_bytes() -> int:
    """Return the most main memory that this process has held."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass  # no Linux
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return unit_bytes * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
