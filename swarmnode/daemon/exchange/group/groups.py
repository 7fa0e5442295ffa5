"""Intents for a group mean: who takes part, how long they are waited for, and what becomes of it.

::

    PostedIntent --members, gid--> GroupRuns.begin ... roll closed --> Lessor.borrow
                                   ... Commit --> apply
                                       Abort ---> give_back

Training goes on while an intent waits for others, so waiting costs no step; the payload is taken
when the roll closes. How long it stays open follows from how often this node wants the same: see
GROUP_ENLIST_SHARE. Before that is known it is GROUP_ENLIST_S_MAX, for workers that start together
build their models at different speed; the next intent takes the place of one that still waits.

Means of a lineage are named by what they stand on, not by the round of a node: whoever stands
behind the same mean makes the next together, each when it is due there. A quorum of the members
that live closes it; else nothing comes of it, and it is tried again when it is due again, by
another name (``attempts``). So parts of a swarm that do not see each other do not both go on.

A group holds GROUP_MEMBERS_MAX. Where more train, those with the smallest ids have its places, and
the others train beside it and catch up: two groups of one round would be two lineages for good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.group.attempts import Attempts
from swarmnode.daemon.exchange.group.payload import (
    FLOAT32_BYTES,
    GroupPayload,
    count_grains,
    cut_chunks,
)
from swarmnode.daemon.exchange.group.runs import GroupRuns
from swarmnode.daemon.exchange.history import MeanEnded
from swarmnode.daemon.worker.leases import BufferLease, Lessor
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.net.services import ScopedServices
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip import groups, matching
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import group as wire

if TYPE_CHECKING:
    from swarmnode.daemon.exchange.pair.exchanges import Partners


GROUP_SERVICE = "group"
_log = get_logger("swarmnode.daemon.exchange")
_Topic = tuple[str, int]  # tag, fragment
_WHOLE = -1  # all fragments
# One round that comes to nothing is a straggler's. From the second in a row on, and after so long
# that rounds of a second may miss a few, it is no accident.
_FAILED_MIN = 2
_FAILED_S_MIN = 5.0
# Between two calls that the worker is told of: all members repeat theirs twice a second, and a step
# is rarely shorter.
_CALL_TOLD_S = 0.1


@dataclass(frozen=True)
class Failing:
    """Rounds of one kind that came to nothing, one after the other; at first there are none."""

    since: float  # when the first of them began
    rounds: int = 0
    why: str = ""  # of the last


class Failures:
    """Rounds that come to nothing, one after the other, by what they are of; bounded as intents."""

    def __init__(self) -> None:
        self._failing: dict[_Topic, Failing] = {}

    def note(self, topic: _Topic, since: float, why: str) -> None:
        """A round that began at ``since`` came to nothing."""
        before = self._failing.get(topic, Failing(since))
        self._failing[topic] = replace(before, rounds=before.rounds + 1, why=why)

    def forget(self, topic: _Topic) -> None:
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


class Groups:
    """The IntentHandler of group means.

    Args:
        key: 32 bytes that guard every exchange.
        codec_name: the swarm's.
        live: who is alive, as the failure detector knows.

    Attributes:
        on_mean: told of each mean over whom it is.
        on_record: one line of history.
        on_intent: told of each round that begins.
        on_worker_gone: told that the next worker begins anew.
        on_call: told which mean others wait for, when this node is not due itself.
        on_end: told of each round's end, and whether its mean is applied.
        is_beside: whether all places of the group were taken by others at the last intent.
        committed_total, refused_total: means applied, and intents that did not even begin.
        payloads_refused_total: shares and sums of others that were implausibly large.
    """

    def __init__(
        self,
        *,
        self_id: PeerId,
        swarm_id: bytes,
        key: bytes,
        codec_name: str,
        partners: Partners,
        services: ScopedServices,
        lessor: Lessor,
        live: Callable[[], Collection[PeerId]],
        env: Env,
    ) -> None:
        self._self_id = self_id
        self._swarm_id = swarm_id
        self._key = key
        self._codec_name = codec_name
        self._partners = partners
        self._lessor = lessor
        self._env = env
        self._running: dict[bytes, tuple[_Topic, float]] = {}  # and since when
        self._newest: dict[_Topic, bytes] = {}  # bounded as intents are, like the next
        self._attempts: dict[_Topic, Attempts] = {}  # of means in a lineage
        self._posted_at: dict[_Topic, float] = {}
        self._graces: dict[_Topic, float] = {}  # how long the roll of a topic stays open
        self._failures = Failures()
        self._call_told_at = -math.inf
        self._is_known = False  # to the worker, or it is dead: nothing came of the intent
        self.runs = GroupRuns(
            GROUP_SERVICE,
            self_id=self_id,
            partners=partners,
            services=services,
            live=live,
            env=env,
            called=self._called,
        )
        self.on_mean: Callable[[Collection[PeerId]], None] = lambda _contributors: None
        self.on_record: Callable[[MeanEnded], None] = lambda _mean: None
        self.on_intent: Callable[[PostedIntent], None] = lambda _intent: None
        self.on_end: Callable[[bool], None] = lambda _is_applied: None
        self.on_worker_gone: Callable[[], None] = lambda: None
        self.on_call: Callable[[int], None] = lambda _lineage: None
        self.is_beside = False
        self.committed_total = self.refused_total = self.payloads_refused_total = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve intents until cancelled."""
        await self.runs.run(task_status=task_status)

    # --- as an IntentHandler -----------------------------------------------------------------

    def intent_posted(self, intent: PostedIntent) -> None:
        """Look for others that want the same; an earlier intent that still waits is given up."""
        topic = _topic(intent)
        self._replace(topic)
        self.on_intent(intent)
        enlist_s = self._enlist_s(topic)
        if intent.lineage is not None:
            attempts = self._attempts.setdefault(topic, Attempts(self._key, intent))
            attempts.post(intent)
        self._begin(intent, topic, enlist_s)

    def worker_gone(self) -> None:
        """Leave all runs: the payload, and the room for the mean, were the worker's."""
        for gid in list(self._running):
            self._give_up_quietly(gid, "the worker went away")
        self._newest.clear()
        self._attempts.clear()
        self._posted_at.clear()
        self._failures.clear()
        self.is_beside = False
        self.on_worker_gone()

    def partners_changed(self) -> None:
        """Go on without the dead. A member that came is in the next round."""
        self.runs.members_changed()

    # --- inside --------------------------------------------------------------------------------

    def _gid(self, intent: PostedIntent, topic: _Topic) -> bytes:
        if topic in self._attempts:
            return self._attempts[topic].gid
        tag, fragment, number = intent.tag, intent.fragment, intent.round
        return events.group_id(self._key, tag, fragment, number, intent.base_version)

    def _begin(self, intent: PostedIntent, topic: _Topic, enlist_s: float) -> None:
        members, is_full = self._members(intent)
        self.is_beside = self._self_id not in members
        if self.is_beside:
            self.refused_total += 1
            self._failures.forget(topic)
            self._lessor.drop(intent, f"busy: {len(members)} others have all places of the group")
            self.on_end(False)
            return
        gid = self._gid(intent, topic)
        made = cut_chunks(intent, self._codec_name)
        if not made or not self.runs.may_begin(gid):
            self.refused_total += 1
            why = "round: it is over here, or too many run at once"
            self._note_failure(topic, why)
            if topic in self._attempts:
                self._attempts[topic].failed()  # of an earlier life of the worker
            self._lessor.drop(intent, why)
            return
        self._running[gid] = (topic, self._env.monotonic())
        self._newest[topic] = gid
        begin = events.Begin(
            gid,
            members,
            count_grains(made),
            intent.weight,
            enlist_s,
            transfer_limit_s(intent.numel),
            # There may be more members than are known here, who think that others have the places.
            electorate=members if is_full or intent.lineage is not None else (),
            quorum_s=limits.GROUP_ENLIST_S_MAX if intent.lineage is not None else 0.0,
            lineage=intent.lineage,
            attempt=self._attempts[topic].number if topic in self._attempts else 0,
        )
        ended = partial(self._ended, intent, gid)
        cargo = GroupPayload(
            intent, made, self._lessor, self._self_id, ended, self._note_refused_payload
        )
        self.runs.begin(begin, cargo)

    def _replace(self, topic: _Topic) -> None:
        """The worker knows already that nothing came of an intent that it lent nothing for."""
        gid = self._newest.get(topic, b"")
        if self.runs.is_enlisting(gid):
            self._give_up_quietly(gid, "nobody came before the next round")

    def _give_up_quietly(self, gid: bytes, why: str) -> None:
        self._is_known = True
        self.runs.give_up(gid, why)
        self._is_known = False

    def _enlist_s(self, topic: _Topic) -> float:
        now = self._env.monotonic()
        before = self._posted_at.get(topic, -math.inf)  # the first waits for the longest
        self._posted_at[topic] = now
        share = limits.GROUP_ENLIST_SHARE * (now - before)
        self._graces[topic] = min(max(share, limits.GROUP_ENLIST_S_MIN), limits.GROUP_ENLIST_S_MAX)
        return self._graces[topic]

    def _grace_s(self, topic: _Topic) -> float:
        return self._graces.get(topic, limits.GROUP_ENLIST_S_MAX)

    def failing(self, now: float) -> Failing:
        """Return the rounds that come to nothing again and again, if others are there, or were."""
        if not (self.committed_total or len(self._partners.partners()) > 1):
            return Failing(now)  # the first node of a swarm waits for the second
        waiting = [
            Failing(since, 1, "a quorum of the members has not come")
            for gid, (topic, since) in self._running.items()
            if self.runs.is_enlisting(gid)
            and now - since >= max(_FAILED_S_MIN, 1.5 * self._grace_s(topic))
        ]
        return self._failures.look(now, *waiting)

    def _note_failure(self, topic: _Topic, why: str) -> None:
        since = self._posted_at.get(topic, self._env.monotonic())
        self._failures.note(topic, since, why)

    def _called(self, peer: PeerId, message: wire.Message) -> None:
        """A member waits for this node: later, behind, where it has no place, or before it is due."""
        if not isinstance(message, wire.Enlist):
            return
        if self.is_beside:
            self.runs.refuse(peer, message.gid, "others have all places of the group")
            return
        for topic, attempts in self._attempts.items():
            newest = self._newest.get(topic, b"")
            is_waiting = self.runs.is_enlisting(newest)
            if is_waiting and attempts.follow(message):
                self._give_up_quietly(newest, "others are at a later attempt")
                self._begin(attempts.intent, topic, self._grace_s(topic))
                return
            if attempts.is_ahead_of(message):
                self.runs.refuse(peer, message.gid, "behind: other means were made since")
                return
            if not newest and attempts.is_level_with(message):
                attempts.follow(message)
                self._pass_on(message)
                return

    def _pass_on(self, call: wire.Enlist) -> None:
        """Let the worker hand in what it has: who calls does not wait until it is due here."""
        now = self._env.monotonic()
        if call.lineage is not None and now >= self._call_told_at + _CALL_TOLD_S:
            self._call_told_at = now
            self.on_call(call.lineage)

    def _members(self, intent: PostedIntent) -> tuple[tuple[PeerId, ...], bool]:
        """Return with whom, and whether all places are taken.

        All meet. Or it is this node's part of the round's order where the strategy wants groups
        of a size, and has no lineages, which parts of a round would be.
        """
        everybody = {*self._partners.partners(), self._self_id}
        size = min(intent.group_size_max or limits.GROUP_MEMBERS_MAX, limits.GROUP_MEMBERS_MAX)
        if not intent.group_size_max or intent.lineage is not None:
            return groups.seats(everybody, size), len(everybody) >= size
        salt = self._swarm_id + f"/{intent.tag}/{intent.fragment}".encode()
        ordered = matching.order(salt, intent.round, everybody)
        begin = ordered.index(self._self_id) // size * size
        return tuple(ordered[begin : begin + size]), False

    def _note_refused_payload(self) -> None:
        self.payloads_refused_total += 1

    def _ended(
        self,
        intent: PostedIntent,
        gid: bytes,
        lease: BufferLease | None,
        how: events.Commit | events.Abort,
    ) -> None:
        topic, since = self._running.pop(gid)
        if self._newest.get(topic) == gid:
            del self._newest[topic]
            attempts = self._attempts.get(topic)
            if isinstance(how, events.Abort) and attempts is not None and attempts.gid == gid:
                attempts.failed()
        took_s = self._env.monotonic() - since
        if isinstance(how, events.Commit) and lease is not None:
            self._apply(intent, topic, lease, how, took_s)
        else:
            why = how.why if isinstance(how, events.Abort) else "nothing was lent"
            self._abort(intent, topic, lease, why)
            if lease is not None:
                in_doubt = isinstance(how, events.Abort) and how.in_doubt
                self.on_record(MeanEnded(gid, (), b"", why, in_doubt, took_s))

    def _apply(
        self,
        intent: PostedIntent,
        topic: _Topic,
        lease: BufferLease,
        commit: events.Commit,
        took_s: float,
    ) -> None:
        if topic in self._attempts:
            self._attempts[topic].committed()
        present = tuple(bytes(peer) for peer in commit.contributors)
        is_applied = self._lessor.apply(lease, commit.gid, present=present)
        self.committed_total += is_applied
        self._failures.forget(topic)
        self.on_mean(commit.contributors)
        self.on_end(is_applied)
        peers, result = commit.contributors, commit.result
        self.on_record(
            MeanEnded(commit.gid, peers, result, "", False, took_s, is_lost=not is_applied)
        )
        _log.info(
            "group mean",
            tag=intent.tag,
            round=_round_of(intent),
            members=len(present),
            result=commit.result.hex()[:16],
            is_applied=is_applied,
        )

    def _abort(
        self, intent: PostedIntent, topic: _Topic, lease: BufferLease | None, why: str
    ) -> None:
        _log.info("no group mean", tag=intent.tag, round=_round_of(intent), why=why)
        if lease is not None:
            self._lessor.give_back(lease, why)
        elif not self._is_known:
            self._lessor.drop(intent, why)
        self._note_failure(topic, why)
        self.on_end(False)


def _topic(intent: PostedIntent) -> _Topic:
    """Return what there is one mean of at a time; a lineage is one, whatever its fragments are."""
    return (intent.tag, intent.fragment if intent.lineage is None else _WHOLE)


def _round_of(intent: PostedIntent) -> int:
    """Return a number that is the same for all who average the same."""
    return intent.round if intent.lineage is None else intent.lineage


def transfer_limit_s(numel: int) -> float:
    """Return how long one share or sum may take: a slow step, and all of it at a slow uplink."""
    payload_s = numel * FLOAT32_BYTES / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
    wanted_s = limits.EXCHANGE_TRANSFER_S_MIN + limits.EXCHANGE_VIEW_S + payload_s
    return min(wanted_s, limits.GROUP_TRANSFER_S_MAX)
