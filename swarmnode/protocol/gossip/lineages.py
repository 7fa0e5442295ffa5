"""Lineages of slow weights: the outer steps behind each node, and which lineage is to stay.

A lineage is a chain of group means. Each mean over other members is another branch, and only those
on one branch can average. A node says the last few of its chain, ``COUNT:HASH,HASH,...`` with the
newest first; a member that reads it compares it with its own::

    own  40 a 39 b 38 c        said  39 b 38 c        one lineage, a round behind
    own  40 a 39 b 38 c        said  40 d 39 e 38 c   two lineages, which parted at 39
    own  40 a 39 b 38 c        said  90 f 89 g 88 h   nothing in common: this node is far behind

The lineage of the most members stays. Of two with as many the one with more rounds; a difference
of a round or two is the delay of what members say, and counts as none: there the larger hash
decides, of the mean at which they parted, so that both sides judge by the same one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from swarmnode.ids import PeerId

# Means that a node says: in a register of 256 characters, and as many rounds as a report may lag.
SAID_MAX = 16
# Means that a node remembers of itself, to compare with members that are far behind.
KEPT_MAX = 256
_DELAY_ROUNDS = 2  # a member reports every few seconds, and a round may be as short
_HASH_BYTES = 3
_SAID = re.compile(r"([0-9]{1,9}):([0-9a-f]{6}(?:,[0-9a-f]{6}){0,15})")


@dataclass(frozen=True)
class Lineage:
    """The last means of one node.

    Attributes:
        count: how many there were, the last one included.
        hashes: of the last ones, the newest first; at least one.
    """

    count: int
    hashes: tuple[str, ...]

    @classmethod
    def parse(cls, said: str) -> Lineage | None:
        """Read what a member says; None: it says nothing that makes sense."""
        found = _SAID.fullmatch(said)
        return None if found is None else cls(int(found[1]), tuple(found[2].split(",")))

    @property
    def said(self) -> str:
        """What the others are told."""
        return f"{self.count}:{','.join(self.hashes[:SAID_MAX])}"

    def then(self, count: int, base_version: bytes, *, is_next: bool) -> Lineage:
        """Return the chain of a node that stands at ``base_version`` now.

        ``is_next``: it came there by one mean from here; if not, the means before are not known.
        """
        hashed = base_version[-_HASH_BYTES:].hex()
        if (count, hashed) == (self.count, self.hashes[0]):
            return self
        if is_next and count == self.count + 1:
            return Lineage(count, (hashed, *self.hashes[: KEPT_MAX - 1]))
        return Lineage.of(count, base_version)

    @classmethod
    def of(cls, count: int, base_version: bytes) -> Lineage:
        """Return the chain of which only the last mean is known."""
        return cls(count, (base_version[-_HASH_BYTES:].hex(),))

    def compare(self, other: Lineage) -> bool | None:
        """Whether both are of one lineage; None: they know no mean of the same count."""
        last = min(self.count, other.count)
        if last <= max(self._before, other._before):
            return None
        return self._at(last) == other._at(last)

    @property
    def _before(self) -> int:
        """The count of the newest mean that is not known any more."""
        return self.count - len(self.hashes)

    def _at(self, count: int) -> str:
        return self.hashes[self.count - count]


def outlasts(one: Lineage, other: Lineage) -> bool:
    """Whether ``one`` stays where two lineages that parted have as many members."""
    one, other = (Lineage(each.count, each.hashes[:SAID_MAX]) for each in (one, other))
    if one.compare(other) is not False or abs(one.count - other.count) > _DELAY_ROUNDS:
        return one.count > other.count
    known = range(max(one._before, other._before) + 1, min(one.count, other.count) + 1)
    apart = [count for count in known if one._at(count) != other._at(count)]
    judged = apart[0]
    if judged == known[0]:
        # Where they parted is forgotten: a count that both still choose when the next is there.
        judged = max(apart, key=lambda count: (count & -count, count))
    return one._at(judged) > other._at(judged)


@dataclass(frozen=True)
class Standing:
    """How one node's lineage stands among those of all members.

    Attributes:
        n_alike: members of its lineage, the node included.
        n_members: all whose lineage is known.
        n_strongest: members of the lineage that is to stay.
        strongest: the other members that are on that one, in id order.
        is_weaker: whether it is another one than the node's.
        is_apart: whether any member is proven to be on another lineage than the node.
    """

    n_alike: int
    n_members: int
    n_strongest: int
    strongest: tuple[PeerId, ...]
    is_weaker: bool
    is_apart: bool


def judge(own: Lineage, others: Mapping[PeerId, Lineage]) -> Standing:
    """Compare a node's lineage with those that the others say. Cost: O(n²) for n lineages."""
    alike: list[PeerId] = []
    apart: list[PeerId] = []
    is_proven = False
    for peer, lineage in others.items():
        same = own.compare(lineage)
        if same:
            alike.append(peer)
        elif same is False or lineage.count > own.count:  # far behind them, or not of them
            apart.append(peer)
            is_proven |= same is False
    camps = _camps({peer: others[peer] for peer in apart})
    head, camp = own, alike
    n_strongest, is_weaker = len(alike) + 1, False
    for leader, members in camps:
        n = len(members)
        if n > n_strongest or (n == n_strongest and outlasts(leader, head)):
            head, camp, n_strongest, is_weaker = leader, members, n, True
    return Standing(
        n_alike=len(alike) + 1,
        n_members=len(alike) + len(apart) + 1,
        n_strongest=n_strongest,
        strongest=tuple(sorted(camp)),
        is_weaker=is_weaker,
        is_apart=is_proven,
    )


def _camps(others: Mapping[PeerId, Lineage]) -> list[tuple[Lineage, list[PeerId]]]:
    """Return lineages and the peers that are on each, as far as they can be told apart."""
    camps: list[tuple[Lineage, list[PeerId]]] = []
    for peer in sorted(others, key=lambda each: (-others[each].count, each)):
        for leader, members in camps:
            if leader.compare(others[peer]):
                members.append(peer)
                break
        else:
            camps.append((others[peer], [peer]))
    return camps
