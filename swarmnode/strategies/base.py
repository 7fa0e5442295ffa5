"""The Strategy: what an algorithm decides, and the vector math it does.

One algorithm is one file of vector math over a flat vector ``x`` [numel], the storage of the
model itself. The engine around it owns everything else: which nodes meet, atomic exchange, codecs,
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
      |    accept(offer) -> view(...)                   the same for a peer's intent, PAIR and PULL
      |                         |   ... codec, network, codec ...
      |    weigh(exchange)      |   PAIR: whether it counts, on both sides or on neither
      |                         |   ... tau steps at the least ...
      |                         v
      +<-- flow(t), apply(exchange)                     committed, exactly once
      +<-- on_abort(intent, why)                        nothing came of it: go on training
      +<-- on_stray()                                   GROUP, GATHER: most are on another lineage
      +<-- on_doubt()                                   GROUP: most hold others, see Intent.sketch
      +<-- on_call(lineage)                             GROUP, GATHER: others wait, come as you are
      +<-- on_records(round, records)                   LOG: the round is closed, same everywhere
      +<-- on_membership(members)                       whenever a member came or went
      |
    finalize() --Intent--> ... apply(exchange)          the end of the run, or an export

Rules, which engines and strategies rely on:

- Every call comes between two steps, from one thread. Nothing here needs a lock. A strategy may
  ask for steps within a view or a merge of its own, see merging/pieces.py.
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

The parts of a strategy are in :mod:`swarmnode.strategies.parts`. Some are worked out for several
algorithms: ``RandomPairs`` and ``LogOnly`` (kinds.py), ``InRounds`` (rounds.py), ``InLineage``
(lineage.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.context import Context, Needs, Probe, StepInfo, TaskFacts
from swarmnode.strategies.exchanges import (
    SWARM_CODEC,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Message,
    Meta,
    Offer,
    Received,
    Record,
    Selector,
    Sent,
    View,
)
from swarmnode.strategies.parts import (
    AnswerPart,
    ClockPart,
    GroupPart,
    LogPart,
    RoundPart,
    SettingsPart,
    StatePart,
    StepPart,
)

# Strategies find all of it here.
__all__ = [
    "SWARM_CODEC",
    "Context",
    "Exchange",
    "Intent",
    "Kind",
    "Meeting",
    "Message",
    "Meta",
    "Needs",
    "Offer",
    "Probe",
    "Received",
    "Record",
    "Selector",
    "Sent",
    "StepInfo",
    "Strategy",
    "TaskFacts",
    "View",
]


class Strategy(
    SettingsPart,
    StatePart,
    StepPart,
    ClockPart,
    RoundPart,
    AnswerPart,
    GroupPart,
    LogPart,
    ABC,
):
    """One training algorithm over the flat parameters ``x``: [numel], float32 unless it says.

    Borrows: ``x`` is the storage of the model itself, changed in place.

    Class attributes:
        dtype: the only one that ``x`` may have; None: any floating one.
        kinds: of exchange that it may want, with any settings, as words; the code of others is not
            loaded. "": any.
    """

    dtype: ClassVar[torch.dtype | None] = None
    kinds: ClassVar[str] = ""

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

    def start(self, ctx: Context) -> None:
        """Begin, or begin again after a restart: the buffers hold what a snapshot had of them.

        On a graph it is called again, in the midst of training, whenever the members change.
        """
        self.ctx = ctx

    def on_membership(self, members: tuple[bytes, ...]) -> None:
        """Take note of the present members, in ascending order, this node among them.

        A node knows of itself alone at first, so this comes soon after :meth:`start`.
        """

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        """Return what a local step makes due."""
        del info
        return ()

    def payload_numel(self) -> int:
        """Return the most elements that the views of one intent have together."""
        return self.x.numel()

    @abstractmethod
    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        """Copy the view ``name`` of ``intent`` into ``out``: [view.numel], on the CPU."""

    @abstractmethod
    def apply(self, exchange: Exchange) -> None:
        """Merge a committed exchange, by adding to the buffers as they are now."""

    def viewing(self, intent: Intent, name: str, out: torch.Tensor) -> Iterator[int]:
        """Do :meth:`view` in pieces; yield after each how many elements of ``out`` are there.

        Local steps may be taken in between: see :mod:`swarmnode.strategies.merging.pieces`.
        """
        self.view(intent, name, out)
        yield from ()

    def applying(self, exchange: Exchange) -> Iterator[None]:
        """Do :meth:`apply` in pieces, likewise; its end is when the exchange counts as merged."""
        self.apply(exchange)
        yield from ()

    def on_abort(self, intent: Intent, why: str) -> None:
        """Take note that nothing came of ``intent``; training simply goes on."""

    def finalize(self) -> Sequence[Intent]:
        """Return what the end of a run makes due."""
        return ()

    def metrics(self) -> dict[str, float]:
        """Return figures for the operator, by name."""
        return {}

    def whole(self, name: str, codec: str = SWARM_CODEC) -> View:
        """Return the view ``name`` of the whole vector."""
        return View(name, codec, 0, self.x.numel())
