"""Control messages between the daemon and its torch worker, both ways one-way.

They travel over a socketpair, each as a 4-byte little-endian length and a
msgpack map. Tensors never do: they lie in slots of the shared segment
(``ipc/segment.py``), and a message moves the ownership of a slot::

    worker owns slot --SlotReady--> daemon owns slot --Apply|Release--> worker owns slot

Nothing here asks a question that the other side must answer before it can
go on: a training step never waits for the daemon, nor the daemon for a step.
"""

from __future__ import annotations

from typing import Any

import msgspec

from swarmnode import limits
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.records import Count, ExchangeId, ShortText


class Message(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every control message."""


# --- daemon to worker --------------------------------------------------------------------


class Configure(Message, frozen=True, tag="configure"):
    """First message to a worker: what to train, with what, and where to keep it."""

    task: str
    task_config: dict[str, Any]
    strategy: str
    strategy_settings: dict[str, Any]
    swarm_seed: Count
    shard_seed: Count  # this node's own stream of batches
    snapshot_dir: str
    resume: bool = True
    device: str = "auto"
    steps_max: Count = 0  # 0: until told to stop
    data_dir: str = ""
    layout_hash: bytes = b""  # expected; empty: any
    data_hash: ShortText = ""  # hex SHA-256 of what the swarm's creator trains on
    task_version: Count = 0  # expected; 0: any
    threads: Count = 0  # of torch; 0: see worker/runtime.py


class Apply(Message, frozen=True, tag="apply"):
    """A committed exchange: the slot holds its result, merge it at the next step boundary."""

    slot: Count
    generation: Count
    xid: ExchangeId


class Release(Message, frozen=True, tag="release"):
    """The slot was not used, or its exchange was aborted: it is the worker's again."""

    slot: Count
    generation: Count


class SaveSnapshot(Message, frozen=True, tag="save"):
    """Take a snapshot between two steps, as soon as none is being written.

    SnapshotSaved or SnapshotFailed has this id, or that of a newer request: one answers both.
    """

    request: Count


class TakeShard(Message, frozen=True, tag="take"):
    """Train this shard once, after those taken before: part ``index`` of ``n_shards`` of an epoch.

    Unless it is dropped, ShardDone follows; a worker that starts again is told again.
    """

    epoch: Count
    index: Count
    n_shards: Count


class DropShard(Message, frozen=True, tag="drop"):
    """Forget this shard: it is another peer's."""

    epoch: Count
    index: Count


class Pause(Message, frozen=True, tag="pause"):
    """Stop stepping, keep everything."""


class Resume(Message, frozen=True, tag="resume"):
    """Go on stepping."""


class Stop(Message, frozen=True, tag="stop"):
    """Save a snapshot and exit with status 0."""


# --- worker to daemon --------------------------------------------------------------------


class WorkerReady(Message, frozen=True, tag="ready"):
    """The model is built and the segment has its final size."""

    layout_hash: bytes
    numel: Count
    slots: Count
    step: Count  # > 0 after resuming from a snapshot
    tokens: Count
    device: str
    torch_version: str
    threads: Count
    data_hash: ShortText = ""  # hex SHA-256 of what this node trains on
    n_shards: Count = limits.SHARDS_PER_EPOCH_MAX  # of one epoch; the same for the same data


class SlotReady(Message, frozen=True, tag="slot"):
    """A slot holds a snapshot of the parameters taken at ``step``; it is the daemon's now.

    ``applied`` counts the exchanges merged before it was taken: a snapshot that lacks an
    exchange which has committed since is out of date, and is only good for Release.
    """

    slot: Count
    generation: Count
    round: Count
    step: Count
    tokens: Count
    applied: Count


class Applied(Message, frozen=True, tag="applied"):
    """The exchange was merged into the parameters at ``step``."""

    xid: ExchangeId
    step: Count
    staleness_steps: Count


class Progress(Message, frozen=True, tag="progress"):
    """Heartbeat, at least once a second, also while paused."""

    step: Count
    tokens: Count
    loss: float  # training loss, exponential mean; NaN before the first step
    eval_loss: float  # on the task's held-out probe; NaN before the first evaluation
    step_time_s: float  # exponential mean of one step, without waiting
    paused: bool = False
    finished: bool = False


class ShardDone(Message, frozen=True, tag="done"):
    """Every batch of this shard has been trained."""

    epoch: Count
    index: Count


class SnapshotSaved(Message, frozen=True, tag="saved"):
    """A snapshot is on disk, durable; ``request`` 0 means that the worker chose the moment."""

    request: Count
    step: Count
    path: str


class SnapshotFailed(Message, frozen=True, tag="unsaved"):
    """A snapshot could not be written; the ones before it are kept and training goes on."""

    request: Count
    step: Count
    message: str


class WorkerFailed(Message, frozen=True, tag="failed"):
    """The worker is about to exit; ``kind`` is one of FAILURE_KINDS, ``message`` one line."""

    kind: ShortText
    message: str


# Kinds that a restart cannot mend end the node with the message; the others are restarted.
FATAL_KINDS = frozenset({"torch-missing", "task-unknown", "config", "layout", "data"})
FAILURE_KINDS = FATAL_KINDS | {"out-of-memory", "disk-full", "diverged", "crash"}

ToWorker = (
    Configure | Apply | Release | SaveSnapshot | TakeShard | DropShard | Pause | Resume | Stop
)
FromWorker = (
    WorkerReady
    | SlotReady
    | Applied
    | Progress
    | ShardDone
    | SnapshotSaved
    | SnapshotFailed
    | WorkerFailed
)


def encode_message(message: Message) -> bytes:
    """Return the length-prefixed bytes of one message."""
    body = encode_record(message)
    return len(body).to_bytes(4, "little") + body


def decode_to_worker(body: bytes) -> ToWorker:
    """Read what the daemon sent. Raises MalformedMessage."""
    return decode_record(body, ToWorker)  # type: ignore[arg-type]


def decode_from_worker(body: bytes) -> FromWorker:
    """Read what the worker sent. Raises MalformedMessage."""
    return decode_record(body, FromWorker)  # type: ignore[arg-type]
