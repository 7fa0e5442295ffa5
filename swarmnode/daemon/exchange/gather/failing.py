"""Rounds that come to nothing, one after the other, and whether that is no accident any more."""

from __future__ import annotations

from dataclasses import replace

from swarmnode.daemon.exchange.group.groups import Failing

# One round that comes to nothing is a straggler's. From the second in a row on, and after so long
# that rounds of a second may miss a few, it is no accident.
_FAILED_MIN = 2
_FAILED_S_MIN = 5.0


class Failures:
    """Of one tag and fragment each; bounded as intents are."""

    def __init__(self) -> None:
        self._failing: dict[tuple[str, int], Failing] = {}

    def note(self, topic: tuple[str, int], since: float, why: str) -> None:
        """A round that began at ``since`` came to nothing."""
        before = self._failing.get(topic, Failing(since))
        self._failing[topic] = replace(before, rounds=before.rounds + 1, why=why)

    def forget(self, topic: tuple[str, int]) -> None:
        """A round counted."""
        self._failing.pop(topic, None)

    def clear(self) -> None:
        """The next worker begins anew."""
        self._failing.clear()

    def look(self, now: float) -> Failing:
        """Return the rounds that come to nothing again and again; at first there are none."""
        found = [
            each
            for each in self._failing.values()
            if each.rounds >= _FAILED_MIN and now - each.since >= _FAILED_S_MIN
        ]
        return min(found, key=lambda each: each.since, default=Failing(now))
