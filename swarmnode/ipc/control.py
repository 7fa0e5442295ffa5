"""Control messages between the daemon and its torch worker, both ways one-way.

They travel over a socketpair, each as a 4-byte little-endian length and a msgpack map. Tensors
never do: they lie in slots of ``ipc/segment.py``, and a message moves the ownership of a slot::

    worker                     daemon
      --PostedIntent-->                                 the strategy wants to exchange
                    <--TakeView--               a peer to exchange with was found
      --SlotReady-->                            the slot holds what is sent; it is the daemon's
                    <--Weigh--                  of a pair: it is all there, should it count?
      --Weighed-->
                    <--Apply | Release--        committed, or aborted; it is the worker's

A slot has two halves of ``payload_numel`` numbers, as wide as the model's: own views, and room for
what comes. No step waits for the daemon here, nor it for a step.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from swarmnode import limits
from swarmnode.ipc.comparing import Compare, Compared
from swarmnode.ipc.records import (
    BaseVersion,
    LogDigest,
    Message,
    NotNegative,
    Partner,
    Records,
    ViewShape,
)
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.recipe import Recipe
from swarmnode.wire.records import Count, Digest, ExchangeId, Name, PeerIdBytes, ShortText

_VIEWS_MAX = 8  # vectors in a payload: a strategy sends one to three


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
    model_dir: str = ""  # with the model that training goes on from, where the task has one
    layout_hash: bytes = b""  # expected; empty: any
    data_hash: ShortText = ""  # hex SHA-256 of what the swarm's creator trains on
    own_data: bool = False  # other data than that is meant
    probe_hash: ShortText = ""  # hex SHA-256 of the swarm's public probe; empty: not said
    self_id: Annotated[bytes, Meta(max_length=32)] = b""  # this node
    topology: str = ""  # the graph of pairs that meet, see strategies/topology.py; empty: all
    task_version: Count = 0  # expected; 0: any
    task_package: ShortText = ""  # that has the task, as the manifest says
    task_package_version: ShortText = ""
    threads: Count = 0  # of torch; 0: see worker/runtime.py
    gpus: tuple[Count, ...] = ()  # NVIDIA GPUs that it may see; none named: all
    gpu_memory_bytes: Count = 0  # of each; 0: all
    batch_parts: Count = 1  # into which a batch is cut at least, as more was out of memory
    recipe: Recipe | None = None  # with one, no step is taken before SwarmProgress
    nproc: Annotated[int, Meta(ge=1, le=limits.RANKS_MAX)] = 1  # processes that train as one
    parallel: Literal["ddp", "fsdp2"] = "ddp"  # what each of them has: all of the model, or a part
    python: str = ""  # of the swarm's environment, that the worker is started with; "": ours
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    sandbox: Literal["auto", "on", "files", "off"] = "auto"  # see worker/sandbox.py
    home: str = ""  # of the node, whose keys the worker does not read


class TakeView(Message, frozen=True, tag="view"):
    """Lend a slot for this intent or answer, at the next step boundary.

    Exactly one of SlotReady and NoView with this ``ticket`` follows. Everything but ``ticket`` and
    ``number`` is about the partner and as it says; of a group the round and base version only.
    """

    ticket: Count
    number: Count  # of a PostedIntent
    peer: PeerIdBytes | None = None
    round: Count = 0
    base_version: BaseVersion = b""
    step: Count = 0
    tokens: Count = 0
    weight: float = 1.0


class Drop(Message, frozen=True, tag="drop-wish"):
    """Nothing came of this intent, and nothing will: no slot was lent for it."""

    number: Count
    why: ShortText


class Weigh(Message, frozen=True, tag="weigh"):
    """What a partner sent is all there, as in Apply: say whether it counts, before it does.

    Weighed with this slot and generation follows. The slot stays the daemon's, which does not
    touch it until then.
    """

    slot: Count
    generation: Count
    partner: Partner


class Apply(Message, frozen=True, tag="apply"):
    """A committed exchange: the slot holds what came, merge it at a step boundary.

    The first half of the slot holds what this node sent, as it arrived; the second half what the
    ``partner`` sent, or the mean over the members of the group, ``present``, or of a gathering the
    messages of those, coded, one after the other.
    """

    slot: Count
    generation: Count
    xid: ExchangeId
    partner: Partner | None = None
    present: tuple[PeerIdBytes, ...] = ()


class Release(Message, frozen=True, tag="release"):
    """The exchange was aborted: the slot is the worker's again."""

    slot: Count
    generation: Count
    why: ShortText = ""


class Members(Message, frozen=True, tag="members"):
    """The members that train now, in ascending order, this node among them."""

    members: tuple[PeerIdBytes, ...]


class Stray(Message, frozen=True, tag="stray"):
    """Most members have other slow weights, of another lineage or ``is_here``: ask for theirs."""

    is_here: bool = False


class Called(Message, frozen=True, tag="called"):
    """Members that stand behind the same mean, number ``lineage``, wait for this node's share."""

    lineage: Count


class RoundSteps(Message, frozen=True, tag="round-steps"):
    """Take so many local steps in each round that begins from now on; see protocol/pacing.py."""

    steps: Count


class SwarmProgress(Message, frozen=True, tag="swarm-progress"):
    """How far the swarm is, said often: schedules of the recipe follow it.

    Attributes:
        others_tokens, others_per_s: that all other members have trained, and how fast that grows.
        others_counted: what of it they have said: at the target, that must do.
        lost_tokens: of this node's that others have counted and a crash has taken: they count on.
        members: how many train at the progress ``at_tokens``; between two whole numbers while one
            comes or goes, and growing by ``members_per_token``.
        target_tokens, resumed_tokens: see :class:`swarmnode.ipc.lr_schedule.Horizon`.
    """

    others_tokens: NotNegative
    others_per_s: NotNegative
    others_counted: Count
    lost_tokens: Count
    members: Annotated[float, Meta(ge=1)]
    at_tokens: NotNegative = 0.0
    members_per_token: NotNegative = 0.0
    target_tokens: Count = 0
    resumed_tokens: Count = 0


class SaveSnapshot(Message, frozen=True, tag="save"):
    """Take a snapshot between two steps; one answer, with the newest id, is for all that wait."""

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


class GiveShare(Message, frozen=True, tag="give-share"):
    """Write what this node gives to a merge by ``rule`` into the file ``path``, as float32.

    ShareGiven or MergeFailed with this ``request`` follows.
    """

    request: Count
    rule: Name
    path: str


class WeighMerge(Message, frozen=True, tag="weigh-merge"):
    """The file ``path`` has the mean over the shares of ``n`` nodes: say what the model is worth.

    Training goes on with its own one. MergeWeighed or MergeFailed with this ``request`` follows.
    """

    request: Count
    rule: Name
    path: str
    n: Count
    folder: str = ""  # where the merged model is written; empty: nowhere


class Pause(Message, frozen=True, tag="pause"):
    """Stop stepping, keep everything."""


class Resume(Message, frozen=True, tag="resume"):
    """Go on stepping."""


class Share(Message, frozen=True, tag="share"):
    """Take at most this share of the threads' CPU time, or of the GPU's time."""

    fraction: Annotated[float, Meta(gt=0, le=1)]


class Stop(Message, frozen=True, tag="stop"):
    """Save a snapshot and exit with status 0."""


# --- worker to daemon --------------------------------------------------------------------


class WorkerReady(Message, frozen=True, tag="ready"):
    """The model is built and the segment has its final size."""

    layout_hash: bytes
    numel: Count
    payload_numel: Count  # numbers of half a slot: the most that one exchange sends
    slots: Count
    step: Count  # > 0 after resuming from a snapshot
    tokens: Count
    device: str
    torch_version: str
    threads: Count
    data_hash: ShortText = ""  # hex SHA-256 of what this node trains on
    n_shards: Count = limits.SHARDS_PER_EPOCH_MAX  # of one epoch; the same for the same data
    round_steps: Count = 0  # local steps of a round of the strategy, as its settings say; 0: none
    log_round: Count = 0  # the next round of the log that the strategy wants
    log_head: LogDigest = b""  # of the round before that; empty: not known
    value_bytes: Literal[4, 8] = 4  # of each number
    sandbox: ShortText = ""  # what of the machine the worker has given up, for people


class PostedIntent(Message, frozen=True, tag="wish"):
    """An Intent (``strategies/base.py``) with a number, be it a record.

    It replaces an earlier one of its kind, tag and fragment that no slot was lent for. ``is_open``:
    an *answer*, given whenever asked for; they follow WorkerReady.
    """

    number: Count
    kind: Literal["pair", "pull", "group", "log", "gather"]
    tag: Name
    fragment: Count
    round: Count
    selector: Literal["matching", "neighbour", "all"]
    views: Annotated[tuple[ViewShape, ...], Meta(max_length=_VIEWS_MAX)] = ()
    group_size_max: Count = 0
    round_skew_max: Count | None = None
    base_version: BaseVersion = b""
    lineage: Count | None = None  # means behind base_version, if that is a lineage
    sketch: tuple[float, float] | None = None  # of what is there, and the length that it is out of
    weight: float = 1.0
    record: Annotated[bytes, Meta(max_length=limits.LOG_RECORD_BYTES_MAX)] = b""
    merge: Annotated[str, Meta(max_length=32)] = "mean"  # the rule of a GROUP
    step: Count = 0
    tokens: Count = 0
    is_open: bool = False
    adds_up: bool = False  # a slot is lent for it beside one of the same tag and fragment

    @property
    def numel(self) -> int:
        """Elements of all views together."""
        return sum(view.numel for view in self.views)


class SlotReady(Message, frozen=True, tag="slot"):
    """A slot holds the views that TakeView asked for, in their order; it is the daemon's now.

    ``weights_rms``, ``weights_largest``: how large the weights are, over a sample; 0: not said.
    ``weight``: of the views in a mean over a group; 0: as the intent says.
    """

    ticket: Count
    slot: Count
    generation: Count
    step: Count
    tokens: Count
    weights_rms: float = 0.0
    weights_largest: float = 0.0
    weight: Annotated[float, Meta(ge=0.0, le=1e18)] = 0.0


class NoView(Message, frozen=True, tag="no-view"):
    """What TakeView asked for is not to be had; ``why``: a code of wire/exchange/gossip.py first.

    If it was an intent, that is over; an answer is there for the next peer that asks.
    """

    ticket: Count
    why: ShortText


class Weighed(Message, frozen=True, tag="weighed"):
    """What came of Weigh; ``refusal``: one of GUARD_REFUSALS, empty: it may count.

    ``seconds``: that the worker took no step for it. ``is_useful``: the model takes some of it, and
    is no worse for it on the public probe; False where there is none.
    """

    slot: Count
    generation: Count
    refusal: ShortText = ""
    seconds: NotNegative = 0.0
    is_useful: bool = False


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
    step_time_s: float  # exponential mean of one step, with the rest that its share asks for
    strategy: dict[ShortText, float] = field(default_factory=dict)  # its own figures
    paused: bool = False
    finished: bool = False
    at_target: bool = False  # the swarm is, so that this worker is finished as well
    # How long views and merges held up steps since the last heartbeat, of those that waited.
    pauses_s: Annotated[tuple[NotNegative, ...], Meta(max_length=limits.STEP_PAUSES_KEPT)] = ()


class BatchFit(Message, frozen=True, tag="fit"):
    """Batches of ``examples`` are trained ``size`` examples at a time, 1/``parts`` of them each.

    Said when the first batch is there, and when a part was out of memory and was cut in two. With
    ``is_smallest`` there is nothing left to cut.
    """

    size: Count
    examples: Count
    parts: Count = 1
    is_smallest: bool = False


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


class ShareGiven(Message, frozen=True, tag="share-given"):
    """The file has ``numel`` numbers, of the model as it was at ``step``."""

    request: Count
    numel: Count
    step: Count
    tokens: Count


class MergeWeighed(Message, frozen=True, tag="merge-weighed"):
    """What the merged model is worth on the task's probe, and this node's own."""

    request: Count
    digest: Digest  # of the merged parameters as little-endian float32
    loss: float
    own_loss: float
    path: str = ""  # of the model, if it was to be written


class MergeFailed(Message, frozen=True, tag="merge-failed"):
    """There is no share, or no merged model; ``message`` says why."""

    request: Count
    message: str


class WorkerFailed(Message, frozen=True, tag="failed"):
    """The worker is about to exit: ``kind`` as in ``ipc/names.py``, ``message`` one line."""

    kind: ShortText
    message: str


_Orders = Pause | Resume | Share | Stop
_OfShardsAndMerges = TakeShard | DropShard | GiveShare | WeighMerge
ToWorker = (
    Configure
    | TakeView
    | Drop
    | Weigh
    | Apply
    | Release
    | Compare
    | Records
    | Members
    | Stray
    | Called
    | RoundSteps
    | SwarmProgress
    | SaveSnapshot
    | _OfShardsAndMerges
    | _Orders
)
FromWorker = (
    WorkerReady
    | PostedIntent
    | SlotReady
    | NoView
    | Weighed
    | Applied
    | Compared
    | Progress
    | BatchFit
    | ShardDone
    | SnapshotSaved
    | SnapshotFailed
    | ShareGiven
    | MergeWeighed
    | MergeFailed
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
