"""The search: a scenario that shows transitions which none did before is kept, and changed on.

Parents are chosen by how rare what they showed is, for each second that a node lived for it. The
same seed, corpus and number of scenarios find the same. A scenario that breaks a promise is cut
down afterwards, as long as it breaks the same one.
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

# Of those that are tried, the share that is drawn anew.
_FRESH = 0.2


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

    def replay(self, corpus: Iterable[Scenario]) -> None:
        """Begin with what was kept before."""
        for scenario in corpus:
            self.take(scenario)

    def step(self) -> Played:
        """Try one more."""
        return self.take(self._next())

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

    def _next(self) -> Scenario:
        if self.is_blind or not self.kept or self._rng.random() < _FRESH:
            return drawn(self._rng)
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
