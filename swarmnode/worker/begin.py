"""From a state that is built to a loop that the daemon knows of: the same for every worker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from msgspec.structs import replace

from swarmnode import limits
from swarmnode.ipc.control import Configure, WorkerReady
from swarmnode.ipc.segment import Segment
from swarmnode.strategies.base import Strategy
from swarmnode.worker.channel import Channel
from swarmnode.worker.failures import SnapshotUnfit
from swarmnode.worker.model.needs import needs_words
from swarmnode.worker.model.prepare import Surroundings, prepare_strategy
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.snapshots.saver import Saver
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from swarmnode.worker.training.loop import Loop

LoopT = TypeVar("LoopT", bound=Loop)


@contextmanager
def begin(
    configure: Configure,
    state: TrainState,
    channel: Channel,
    segment: Segment,
    *,
    threads: int,
    loop_type: type[LoopT],
    sandbox: str = "",
    n_shards: int | None = None,
    wants_another: bool = False,
) -> Iterator[LoopT]:
    """Restore the newest snapshot, say that the worker is ready, and lend the loop.

    Args:
        sandbox: what the worker has given up, for people.
        n_shards: of one epoch; 0: this worker shares no data out, None: as the task says.
        wants_another: to end, rather than go on without it, where a peer's snapshot is unfit:
            the daemon then fetches the next one and starts a worker anew.

    Raises:
        SnapshotUnfit: see ``wants_another``; the file has been put aside.
        SwarmNodeError: strategy, snapshots and model do not fit together.
        DaemonGone: there is no daemon to be ready for.
    """
    strategy = prepare_strategy(configure, state)
    with SnapshotStore(Path(configure.snapshot_dir)) as snapshots:
        if configure.resume:
            snapshots.restore(state, strategy)
            if snapshots.unfit and wants_another:
                raise SnapshotUnfit(snapshots.unfit)
        surroundings = Surroundings(configure, state, strategy)
        words = strategy.x.element_size() // 4  # a segment counts in float32
        segment.format(2 * words * strategy.payload_numel(), limits.SLOTS_PER_WORKER)
        n_shards = state.task.shards_per_epoch if n_shards is None else n_shards
        ready = _ready(state, strategy, segment, threads=threads, n_shards=n_shards)
        channel.send(replace(ready, sandbox=sandbox))
        _tell_of_batches(state, strategy, channel)
        with Saver(snapshots, channel.send) as saver:
            yield loop_type(
                state,
                strategy,
                surroundings=surroundings,
                channel=channel,
                segment=segment,
                saver=saver,
                rng=random.Random(f"{configure.shard_seed}/{state.step}/clock"),
                steps_max=configure.steps_max,
            )


def _tell_of_batches(state: TrainState, strategy: Strategy, channel: Channel) -> None:
    """Say how batches are cut, and go on saying so."""
    state.micro.say = channel.send
    state.micro.needs = partial(needs_words, state, strategy)
    if state.micro.fit.examples:  # one was seen already
        channel.send(state.micro.fit)


def _ready(
    state: TrainState, strategy: Strategy, segment: Segment, *, threads: int, n_shards: int
) -> WorkerReady:
    layout = state.arena.layout
    return WorkerReady(
        layout_hash=layout.layout_hash,
        numel=layout.numel,
        payload_numel=strategy.payload_numel(),
        slots=segment.slots,
        step=state.step,
        tokens=state.tokens,
        device=str(state.device),
        torch_version=str(torch.__version__),
        threads=threads,
        data_hash=state.task.data_hash(),
        n_shards=n_shards,
        round_steps=strategy.round_steps(),
        log_round=strategy.log_round(),
        log_head=state.log_head,
        value_bytes=8 if strategy.x.dtype == torch.float64 else 4,
    )
