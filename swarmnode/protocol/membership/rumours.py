"""Which news to send next: the least sent first, each a bounded number of times."""

from __future__ import annotations

import math
from collections.abc import Container

from swarmnode import limits
from swarmnode.ids import PeerId


class Rumours:
    """Subjects of news by how often each was sent. Cost: O(taken) for each message."""

    def __init__(self) -> None:
        # Index: times sent. Insertion order within a level, so equal news take turns.
        self._levels: list[dict[PeerId, None]] = [{}]
        self._sent: dict[PeerId, int] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def push(self, subject: PeerId) -> None:
        """There is something new about this member: begin to count again."""
        self.drop(subject)
        self._sent[subject] = 0
        self._levels[0][subject] = None

    def drop(self, subject: PeerId) -> None:
        """Spread no more about this member."""
        sent = self._sent.pop(subject, None)
        if sent is not None:
            del self._levels[sent][subject]

    def take(self, n_max: int, n_live: int, besides: Container[PeerId] = ()) -> list[PeerId]:
        """Return up to ``n_max`` subjects and count them as sent, but none of ``besides``."""
        taken: list[PeerId] = []
        for level in self._levels:
            for subject in level:
                if len(taken) == n_max:
                    break
                if subject not in besides:
                    taken.append(subject)
        sends_max = retransmissions_max(n_live)
        for subject in taken:
            self._count(subject, sends_max)
        return taken

    def _count(self, subject: PeerId, sends_max: int) -> None:
        sent = self._sent[subject]
        self.drop(subject)
        if sent + 1 >= sends_max:
            return
        self._sent[subject] = sent + 1
        if len(self._levels) == sent + 1:
            self._levels.append({})
        self._levels[sent + 1][subject] = None


def retransmissions_max(n_live: int) -> int:
    """Return how often one piece of news is sent by each node that has it."""
    return limits.SWIM_RETRANSMIT * math.ceil(math.log2(n_live + 1))
