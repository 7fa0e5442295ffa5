"""The Strategy: what an algorithm decides, and the vector math it does.

One algorithm is one file of vector math over a flat vector ``x`` [numel], the storage of the
model itself. The engine around it owns everything else: who meets whom, atomic exchange, codecs,
pacing, snapshots. There are two engines, the worker's loop and the virtual one of
:mod:`swarmnode.testing.lab`, and both keep to this order::

    start(ctx)                                          once, after join(...) if a snapshot came
      |
      v        one local step
    flow(t) -> batch -> gradient_point() is None: backward, optimizer.step(), local_update(v)
      |                 else: probe(loss), no backward and no optimizer
      v
    after_step(info) --Intent-->+                       every H steps, say
    on_clock(t) -----Intent---->+                       as a Poisson clock of clock_rate() rings
      ^                         |
      |                         v
      |    flow(t), view(intent, name, out)             a copy; training goes on meanwhile
      |    accept(offer) -> view(...)                   the same for a peer's wish, PAIR and PULL
      |                         |   ... codec, network, codec; tau steps at the least ...
      |                         v
      +<-- flow(t), apply(exchange)                     committed, exactly once
      +<-- on_abort(intent, why)                        nothing came of it: go on training
      +<-- on_stray()                                   GROUP: most are on another lineage
      +<-- on_records(round, records)                   LOG: the round is closed, same everywhere
      +<-- on_membership(members)                       whenever somebody came or went
      |
    finalize() --Intent--> ... apply(exchange)          the end of the run, or an export

Rules, which engines and strategies rely on:

- Every call comes between two steps, from one thread. Nothing here needs a lock.
- **Deltas only.** ``apply`` adds to ``x`` and to the other buffers, it never overwrites ``x`` with
  what came: steps taken while the exchange was under way survive.
- **What was sent counts as it was sent.** ``exchange.sent`` is the own payload after the codec,
  so that the two sides of a pair add exact negatives and the swarm's mean stays where it is.
- Time ``t`` is normalised: one unit is the mean time between two local steps of this node. It
  never goes back. A strategy that needs no time ignores it.
- Tensors that come in are on the CPU in the dtype of ``x``; they may be overwritten, and are
  not to be kept after the call. Buffers are on the device of ``x``.
- Randomness comes from ``ctx.rng`` (this node's own) or follows from ``ctx.seed`` (the same on
  every node), from nowhere else.
"""

from __future__ import annotations

import enum
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from swarmnode.errors import ConfigError
from swarmnode.ipc.settings import Settings, parse_settings
from swarmnode.strategies.facts import TaskFacts as TaskFacts  # strategies find all of it here
from swarmnode.strategies.topology import Graph
from swarmnode.tensor.layout import Layout

SWARM_CODEC = ""  # of a view: the codec that the swarm's manifest names

# Takes a function that returns the loss of this step's batch at ``x`` as it is at that moment,
# without gradients; returns the loss of the step, with ``x`` as it was. For zeroth-order methods.
Probe = Callable[[Callable[[], float]], float]


class Kind(enum.StrEnum):
    """What an exchange is."""

    PAIR = "pair"  # symmetric and atomic: both sides apply, or neither
    PULL = "pull"  # one side reads what the other published; the mean is not kept
    GROUP = "group"  # the mean over all who are present, the same bits for each of them
    LOG = "log"  # tiny records, which all members see in the same rounds and order


class Selector(enum.StrEnum):
    """Who takes part."""

    MATCHING = "matching"  # PAIR: whom the seeded matching of this round gives, on the graph
    NEIGHBOUR = "neighbour"  # PAIR, PULL: any live one, with a graph weighted by its rates
    ALL = "all"  # GROUP, LOG: every member that is alive


class Needs(enum.StrEnum):
    """What of a local step :meth:`Strategy.local_update` must be told."""

    NOTHING = "nothing"  # the optimizer changes x; local_update is not called
    STEP = "step"  # the optimizer changes x; then v = x_before - x_after
    GRADIENT = "gradient"  # no optimizer: v is the gradient at x, the strategy changes x


@dataclass(frozen=True)
class View:
    """One vector of a payload: elements ``begin`` to ``end`` (exclusive) of what ``name`` means.

    ``name`` is a word between the strategy and itself; ``codec`` one of the codecs' names.
    ``is_scaled``: its values are of the size of weights or less, and refused where they are not.
    """

    name: str
    codec: str
    begin: int
    end: int
    is_scaled: bool = True

    @property
    def numel(self) -> int:
        """Elements of the view."""
        return self.end - self.begin


@dataclass(frozen=True)
class Intent:
    """A wish to exchange. ``(tag, round, fragment)`` is what partners must have in common.

    Attributes:
        round: counts this node's exchanges of ``tag``; with MATCHING it decides the partner.
        fragment: which part of the vector, from 0.
        views: what is sent, and what is expected in return; the same on both sides.
        apply_after_steps: tau, local steps from the view to ``apply`` at the least.
        group_size_max: GROUP: how many meet at once; 0 for all.
        round_skew_max: partners whose rounds are further apart do not exchange; None: any.
        base_version: what the views are differences to, by content hash; must be equal.
        lineage: GROUP: how many means are behind ``base_version``, which then ends with the hash
            of a lineage: nodes on different ones do not meet, and the engine brings them together
            again, see :meth:`Strategy.on_stray`. None: it stands for no lineage.
        weight: of this node in a weighted mean, such as its tokens; above 0. In a GROUP it counts
            up to GROUP_WEIGHT_MEDIANS_MAX times the median of those who are there.
        record: LOG: what is published, at most 64 bytes.
    """

    kind: Kind
    round: int
    views: tuple[View, ...] = ()
    tag: str = "gossip"
    fragment: int = 0
    selector: Selector = Selector.MATCHING
    apply_after_steps: int = 0
    group_size_max: int = 0
    round_skew_max: int | None = None
    base_version: bytes = b""
    lineage: int | None = None
    weight: float = 1.0
    record: bytes = b""

    @property
    def numel(self) -> int:
        """Elements of all views together."""
        return sum(view.numel for view in self.views)


@dataclass(frozen=True)
class StepInfo:
    """A local step that was taken: ``step`` of them so far, the last took ``seconds``."""

    step: int
    t: float  # units of own steps, see the module's text
    loss: float
    seconds: float


@dataclass(frozen=True)
class Meta:
    """What a node says about itself with a payload, at the moment of the view."""

    steps: int
    tokens: int
    t: float
    base_version: bytes = b""
    weight: float = 1.0


@dataclass(frozen=True)
class Offer:
    """A peer's wish, before anything was sent. ``meta`` is the peer's."""

    peer: bytes
    intent: Intent
    meta: Meta


@dataclass(frozen=True)
class Received:
    """A peer's payload after the codec: tensors [view.numel] by the name of the view."""

    views: Mapping[str, torch.Tensor]
    meta: Meta


@dataclass(frozen=True)
class Exchange:
    """What came of an intent.

    Attributes:
        intent: the wish; of an answer, with the round and base version of the peer's.
        meta: this node's own, at the moment of the view.
        sent: this node's own payload after the codec, by the name of the view.
        got: PAIR, PULL: the partner's payload, by its 32-byte id.
        mean: GROUP: the mean over ``present`` by weight, own payload included.
        present: GROUP: whose payloads are in ``mean``.
        steps_since: local steps taken since the view.
    """

    intent: Intent
    meta: Meta
    sent: Mapping[str, torch.Tensor]
    got: Mapping[bytes, Received]
    steps_since: int
    mean: Mapping[str, torch.Tensor] = field(default_factory=dict)
    present: tuple[bytes, ...] = ()

    @property
    def partner(self) -> Received:
        """PAIR, PULL: what the one other node sent."""
        (received,) = self.got.values()
        return received

    def difference(self, name: str) -> torch.Tensor:
        """Return m = partner's - own of a view, in the memory of the partner's.

        The two sides of a pair get exact negatives. Call it once for each view.
        """
        return self.partner.views[name].sub_(self.sent[name])


@dataclass(frozen=True)
class Record:
    """LOG: what ``author`` published. Rounds hold them sorted by author.

    ``round`` is that of the author's intent: a record that comes late is in a later round.
    """

    author: bytes
    payload: bytes
    round: int


@dataclass(frozen=True)
class Sent:
    """One vector of the model's length that a node sends at a meeting.

    ``is_difference``: to what all have, or to where a round began: so small that a coarse codec
    serves. Whole weights would be drowned by its error.
    """

    codec: str = SWARM_CODEC
    is_difference: bool = False


@dataclass(frozen=True)
class Meeting:
    """How nodes meet under given settings, for whoever creates a swarm and chooses a codec.

    ``every_steps``: local steps between two meetings at which all of ``sent`` goes once; 0: it
    depends on more than the settings.
    """

    kind: Kind
    every_steps: float
    sent: tuple[Sent, ...]


@dataclass(frozen=True)
class Context:
    """Where a strategy finds itself.

    Attributes:
        self_id: this node, 32 bytes.
        seed: the swarm's, the same on every node.
        rng: this node's own.
        layout: which tensor lies where in ``x``.
        members: ids of all members, this node among them, in ascending order.
        facts: what is known of the task.
        topology: the graph over ``members`` in their order, maybe of several parts; None:
            everybody meets everybody.
    """

    self_id: bytes
    seed: int
    rng: random.Random
    layout: Layout
    members: tuple[bytes, ...]
    facts: TaskFacts
    topology: Graph | None = None

    @property
    def index(self) -> int:
        """Where this node stands among the members."""
        return self.members.index(self.self_id)


class Strategy(ABC):
    """One training algorithm over the flat parameters ``x``: [numel], float32 unless it says.

    Borrows: ``x`` is the storage of the model itself, changed in place.

    Class attributes:
        name, version: written into the manifest; a change of meaning is a new version.
        Config: the settings.
        needs: what of a local step it wants to be told.
        dtype: the only one that ``x`` may have; None: any floating one.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    Config: ClassVar[type[Settings]] = Settings
    needs: ClassVar[Needs] = Needs.NOTHING
    dtype: ClassVar[torch.dtype | None] = None

    config: Any  # narrowed to its own Config by each strategy
    ctx: Context  # from start() on

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        """Raises ConfigError: a setting is unknown or out of range, or the dtype of x is wrong."""
        self.config = self.parse(settings)
        if self.dtype is not None and x.dtype != self.dtype:
            raise ConfigError(
                f"strategy {self.name}: expected parameters of {self.dtype}, got {x.dtype}; "
                "choose another strategy for this task"
            )
        self.x = x

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Any:
        """Return ``settings`` as a :attr:`Config`. Raises ConfigError."""
        return parse_settings(settings, cls.Config, owner=f"strategy {cls.name}")

    @classmethod  # noqa: B027  most fit everything
    def check(cls, config: Any, facts: TaskFacts) -> None:
        """Refuse settings outside a stability region, or a task that the algorithm is not for.

        Called when a swarm is created and when a worker starts.

        Raises:
            ConfigError: with the bound.
        """

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        """Return how nodes meet; unless told otherwise in pairs, and sending whole weights."""
        return Meeting(Kind.PAIR, float(getattr(config, "every", 0)), (Sent(),))

    # --- state ---------------------------------------------------------------------------

    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors beside ``x`` that a snapshot must hold, by name."""
        return {}

    def shipped(self) -> Collection[str]:
        """Return the names of those buffers that a joiner takes from a peer's snapshot.

        One that is about this node alone, such as the residual of a codec's error feedback,
        would be wrong anywhere else.
        """
        return self.buffers().keys()

    def check_received(self, received: Mapping[str, torch.Tensor]) -> str | None:
        """Return why these buffers, of a peer's snapshot or a file, are refused, or None.

        The engine has seen that they are finite, and in a peer's no vector implausibly large. The
        ranges of counts are the strategy's to know; see ``strategies/ranges.py``. Changes nothing.
        """
        del received
        return None

    def join(self, received: Mapping[str, torch.Tensor]) -> None:
        """Set the buffers of a node that begins with a peer's snapshot, ``x`` being set already.

        Args:
            received: of the :meth:`shipped` buffers those that the snapshot has in this shape.
        """
        buffers = self.buffers()
        for name, tensor in received.items():
            buffers[name].copy_(tensor)

    def start(self, ctx: Context) -> None:
        """Begin, or begin again after a restart: the buffers hold what a snapshot had of them.

        On a graph it is called again, in the midst of training, whenever the members change.
        """
        self.ctx = ctx

    # --- the local process ---------------------------------------------------------------

    def flow(self, t: float) -> None:  # noqa: B027  nothing moves by itself in most
        """Bring buffers that move by themselves between events to time ``t``."""

    def gradient_point(self) -> Probe | None:
        """Return how this step measures its batch; None: by the gradient at ``x``."""
        return None

    def local_update(self, v: torch.Tensor) -> None:  # noqa: B027  see Needs
        """Take note of a local step. ``v``: [numel], on the device of ``x``; see :class:`Needs`."""

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        """Return what a local step makes due."""
        del info
        return ()

    def clock_rate(self) -> float:
        """Return how often per unit of ``t`` a Poisson clock is to call :meth:`on_clock`.

        A partner's clock rings as well: over a graph where all have the same rate a node takes
        part in twice as many exchanges as it starts.
        """
        return 0.0

    def on_clock(self, t: float) -> Sequence[Intent]:
        """Return what is due when the clock rings."""
        del t
        return ()

    def pace(self) -> float:
        """Return at what share of its full speed this node should take steps: above 0, at most 1.

        Below 1 only where going on at full speed would break the algorithm.
        """
        return 1.0

    def round_steps(self) -> int:
        """Return the local steps of a round as the settings say; 0: there are no rounds."""
        return 0

    def set_round_steps(self, steps: int) -> None:  # noqa: B027  some have no rounds
        """Take so many local steps in each round that is still to begin; see protocol/pacing.py."""

    # --- exchanges -----------------------------------------------------------------------

    def answers(self) -> Sequence[Intent]:
        """Return what a peer can have of this node at any time, whether it wishes the same or not.

        Of the kinds PAIR with NEIGHBOUR, and PULL. The round and base version of what is asked
        for are the peer's.
        """
        return ()

    def payload_numel(self) -> int:
        """Return the most elements that the views of one intent have together."""
        return self.x.numel()

    @abstractmethod
    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        """Copy the view ``name`` of ``intent`` into ``out``: [view.numel], on the CPU."""

    def accept(self, offer: Offer) -> str | None:
        """Return why a peer's wish is refused, or None.

        The engine has compared the compatibility key, tag, fragment, ``round_skew_max`` and
        ``base_version`` before; of a PULL only the key.
        """
        del offer
        return None

    @abstractmethod
    def apply(self, exchange: Exchange) -> None:
        """Merge a committed exchange, by adding to the buffers as they are now."""

    def on_abort(self, intent: Intent, why: str) -> None:  # noqa: B027  most simply go on
        """Take note that nothing came of ``intent``; training simply goes on."""

    def on_stray(self) -> None:  # noqa: B027  most have no lineages
        """Take note that most members are on another lineage: ask for theirs."""

    def on_records(self, round_number: int, records: Sequence[Record]) -> None:  # noqa: B027
        """Apply a closed round of the LOG: the same records in the same order on every node."""

    def log_round(self) -> int:
        """Return the round of the LOG that :meth:`on_records` is to be called with next."""
        return 0

    # --- the swarm -----------------------------------------------------------------------

    def on_membership(self, members: tuple[bytes, ...]) -> None:  # noqa: B027
        """Take note of who is a member now, in ascending order, this node among them.

        A node knows of itself alone at first, so this comes soon after :meth:`start`.
        """

    def finalize(self) -> Sequence[Intent]:
        """Return what the end of a run makes due."""
        return ()

    def metrics(self) -> dict[str, float]:
        """Return figures for the operator, by name."""
        return {}

    # --- for subclasses ------------------------------------------------------------------

    def whole(self, name: str, codec: str = SWARM_CODEC) -> View:
        """Return the view ``name`` of the whole vector."""
        return View(name, codec, 0, self.x.numel())
