"""What members of a round say of each other, and what it is worth.

A member that says that another one is gone is believed: it may be the first to notice. If that one
was there, and is heard in a run that begins later, without its session having ended meanwhile, then
who said so was *mistaken*, by a link of its own or by intent, or told on what it was told. In the
next GROUP_MISTAKEN_RUNS its word is doubted: no roll is closed on it before those have come who
may, and no member is left out that is there. As views only shrink it never agrees with the others
then, so these go on without it, and wait no more: it leaves itself out. Of two that are doubted,
and say it of each other, a lot of the run decides. So a liar keeps no member out of all means of
the others. Those that told on what it said were wrong as well, but not as often: few are doubted,
who were so most often. Where all of them were, their lots kept most rounds from coming to anything.

One that the others wait for may have waited itself, for what it alone lacks; or one that they wait
for waits for it. Then one of the two is the reason, and the others cannot know which: one that
gives another one nothing and one that says so look the same. They share what was waited, but for
one that is not doubted where the other one is. If it happens GROUP_APART_MIN times with the same
two, both are doubted, so that each is in half of the means. One that has held up rounds of late is
left out of rolls (``round_patience.py``), by some sooner than by others: who does so is not wrong
about it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from typing import TypeVar

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import Begin, CutApart, Named

_Key = TypeVar("_Key")

# So many are remembered that were mistaken, and that were said to be gone: a group or two.
_REMEMBERED_MAX = 2 * limits.GROUP_MEMBERS_MAX
# One loses patience first, and clocks begin apart: no earlier than this part of what others wait,
# three stages at the most, of which it may have waited the first.
_LATE_SHARE = 1 / 3
# Until all of the time is over but for this part of a stage, by which clocks may differ, one that
# is waited for may wait for another one.
EARLY_SHARE = 1 / 3


def check_pieces(peer: PeerId, pieces_max: int, *pieces: int) -> None:
    """Raise RemoteProtocolError if a peer speaks of pieces that no plan of a run can have."""
    if any(piece >= pieces_max for piece in pieces):
        raise RemoteProtocolError(
            f"expected pieces below {pieces_max}, got {max(pieces)}", peer=str(peer)
        )


def check_flush(
    peer: PeerId,
    view: Set[PeerId],
    prepared: tuple[PeerId, ...],
    adopted: Collection[tuple[PeerId, ...]],
) -> None:
    """Raise RemoteProtocolError for what no honest member says, whatever was lost on the way.

    Who is prepared has had a FLUSH with exactly its contributors from each of them, the receiver
    too, whose views were ``adopted``; and views only shrink.
    """
    if peer not in view:
        raise RemoteProtocolError("expected a view with its sender in it", peer=str(peer))
    if prepared and not (prepared in adopted and view < set(prepared)):
        raise RemoteProtocolError(
            "expected a member to be prepared over an earlier view, or over none", peer=str(peer)
        )


@dataclass(frozen=True)
class Said:
    """A member has told its view, where this one has another one or none.

    Attributes:
        peer: who told it.
        left_out: members of ours that are not in it.
        missing: whom this one waits for, ``waited_s`` by now, and yet ``left_s``.
        is_open: whether members may still come to the roll.
        is_early: whether those that this one waits for may wait for another one.
    """

    peer: PeerId
    left_out: frozenset[PeerId]
    missing: frozenset[PeerId]
    waited_s: float
    left_s: float
    is_open: bool
    is_early: bool

    @property
    def is_late(self) -> bool:
        """Whether it may have waited long enough, by its own clock."""
        return self.waited_s >= _LATE_SHARE * (self.waited_s + self.left_s)

    @property
    def silent(self) -> frozenset[PeerId]:
        """Those of whom it says that they are gone, and whom this one waits for as well."""
        return self.left_out & self.missing if self.is_late else frozenset()

    @property
    def is_excused(self) -> bool:
        """Whether it may have waited for what it alone lacks."""
        return self.is_late and self.peer in self.missing


def equal_parts(peers: Collection[PeerId]) -> dict[PeerId, float]:
    """Return what each pays for a wait, which is one wait whatever their number."""
    return dict.fromkeys(peers, 1 / max(1, len(peers)))


class Words:
    """What members of one run say of each other, in FLUSH; bounded by its members."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._told: dict[PeerId, tuple[frozenset[PeerId], tuple[PeerId, ...]]] = {}
        self._believed: PeerId | None = None  # the first whose word has left out others
        self._paid: set[PeerId] = set()

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

    def keeps(self, said: Said, came: set[PeerId]) -> bool:
        """Whether members stay in the view although another one says that they are gone.

        ``came``: those that are there.
        """
        doubted = self._begin.doubted
        is_blind = said.is_early and said.peer in doubted
        left_out = said.left_out - (frozenset() if is_blind else said.silent)
        away = frozenset() if said.is_open else left_out - came
        is_kept = any(self._stays(peer, said.peer) for peer in left_out - away)
        if left_out and not is_kept and self._believed is None:
            self._believed = said.peer
        return is_kept

    def named(self, said: Said, came: set[PeerId]) -> Iterator[Named]:
        """Yield of whom a member says that they are gone, if these did not say so of it.

        Not in the log, where its rounds lack a share that none but who makes them can miss.
        """
        peer, told, gid = said.peer, self._told, self._begin.gid
        known = {other for other in said.left_out & came if peer in told.get(other, ({peer},))[0]}
        others = frozenset(known - said.silent)
        if others and not self._begin.calls:
            yield Named(gid, peer, others, said.is_excused)
        early = known & said.silent if said.is_early else frozenset()
        if early and not self._begin.calls:
            yield Named(gid, peer, frozenset(early), is_excused=True)

    def parts(self, said: Said, *, is_kept: bool) -> dict[PeerId, float]:
        """Return who pays for the wait that a member ends by its word, and which part of it.

        One whose word counts for nothing is not waited for any more either: it pays once.
        """
        if is_kept:
            if said.peer in self._paid or said.is_open or not said.is_excused:
                return {}
            self._paid.add(said.peer)
        if not said.left_out:
            return {}
        is_only_one = self._begin.calls and said.missing == {said.peer}
        is_one_of_two = said.is_early if said.silent else said.is_excused
        if not is_one_of_two or (said.is_open and not is_only_one):
            return equal_parts(said.silent)
        others, doubted = said.silent or said.left_out, self._begin.doubted
        if said.peer not in doubted and others <= doubted:
            return equal_parts(others)
        if said.peer in doubted and others.isdisjoint(doubted):
            return {said.peer: 1.0}
        return {other: part / 2 for other, part in equal_parts(others).items()} | {said.peer: 1 / 2}

    def _stays(self, peer: PeerId, word_of: PeerId) -> bool:
        doubted = self._begin.doubted
        return word_of in doubted and (peer not in doubted or self._lot(peer) < self._lot(word_of))

    def _lot(self, peer: PeerId) -> bytes:
        return hashlib.sha256(self._begin.gid + peer).digest()

    @property
    def cut_apart(self) -> Iterator[CutApart]:
        """What the first pays for whose word has left out others, if nothing comes of the run."""
        if self._believed is not None:
            yield CutApart(self._begin.gid, self._believed)


def _count(seen: dict[_Key, tuple[int, int]], key: _Key) -> None:
    times, _ = seen.pop(key, (0, 0))
    seen[key] = times + 1, limits.GROUP_MISTAKEN_RUNS


def _run_later(seen: dict[_Key, tuple[int, int]]) -> dict[_Key, tuple[int, int]]:
    """Return what is still remembered in the next run."""
    kept = [(key, times, runs - 1) for key, (times, runs) in seen.items() if runs > 1]
    return {key: (times, runs) for key, times, runs in kept[-_REMEMBERED_MAX:]}


class Hearsay:
    """Which members were wrong about others; of one kind of rounds."""

    def __init__(self) -> None:
        # How often, and for how many runs more it is remembered.
        self._mistaken: dict[PeerId, tuple[int, int]] = {}
        self._apart: dict[frozenset[PeerId], tuple[int, int]] = {}
        # Of whom, and who did, and was excused: since the last run began, and in runs before.
        self._said: dict[PeerId, dict[PeerId, bool]] = {}
        self._before: dict[PeerId, dict[PeerId, bool]] = {}

    def doubted(self, n_max: int) -> set[PeerId]:
        """Return the members whose word about others is doubted, ``n_max`` at the most.

        Those that were wrong most often: where all told on what one has said, all were wrong.
        """
        often = Counter({peer: times for peer, (times, _) in self._mistaken.items()})
        wrong = dict(often)
        for two, (times, _) in self._apart.items():
            least = max(wrong.get(peer, 0) for peer in two) - limits.GROUP_APART_MIN
            if times >= limits.GROUP_APART_MIN:
                often.update({peer: times for peer in two if wrong.get(peer, 0) > least})
        return {peer for peer, _ in often.most_common(n_max)}

    def note_begun(self) -> None:
        """A run begins: those that are heard from now on were not gone in the last one."""
        for peer, by in self._said.items():
            before = self._before.pop(peer, {})
            excused = {who: excused and before.get(who, True) for who, excused in by.items()}
            self._before[peer] = before | excused
        self._said.clear()
        self._mistaken, self._apart = _run_later(self._mistaken), _run_later(self._apart)
        for peer in list(self._before)[:-_REMEMBERED_MAX]:
            del self._before[peer]

    def note_named(self, named: Named) -> None:
        """On a member's word a run goes on without these, which were there as far as was known."""
        for other in named.others:
            by = self._said.setdefault(other, {})
            by[named.peer] = named.is_excused and by.get(named.peer, True)

    def note_gone(self, peer: PeerId) -> None:
        """It is: its session ended, or it did not answer."""
        self._said.pop(peer, None)
        self._before.pop(peer, None)

    def note_heard(self, peer: PeerId) -> None:
        """It says something."""
        for other, is_excused in self._before.pop(peer, {}).items():
            if is_excused:
                _count(self._apart, frozenset((peer, other)))
            else:
                _count(self._mistaken, other)
