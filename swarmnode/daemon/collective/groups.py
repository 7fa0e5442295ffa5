"""Intents for a group mean: its members, how long they are waited for, and what becomes of it.

::

    PostedIntent --members, gid--> GroupRuns.begin ... roll closed --> Lessor.borrow
                                   ... Commit --> apply
                                       Abort ---> give_back

Training goes on while an intent waits for others, so waiting costs no step; the payload is taken
when the roll closes. How long it stays open follows from how often this node wants the same: see
GROUP_ENLIST_SHARE. Before that is known it is GROUP_ENLIST_S_MAX, for workers that start together
build their models at different speed; the next intent takes the place of one that still waits.

Means of a lineage are named by what they stand on, not by the round of a node: members behind
the same mean make the next together, each when it is due there. A quorum of the members that live
closes it; else nothing comes of it, and it is tried again when it is due again, by another name
(``attempts``). So parts of a swarm that do not see each other do not both go on.

By a rule parts of a mean are made by two members. Those who differ from several others about a
part are left out of the next means, see ``protocol/gossip/witnesses.py``.

A group holds GROUP_MEMBERS_MAX. Where more train, those with the smallest ids have its places, and
the others train beside it and catch up: two groups of one round would be two lineages for good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.collective.payload import (
    GroupEnded,
    GroupPayload,
    RobustPayload,
    transfer_limit_s,
)
from swarmnode.daemon.collective.rounds import FAILED_S_MIN, Attempts, Failing, Rounds, Topic
from swarmnode.daemon.worker.leases import BufferLease, ComparingLessor
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip import groups, matching
from swarmnode.protocol.gossip.witnesses import Doubts
from swarmnode.protocol.session.buffers import BufferPool
from swarmnode.protocol.trust import Seen
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.pieces import Chunk, count_grains, cut_chunks
from swarmnode.wire.exchange import group as wire

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator


GROUP_SERVICE = "group"
_log = get_logger("swarmnode.daemon.collective")
_WHOLE = -1  # all fragments
# Between two calls that the worker is told of: all members repeat theirs twice a second, and a step
# is rarely shorter.
_CALL_TOLD_S = 0.1
# Chunks of a mean: of fifty million elements by four members there are 280. What was used a moment
# ago is no more than the next mean takes, and fresh memory costs more than averaging in it.
_BUFFERS_MAX = 320
_BUFFERS_KEPT_S = 10.0


class Groups(Rounds):
    """The IntentHandler of group means.

    Args:
        codec_name: the swarm's.

    Attributes:
        on_mean: told of each mean, over which members it is.
        on_record: one line of history.
        on_call: told which mean others wait for, when this node is not due itself.
        payloads_refused_total: shares and sums of others that were implausibly large.
    """

    places = limits.GROUP_MEMBERS_MAX

    def __init__(
        self,
        communicator: Communicator,
        *,
        swarm_id: bytes,
        codec_name: str,
        lessor: ComparingLessor,
    ) -> None:
        super().__init__(GROUP_SERVICE, communicator, lessor)
        self._swarm_id = swarm_id
        self._comparing = lessor
        self._codec_name = codec_name
        self._attempts: dict[Topic, Attempts] = {}  # of means in a lineage
        self.on_mean: Callable[[Collection[PeerId]], None] = lambda _contributors: None
        self.on_record: Callable[[events.MeanEnded], None] = lambda _mean: None
        self.on_call: Callable[[int], None] = lambda _lineage: None
        self._call_told_at = -math.inf
        self._doubts = Doubts()
        self._buffers = BufferPool(_BUFFERS_MAX)
        self._has_averaged = trio.Event()  # since memory was looked at
        self.payloads_refused_total = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve intents until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_back_memory)
            await self.runs.run(task_status=task_status)

    async def _give_back_memory(self) -> None:
        """Keep the buffers of a mean for the next, unless that is long in coming."""
        while True:
            await self._has_averaged.wait()
            while self._has_averaged.is_set():
                self._has_averaged = trio.Event()
                await trio.sleep(_BUFFERS_KEPT_S)
            self._buffers.clear()

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
        """Leave all runs, whatever attempt they are."""
        super().worker_gone()
        self._attempts.clear()

    # --- inside --------------------------------------------------------------------------------

    def _gid(self, intent: PostedIntent, topic: Topic) -> bytes:
        if topic in self._attempts:
            return self._attempts[topic].gid
        tag, fragment, number = intent.tag, intent.fragment, intent.round
        return events.group_id(self._key, tag, fragment, number, intent.base_version)

    def _begin(self, intent: PostedIntent, topic: Topic, enlist_s: float) -> None:
        members, is_full = self._members(intent)
        self.is_beside = self._self_id not in members
        if self.is_beside:
            self.refused_total += 1
            self._failures.forget(topic)
            self._lessor.drop(intent, f"busy: {len(members)} others have all places of the group")
            self.on_end(False)
            return
        gid = self._gid(intent, topic)
        made = cut_chunks(intent.views, self._codec_name)
        now, has_witnesses = self._env.monotonic(), intent.merge != "mean"
        if not made or not self.runs.may_begin(gid):
            self.refused_total += 1
            why = "round: it is over here, or too many run at once"
            self._note_failure(topic, why)
            if topic in self._attempts:
                self._attempts[topic].failed()  # of an earlier life of the worker
            self._lessor.drop(intent, why)
            return
        self._note_begun(gid, topic)
        transfer_s = transfer_limit_s(intent.numel)
        begin = events.Begin(
            gid,
            self._waited_for(members),
            count_grains(made),
            intent.weight,
            enlist_s,
            transfer_s,
            # There may be members unknown here, which think that others have the places.
            electorate=members if is_full or intent.lineage is not None else (),
            quorum_s=limits.GROUP_ENLIST_S_MAX if intent.lineage is not None else 0.0,
            lineage=intent.lineage,
            attempt=self._attempts[topic].number if topic in self._attempts else 0,
            has_witnesses=has_witnesses,
            is_witness=has_witnesses and self._doubts.is_witness(now, self._env.rng),
            patience_s=self._patience_s(transfer_s),
        )
        self._begin_run(begin, intent, made, partial(self._ended, intent, gid))

    def _begin_run(
        self, begin: events.Begin, intent: PostedIntent, made: tuple[Chunk, ...], ended: GroupEnded
    ) -> None:
        is_plain = intent.merge == "mean"
        kind: type[GroupPayload[ComparingLessor]] = GroupPayload if is_plain else RobustPayload
        cargo = kind(
            intent,
            made,
            self._comparing,
            self._self_id,
            ended,
            self._note_refused_payload,
            in_thread=self._env.in_thread,
            make_buffer=self._buffers.get,
        )
        if isinstance(cargo, RobustPayload):
            self.runs.begin(begin, cargo, maker=cargo)
        else:
            self.runs.begin(begin, cargo)

    def _waiting(self, now: float) -> Sequence[Failing]:
        return [
            Failing(since, 1, "a quorum of the members has not come")
            for gid, (topic, since) in self._running.items()
            if self.runs.is_enlisting(gid)
            and now - since >= max(FAILED_S_MIN, 1.5 * self._grace_s(topic))
        ]

    def _grace_s(self, topic: Topic) -> float:
        return self._graces.get(topic, limits.GROUP_ENLIST_S_MAX)

    def _called(self, peer: PeerId, message: wire.Message) -> None:
        """A member waits for this node: behind it, where it has no place, or before it is due."""
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
            if not newest:
                attempts.follow(message)
                self._pass_on(message.lineage or 0)
                return

    def _pass_on(self, lineage: int) -> None:
        """Let the worker hand in what it has: peers that call do not wait until it is due here."""
        now = self._env.monotonic()
        if now >= self._call_told_at + _CALL_TOLD_S:
            self._call_told_at = now
            self.on_call(lineage)

    def _members(self, intent: PostedIntent) -> tuple[tuple[PeerId, ...], bool]:
        """Return the members of a group, and whether all places are taken.

        All meet. Or it is this node's part of the round's order where the strategy wants groups
        of a size, and has no lineages, which parts of a round would be.
        """
        members = self._present()
        members -= self._doubts.faulty(len(members), self._env.monotonic()) - {self._self_id}
        size = min(intent.group_size_max or limits.GROUP_MEMBERS_MAX, limits.GROUP_MEMBERS_MAX)
        if not intent.group_size_max or intent.lineage is not None:
            return groups.seats(members, size), len(members) >= size
        salt = self._swarm_id + f"/{intent.tag}/{intent.fragment}".encode()
        ordered = matching.order(salt, intent.round, members)
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
        topic = _topic(intent)
        self._has_averaged.set()
        if isinstance(how, events.Abort):
            self._doubt(how)
        took_s = self._env.monotonic() - self._running[gid][1]
        if self._note_over(gid, topic) and isinstance(how, events.Abort):
            attempts = self._attempts.get(topic)
            if attempts is not None and attempts.gid == gid:
                attempts.failed()
        match how, lease:
            case events.Commit() as commit, BufferLease() as lent:
                self._commit(intent, topic, lent, commit, took_s)
            case events.Commit(), None:
                self._abort(intent, topic, lease, "nothing was lent")
            case events.Abort(why=why), None:
                self._abort(intent, topic, lease, why)
            case events.Abort(why=why, in_doubt=in_doubt), BufferLease() as lent:
                self._abort(intent, topic, lent, why)
                self.on_record(events.MeanEnded(gid, (), b"", why, in_doubt, took_s))

    def _doubt(self, abort: events.Abort) -> None:
        """Remember who made the same part of a mean in two ways; one of them is faulty."""
        for maker, witness in abort.differ:
            self._doubts.add(maker, witness, self._env.monotonic())
            _log.warning("a part of a mean differs", maker=maker.short, witness=witness.short)
            self._note_faulty({maker, witness} - {self._self_id})

    def _note_faulty(self, peers: set[PeerId]) -> None:
        """Remember for longer, and over a restart, which of two must be the faulty one."""
        now = self._env.monotonic()
        for peer in sorted(peers & self._doubts.faulty(len(self._partners.partners()), now)):
            self._trust.note(peer, Seen.FAULTY, now)

    def _commit(
        self,
        intent: PostedIntent,
        topic: Topic,
        lease: BufferLease,
        commit: events.Commit,
        took_s: float,
    ) -> None:
        if topic in self._attempts:
            self._attempts[topic].committed()
        peers, result = commit.contributors, commit.result
        is_applied = self._apply(topic, lease, commit, peers)
        self.on_mean(peers)
        self.on_end(is_applied)
        self.on_record(
            events.MeanEnded(commit.gid, peers, result, "", False, took_s, is_lost=not is_applied)
        )
        _log.info(
            "group mean",
            tag=intent.tag,
            round=_round_of(intent),
            members=len(peers),
            result=result.hex()[:16],
            is_applied=is_applied,
        )

    def _abort(
        self, intent: PostedIntent, topic: Topic, lease: BufferLease | None, why: str
    ) -> None:
        _log.info("no group mean", tag=intent.tag, round=_round_of(intent), why=why)
        self._come_to_nothing(intent, topic, lease, why)


def _topic(intent: PostedIntent) -> Topic:
    """Return what there is one mean of at a time; a lineage is one, whatever its fragments are."""
    return (intent.tag, intent.fragment if intent.lineage is None else _WHOLE)


def _round_of(intent: PostedIntent) -> int:
    """Return a number that is the same for all members that average the same."""
    return intent.round if intent.lineage is None else intent.lineage
