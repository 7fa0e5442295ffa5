"""Honest members of group means at their usual pace, and one that holds up every round it can.

Time is virtual. The shell of a core is a few lines: payloads are there at once and a while on the
way. A member begins its next mean so long after the last one, or when another one calls to it, as
the worker hands in what it has by then; attempts and lineages are counted as the daemon does
(``collective/rounds.py``). The attacker has the same core, comes to each run that it hears of, and
withholds what it is told to.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Literal

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.round_patience import RoundPatience, Waits
from swarmnode.wire.exchange import group as wire
from tests.kits.hostile.rounds import RoundStall, is_withheld

Stall = RoundStall | Literal["dragged"]

N_HONEST = 5
_DELAY_S, _MOVE_S, _WORK_S, _STEP_S = 0.02, 0.05, 0.01, 0.05
_DRAG_S = 0.9  # just less than the least patience
_TRANSFER_S = 70.1  # as the shell's: for a slow partner's view, and the least for a transfer


class _Member:
    def __init__(self, peer: PeerId, patience: RoundPatience) -> None:
        self.peer = peer
        self.core = GroupCore(peer)
        self.patience = patience
        self.count = self.attempt = 0  # means behind it, and runs at the next one that failed
        self.running = b""
        self.waits = Waits((), 0.0)  # of the run that was begun last
        self.began_s = 0.0
        self.commits_s: list[float] = []
        self.is_due = False
        self.wake_at = math.inf


class World:
    """See the module.

    ``slow_s``: of one honest member's steps, the longest that it may take; ``delay_s``: of a word.
    """

    def __init__(
        self,
        *,
        every_s: float,
        seed: int = 1,
        make_patience: Callable[[], RoundPatience] = RoundPatience,
        slow_s: float = 0.0,
        delay_s: float = _DELAY_S,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.every_s = every_s
        self.transfer_s = _TRANSFER_S
        self._slow_s, self._delay_s = slow_s, delay_s
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._last: dict[tuple[PeerId, PeerId], float] = {}
        ids = [PeerId(self.rng.randbytes(32)) for _ in range(N_HONEST + 1)]
        self.attacker, self.honest = ids[0], ids[1:]
        self.stall: Stall | None = None
        self.frozen: PeerId | None = None  # neither sends nor hears anything
        self.members = {peer: _Member(peer, make_patience()) for peer in ids}
        for peer in self.honest:
            self._at(self.rng.random() * every_s, partial(self._due, self.members[peer]))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, what = heapq.heappop(self._heap)
            what()
        self.now = until

    def attack(self, stall: Stall) -> None:
        """Let the attacker in."""
        self.stall = stall

    def freeze(self, peer: PeerId) -> None:
        """Stop a process: what comes is read no more."""
        self.frozen = peer

    def gaps_s(self, since_s: float) -> list[float]:
        """Return how long the others were without a mean, sorted; the last gaps are open."""
        return sorted(
            later - earlier
            for peer in self.honest
            if peer != self.frozen
            for earlier, later in itertools.pairwise(
                [since_s, *(s for s in self.members[peer].commits_s if s > since_s), self.now]
            )
        )

    def commits(self, since_s: float) -> int:
        """Count the means of honest members, each at every member."""
        return sum(at > since_s for peer in self.honest for at in self.members[peer].commits_s)

    # --- honest members ------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), what))

    def _due(self, member: _Member) -> None:
        """Begin so long after the last mean; while a run goes on, its end decides."""
        since_s = member.commits_s[-1] if member.commits_s else 0.0
        if member.running or self.now < since_s + 0.9 * self.every_s:
            wait_s = max(_STEP_S, since_s + self.every_s - self.now)
        else:
            self._begin(member)
            wait_s = self.every_s
        jitter = 0.97 + 0.06 * self.rng.random()
        self._at(self.now + wait_s * jitter, partial(self._due, member))

    def _begin(self, member: _Member) -> None:
        if member.running and member.peer != self.attacker:
            return
        everyone = (*self.honest, *([self.attacker] if self.stall else []))
        self._begin_run(member, self._gid(member.count, member.attempt), everyone)

    def _begin_run(self, member: _Member, gid: bytes, everyone: tuple[PeerId, ...]) -> None:
        if not member.core.may_begin(gid):
            return
        member.running, member.began_s = gid, self.now
        usual_s = member.patience.limit_s(self.transfer_s, 2 * self._slow_s)
        limits_s, needs_s = (usual_s, self.transfer_s), self.needs_s(len(everyone))
        number = member.count + member.attempt
        waits = member.patience.waits(everyone, member.peer, self.now, limits_s, needs_s, number)
        member.waits = waits
        begin = events.Begin(
            gid,
            waits.members,
            len(everyone),
            1.0,
            max(limits.GROUP_ENLIST_S_MIN, limits.GROUP_ENLIST_SHARE * self.every_s),
            self.transfer_s,
            electorate=everyone,
            quorum_s=limits.GROUP_ENLIST_S_MAX,
            lineage=member.count,
            attempt=member.attempt,
            patience_s=waits.stage_s,
            silence_s=waits.silence_s,
        )
        self._feed(member, begin)

    @staticmethod
    def _gid(count: int, attempt: int) -> bytes:
        return hashlib.sha256(b"%d/%d" % (count, attempt)).digest()[:16]

    def _feed(self, member: _Member, event: events.Event) -> None:
        member.core.handle(event, self.now)
        self._settle(member)

    def _settle(self, member: _Member) -> None:
        for effect in member.core.poll_effects():
            self._carry_out(member, effect)
        deadline = member.core.next_deadline()
        if deadline is not None and deadline < member.wake_at:
            member.wake_at = deadline
            self._at(max(deadline, self.now), partial(self._wake, member, deadline))

    def _wake(self, member: _Member, deadline: float) -> None:
        if member.wake_at == deadline:  # else it was woken before
            member.wake_at = math.inf
            member.core.handle_deadline(self.now)
            self._settle(member)

    def _later(self, member: _Member, after_s: float, event: events.Event) -> None:
        self._at(self.now + after_s, lambda: self._feed(member, event))

    def _carry_out(self, member: _Member, effect: events.Effect) -> None:
        if member.peer == self.attacker and self._is_withheld(effect):
            return
        if member.peer == self.frozen:
            return
        match effect:
            case events.Send(peer, message):
                self.send(member.peer, peer, message, self._delay_s)
            case events.TakePayload(gid):
                self._later(member, self._to_boundary_s(member), events.Loaded(gid))
            case events.SendShare(gid, peer, plan, piece, weight):
                after_s = _MOVE_S
                if member.peer == self.attacker and self.stall == "dragged":
                    after_s = _DRAG_S
                self.send(member.peer, peer, wire.Share(gid, piece, weight, plan), after_s)
            case events.SendSum(gid, peer, plan, piece):
                self.send(member.peer, peer, wire.Sum(gid, plan, piece), _MOVE_S)
            case events.Reduce(gid, plan, piece):
                self._later(member, _WORK_S, events.Reduced(gid, plan, piece))
            case events.Assemble(gid, plan):
                self._later(member, _WORK_S, events.Assembled(gid, plan, plan))
            case events.AskAlive(peer):
                self._ask_alive(member, peer)
            case events.HeldRound(_, peer, held_s):
                member.patience.note_held(peer, held_s, self.now)
            case events.Commit(contributors=contributors, usual_s=usual_s):
                self._note_over(member, contributors)
                member.patience.note_commit(usual_s)
                member.commits_s.append(self.now)
                member.running, member.count, member.attempt = b"", member.count + 1, 0
            case events.Abort(gid) if gid == member.running:
                self._note_over(member, ())
                member.running, member.attempt = b"", member.attempt + 1

    def _note_over(self, member: _Member, contributors: tuple[PeerId, ...]) -> None:
        took_s = self.now - member.began_s
        member.patience.note_over(member.waits, contributors, took_s, self.now)

    def needs_s(self, n_members: int) -> dict[PeerId, float]:
        """Return what members say that their lines need for a stage of a run of so many."""
        return {}

    def _to_boundary_s(self, member: _Member) -> float:
        is_slow = self._slow_s and member.peer == self.honest[0]
        return self.rng.uniform(0, self._slow_s if is_slow else _STEP_S)

    def _is_withheld(self, effect: events.Effect) -> bool:
        if self.stall == "dragged" or self.stall is None:
            return False
        return is_withheld(effect, self.stall)

    # --- the network ---------------------------------------------------------------------

    def send(self, source: PeerId, target: PeerId, message: wire.Message, after_s: float) -> None:
        link = (source, target)
        arrives = max(self.now + after_s, self._last.get(link, 0.0))
        if not isinstance(message, wire.Share | wire.Sum):  # these have streams of their own
            self._last[link] = arrives
        self._at(arrives, lambda: self._hear(self.members[target], source, message))

    def _ask_alive(self, member: _Member, peer: PeerId) -> None:
        limit_s = member.patience.answer_s(peer)
        if peer != self.frozen:
            member.patience.note_answer(peer, 2 * self._delay_s)
        else:
            self._at(self.now + limit_s, partial(self._silent, member, peer, limit_s))

    def _silent(self, member: _Member, peer: PeerId, waited_s: float) -> None:
        member.patience.note_silent(peer, waited_s, self.now)
        self._feed(member, events.PeerSilent(peer))

    def _hear(self, member: _Member, source: PeerId, message: wire.Message) -> None:
        if self.frozen in (member.peer, source):
            return
        member.patience.note_heard(source)
        if isinstance(message, wire.Enlist) and message.gid != member.running:
            self._called(member, source, message)
        self._feed(member, events.Received(source, message))

    def _called(self, member: _Member, source: PeerId, message: wire.Enlist) -> None:
        """A member waits for this one in another run than its own."""
        lineage = message.lineage or 0
        if member.peer == self.attacker:
            if member.core.may_begin(message.gid):
                self._feed(member, events.Failed(member.running, "on to the next"))
                member.count, member.attempt = lineage, message.attempt
                self._begin(member)
        elif lineage < member.count:
            self.send(member.peer, source, wire.Leave(message.gid, "behind"), self._delay_s)
        elif (lineage, message.attempt) > (member.count, member.attempt):
            if member.running:
                self._feed(member, events.Failed(member.running, "others are further"))
            member.count, member.attempt = lineage, message.attempt
            self._call(member)
        elif not member.running and message.attempt == member.attempt:
            self._call(member)

    def _call(self, member: _Member) -> None:
        """Begin at the end of the step."""
        if not member.is_due:
            member.is_due = True
            self._at(self.now + self._to_boundary_s(member), partial(self._begin_called, member))

    def _begin_called(self, member: _Member) -> None:
        member.is_due = False
        self._begin(member)
