"""Rounds of an intent handler: which of them run, how they end, and which attempt each of them is.

For means and gatherings alike. A round that counted is applied; of one that came to nothing the
worker is told once, and what comes to nothing again and again is found by its topic.

A run that came to nothing cannot be had again, so the next one at the same mean has another name:
its attempt is part of it, where runs of no lineage have the round. A node counts on when a run of
its own ends in vain, and when a peer calls to a later one; so all members behind the same mean
meet in the highest that any of them has reached.

A member that is due calls the others. Once half of all members call, those that are not due hand in
what they have by then. If each waited for the end of its own round, one that missed a round would
come late to each of the next; if one call were enough, whichever member was the fastest of the
moment would shorten the rounds of all, and each round costs its bytes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import trio

from swarmnode import limits
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.worker.leases import BufferLease, Lessor
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group_events import group_id
from swarmnode.protocol.gossip.round_patience import BEHIND, RoundPatience
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.exchange.group import Enlist

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator

Topic = tuple[str, int]  # tag, fragment
_WHOLE = -1  # all fragments
# How far one call moves a node on: else a liar would count it up to the last number there is.
_AHEAD_MAX = 2**20
# Times that calls may begin the wait for others anew, for one intent: a liar must not prolong it.
_RESTARTS_MAX = 4
# Between two calls that are told of: all members repeat theirs twice a second.
_CALL_TOLD_S = 0.1
_APART_TOLD_S = 2.0  # and what members say of their lineages takes as long to come
# One round that comes to nothing is a straggler's, and rounds of a second may miss a few.
_FAILED_MIN = 2
_FAILED_S_MIN = 5.0
_log = get_logger("swarmnode.daemon.collective")


@dataclass
class Attempts:
    """Of one kind of mean; ``key`` is that of all exchanges."""

    key: bytes
    intent: PostedIntent
    number: int = 0
    _count: int = 0  # means behind this node
    _restarts_left: int = _RESTARTS_MAX
    _callers: dict[PeerId, int | None] = field(default_factory=dict)  # and for which mean

    @property
    def gid(self) -> bytes:
        """The name of the run that this node makes or is to make."""
        return self._gid(self.number)

    def post(self, intent: PostedIntent) -> None:
        """Take the next intent: on with the same mean, or another one from the beginning."""
        topic = (intent.fragment, intent.base_version)
        if topic != (self.intent.fragment, self.intent.base_version):
            self.number = 0
        self.intent, self._restarts_left = intent, _RESTARTS_MAX
        self._count = intent.lineage or 0
        self._callers.clear()

    def committed(self) -> None:
        """One more mean is behind this node."""
        self._count += 1

    def failed(self) -> None:
        """The run ended in vain: the next one has another name."""
        self.number += 1

    def begin_anew(self) -> bool:
        """Go on to another attempt for the same intent; False: it was begun anew often enough."""
        if not self._restarts_left:
            return False
        self._restarts_left -= 1
        self.number += 1
        return True

    def follow(self, call: Enlist) -> bool:
        """Go on to the attempt that a peer calls to; return whether it is a later one at this mean.

        What it says counts only if the run's name agrees.
        """
        is_later = self.number < call.attempt <= self.number + _AHEAD_MAX
        if not is_later or not self._restarts_left or self._gid(call.attempt) != call.gid:
            return False
        self.number = call.attempt
        self._restarts_left -= 1
        return True

    def is_called(self, peer: PeerId, call: Enlist, present: Collection[PeerId]) -> bool:
        """Take note of a call; return whether half of those present call for the same mean."""
        self._callers = {each: mean for each, mean in self._callers.items() if each in present}
        if peer in present:
            self._callers[peer] = call.lineage
        callers = sum(mean == call.lineage for mean in self._callers.values())
        return 2 * callers >= len(present)

    def is_ahead_of(self, call: Enlist) -> bool:
        """Whether the member that calls lacks means that are behind this node."""
        return call.lineage is not None and call.lineage < self._count

    def is_apart_from(self, call: Enlist) -> bool:
        """Whether the member that calls stands behind another mean after as many."""
        return call.lineage == self._count and self._gid(call.attempt) != call.gid

    def _gid(self, number: int) -> bytes:
        intent = self.intent
        return group_id(self.key, intent.tag, intent.fragment, number, intent.base_version)


@dataclass(frozen=True)
class Failing:
    """Rounds of one kind that came to nothing, one after the other; at first there are none."""

    since: float  # when the first of them began
    rounds: int = 0
    why: str = ""  # of the last


class Failures:
    """Rounds that come to nothing, one after the other, by what they are of; bounded as intents."""

    def __init__(self) -> None:
        self._failing: dict[Topic, Failing] = {}

    def note(self, topic: Topic, since: float, why: str) -> None:
        """A round that began at ``since`` came to nothing."""
        before = self._failing.get(topic, Failing(since))
        self._failing[topic] = replace(before, rounds=before.rounds + 1, why=why)

    def forget(self, topic: Topic) -> None:
        """A round counted."""
        self._failing.pop(topic, None)

    def clear(self) -> None:
        """The next worker begins anew."""
        self._failing.clear()

    def look(self, now: float, *others: Failing) -> Failing:
        """Return what comes to nothing again and again for the longest; ``others`` count too."""
        found = [
            each
            for each in self._failing.values()
            if each.rounds >= _FAILED_MIN and now - each.since >= _FAILED_S_MIN
        ]
        return min((*found, *others), key=lambda each: each.since, default=Failing(now))


class FirstMean:
    """Whether a swarm has made its first mean of all, as this node knows.

    A quorum of those that were there made it. So for a node that has none behind it, half of the
    others must claim some: one that lied would let some begin without those that still start.
    """

    def __init__(self) -> None:
        self.is_made = False
        self._claims: set[PeerId] = set()  # bounded by the members at the last one

    def claimed(self, peer: PeerId, members: Collection[PeerId]) -> bool:
        """A peer says that it has means behind it; return whether that makes it known just now.

        ``members`` are all that train, start or rest, this node included.
        """
        if self.is_made:
            return False
        self._claims = {each for each in (*self._claims, peer) if each in members}
        self.is_made = bool(self._claims) and 2 * len(self._claims) >= len(members) - 1
        return self.is_made


class Rounds(ABC):
    """An IntentHandler of rounds, without what one kind of them carries.

    Args:
        service: of the runs.

    Attributes:
        on_intent: told of each round that begins.
        on_call: told which round of a lineage half of the members wait for, when this node is not
            due itself.
        on_behind: told of a run that still enlists, and of a member that has to catch up first.
        on_apart: told that others wait on another lineage, while this node waits.
        on_end: told of each round's end, and whether what came of it is applied.
        on_worker_gone: told that the next worker begins anew.
        on_record: one line of history.
        call_s: how long a member that is called may take to come; 0: not known.
        catch_up_bytes: what a member that lacks means has to fetch; 0: not known.
        lines: what the uplink of each other member carries in a second, as it says.
        is_beside: whether others had all places at the last intent.
        follows_line: how the last round followed a thin line, in words; "": there is none.
        patience: how long members are waited for.
        committed_total, refused_total: rounds applied, and intents that did not even begin.
        places: for so many members.
    """

    places: ClassVar[int]

    def __init__(
        self,
        service: str,
        communicator: Communicator,
        lessor: Lessor,
    ) -> None:
        self._self_id, self._key = communicator.self_id, communicator.key
        self._partners, self._trust = communicator.partners, communicator.trust
        self._lessor = lessor
        self._env = communicator.env
        self._running: dict[bytes, tuple[Topic, float]] = {}  # and since when
        self._newest: dict[Topic, bytes] = {}  # bounded as intents are, like the next
        self._posted_at: dict[Topic, float] = {}
        self._graces: dict[Topic, float] = {}  # how long the roll of a topic stays open
        self._failures = Failures()
        self._attempts: dict[Topic, Attempts] = {}  # of rounds in a lineage
        self._call_told_at = self._apart_told_at = -math.inf
        self._settled = trio.Event()  # a run is over
        self._first_mean = FirstMean()
        self._is_known = False  # to the worker, or it is dead: nothing came of the intent
        self.patience = RoundPatience()
        self.runs = GroupRuns(
            service,
            communicator,
            called=self._called,
            held=self._note_held,
            patience=self.patience,
        )
        self.on_intent: Callable[[PostedIntent], None] = lambda _intent: None
        self.on_call: Callable[[int], None] = lambda _lineage: None
        self.on_apart: Callable[[], None] = lambda: None
        self.on_behind: Callable[[bytes, PeerId], None] = lambda _gid, _peer: None
        self.on_end: Callable[[bool], None] = lambda _is_applied: None
        self.on_worker_gone: Callable[[], None] = lambda: None
        self.on_record: Callable[[events.MeanEnded], None] = lambda _round: None
        self.call_s: Callable[[], float] = lambda: 0.0
        self.catch_up_bytes: Callable[[], int] = lambda: 0
        self.lines: Callable[[], Mapping[PeerId, float]] = dict
        self.is_beside = False
        self.follows_line = ""
        self.committed_total = self.refused_total = 0

    # --- as an IntentHandler -----------------------------------------------------------------

    def intent_posted(self, intent: PostedIntent) -> None:
        """Look for others that want the same; an earlier intent that still waits is given up."""
        topic = topic_of(intent)
        self._replace(topic)
        self.on_intent(intent)
        enlist_s = self._enlist_s(topic)
        self._first_mean.is_made |= bool(intent.lineage)
        if intent.lineage is not None:
            attempts = self._attempts.setdefault(topic, Attempts(self._key, intent))
            attempts.post(intent)
            # One of an earlier life of the worker, or of the node, has its say already.
            while self.runs.core.is_over(attempts.gid):
                attempts.failed()
        self._begin(intent, topic, enlist_s)

    def worker_gone(self) -> None:
        """Leave all runs: the payload, and the room for what comes of them, were the worker's."""
        for gid in list(self._running):
            self._give_up_quietly(gid, "the worker went away")
        self._newest.clear()
        self._posted_at.clear()
        self._attempts.clear()
        self._failures.clear()
        self.is_beside = False
        self.on_worker_gone()

    def note_committed(self, gid: bytes) -> None:
        """This node committed this mean in an earlier life."""
        self.runs.note_over(gid)
        self._first_mean.is_made = True

    def partners_changed(self) -> None:
        """Go on without the dead. A member that came is in the next round."""
        self.runs.members_changed()

    def failing(self, now: float) -> Failing:
        """Return the rounds that come to nothing again and again, if others are there, or were."""
        if not (self.committed_total or len(self._partners.partners()) > 1):
            return Failing(now)  # the first node of a swarm waits for the second
        waiting = (
            Failing(since, 1, "a quorum of the members has not come")
            for gid, (topic, since) in self._running.items()
            if self.runs.is_enlisting(gid)
            and now - since >= max(_FAILED_S_MIN, 1.5 * self._grace_s(topic))
        )
        return self._failures.look(now, *waiting)

    def payload_bytes(self) -> tuple[int, int]:
        """Return the bytes of payloads sent and received, since the start."""
        return self.runs.sent_bytes, self.runs.received_bytes

    async def settled(self) -> None:
        """Wait while a round of a lineage is made: what stands before it is behind in a moment."""
        while self._is_making:
            await self._settled.wait()

    @property
    def _is_making(self) -> bool:
        return any(
            topic in self._attempts and not self.runs.is_enlisting(gid)
            for gid, (topic, _) in self._running.items()
        )

    # --- for one kind of rounds --------------------------------------------------------------

    @abstractmethod
    def _begin(self, intent: PostedIntent, topic: Topic, enlist_s: float) -> None:
        """Begin the run of this intent, or drop it."""

    def _gid(self, intent: PostedIntent, topic: Topic) -> bytes:
        if topic in self._attempts:
            return self._attempts[topic].gid
        number = intent.round
        return group_id(self._key, intent.tag, intent.fragment, number, intent.base_version)

    def _called(self, peer: PeerId, message: wire.Message) -> None:
        """A member waits for this node: behind it, where it has no place, or before it is due."""
        if not isinstance(message, Enlist):
            return
        if self.is_beside:
            self.runs.refuse(peer, message.gid, "others have all places")
            return
        # Others do not know yet; of the first mean of all, who starts is a part.
        if message.lineage and self._self_id not in self._partners.active():
            self.runs.refuse(peer, message.gid, "its worker takes no steps now")
            return
        if message.lineage and self._first_mean.claimed(peer, self._partners.partners()):
            for gid in list(self._newest.values()):
                if self.runs.is_enlisting(gid):  # for the first mean, over those that start as well
                    self.runs.give_up(gid, "others have made means")
        now = self._env.monotonic()
        for topic, attempts in self._attempts.items():
            newest = self._newest.get(topic, b"")
            is_waiting = self.runs.is_enlisting(newest)
            if is_waiting and attempts.is_apart_from(message):
                # Where neither part has a majority, no round ends.
                if now >= self._apart_told_at + _APART_TOLD_S:
                    self._apart_told_at = now
                    self.on_apart()
                return
            if is_waiting and attempts.follow(message):
                self._give_up_quietly(newest, "others are at a later attempt")
                self._begin(attempts.intent, topic, self._grace_s(topic))
                return
            if attempts.is_ahead_of(message):
                self.patience.note_behind(peer, now)
                self.runs.refuse(peer, message.gid, f"{BEHIND}other rounds were made since")
                if is_waiting:
                    self.on_behind(newest, peer)
                return
            if not newest:
                attempts.follow(message)
                is_called = attempts.is_called(peer, message, self._present())
                if is_called and now >= self._call_told_at + _CALL_TOLD_S:
                    self._call_told_at = now
                    self.on_call(message.lineage or 0)
                return

    def _present(self) -> set[PeerId]:
        """Return the members that train, ourselves included, without those that are left out.

        Those that rest or start are no part of the majority that a round of a lineage needs: where
        most volunteers rest, the others go on. But all begin together: who is not in the first mean
        of all may take those of the others for worse than what it has learnt alone meanwhile.
        """
        partners = self._partners
        found = partners.active() if self._first_mean.is_made else partners.partners()
        members = {*found, self._self_id}
        others = members - {self._self_id}
        return members - self._trust.left_out(others, self._env.monotonic())

    def _grace_s(self, topic: Topic) -> float:
        return self._graces.get(topic, limits.GROUP_ENLIST_S_MAX)

    def _replace(self, topic: Topic) -> None:
        """The worker knows already that nothing came of an intent that it lent nothing for."""
        gid = self._newest.get(topic, b"")
        if self.runs.is_enlisting(gid):
            self._give_up_quietly(gid, "no member came before the next round")

    def _give_up_quietly(self, gid: bytes, why: str) -> None:
        """Give a run up of which the worker knows already that nothing came."""
        self._is_known = True
        self.runs.give_up(gid, why)
        self._is_known = False

    def _enlist_s(self, topic: Topic) -> float:
        """An intent came: return how long its roll stays open; see GROUP_ENLIST_SHARE.

        A straggler hears the call at the end of its local step. Rolls that close before, in the
        same part of its step each time, would leave it out of the means of one fragment for good.
        """
        now = self._env.monotonic()
        before = self._posted_at.get(topic, -math.inf)  # the first waits for the longest
        self._posted_at[topic] = now
        share = limits.GROUP_ENLIST_SHARE * (now - before)
        least = max(limits.GROUP_ENLIST_S_MIN, self.call_s())
        self._graces[topic] = min(max(share, least), limits.GROUP_ENLIST_S_MAX)
        return self._graces[topic]

    def _note_begun(self, gid: bytes, topic: Topic) -> None:
        """A run of this name is made, or about to be."""
        self._running[gid] = (topic, self._env.monotonic())
        self._newest[topic] = gid

    def _note_over(self, gid: bytes, topic: Topic, *, is_in_vain: bool) -> None:
        """A run has ended; one that was the newest of its topic in vain has a next attempt."""
        self._running.pop(gid, None)
        self._settled.set()
        self._settled = trio.Event()
        if self._newest.get(topic) != gid:
            return
        del self._newest[topic]
        if is_in_vain:
            self._failed(topic, gid)

    def _failed(self, topic: Topic, gid: bytes) -> None:
        """This attempt came to nothing, or there was none: it is over in another life."""
        if topic in self._attempts and self._attempts[topic].gid == gid:
            self._attempts[topic].failed()

    def _note_held(self, peer: PeerId, held_s: float) -> None:
        self.patience.note_held(peer, held_s, self._env.monotonic())
        _log.info("a round waited for a member", peer=peer.short, held_s=round(held_s, 2))

    def _say_failure(self, event: str, intent: PostedIntent, why: str) -> None:
        """Without others nothing else can come of a round: that is no news."""
        say = _log.info if len(self._partners.partners()) > 1 else _log.debug
        say(event, tag=intent.tag, round=round_of(intent), why=why)

    def _note_failure(self, topic: Topic, why: str) -> None:
        since = self._posted_at.get(topic, self._env.monotonic())
        self._failures.note(topic, since, why)

    def _apply(
        self,
        topic: Topic,
        lease: BufferLease,
        commit: events.Commit,
        contributors: Collection[PeerId],
    ) -> bool:
        """Hand the worker what came of a round; return whether it was there to take it."""
        if topic in self._attempts:
            self._attempts[topic].committed()
        self.patience.note_commit(commit.usual_s)
        present = tuple(bytes(peer) for peer in contributors)
        is_applied = self._lessor.apply(lease, commit.gid, present=present)
        self.committed_total += is_applied
        self._failures.forget(topic)
        return is_applied

    def _come_to_nothing(
        self, intent: PostedIntent, topic: Topic, lease: BufferLease | None, why: str
    ) -> None:
        """Give back what was lent; else tell the worker, unless it knows."""
        if lease is not None:
            self._lessor.give_back(lease, why)
        elif not self._is_known:
            self._lessor.drop(intent, why)
        self._note_failure(topic, why)
        self.on_end(False)


def topic_of(intent: PostedIntent) -> Topic:
    """Return what there is one round of at a time; a lineage is one, whatever its fragments are."""
    return (intent.tag, intent.fragment if intent.lineage is None else _WHOLE)


def round_of(intent: PostedIntent) -> int:
    """Return a number that is the same for all members that want the same."""
    return intent.round if intent.lineage is None else intent.lineage
