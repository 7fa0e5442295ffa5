"""The members that lie: what they hear, and what they put in the place of their payloads.

They sit where a payload goes out, after the strategy and before the codec of it: what they send is
encoded and decoded as everything is, and a codec that cannot carry it does not.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from swarmnode.errors import WorkerError
from swarmnode.strategies.base import Intent, Kind, Strategy
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.attacks.named import ATTACKS
from swarmnode.testing.lab.attacks.scene import UPDATES, Overheard, Scene
from swarmnode.testing.lab.codecs import through
from swarmnode.testing.lab.sides import would_take
from swarmnode.testing.lab.world import Payload

Topic = tuple[str, int]

_ASCENT_SHARE = 1e-3  # of the payload, where it is not known how far an honest one moves


class LyingMembers:
    """The last nodes of an arena, each with an attack; see ``World.impostors``.

    ``mislabelled``: those of them whose task is to have wrong labels.

    It holds what :class:`Overheard` does, for each topic.
    """

    def __init__(
        self,
        arena: Arena,
        attacks: Sequence[str],
        make_strategy: Callable[[torch.Tensor], Strategy],
    ) -> None:
        """To be made before the first step: the model as it is now is the untrained one.

        ``attacks``: names, of the last nodes in order; ``make_strategy``: over parameters [numel].
        """
        self._arena = arena
        first = arena.task.n - len(attacks)
        named = {first + place: ATTACKS[name] for place, name in enumerate(attacks)}
        self._attacks = {number: each.make() for number, each in named.items()}
        self.numbers = frozenset(named)
        self.mislabelled = frozenset(n for n, each in named.items() if each.is_mislabelled)
        self._ratio = first / max(1, len(attacks))
        self._rng = torch.Generator().manual_seed(arena.seed)
        self._overheard: dict[Topic, Overheard] = defaultdict(Overheard)
        self._untrained = make_strategy(arena.task.x[0].clone())
        context = arena.nodes[0].strategy.ctx
        self._untrained.start(replace(context, rng=random.Random(arena.seed)))

    def forge(self, sent: Mapping[int, tuple[Intent, Payload]]) -> dict[int, Payload]:
        """Return what each impostor sends; they hear what the honest members send first."""
        honest = [number for number in sent if number not in self.numbers]
        if not honest:
            return {}  # among themselves they have nothing to gain
        for number in honest:
            intent, payload = sent[number]
            self._overheard[_topic(intent)].note(number, intent.round, payload)
        return {
            number: self._send(number, intent, payload, honest[0], sent[honest[0]][1])
            for number, (intent, payload) in sent.items()
            if number in self.numbers
        }

    def _send(
        self, number: int, intent: Intent, own: Payload, victim: int, theirs: Payload
    ) -> Payload:
        heard = self._overheard[_topic(intent)]
        scaled = [view.name for view in intent.views if view.is_scaled]
        moved = heard.moved()
        scene = Scene(
            own={name: own[name] for name in scaled},
            victim={name: theirs[name] for name in scaled},
            honest=heard.honest,
            moved=moved,
            stale=heard.stale,
            untrained=self._view_untrained(intent),
            ratio=self._ratio,
            rng=self._rng,
            ascent=partial(self._ascent, number, victim, intent, moved),
            is_taken=partial(self._is_taken, number, victim, intent, theirs),
        )
        lies = self._attacks[number](scene)
        return own | {name: self._coded(intent, name, lie) for name, lie in lies.items()}

    def _coded(self, intent: Intent, name: str, lie: torch.Tensor) -> torch.Tensor:
        """Return it as it arrives; as it is, where no codec carries it: receivers see to that."""
        (view,) = [view for view in intent.views if view.name == name]
        try:
            return through(view.codec or self._arena.codec, lie)[0]
        except WorkerError:
            return lie

    def _view_untrained(self, intent: Intent) -> Payload:
        found = {}
        for view in intent.views:
            out = torch.empty(view.numel, dtype=self._arena.task.x.dtype)
            self._untrained.view(intent, view.name, out)
            found[view.name] = out
        return found

    # --- what the adaptive ones ask ------------------------------------------------------------

    def _ascent(self, number: int, victim: int, intent: Intent, moved: Payload) -> Payload:
        """Return a step up the victim's loss for each view, on a batch of the impostor's data."""
        x = self._arena.task.x
        before = x[number].clone()
        x[number] = x[victim]
        gradient = self._arena.task.gradients([number])[1][0]
        x[number] = before
        found = {}
        for view in intent.views:
            rise = self._cut(victim, intent, gradient, view.numel)
            rise = -rise if view.name in UPDATES else rise
            length = moved[view.name].norm() or _ASCENT_SHARE * x[victim].norm()
            found[view.name] = rise * (length / rise.norm().clamp(min=torch.finfo(x.dtype).tiny))
        return found

    def _cut(self, victim: int, intent: Intent, gradient: torch.Tensor, numel: int) -> torch.Tensor:
        """Return the part of a gradient that a view is about."""
        if numel == gradient.numel():
            return gradient
        fragments = getattr(self._arena.nodes[victim].strategy, "fragments", ())
        if intent.fragment < len(fragments):
            part: torch.Tensor = fragments[intent.fragment].gather(gradient)
            return part
        return torch.zeros(numel, dtype=gradient.dtype)

    def _is_taken(
        self, number: int, victim: int, intent: Intent, theirs: Payload, lie: Payload
    ) -> bool:
        if intent.kind in (Kind.GROUP, Kind.GATHER):
            return self._is_usual(intent, lie)
        coded = {name: self._coded(intent, name, values) for name, values in lie.items()}
        nodes = self._arena.nodes
        return would_take(self._arena, nodes[victim], nodes[number], intent, theirs, theirs | coded)

    def _is_usual(self, intent: Intent, lie: Payload) -> bool:
        """Return whether every vector of a lie is no longer than the median honest one."""
        honest = self._overheard[_topic(intent)].honest
        return all(
            float(values.norm()) <= float(honest[name].norm(dim=1).median())
            for name, values in lie.items()
        )


def _topic(intent: Intent) -> Topic:
    return intent.tag, intent.fragment
