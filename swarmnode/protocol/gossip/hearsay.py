"""What members of a round say of each other, and what it is worth.

A member that says that another one is gone is believed: it may be the first to notice. If that one
was there, and is heard in a run that begins later, without its session having ended meanwhile, then
who said so was *mistaken*, by a link of its own or by intent, or told on what it was told. In the
next GROUP_MISTAKEN_RUNS its word is doubted: no roll is closed on it before those have come who
may, and no member is left out that is there. As views only shrink it never agrees with the others
then, so these go on without it, and wait no more: it leaves itself out. Of two that are doubted,
and say it of each other, a lot of the run decides. So a liar keeps no member out of all means of
the others, and members that told on what it said are no worse off: others find by themselves who is
gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import Begin, CutApart

# So many are remembered that were mistaken, and that were said to be gone: a group or two.
_REMEMBERED_MAX = 2 * limits.GROUP_MEMBERS_MAX


class Words:
    """What members of one run say of each other, in FLUSH; bounded by its members."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._told: dict[PeerId, tuple[frozenset[PeerId], tuple[PeerId, ...]]] = {}
        self._believed: PeerId | None = None  # the first whose word has left out others

    def note(self, peer: PeerId, view: Collection[PeerId], prepared: tuple[PeerId, ...]) -> None:
        """A member has told its view, and which mean it holds."""
        self._told[peer] = frozenset(view), prepared

    def agreed(self, view: Collection[PeerId]) -> dict[PeerId, tuple[PeerId, ...]]:
        """Return those that have told this very view, and which mean they hold."""
        told, same = self._told, frozenset(view)
        return {peer: told[peer][1] for peer in view if peer in told and told[peer][0] == same}

    def never_agrees(self, peer: PeerId, view: Collection[PeerId]) -> bool:
        """Whether a member has told a view without some of this one."""
        return peer in self._told and not self._told[peer][0] >= set(view)

    def keeps(
        self, left_out: set[PeerId], word_of: PeerId, came: set[PeerId], *, is_open: bool
    ) -> bool:
        """Whether members stay in the view although another one says that they are gone.

        ``came``: those that are there; while the roll ``is_open`` the others may still come.
        """
        away = set() if is_open else left_out - came
        is_kept = any(self._stays(peer, word_of) for peer in left_out - away)
        if left_out and not is_kept and self._believed is None:
            self._believed = word_of
        return is_kept

    def unprovoked(self, peer: PeerId, others: set[PeerId]) -> Iterator[CutApart]:
        """Yield of whom a member says that they are gone, if these did not say so of it.

        Not in the log, where its rounds lack a share that none but who makes them can miss.
        """
        their_view = {other: self._told[other][0] for other in others if other in self._told}
        others = {other for other in others if peer in their_view.get(other, {peer})}
        if others and not self._begin.calls:
            yield CutApart(self._begin.gid, peer, frozenset(others))

    def _stays(self, peer: PeerId, word_of: PeerId) -> bool:
        doubted = self._begin.doubted
        return word_of in doubted and (peer not in doubted or self._lot(peer) < self._lot(word_of))

    def _lot(self, peer: PeerId) -> bytes:
        return hashlib.sha256(self._begin.gid + peer).digest()

    @property
    def paid(self) -> Iterator[CutApart]:
        """What the first pays for whose word has left out others, if nothing comes of the run."""
        if self._believed is not None:
            yield CutApart(self._begin.gid, self._believed)


class Hearsay:
    """Which members were wrong about others; of one kind of rounds.

    Attributes:
        mistaken: in how many runs more their word is doubted.
    """

    def __init__(self) -> None:
        self.mistaken: dict[PeerId, int] = {}
        self._said: dict[PeerId, set[PeerId]] = {}  # of whom, and who did, since the last run began
        self._before: dict[PeerId, set[PeerId]] = {}  # in runs before

    def note_begun(self) -> None:
        """A run begins: those that are heard from now on were not gone in the last one."""
        for peer, by in self._said.items():
            self._before[peer] = self._before.pop(peer, set()) | by
        self._said.clear()
        for remembered in (self._before, self.mistaken):
            for peer in list(remembered)[:-_REMEMBERED_MAX]:
                del remembered[peer]
        self.mistaken = {peer: runs - 1 for peer, runs in self.mistaken.items() if runs > 1}

    def note_said(self, peer: PeerId, others: Iterable[PeerId]) -> None:
        """On a member's word a run goes on without these, which were there as far as was known."""
        for other in others:
            self._said.setdefault(other, set()).add(peer)

    def note_gone(self, peer: PeerId) -> None:
        """It is: its session ended, or it did not answer."""
        self._said.pop(peer, None)
        self._before.pop(peer, None)

    def note_heard(self, peer: PeerId) -> None:
        """It says something."""
        self.mistaken |= dict.fromkeys(self._before.pop(peer, ()), limits.GROUP_MISTAKEN_RUNS)
