"""Which members hold other slow weights at the same place of a lineage.

A node says a number of its slow weights for each of the last places, ``HASH:NUMBER,...`` with the
newest first: the hash of the place as in its lineage, and a projection (strategies/catch_up.py). At
each place the members that have said something are compared::

    own        a 1.02   b 3.10
    members 2  a 1.02   b 3.10     the same
    member 1   a 9.77              others: it took over what a peer gave, and that was no such thing

Others are right only where they agree, and are more than those that hold what this node holds and
those that have not said anything of that place together. Few who lie can so not move a node away,
and cannot be the first either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from swarmnode.ids import PeerId

# Places that a node says: in a register of 256 characters, and as many rounds as a report may lag.
SKETCHES_MAX = 8
# Of the length of what is compared. Rounding on other hardware is a thousandth of that, and what a
# liar can have within it moves no model.
TOLERANCE = 1e-3
_SAID = re.compile(r"([0-9a-f]{6}):(-?[0-9]{1,9}(?:\.[0-9]{1,10})?(?:e[+-][0-9]{2}|e-[0-9]{3})?)")


class Sketches:
    """What one node says of its slow weights at the last places."""

    def __init__(self) -> None:
        self._own: dict[str, tuple[float, float]] = {}  # by hash, the oldest first

    @property
    def said(self) -> str:
        """What the others are told."""
        return ",".join(f"{place}:{value:.7g}" for place, (value, _) in reversed(self._own.items()))

    def note(self, place: str, value: float, length: float, *, follows: bool) -> None:
        """Take note of this node's slow weights.

        Args:
            place: its hash in the lineage, six hex digits.
            length: beside which differences are measured.
            follows: they came of those before by means; if not, what was said before is of others.
        """
        if not follows:
            self._own.clear()
        self._own.pop(place, None)
        self._own[place] = (value, length)
        while len(self._own) > SKETCHES_MAX:
            del self._own[next(iter(self._own))]

    def forget(self) -> None:
        """Take note that nothing is known of the slow weights that come next."""
        self._own.clear()

    def others(self, said: Mapping[PeerId, str]) -> tuple[PeerId, ...]:
        """Return the members that hold what most hold, where this node holds something else.

        ``said``: what each other member says that trains, as text; "" if it says nothing.
        """
        read = {peer: parse(text) for peer, text in said.items()}
        for place, (value, length) in reversed(self._own.items()):
            told = {peer: values[place] for peer, values in read.items() if place in values}
            slack = TOLERANCE * length
            apart = {peer: other for peer, other in told.items() if abs(other - value) > slack}
            n_against = len(read) + 1 - len(apart)  # those that are alike, or silent, and this one
            camp = _largest_camp(apart, slack)
            if len(camp) > n_against:
                return camp
        return ()


def parse(said: str) -> dict[str, float]:
    """Read what a member says, by place; what makes no sense counts as not said."""
    found = (_SAID.fullmatch(each) for each in said.split(",", SKETCHES_MAX)[:SKETCHES_MAX])
    return {match[1]: float(match[2]) for match in found if match}


def _largest_camp(values: Mapping[PeerId, float], slack: float) -> tuple[PeerId, ...]:
    """Return the members about whose value the most others lie, in id order."""
    camps = (
        tuple(sorted(peer for peer, other in values.items() if abs(other - middle) <= slack))
        for middle in values.values()
    )
    return max(camps, key=len, default=())
