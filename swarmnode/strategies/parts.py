"""What an engine may ask of a strategy, by subject; every method has a default that suits most.

A strategy is all of these parts, see ``base.py``, and implements of each what its algorithm has.
Code of an engine that is about one of them asks for that part alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch

from swarmnode.ipc.settings import Settings, parse_settings
from swarmnode.strategies.context import Needs, Probe, TaskFacts
from swarmnode.strategies.exchanges import Exchange, Intent, Kind, Meeting, Offer, Record, Sent
from swarmnode.strategies.merging.slot import ACCEPTED, Verdict


class SettingsPart:
    """What is known of an algorithm from its settings, before there is any model.

    Class attributes:
        name, version: written into the manifest; a change of meaning is a new version.
        Config: the settings.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    Config: ClassVar[type[Settings]] = Settings

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Any:
        """Return ``settings`` as a :attr:`Config`. Raises ConfigError."""
        return parse_settings(settings, cls.Config, owner=f"strategy {cls.name}")

    @classmethod
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


class StatePart:
    """What a strategy keeps beside the parameters, for snapshots and nodes that join with one.

    Attributes:
        reads_in_passing: whether a snapshot may have parts of ``x`` of neighbouring steps, with
            buffers that change by merges only, or little with a step. Not where nodes have the
            same bits, or where a buffer says something about ``x`` at the same moment.
        adds_up: whether merges of pairs only add to ``x`` what two views differ by, in any order:
            a partner that is silent in the end then holds up no other exchange.
    """

    reads_in_passing: bool = False
    adds_up: bool = False

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


class StepPart:
    """How a local step is taken: by the optimizer, by the gradient, or by losses alone.

    Class attributes:
        needs: what of a local step it wants to be told.
    """

    needs: ClassVar[Needs] = Needs.NOTHING
    _x_before: torch.Tensor | None = None  # made once, where a strategy wants to know the step

    def gradient_point(self) -> Probe | None:
        """Return how this step measures its batch; None: by the gradient at ``x``."""
        return None

    def local_update(self, v: torch.Tensor) -> None:
        """Take note of a local step. ``v``: [numel], on the device of ``x``; see :class:`Needs`."""

    def before_update(self, x: torch.Tensor) -> None:
        """Needs.STEP: the optimizer is about to change ``x``.

        This, and what follows, hand :meth:`local_update` the difference, for a copy of ``x`` and
        as much memory. A strategy that can do without overrides the two, and has
        :meth:`local_update` for engines that know the difference.
        """
        if self._x_before is None:
            self._x_before = torch.empty_like(x)
        self._x_before.copy_(x)

    def after_update(self, x: torch.Tensor) -> None:
        """Needs.STEP: the optimizer has changed ``x``, or has not after all."""
        assert self._x_before is not None, "before_update comes first"
        self.local_update(self._x_before.sub_(x))


class ClockPart:
    """What goes by time, and not by steps: vectors that flow, exchanges at random times, rest."""

    def flow(self, t: float) -> None:
        """Bring buffers that move by themselves between events to time ``t``."""

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


class RoundPart:
    """Rounds of local steps, as many in each as a pacer finds; see ``strategies/rounds.py``."""

    def round_steps(self) -> int:
        """Return the local steps of a round as the settings say; 0: there are no rounds."""
        return 0

    def set_round_steps(self, steps: int) -> None:
        """Take so many local steps in each round that is still to begin; see protocol/pacing.py."""


class AnswerPart:
    """PAIR and PULL: what peers can have of this node at any time, and what it refuses them."""

    def answers(self) -> Sequence[Intent]:
        """Return what a peer can have of this node at any time, whether it wants the same or not.

        Of the kinds PAIR with NEIGHBOUR, and PULL. The round and base version of what is asked
        for are the peer's.
        """
        return ()

    def accept(self, offer: Offer) -> str | None:
        """Return why a peer's intent is refused, or None.

        The engine has compared the compatibility key, tag, fragment, ``round_skew_max`` and
        ``base_version`` before; of a PULL only the key.
        """
        del offer
        return None

    def weigh(self, exchange: Exchange) -> Verdict:
        """PAIR: return whether what came counts, before it does on either side, and how much.

        Between two steps, as all calls. If it is accepted and commits, :meth:`apply` follows, with
        what came brought as near to the own views as the verdict's share says. Changes no vector.
        """
        del exchange
        return ACCEPTED


class GroupPart:
    """GROUP: means along one chain, of which there may be several; see :class:`Intent`."""

    def on_stray(self) -> None:
        """Take note that most members are on another lineage: ask for theirs."""

    def on_doubt(self) -> None:
        """Take note that most members at this node's place hold other weights: ask for theirs."""

    def on_resume(self) -> None:
        """Take note that this node goes on after a rest: others may be further by now."""

    def on_call(self, lineage: int) -> None:
        """Take note that others wait for this node's share of mean number ``lineage``, from 0."""

    def weight(self, intent: Intent) -> float:
        """Return what the views of a GROUP count, just after they were taken; above 0."""
        return intent.weight

    def prefer(self, intent: Intent, begin: int, candidates: Sequence[torch.Tensor]) -> int:
        """Return which of two candidates for a part of a mean this node takes, which makes it.

        Args:
            begin: the first element of the part, in the first view.
            candidates: [m] each on the CPU; without a probe it is the last one.
        """
        del intent, begin
        return len(candidates) - 1


class LogPart:
    """LOG: records that all members see in the same rounds and order."""

    def on_records(self, round_number: int, records: Sequence[Record]) -> None:
        """Apply a closed round of the LOG: the same records in the same order on every node."""

    def log_round(self) -> int:
        """Return the round of the LOG that :meth:`on_records` is to be called with next."""
        return 0
