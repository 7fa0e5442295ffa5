"""How long the phases of a round wait, and which members are waited for no more.

All members of a round wait for the slowest, so one that is silent holds all of them. What is usual
is measured: how long a run takes from its first view on, without what the slowest member of each
stage takes longer than the one before it. So one member that always comes as late as it may does
not stretch the limit. EXCHANGE_PATIENCE times the median of that is how long a stage may last; the
next may take as much again, as what it waits for may wait for the stage before. All members measure
nearly the same, and so blame the same one. In a stage but the first one blames the member that it
waits for only for what is beyond the stages before.

What a member holds it pays for out of a budget of seconds, as in pairs (``conduct.py``): one that
has used it up is left out of the rolls until enough has come back, which takes less than a minute
however long it held them. Members that a round waits for together share what it waited. One that
is left out stays in the electorate, so no two parts of a swarm have a majority, and it is left out
only where the others have one. At most a quarter are left out at a time, those that owe most: on a
busy machine all are late now and then, and a mean over half of a swarm is half of one.

A member that says that others are gone is believed, as it has waited for them, and all may find
the same. A liar says it of another one to each, which all of them tell on, until too few are left
for a mean. Then the first whose word one has followed pays as for a wait: what others said later
may be what it told them. For a while it is doubted, as one that was wrong is (``hearsay.py``). A
view without a majority no honest member tells, as it gives the run up; who tells one is gone.

A member whose worker is slow still says that it is there. One that does not is *silent*, and left
out before all others until it is heard, or for PARTNER_SLOW_S: a laptop that is closed costs one
wait, and is back with its first word.

A member on a *thin line* needs longer for what it sends in a stage than what is usual, as it says
of itself: it has measured that. It would be left out of every mean. So now and then a round waits
for all such members, its stages as long as the thinnest line needs; as long as bytes keep coming,
and a round that took so long is followed by seven times as long without (ROUND_THIN_SHARE). In the
others they are not waited for at all. One that says so and then sends nothing, or too slowly, has
cost one such round, and no other for ROUND_THIN_AGAIN_S. All members hear the same of lines, and
measure nearly the same; a round waits for a member only where all of them would. Where they differ
in whether its turn has come, it is in none of their means, so one that has waited and is not among
those waits again in a round of a number that is a multiple of ROUND_THIN_EVERY, which all of them
know. A line is thin where what is usual is too short for it with some slack: so one that takes it
for no thin one waits long enough for it. Where the others are no majority, all rounds wait: thin
lines are what is usual there.

Source: as of ``patience.py``; the second slowest in place of all, as a trimmed mean of one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.group_events import Begin, CutApart, HeldRound, Named, has_majority
from swarmnode.protocol.gossip.hearsay import Hearsay
from swarmnode.protocol.gossip.patience import Usual, answer_s, first_s

# Below this part of the patience a member that is the last one pays nothing: one of them always is,
# and a member whose steps are long comes by the end of one, which is half of the patience with it.
_FREE_SHARE = 1 / 2
# Shares, sums, and words that all is prepared: each may wait for the one before.
_STAGES = 3
# So much a member owes at the most: a mean lacks it for 40 s then, and for seven minutes at what
# counts in pairs, where a node has others meanwhile.
_DEBT_S_MAX = 1.0
_LEFT_OUT_SHARE_MAX = 1 / 4
# Two of which one or the other is the reason for a wait are doubted both.
_WRONG_MAX = 2
# On a thin line something comes of each payload in this part of the time that all of it may take,
# however many share the line and take their turns of some KiB.
_SILENCE_SHARE = 1 / 2
# A member that is behind comes to nothing a few times by no fault of its own, as where others close
# the roll: be a wait for it shorter than what so many rolls usually take, it has these.
_BEHIND_ROLLS_MIN = 4
# Of ROUND_THIN_AGAIN_S, for one that was waited for in vain for the first time; then twice as much,
# each time. One that has just begun is slow once, and would be in no mean for ten minutes; a liar
# gains three more waits.
_VAIN_SHARE_MIN = 1 / 8
# So begins the reason of one that refuses a run, as later rounds are behind it.
BEHIND = "behind: "
# A timer that is later than this, in parts of what it was set to, is late for reasons of our own.
_OWN_PAUSE = 1.25


@dataclass
class StageTimes:
    """When the members of one run delivered what; ``since``: its present plan was agreed on."""

    since: float
    _arrivals: tuple[list[tuple[float, PeerId]], ...] = field(
        default_factory=lambda: tuple([] for _ in range(_STAGES))
    )
    _bytes_at: dict[PeerId, float] = field(default_factory=dict)

    def note(self, stage: int, peer: PeerId, now: float) -> None:
        """A member has delivered something of a stage, 1 to 3; the last it may repeat."""
        arrivals = self._arrivals[stage - 1]
        if stage < _STAGES or all(known != peer for _, known in arrivals):
            arrivals.append((now, peer))

    def note_bytes(self, peer: PeerId, now: float) -> None:
        """A payload of a member is on its way, and goes on."""
        self._bytes_at[peer] = now

    def quiet_since(self, peers: Collection[PeerId]) -> float:
        """Return since when no byte of one of these has come, of the one that is quiet longest."""
        return min((self._quiet_since(peer) for peer in peers), default=self.since)

    def quiet(self, peers: Iterable[PeerId], silence_s: float, now: float) -> set[PeerId]:
        """Return those of which nothing has come for so long."""
        return {peer for peer in peers if self._quiet_since(peer) + silence_s <= now}

    def _quiet_since(self, peer: PeerId) -> float:
        return max(self.since, self._bytes_at.get(peer, self.since))

    def prepared_at(self, n: int | None) -> float:
        """Return when the last of most of ``n`` members was prepared; inf: not most are yet."""
        prepared = self._arrivals[-1]
        return prepared[-1][0] if n and 2 * (len(prepared) + 1) > n else math.inf

    @property
    def usual_s(self) -> float:
        """How long the run took but for what the last member of each stage took longer."""
        return sum(usual_s for usual_s, _, _ in self._stages())

    def held(self, gid: bytes, stage_s: float) -> Iterator[HeldRound]:
        """Yield who was the last of a stage by far, and for how long it alone was waited for."""
        for stage, (_, longer_s, last) in enumerate(self._stages()):
            free_s = max(_FREE_SHARE, stage) * stage_s
            if longer_s > max(free_s, limits.EXCHANGE_ANSWER_S_MIN):
                yield HeldRound(gid, last, longer_s)

    def _stages(self) -> Iterator[tuple[float, float, PeerId]]:
        """Yield for each stage the time to the last member but one, and what the last one took."""
        began = self.since
        for arrivals in filter(None, self._arrivals):
            last_at, last = arrivals[-1]
            others = [at for at, peer in arrivals if peer != last]
            before = max(began, others[-1] if others else last_at)
            yield before - began, max(0.0, last_at - before), last
            began = max(before, last_at)


class Roll:
    """Which members have come to a run before its first view; opened when this one begins it.

    Attributes:
        came: the members that have, this one among them.
        behind: those that have not, and for which it is held.
    """

    def __init__(self, begin: Begin, self_id: PeerId, now: float) -> None:
        self.came = {self_id}
        self._begin, self._ahead = begin, set[PeerId]()
        self._opened_at = self._last_at = now
        self._quorum_at: float | None = None  # when a majority of the electorate had come
        self.behind = set(begin.behind)
        self._behind_s = begin.behind_s

    def add(self, peer: PeerId, now: float) -> None:
        """A member has come."""
        self.came.add(peer)
        self.behind.discard(peer)
        self._last_at = now
        if self._quorum_at is None and has_majority(self._begin.electorate, self.came):
            self._quorum_at = now

    def hold(self, peer: PeerId, behind_s: float) -> None:
        """A member that has not come showed that it is behind: this is open so long for it."""
        if peer not in self.came:
            self.behind.add(peer)
            self._behind_s = max(self._behind_s, behind_s)

    def remove(self, peer: PeerId) -> None:
        """A member is gone."""
        self.came.discard(peer)
        self.behind.discard(peer)

    def note_left(self, peer: PeerId, reason: str) -> None:
        """A member has refused, as later rounds are behind it or for another reason."""
        if reason.startswith(BEHIND):
            self._ahead.add(peer)

    def is_complete(self, members: Iterable[PeerId]) -> bool:
        """Whether all of these have come."""
        return self.came >= set(members)

    @property
    def lacks_quorum(self) -> bool:
        """Whether it waits for a majority of its electorate."""
        return self._quorum_at is None and bool(self._begin.electorate)

    @property
    def _is_over(self) -> bool:
        """Whether later rounds are behind so many that all others are no quorum for this one."""
        return not self._begin.is_quorum(set(self._begin.electorate) - self._ahead)

    @property
    def has_called(self) -> bool:
        """Whether those that are missing were to come: half call the others, where ENLIST calls.

        Fewer wait for what these do by themselves, so one that did not come has held nothing.
        """
        begin = self._begin
        calls = begin.calls or begin.lineage is not None
        return calls and 2 * len(self.came) >= len(begin.electorate)

    def waited_s(self, now: float) -> float:
        """Return for how long it has been open for none but those that are missing."""
        return now - self._last_at

    @property
    def closes_at(self) -> float:
        """When it is closed without those who are missing."""
        begin = self._begin
        is_held = bool(self.behind)
        closes_at = self._opened_at + max(begin.enlist_s, self._behind_s * is_held)
        if not begin.quorum_s or self._is_over:
            return closes_at
        if self._quorum_at is None:  # waiting costs nothing, and alone nothing comes of it
            return max(closes_at, self._opened_at + begin.quorum_s)
        return max(closes_at, self._quorum_at + begin.enlist_s / 2)


@dataclass(frozen=True)
class Waits:
    """Whom a round waits for, and how long.

    Attributes:
        stage_s: how long a stage may last.
        silence_s: how long one of these may send nothing; 0: stage_s.
        thin: those of them for whom the stages were stretched.
        behind, behind_s: those of them for whom the roll is held, and how long.
        behind_most_s: how long rolls are held together for one that does not come.
    """

    members: tuple[PeerId, ...]
    stage_s: float
    silence_s: float = 0.0
    thin: frozenset[PeerId] = frozenset()
    behind: frozenset[PeerId] = frozenset()
    behind_s: float = 0.0
    behind_most_s: float = 0.0


class RoundPatience:
    """Of one kind of rounds: what is usual, and what each member has held.

    ``debt_s_max``: what a member owes at the most for what it has held.
    """

    def __init__(self, debt_s_max: float = _DEBT_S_MAX) -> None:
        self.conduct, self.hearsay = ConductTable(debt_s_max=debt_s_max), Hearsay()
        self._usual, self._answers = Usual(), Usual()
        self._thin_again_at = -math.inf  # when a round may wait for members on thin lines
        self._in_vain: dict[PeerId, float] = {}  # until when it does not for one of them
        self._is_alone = False  # the last that waited for them was without them: others did not
        self._behind: dict[PeerId, float] = {}  # members that lack means, and when they showed it
        self._behind_again_at = -math.inf  # when a roll may be held for one of these
        self._vain_until: dict[PeerId, float] = {}  # until when for none of them
        self._vain_s: dict[PeerId, tuple[float, float]] = {}  # how long that was, kept until when
        self._lacked_s: dict[PeerId, float] = {}  # rolls that were held for it without its coming
        self._held_s = 0.0  # rolls for any of them, since none was held for a while

    def note_behind(self, peer: PeerId, now: float) -> None:
        """A member calls to a mean that was made without it: it will ask for slow weights."""
        since = now - limits.ROUND_BEHIND_S_MAX  # all the while it says so again, when it is due
        self._behind = {each: at for each, at in self._behind.items() if at >= since}
        self._lacked_s = {each: s for each, s in self._lacked_s.items() if each in self._behind}
        self._behind[peer] = now

    def holding(
        self,
        waits: Waits,
        members: tuple[PeerId, ...],
        now: float,
        behind_s: float,
        grace_s: float,
    ) -> Waits:
        """Return how the next round waits if its roll is held for members that are behind.

        What such a member fetches is behind again at the next mean. Where means follow each other
        without a pause it would never come, so now and then the others stay where they are until
        it has caught up. To one that needs longer than was thought another roll as long is no
        help, so that is held for all that is left.

        Args:
            behind_s: how long it takes to catch up.
            grace_s: what any member is waited for.
        """
        self._vain_until = {peer: at for peer, at in self._vain_until.items() if at > now}
        behind = frozenset(
            peer
            for peer, said_at in self._behind.items()
            if said_at + limits.ROUND_BEHIND_S_MAX >= now
            and peer in members
            and peer not in self._vain_until
            and not self.conduct.is_silent(peer, now)
        )
        if now < self._behind_again_at or not behind:
            return waits
        held = tuple(peer for peer in members if peer in behind or peer in waits.members)
        behind_s = min(behind_s, limits.ROUND_BEHIND_S_MAX)
        most_s = max(behind_s, _BEHIND_ROLLS_MIN * grace_s)
        lacked_s = max(self._lacked_s.get(peer, 0.0) for peer in behind)
        if lacked_s:
            behind_s = max(behind_s, min(most_s, limits.ROUND_BEHIND_S_MAX) - lacked_s)
        return replace(waits, members=held, behind=behind, behind_s=behind_s, behind_most_s=most_s)

    def waits(
        self,
        members: tuple[PeerId, ...],
        self_id: PeerId,
        now: float,
        limits_s: tuple[float, float],
        needs_s: Mapping[PeerId, float],
        number: int,
    ) -> Waits:
        """Return whom the next round waits for; a member on a thin line in some of them.

        Args:
            number: of the round, which is the same for all members.
            limits_s: of a stage, as :meth:`limit_s` says, and the most.
            needs_s: what the line of each member was measured to need for a stage, as it says.
        """
        good, (usual_s, most_s) = self.waited_for(members, self_id, now), limits_s
        # What one has held before it was known that its line is thin is no reason.
        thin = frozenset(
            peer
            for peer in members
            if limits.ROUND_THIN_SLACK * needs_s.get(peer, 0.0) > usual_s
            and not self.conduct.is_silent(peer, now)
        )
        if not thin:
            return Waits(good, usual_s)
        most_s = min(most_s, max(usual_s, limits.ROUND_THIN_STAGE_S_MAX))
        rest = tuple(peer for peer in good if peer not in thin)
        if self_id not in thin and len(rest) > 1 and has_majority(members, rest):
            self._in_vain = {peer: until for peer, until in self._in_vain.items() if until > now}
            thin = frozenset(
                peer
                for peer in thin - self._in_vain.keys()
                if limits.ROUND_THIN_SLACK * needs_s[peer] <= most_s
            )
            is_turn = not (self._is_alone and number % limits.ROUND_THIN_EVERY)
            if not thin or now < self._thin_again_at or not is_turn:
                return Waits(rest, usual_s)
            good = tuple(peer for peer in members if peer in thin or peer in rest)
        wanted_s = limits.ROUND_THIN_SLACK * max(needs_s[peer] for peer in thin)
        stage_s = max(usual_s, min(wanted_s, most_s))
        return Waits(good, stage_s, max(usual_s, _SILENCE_SHARE * stage_s), thin)

    def note_over(
        self, waits: Waits, contributors: Collection[PeerId], took_s: float, now: float
    ) -> None:
        """A round is over that waited for members on thin lines; none: it came to nothing.

        What it took is followed by as many times as long without such a round, so that it is
        ROUND_THIN_SHARE of the time, however slowly members send. One that was not among them in
        the end, though the round was long, is not waited for again for a while.
        """
        if waits.thin:
            self._thin_again_at = now + took_s * (1 / limits.ROUND_THIN_SHARE - 1)
            self._is_alone = waits.thin.isdisjoint(contributors)
            if contributors and took_s > _SILENCE_SHARE * waits.stage_s:
                until = now + limits.ROUND_THIN_AGAIN_S
                self._in_vain |= dict.fromkeys(waits.thin - set(contributors), until)

    def note_roll(
        self,
        waits: Waits,
        contributors: Collection[PeerId],
        waited_s: float,
        now: float,
    ) -> None:
        """A round is over that held its roll for members that were behind, or held it for none.

        As with thin lines, so that what is waited is ROUND_THIN_SHARE of the time. Until that is
        as much as one of them takes to come, rolls are held again: others that do not hold theirs
        close them, at no cost, and all come to it in the end. In one sum, so that one that comes
        and sends nothing, or leaves, gains no more by many short waits than by a long one.

        Args:
            waited_s: beside what is usual.
        """
        for peer in contributors:
            self._behind.pop(peer, None)
        if not waits.behind:
            return
        late = waits.behind - set(contributors)
        self._held_s += waited_s
        if late != waits.behind or self._held_s >= waits.behind_most_s:
            self._behind_again_at = now + self._held_s * (1 / limits.ROUND_THIN_SHARE - 1)
            self._held_s = 0.0
        for peer in late:
            # Rolls that cost nothing have an end as well.
            lacked_s = max(waited_s, limits.EXCHANGE_ANSWER_S_MIN)
            self._lacked_s[peer] = self._lacked_s.get(peer, 0.0) + lacked_s
            if self._lacked_s[peer] >= waits.behind_most_s:
                del self._lacked_s[peer]
                self._vain_until[peer] = now + self._note_vain(peer, now)

    def _note_vain(self, peer: PeerId, now: float) -> float:
        """Return for how long no roll is held for one that did not come, and may have before."""
        kept = self._vain_s.items()
        self._vain_s = {each: (s, until) for each, (s, until) in kept if until > now}
        before_s, _ = self._vain_s.get(peer, (limits.ROUND_THIN_AGAIN_S * _VAIN_SHARE_MIN / 2, 0.0))
        vain_s = min(2 * before_s, limits.ROUND_THIN_AGAIN_S)
        self._vain_s[peer] = vain_s, now + vain_s + limits.ROUND_THIN_AGAIN_S
        return vain_s

    def limit_s(self, transfer_s: float, least_s: float = 0.0) -> float:
        """Return how long a stage may last.

        Args:
            transfer_s: the most, of the slowest line and step that are put up with.
            least_s: that members are known to need; 0: of none is it known.
        """
        before_s = first_s(transfer_s, least_s, limits.ROUND_FIRST_S) or transfer_s
        least_s = max(limits.EXCHANGE_PATIENCE_S_MIN, least_s)
        return min(self._usual.limit_s(least_s, before_s), transfer_s)

    def note_commit(self, usual_s: float) -> None:
        """A run counts that took so long, see :class:`StageTimes`."""
        self._usual.note(usual_s)

    def note_held(self, peer: PeerId, held_s: float, now: float) -> None:
        """A run waited for this member alone for so long."""
        self.conduct.note_held(peer, held_s, now, is_stall=False)

    def note_said(self, said: CutApart | Named, now: float) -> None:
        """A member said that others are gone.

        If so many that nothing could come of a run, it is behind at the next one; none is held.
        """
        if isinstance(said, Named):
            # Who has left one that was late out of its roll says no more than that.
            late = {each for each in said.others if self._is_late(each, now)}
            others = said.others if said.is_excused else said.others - late
            self.hearsay.note_named(replace(said, others=others))
            return
        peer = said.peer
        self.note_held(peer, limits.GROUP_CUT_S, now)
        until = now + limits.PARTNER_SLOW_S
        self._vain_until = {each: at for each, at in self._vain_until.items() if at > now}
        self._vain_until[peer] = max(until, self._vain_until.get(peer, until))

    def answer_s(self, peer: PeerId) -> float:
        """Return how long a member may take to say that it is there."""
        return answer_s(self._answers, self.conduct, peer, limits.GROUP_FLUSH_S)

    def note_answer(self, peer: PeerId, waited_s: float) -> None:
        """It has said so."""
        self.conduct.note_answer(peer)
        self._answers.note(waited_s, peer)

    def note_silent(self, peer: PeerId, waited_s: float, now: float) -> bool:
        """It has not: rounds begin without it until it is heard, or for PARTNER_SLOW_S.

        Returns:
            False if that says nothing of the peer: this node has been stopped itself, or got no
            processor, so that an answer may lie here unread.
        """
        if waited_s > _OWN_PAUSE * self.answer_s(peer):
            return False
        self.conduct.note_no_answer(peer, now)
        self.hearsay.note_gone(peer)
        return True

    def note_heard(self, peer: PeerId) -> None:
        """It says something."""
        self.conduct.note_heard(peer)
        self.hearsay.note_heard(peer)

    def waited_for(
        self, members: tuple[PeerId, ...], self_id: PeerId, now: float
    ) -> tuple[PeerId, ...]:
        """Return the members without the worst of those that have held rounds for too long."""
        avoided = [
            peer for peer in members if peer != self_id and self.conduct.is_avoided(peer, now)
        ]
        avoided.sort(key=lambda peer: self._turn(peer, now))
        left_out = set(avoided[: max(1, int(_LEFT_OUT_SHARE_MAX * len(members)))])
        good = tuple(peer for peer in members if peer not in left_out)
        is_enough = len(good) > 1 and has_majority(members, good)
        return good if is_enough else members

    def doubted(self, members: Collection[PeerId], now: float) -> frozenset[PeerId]:
        """Return those that have held a round of late, be it once, or were wrong about others."""
        wrong = self.hearsay.doubted(max(_WRONG_MAX, int(_LEFT_OUT_SHARE_MAX * len(members))))
        return frozenset(peer for peer in members if peer in wrong or self._is_late(peer, now))

    def _is_late(self, peer: PeerId, now: float) -> bool:
        least_s = limits.EXCHANGE_BUDGET_S - limits.EXCHANGE_PATIENCE_S_MIN / 2
        return self.conduct.budget_s(peer, now) < least_s

    def _turn(self, peer: PeerId, now: float) -> tuple[bool, float, PeerId]:
        """Of members to be left out the silent ones are first, then those that owe most."""
        return not self.conduct.is_silent(peer, now), self.conduct.budget_s(peer, now), peer
