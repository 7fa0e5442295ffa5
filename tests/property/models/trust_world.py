"""Rounds of pairs in a swarm whose members trust each other by what they measure and hear.

No model is trained: whether what a member sends is refused is drawn. Which members meet is the
round's matching, as in daemons, and each asks the next in its order where its partner is not met.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import matching
from swarmnode.protocol.trust import NEUTRAL, Seen, Trust

ROUND_S = 10.0
_SAID_EVERY = 6  # rounds: a minute
_TRIES_MAX = 3

# Whether the first refuses what the second sends in this round.
Refuses = Callable[[int, int, int], bool]


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


class TrustWorld:
    """Members by number, and the meetings of each round.

    Args:
        refuses: what becomes of a meeting, for each of the two.
        liars: of the members: they refuse nothing, and say the worst of all others.
        is_on: whether any of them goes by trust.

    Attributes:
        met: meetings so far, (the smaller number, the larger).
        counted: those of them that none refused.
    """

    def __init__(
        self, n: int, refuses: Refuses, *, liars: frozenset[int] = frozenset(), is_on: bool = True
    ) -> None:
        self.n, self.refuses, self.liars, self.is_on = n, refuses, liars, is_on
        self.books = [Trust(random.Random(number).randbytes(16)) for number in range(n)]
        self.round = 0
        self.met: Counter[tuple[int, int]] = Counter()
        self.counted: Counter[tuple[int, int]] = Counter()

    @property
    def now(self) -> float:
        return self.round * ROUND_S

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._meet()
            self.round += 1
            if self.round % _SAID_EVERY == 0:
                self._say()

    def share_of(self, members: frozenset[int], since: Counter[tuple[int, int]]) -> float:
        """Return how much of the honest members' meetings after ``since`` were with these."""
        honest = [
            (pair, count - since[pair])
            for pair, count in self.met.items()
            if min(pair) not in self.liars or max(pair) not in self.liars
        ]
        theirs = sum(count for pair, count in honest if members & set(pair))
        return theirs / max(1, sum(count for _, count in honest))

    # --- a round -------------------------------------------------------------------------

    def _meet(self) -> None:
        free = dict.fromkeys(range(self.n))
        ids = [peer(number) for number in range(self.n)]
        ordered = [int.from_bytes(each, "big") for each in matching.order(b"", self.round, ids)]
        for tries in (1, _TRIES_MAX):
            for one in ordered:
                if one in free:
                    self._find(one, ids, free, tries)

    def _find(self, one: int, ids: list[PeerId], free: dict[int, None], tries: int) -> None:
        found = matching.candidates(peer(one), b"", self.round, ids, limit=self.n)
        candidates = [int.from_bytes(each, "big") for each in found]
        if tries > 1:
            candidates = [two for two in candidates if self._admits(one, two)]
        for two in candidates[:tries]:
            if two in free and self._admits(one, two) and self._admits(two, one):
                del free[one], free[two]
                self._exchange(one, two)
                return

    def _admits(self, one: int, two: int) -> bool:
        is_asked = self.is_on and one not in self.liars
        return not is_asked or self.books[one].admits(peer(two), self.round, self.now)

    def _exchange(self, one: int, two: int) -> None:
        pair = (min(one, two), max(one, two))
        self.met[pair] += 1
        refusals = {
            (a, b): a not in self.liars and self.refuses(a, b, self.round)
            for a, b in ((one, two), (two, one))
        }
        for (a, b), is_refused in refusals.items():
            if is_refused:
                self.books[a].note(peer(b), Seen.REFUSED, self.now)
            elif not any(refusals.values()):
                self.books[a].note(peer(b), Seen.USEFUL, self.now)
        self.counted[pair] += not any(refusals.values())

    def _say(self) -> None:
        for author in range(self.n):
            if author in self.liars:
                said = {peer(n): 0.0 for n in range(self.n) if n not in self.liars}
            else:
                verdicts = self.books[author].verdicts(self.now)
                said = {each: NEUTRAL * tenths / 5 for each, tenths in verdicts.items()}
            for reader in set(range(self.n)) - {author}:
                self.books[reader].told(peer(author), said)
