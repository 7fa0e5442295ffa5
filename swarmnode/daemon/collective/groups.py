"""Intents for a group mean: its members, how long they are waited for, and what becomes of it.

::

    PostedIntent --members, gid--> GroupRuns.begin ... roll closed --> Lessor.borrow
                                   ... Commit --> apply
                                       Abort ---> give_back

Training goes on while an intent waits for others; the payload is taken when the roll closes. How
long it stays open follows from how often this node wants the same: see GROUP_ENLIST_SHARE. Before
that is known it is GROUP_ENLIST_S_MAX; the next intent takes the place of one that still waits.

A quorum of the members that live closes a mean of a lineage; else nothing comes of it, and it is
tried again. So parts of a swarm that do not see each other do not both go on.

By a rule parts of a mean are made by two members. Those who differ from several others about a
part are left out of the next means, see ``protocol/gossip/witnesses.py``.

A group holds GROUP_MEMBERS_MAX, those with the smallest ids. The others train beside it and catch
up: two groups of one round would be two lineages for good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
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
from swarmnode.daemon.collective.rounds import Rounds, Topic, round_of, topic_of
from swarmnode.daemon.worker.leases import BufferLease, ComparingLessor
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip import groups, matching
from swarmnode.protocol.gossip.round_patience import Waits
from swarmnode.protocol.gossip.witnesses import Doubts
from swarmnode.protocol.session.buffers import BufferPool
from swarmnode.protocol.trust import Seen
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.pieces import Chunk, count_grains, cut_chunks

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator


GROUP_SERVICE = "group"
_log = get_logger("swarmnode.daemon.collective")
# Chunks: of fifty million elements by four members 280. Fresh memory costs more than the mean.
_BUFFERS_MAX = 320
_BUFFERS_KEPT_S = 10.0


class Groups(Rounds):
    """The IntentHandler of group means.

    Args:
        codec_name: the swarm's.

    Attributes:
        on_mean: told of each mean, over which members it is.
        payloads_refused_total: shares and sums of others that were implausibly large.
        rule_s: CPU seconds for rules of means, also as a witness of what others make.
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
        self.on_mean: Callable[[Collection[PeerId]], None] = lambda _contributors: None
        self.on_behind = self._hold
        self._doubts = Doubts()
        self._waited: dict[bytes, Waits] = {}  # of each run
        self._electorates: dict[bytes, tuple[PeerId, ...]] = {}  # of each, as it was begun
        self._buffers = BufferPool(_BUFFERS_MAX)
        self._has_averaged = trio.Event()  # since memory was looked at
        self.payloads_refused_total = 0
        self.rule_s = 0.0

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

    def partners_changed(self) -> None:
        """Go on without the dead; a roll that waits for a majority waits for one of those now."""
        super().partners_changed()
        for topic, attempts in list(self._attempts.items()):
            gid = self._newest.get(topic, b"")
            if not attempts.intent.lineage or not self.runs.core.lacks_quorum(gid):
                continue
            is_of_others = self._electorates[gid] != self._members(attempts.intent)[0]
            if is_of_others and attempts.begin_anew():
                self._give_up_quietly(gid, "others train now")
                self._begin(attempts.intent, topic, self._grace_s(topic))

    # --- inside --------------------------------------------------------------------------------

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
        made, now = cut_chunks(intent.views, self._codec_name), self._env.monotonic()
        has_witnesses = intent.merge != "mean"
        if not made or not self.runs.may_begin(gid):
            self.refused_total += 1
            why = "round: it is over here, or too many run at once"
            self._note_failure(topic, why)
            self._failed(topic, gid)  # in an earlier life of the worker
            self._lessor.drop(intent, why)
            return
        self._note_begun(gid, topic)
        transfer_s = transfer_limit_s(intent.numel)
        attempt = self._attempts[topic].number if topic in self._attempts else 0
        number = round_of(intent) + attempt
        waits = self._waits(members, transfer_s, made, now, number)
        if topic in self._attempts:  # a mean of a lineage
            waits = self.patience.holding(waits, members, now, self._catch_up_s(), enlist_s)
        self._waited[gid] = waits
        self._electorates[gid] = members
        begin = events.Begin(
            gid,
            waits.members,
            count_grains(made),
            intent.weight,
            enlist_s,
            transfer_s,
            # There may be members unknown here, which think that others have the places.
            electorate=members if is_full or intent.lineage is not None else (),
            quorum_s=limits.GROUP_ENLIST_S_MAX if intent.lineage is not None else 0.0,
            lineage=intent.lineage,
            attempt=attempt,
            has_witnesses=has_witnesses,
            is_witness=has_witnesses and self._doubts.is_witness(now, self._env.rng),
            patience_s=waits.stage_s,
            doubted=self.patience.doubted(members, now),
            silence_s=waits.silence_s,
            behind=waits.behind,
            behind_s=waits.behind_s,
        )
        self._begin_run(begin, intent, made, partial(self._ended, intent, gid))

    def _waits(
        self,
        members: tuple[PeerId, ...],
        transfer_s: float,
        made: tuple[Chunk, ...],
        now: float,
        number: int,
    ) -> Waits:
        """Return whom a round waits for: it follows the lines that members tell of."""
        sent_bytes = sum(chunk.codec.payload_bytes(chunk.numel) for chunk in made)
        sent_bytes -= sent_bytes // len(members)  # in a stage, to all others together
        rates = {**self.lines(), self._self_id: self.runs.rate.bytes_per_s}
        usual_s = self.patience.limit_s(transfer_s, 2 * self.call_s())
        needs_s = {peer: sent_bytes / rate for peer, rate in rates.items() if rate > 0}
        limits_s = (usual_s, transfer_s)
        waits = self.patience.waits(members, self._self_id, now, limits_s, needs_s, number)
        self.follows_line = line_words(waits, members, self._self_id, needs_s)
        return waits

    def _catch_up_s(self) -> float:
        """Return how long a member may take to fetch slow weights and to come with them.

        By the thinnest line that is put up with: what members say of theirs changes tenfold from
        one round to the next, and one that has a faster line comes sooner, which ends the wait.
        """
        steps_s = max(limits.ROUND_BEHIND_STEPS * self.call_s(), limits.GROUP_ENLIST_S_MIN)
        line_s = self.catch_up_bytes() / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
        return steps_s + limits.ROUND_THIN_SLACK * line_s

    def _hold(self, gid: bytes, peer: PeerId) -> None:
        """A mean that is made now would put a member that asks for slow weights behind again."""
        waits, now = self._waited[gid], self._env.monotonic()
        members, grace_s = (*waits.members, peer), self._grace_s(self._running[gid][0])
        held = self.patience.holding(waits, members, now, self._catch_up_s(), grace_s)
        if peer in held.behind:
            self._waited[gid] = replace(held, members=waits.members, behind=waits.behind | {peer})
            self.runs.hold(gid, peer, held.behind_s)

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
            self._note_rule,
            in_thread=self._env.in_thread,
            make_buffer=self._buffers.get,
        )
        if isinstance(cargo, RobustPayload):
            self.runs.begin(begin, cargo, maker=cargo)
        else:
            self.runs.begin(begin, cargo)

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

    def _note_rule(self, seconds: float) -> None:
        self.rule_s += seconds

    def _ended(
        self,
        intent: PostedIntent,
        gid: bytes,
        lease: BufferLease | None,
        how: events.Commit | events.Abort,
    ) -> None:
        topic = topic_of(intent)
        self._has_averaged.set()
        if isinstance(how, events.Abort):
            self._doubt(how)
        now = self._env.monotonic()
        took_s = now - self._running[gid][1]
        contributors = how.contributors if isinstance(how, events.Commit) else ()
        made_s = how.usual_s if isinstance(how, events.Commit) else 0.0
        waits = self._waited.pop(gid)
        del self._electorates[gid]
        self.patience.note_over(waits, contributors, took_s, now)
        self.patience.note_roll(waits, contributors, took_s - made_s, now)
        self._note_over(gid, topic, is_in_vain=isinstance(how, events.Abort))
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
        now, n_partners = self._env.monotonic(), len(self._partners.partners())
        for maker, witness in abort.differ:
            self._doubts.add(maker, witness, now)
            _log.warning("a part of a mean differs", maker=maker.short, witness=witness.short)
            faulty = self._doubts.faulty(n_partners, now) - {self._self_id}
            for peer in sorted({maker, witness} & faulty):  # for longer, and over a restart
                self._trust.note(peer, Seen.FAULTY, now)

    def _commit(
        self,
        intent: PostedIntent,
        topic: Topic,
        lease: BufferLease,
        commit: events.Commit,
        took_s: float,
    ) -> None:
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
            round=round_of(intent),
            members=len(peers),
            result=result.hex()[:16],
            is_applied=is_applied,
        )

    def _abort(
        self, intent: PostedIntent, topic: Topic, lease: BufferLease | None, why: str
    ) -> None:
        self._say_failure("no group mean", intent, why)
        self._come_to_nothing(intent, topic, lease, why)


def line_words(
    waits: Waits, members: Collection[PeerId], self_id: PeerId, needs_s: Mapping[PeerId, float]
) -> str:
    """Return how a round follows a thin line, as people are told; "": there is none."""
    own_s = needs_s.get(self_id, 0.0)
    left_out = [peer for peer in members if peer in needs_s and peer not in waits.members]
    others_s = sorted(need_s for peer, need_s in needs_s.items() if peer != self_id)
    usual_s = max(others_s[len(others_s) // 2] if others_s else own_s, limits.EXCHANGE_ANSWER_S_MIN)
    if own_s > limits.EXCHANGE_PATIENCE * usual_s:
        return (
            f"the line of this node needs {own_s:.3g} s to send its part of a round, most others"
            f" {others_s[len(others_s) // 2]:.2g} s: they wait for it in some rounds"
        )
    if waits.thin:
        n = _count_members(len(waits.thin))
        return f"a stage of this round may last {waits.stage_s:.3g} s, for {n} on a thin line"
    if left_out:
        n, share = _count_members(len(left_out)), limits.ROUND_THIN_SHARE
        return (
            f"{n} on a thin line waited for in at most {share:.1%} of the time, not in this round"
        )
    return ""


def _count_members(n: int) -> str:
    return "1 member" if n == 1 else f"{n} members"
