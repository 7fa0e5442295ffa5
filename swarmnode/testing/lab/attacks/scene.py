"""What impostors know when one of them is to send, and what they remember of what others sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from swarmnode.testing.lab.world import Payload

# Views that are a change, and not a model: of them the payload itself is the update.
UPDATES = frozenset({"delta", "message"})
STALE_ROUNDS = 60  # how old a payload is that is sent again


@dataclass(frozen=True)
class Scene:
    """One payload that an impostor is to send. Vectors are [numel] of their view, after the codec.

    Attributes:
        own: what it would send if it were honest.
        victim: what the peer sends that it goes to; in a group what the first honest member does.
        honest: what each honest member sent last, this round where it is known: [m, numel].
        moved: by how much an honest payload improves in a round, mean over members: of a view
            in ``UPDATES`` the mean payload, else the mean difference to the one before.
        stale: the mean honest payload of 60 rounds ago, or of the first one.
        untrained: what a node sends that has never trained.
        ratio: honest members for each impostor.
        rng: of the impostors.
        ascent: returns a payload's change along the gradient of the victim's loss, on data that is
            not the public probe, as long as ``moved``; added, it makes the loss larger.
        is_taken: whether the guards of the victim let a payload through.
    """

    own: Payload
    victim: Payload
    honest: Payload
    moved: Payload
    stale: Payload
    untrained: Payload
    ratio: float
    rng: torch.Generator
    ascent: Callable[[], Payload]
    is_taken: Callable[[Payload], bool]

    @cached_property
    def mean(self) -> Payload:
        """The mean over honest members."""
        return {name: rows.mean(0) for name, rows in self.honest.items()}

    def noise(self, name: str) -> torch.Tensor:
        """Return N(0, I) for a view."""
        return torch.randn(self.own[name].shape, generator=self.rng, dtype=self.own[name].dtype)


Attack = Callable[[Scene], Payload]


class Overheard:
    """What honest members sent of one topic: the last two payloads of each, and old means.

    It holds 2 payloads for each member and ``STALE_ROUNDS`` + 1 means.
    """

    def __init__(self) -> None:
        self._last: dict[int, Payload] = {}
        self._before: dict[int, Payload] = {}
        self._means: deque[Payload] = deque(maxlen=STALE_ROUNDS + 1)
        self._round = -1

    def note(self, number: int, round_number: int, payload: Payload) -> None:
        """Take in what an honest member sent."""
        if number in self._last:
            self._before[number] = self._last[number]
        self._last[number] = {name: values.clone() for name, values in payload.items()}
        if round_number > self._round:
            self._round = round_number
            self._means.append(_mean(self._last))

    @property
    def honest(self) -> Payload:
        """The last payload of each: [m, numel] by view."""
        return _stack(self._last)

    @property
    def stale(self) -> Payload:
        """The oldest mean that is remembered."""
        return self._means[0]

    def moved(self) -> Payload:
        """Return by how much they improve in a round; see :class:`Scene`."""
        means = _mean(self._last)
        both = self._before.keys()
        found = {}
        for name, mean in means.items():
            if name in UPDATES:
                found[name] = mean
            elif both:
                moves = [self._last[each][name] - self._before[each][name] for each in sorted(both)]
                found[name] = torch.stack(moves).mean(0)
            else:
                found[name] = torch.zeros_like(mean)
        return found


def _stack(payloads: Mapping[int, Payload]) -> Payload:
    ordered = [payloads[number] for number in sorted(payloads)]
    return {name: torch.stack([each[name] for each in ordered]) for name in ordered[0]}


def _mean(payloads: Mapping[int, Payload]) -> Payload:
    return {name: rows.mean(0) for name, rows in _stack(payloads).items()}
