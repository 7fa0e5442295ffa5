"""Loss over time, in memory: what the dashboard draws.

The history covers the whole life of the process in a bounded number of samples: when it is
full, every second sample goes and the time between two samples doubles.

::

    samples taken every  2 s ... 4 s ... 8 s
    reaching back        17 min  34 min  68 min
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from swarmnode import limits


class Sample(msgspec.Struct, frozen=True):
    """One moment. Losses are those on the public probe set; None: nobody has said one."""

    unix_s: float
    step: int  # of this node
    members: int
    own: float | None
    swarm: float | None  # the mean over everybody who trains
    peers: Mapping[str, float] = {}  # by name; capped


class History(msgspec.Struct, frozen=True):
    """Samples, oldest first. Another ``generation`` takes the place of the one before."""

    generation: int
    samples: tuple[Sample, ...]


@dataclass
class LossHistory:
    """Keeps samples.

    Args:
        samples_max: an even number.

    Attributes:
        interval_s: the time between two samples, from now on.
        generation: how often it was thinned.
    """

    samples_max: int = limits.DASHBOARD_SAMPLES_MAX
    interval_s: float = limits.DASHBOARD_SAMPLE_S
    generation: int = 0
    _samples: list[Sample] = field(default_factory=list)
    _shown: dict[str, None] = field(default_factory=dict)  # peers that have a curve, in order

    def add(self, sample: Sample) -> None:
        """Keep a sample; peers beyond DASHBOARD_CURVES_MAX have no curve."""
        for peer in sample.peers:
            if len(self._shown) < limits.DASHBOARD_CURVES_MAX:
                self._shown[peer] = None
        kept = {peer: loss for peer, loss in sample.peers.items() if peer in self._shown}
        self._samples.append(msgspec.structs.replace(sample, peers=kept))
        if len(self._samples) > self.samples_max:
            self._thin()

    @property
    def newest(self) -> Sample | None:
        """The last sample, if there is one."""
        return self._samples[-1] if self._samples else None

    def whole(self) -> History:
        """Return everything that is kept."""
        return History(self.generation, tuple(self._samples))

    def _thin(self) -> None:
        # One more than an even number: the first and the last one both stay.
        self._samples = self._samples[::2]
        self.interval_s *= 2
        self.generation += 1
        alive = {peer for sample in self._samples for peer in sample.peers}
        self._shown = {peer: None for peer in self._shown if peer in alive}
