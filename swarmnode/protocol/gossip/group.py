"""A mean over a group of which any member may die at any moment; the others finish.

There is no master and no vote. A run goes through views, which only ever shrink::

    ENLIST --all came, or the grace is over--> FLUSH --all of the view said the same--> RUN --> end
                                                 ^                                       |
                                                 +--a member died, left or fell silent---+

*Flush.* A member that learns that another is gone takes the smaller view, freezes, tells its view,
and in the same message of which contributors it holds the whole mean, if it does (*prepared*).
Views that differ are intersected. When all of a view have said the same, all know the same and
come to the same plan: keep the mean that they have prepared, or make the mean over the view.

*Run.* The vector is cut into as many pieces as there are contributors. The sum of each is made by
one member, from the shares of all contributors, and given to all: a reduce-scatter and an
all-gather, of about twice the vector each way, however many members. Everything is asked for
(WANT), so that no member sends what none needs. Another plan has another cut, and begins anew.

*End.* A member that holds the whole mean says so, with its hash. It finishes when its whole view
has said so. Hence the promise: **if a member finishes with a mean, then every survivor holds that
same mean, and finishes with it too.** For a member that finished had heard PREPARED from all; a
survivor that did not hear one of them flushes, reports what it has prepared, and the plan keeps it.
What less than three quarters of a view claim to have prepared is not kept: none has finished then,
and a liar that claims it would be asked for the whole mean by all (``witnesses.kept_mean``).

That holds where only the dead are taken for lost. A network in two parts has two views, which may
end with two means: each part's hashes are equal, and the lineage of what was averaged (base
version) keeps the parts from mixing. A member that the others took for lost ends with Abort, in
doubt if it was prepared; that is counted. Two different hashes for one plan, which honest members
cannot have, end the run of all but those that are more than half: no liar about a hash ends it.

Every phase ends by a deadline, and each of them takes at least one member away, so a run lasts at
most enlist_s + GROUP_MEMBERS_MAX (GROUP_FLUSH_S + 3 transfer_s); where rounds are usual, deadlines
follow what is (``round_patience.py``), and members that have held many are left out. Some runs wait
for members on thin lines: there a share of which bytes come keeps its place, and no longer. The
shell asks those that a run waits for whether they are there (AskAlive): a worker may be slow, but a
node that does not answer has been stopped, and the others go on without it at once. Messages may be
lost or come twice; they are repeated every GROUP_RESEND_S. Payloads are sent once: a stream that
breaks is a lost peer.

Source: view-synchronous flush, Birman and Joseph, "Exploiting virtual synchrony in distributed
systems", 1987; groups in place of the whole: Ryabinin, Gorbunov, Plokhotnyuk and Pekhimenko,
"Moshpit SGD", 2021. Deviation: there a member that fails leaves parts of the mean over different
sets; here all parts are over the same. The contract for others is proto/group.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group_events import Commit, Effect, Event, Phase, Send
from swarmnode.protocol.gossip.group_run import Run
from swarmnode.wire.exchange import group as wire

# Fragments whose means are under way at once, each with a payload in memory.
GROUP_RUNS_MAX = 8
# Outcomes kept: a node ends a group mean a minute at most.
GROUP_OUTCOMES_MAX = 64


@dataclass(frozen=True)
class GroupStatistics:
    """Counters since the core was made."""

    running: int
    committed_total: int
    aborted_total: Mapping[str, int]  # by the part of the reason before a colon
    in_doubt_total: int  # aborted here, while others may have finished
    views_total: int  # changes of the view, the first one of each run included
    outcomes_kept: int


@dataclass(frozen=True)
class _Ended:
    at: float
    commit: Commit | None


class GroupCore:
    """Sans-IO core of one node's group means, several at a time; see the module."""

    def __init__(self, self_id: PeerId) -> None:
        self._self_id = self_id
        self._runs: dict[bytes, Run] = {}
        self._ended: dict[bytes, _Ended] = {}  # in order of time
        self._effects: list[Effect] = []
        self._silent: set[PeerId] = set()  # not heard since the last run began
        self._committed = self._in_doubt = self._views = 0
        self._aborted: Counter[str] = Counter()

    def handle(self, event: Event, now: float) -> None:
        """Take in one event.

        Raises:
            LocalProtocolError: the shell broke the order of events: a bug.
            RemoteProtocolError: the peer broke a rule; nothing has changed.
        """
        match event:
            case events.Begin():
                self._begin(event, now)
            case events.Received(peer, message):
                self._silent.discard(peer)
                run = self._runs.get(message.gid)
                if run is None:
                    self._receive_stale(peer, message)
                else:
                    run.receive(peer, message, now)
                    run.go_on_without(self._silent, now)
            case events.Arriving(gid, peer):
                self._silent.discard(peer)
                if gid in self._runs:
                    self._runs[gid].times.note_bytes(peer, now)
            case events.Behind(gid, peer, behind_s):
                if gid in self._runs and peer in self._runs[gid].view:
                    self._runs[gid].roll.hold(peer, behind_s)
            case events.PeerLost(peer, gid):
                for run in self._runs.values():
                    if gid in (None, run.gid):
                        run.lose(peer, now)
            case events.PeerSilent(peer):
                self._silent.add(peer)
                for run in self._runs.values():
                    run.go_on_without(self._silent, now)
            case events.Loaded(gid, weight):
                if weight < 0 or not math.isfinite(weight):
                    raise LocalProtocolError(f"expected a weight above 0, or 0, got {weight}")
                if gid in self._runs:
                    self._runs[gid].note_loaded(weight, now)
            case events.Reduced(gid, plan, piece):
                if gid in self._runs:
                    self._runs[gid].note_reduced(plan, piece, now)
            case events.Witnessed(gid, plan, hashes):
                if gid in self._runs:
                    self._runs[gid].note_witnessed(plan, hashes, now)
            case events.Assembled(gid, plan, result, hashes):
                if gid in self._runs:
                    self._runs[gid].note_assembled(plan, result, hashes, now)
            case events.Failed(gid, why):
                if gid in self._runs:
                    self._runs[gid].give_up(f"local: {why}")
        self._collect(now)

    def note_over(self, gid: bytes, now: float) -> None:
        """This node committed it in an earlier life: it has no say in it any more."""
        self._ended[gid] = _Ended(now, None)

    def is_over(self, gid: bytes) -> bool:
        """Whether a run of this name was in a view here, and has ended."""
        return gid in self._ended

    def lacks_quorum(self, gid: bytes) -> bool:
        """Whether a run has no view yet, and waits for a majority of its electorate."""
        run = self._runs.get(gid)
        return run is not None and run.phase is Phase.ENLIST and run.roll.lacks_quorum

    def may_begin(self, gid: bytes) -> bool:
        """Whether Begin is allowed: a run that got as far as a first view is not repeated."""
        is_new = gid not in self._runs and gid not in self._ended
        return is_new and len(self._runs) < GROUP_RUNS_MAX

    def expects(self, peer: PeerId, message: wire.Share | wire.Sum) -> bool:
        """Whether a payload that begins to come would be kept; if not, it need not be read."""
        run = self._runs.get(message.gid)
        return run is not None and run.expects(peer, message)

    def poll_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        return min((run.deadline for run in self._runs.values()), default=None)

    def handle_deadline(self, now: float) -> None:
        """Repeat what may be lost; go on without the members that are silent."""
        for run in self._runs.values():
            if run.deadline <= now:
                run.handle_deadline(now)
                if run.begin.patience_s:
                    asked = run.waits_for if run.begin.silence_s else run.spare
                    self._effects += map(events.AskAlive, sorted(asked))
        self._collect(now)

    def statistics(self) -> GroupStatistics:
        """Return a frozen record of counters."""
        return GroupStatistics(
            running=len(self._runs),
            committed_total=self._committed,
            aborted_total=MappingProxyType(dict(self._aborted)),
            in_doubt_total=self._in_doubt,
            views_total=self._views + sum(len(run.adopted) for run in self._runs.values()),
            outcomes_kept=len(self._ended),
        )

    def _begin(self, event: events.Begin, now: float) -> None:
        if event.gid in self._runs or event.gid in self._ended:
            raise LocalProtocolError("a group mean begins once")
        if len(self._runs) >= GROUP_RUNS_MAX:
            raise LocalProtocolError(f"expected at most {GROUP_RUNS_MAX} group means at a time")
        n_members = len({*event.members, self._self_id})
        is_sound = (
            n_members <= limits.GROUP_MEMBERS_MAX
            and event.pieces_max >= 1
            and event.weight > 0
            and math.isfinite(event.weight)
            and len(event.weights) in (0, len(event.members))
            and 0 < event.enlist_s <= limits.GROUP_ENLIST_S_MAX
            and 0 <= event.quorum_s <= limits.GROUP_ENLIST_S_MAX
            and 0 < event.transfer_s <= limits.GROUP_TRANSFER_S_MAX
            and 0 <= event.silence_s <= event.patience_s <= event.transfer_s
            and 0 <= event.behind_s <= limits.ROUND_BEHIND_S_MAX
        )
        if not is_sound:
            raise LocalProtocolError(f"a group mean out of its limits: {n_members=}, {event}")
        self._silent.clear()  # they are asked again, if the shell has not left them out
        self._runs[event.gid] = Run(self._self_id, event, now)

    def _receive_stale(self, peer: PeerId, message: wire.Message) -> None:
        """Answer members that still wait for a run that is over here; drop what is not known."""
        ended = self._ended.get(message.gid)
        if ended is None or isinstance(message, wire.Leave | wire.Finished | wire.Share | wire.Sum):
            return
        commit = ended.commit
        if commit is None or peer not in commit.contributors:
            self._effects.append(Send(peer, wire.Leave(message.gid, "it is over here")))
        else:
            reply = wire.Finished(message.gid, commit.plan, commit.result)
            self._effects.append(Send(peer, reply))

    def _collect(self, now: float) -> None:
        """Take the effects of all runs, and let go of those that are over."""
        for gid, run in list(self._runs.items()):
            self._effects += run.effects
            run.effects.clear()
            if run.phase is Phase.OVER:
                del self._runs[gid]
                self._note_end(gid, run, now)

    def _note_end(self, gid: bytes, run: Run, now: float) -> None:
        outcome = run.outcome
        self._views += len(run.adopted)
        if isinstance(outcome, Commit):
            self._committed += 1
            self._ended[gid] = _Ended(now, outcome)
        else:
            assert outcome is not None, "a run that is over has an outcome"
            self._aborted[outcome.why.partition(":")[0]] += 1
            self._in_doubt += outcome.in_doubt
            if run.adopted:  # before the first view nothing was said that could bind
                self._ended[gid] = _Ended(now, None)
        for old in list(self._ended):
            is_old = self._ended[old].at + limits.GROUP_OUTCOME_KEEP_S < now
            if not is_old and len(self._ended) <= GROUP_OUTCOMES_MAX:
                break
            del self._ended[old]
