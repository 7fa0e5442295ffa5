"""The search: a scenario that shows transitions which none did before is kept, and changed on.

Parents are chosen by how rare what they showed is, for each second that a node lived for it. At
first a scenario that is drawn anew shows more than a changed one, later it is the other way round:
each way is taken in proportion to what it has shown of late. The same seed, corpus and number of
scenarios find the same. A scenario that breaks a promise is cut down afterwards, as long as it
breaks the same one.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.sim.search.play import Played, play
from tests.sim.search.scenario import Scenario, changed, drawn, simpler
from tests.sim.search.transitions import Transition

# Of those that are tried, at least so many are drawn anew, and at least so many are changed.
_FRESH_MIN = 0.1
_OF_LATE = 0.9  # what an earlier scenario counts less than the next


@dataclass
class _Yield:
    """What one way to come to scenarios has shown of late."""

    n_new: float = 0.0
    node_s: float = 0.0

    def note(self, n_new: int, node_s: float) -> None:
        self.n_new = _OF_LATE * self.n_new + n_new
        self.node_s = _OF_LATE * self.node_s + node_s

    @property
    def per_node_s(self) -> float:
        return (self.n_new + 1) / max(self.node_s, 1.0)


@dataclass
class Search:
    """What is kept, and what was seen.

    Args:
        is_blind: learn nothing: each scenario is drawn anew, as a baseline.

    Attributes:
        node_s: how long all nodes have lived together, in virtual time.
        found: which promises were broken, each by the first scenario that showed it.
    """

    seed: int
    is_blind: bool = False
    run: Callable[[Scenario], Played] = play
    kept: list[Played] = field(default_factory=list)
    counts: Counter[Transition] = field(default_factory=Counter)
    found: dict[str, Played] = field(default_factory=dict)
    n_played: int = 0
    node_s: float = 0.0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"search/{self.seed}")
        self._anew, self._changed = _Yield(), _Yield()

    def replay(self, corpus: Iterable[Scenario]) -> None:
        """Begin with what was kept before."""
        for scenario in corpus:
            self.take(scenario)

    def step(self) -> Played:
        """Try one more."""
        is_anew = self._draws_anew()
        n_before = len(self.counts)
        played = self.take(drawn(self._rng) if is_anew else self._child())
        way = self._anew if is_anew else self._changed
        way.note(len(self.counts) - n_before, played.node_s)
        return played

    def take(self, scenario: Scenario) -> Played:
        """Run a scenario, and keep it if it shows anything new."""
        played = self.run(scenario)
        self.n_played += 1
        self.node_s += played.node_s
        is_new = not played.transitions <= self.counts.keys()
        self.counts.update(played.transitions)
        if is_new:
            self.kept.append(played)
        if played.violation and symptom(played) not in self.found:
            self.found[symptom(played)] = played
        return played

    def _draws_anew(self) -> bool:
        if self.is_blind or not self.kept:
            return True
        anew, changed_one = self._anew.per_node_s, self._changed.per_node_s
        share = min(max(_FRESH_MIN, anew / (anew + changed_one)), 1 - _FRESH_MIN)
        return self._rng.random() < share

    def _child(self) -> Scenario:
        weights = [self._rarity(each) for each in self.kept]
        parent, other = self._rng.choices(self.kept, weights, k=2)
        return changed(parent.scenario, other.scenario, self._rng)

    def _rarity(self, played: Played) -> float:
        rarity = sum(1 / self.counts[each] for each in played.transitions)
        return rarity / max(played.node_s, 1.0)

    def by_core(self) -> dict[str, int]:
        """Return how many transitions of each core were seen."""
        found = Counter(core for core, _ in self.counts)
        return dict(sorted(found.items()))

    def smallest(self) -> list[Scenario]:
        """Return as few scenarios as show what was seen: each time the one that adds most."""
        left, chosen = set(self.counts), []
        kept = [each for each in self.kept if not each.violation]
        while kept:
            best = max(kept, key=lambda each: len(each.transitions & left) / max(each.node_s, 1.0))
            if not best.transitions & left:
                break
            left -= best.transitions
            chosen.append(best.scenario)
        return chosen


def shrunk(played: Played, tries_max: int, run: Callable[[Scenario], Played] = play) -> Played:
    """Return the same broken promise by less, as far as so many tries lead."""
    tries = 0
    while True:
        for scenario in simpler(played.scenario):
            if tries == tries_max:
                return played
            tries += 1
            other = run(scenario)
            if symptom(other) == symptom(played):
                played = other
                break
        else:
            return played


def symptom(played: Played) -> str:
    """Return what two failures have in common: which promise, of what, without the numbers."""
    words = re.sub(r"[0-9a-f]{8,}|\bn?\d[\d.]*|\(.*", "", played.violation)
    return f"{words[:60].strip()}"
