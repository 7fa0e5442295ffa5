"""Attacks that know the guards of the victim, and go as far as these let them.

Both send T − s d, where T is what the victim itself sends and d a direction in which honest
members improve, and look for the largest s that the guards take: with a copy of what the victim
knows they ask before they send. ``adaptive-update`` has the mean honest update for d,
``adaptive-gradient`` minus the gradient of the victim's loss on data that is not the public probe.

Deviations from the strongest thinkable: the direction is one gradient, and not a path of many
steps against the probe. In a group there is no one victim; there the step is as long as the median
of the honest payloads lets it be, which is what a clip to the median norm lets through whole.
"""

from __future__ import annotations

from collections.abc import Callable

from swarmnode.testing.lab.attacks.fixed import honest
from swarmnode.testing.lab.attacks.scene import Scene
from swarmnode.testing.lab.world import Payload

# In rounds of an honest member's progress. Longer ones are as good as no model, and shorter ones
# do nothing.
_STEP_MAX, _STEP_MIN = 64.0, 2.0**-6
_REFINED = 3  # halvings of what lies between a step that is taken and one that is not
_BOLDER = 4.0  # times the last one that was taken is where the next search begins


class Adaptive:
    """One impostor's search; it begins near the step that was taken last."""

    def __init__(self, against: Callable[[Scene], Payload]) -> None:
        """``against``: what is taken off the victim's own payload, for a step of 1."""
        self._against = against
        self._last = _STEP_MAX

    def __call__(self, scene: Scene) -> Payload:
        """Return the payload furthest from the victim's that its guards take."""
        direction = self._against(scene)

        def at(step: float) -> Payload:
            return {name: values - step * direction[name] for name, values in scene.victim.items()}

        step = self._largest(lambda step: scene.is_taken(at(step)))
        return at(step) if step else honest(scene)  # to be refused would only cost a strike

    def _largest(self, is_taken: Callable[[float], bool]) -> float:
        """Return the largest step that is taken, to an eighth; 0, if none is."""
        step = min(_STEP_MAX, _BOLDER * self._last)
        while not is_taken(step):
            step /= 2
            if step < _STEP_MIN:
                return 0.0
        self._last = step
        if step == _STEP_MAX:
            return step
        refused = 2 * step
        for _ in range(_REFINED):
            middle = (step + refused) / 2
            if is_taken(middle):
                step = middle
            else:
                refused = middle
        return step


def by_update() -> Adaptive:
    """Return an impostor that undoes what honest members learn."""
    return Adaptive(lambda scene: scene.moved)


def by_gradient() -> Adaptive:
    """Return an impostor that climbs the victim's loss."""
    return Adaptive(lambda scene: {name: -rise for name, rise in scene.ascent().items()})
