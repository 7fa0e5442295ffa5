"""Wishes for a group mean: who takes part, how long they are waited for, and what becomes of it.

::

    Wish --members, gid--> GroupRuns.begin ... roll closed --> Lender.borrow ... Commit --> apply
                                                                             Abort --> give_back

Training goes on while a wish waits for others, so waiting costs no step; the payload is taken when
the roll closes. How long it stays open follows from how often this node wishes the same: see
GROUP_ENLIST_SHARE. Before that is known it is GROUP_ENLIST_S_MAX, for workers that start together
build their models at different speed; the next wish takes the place of one that still waits.

A group holds GROUP_MEMBERS_MAX. Where more train, those with the smallest ids have its places, and
the others train beside it and catch up: two groups of one round would be two lineages for good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.group.payload import (
    FLOAT32_BYTES,
    GroupPayload,
    cut_chunks,
    cut_pieces,
)
from swarmnode.daemon.exchange.group.runs import GroupRuns
from swarmnode.daemon.worker.loans import Lender, Loan
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Wish
from swarmnode.net.services import ScopedServices
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip import groups, matching
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import group as wire

if TYPE_CHECKING:
    from swarmnode.daemon.exchange.pair.exchanges import Partners


GROUP_SERVICE = "group"
_log = get_logger("swarmnode.daemon.exchange")
_Lane = tuple[str, int]  # tag, fragment
# One round that comes to nothing is a straggler's. From the second in a row on, and after so long
# that rounds of a second may miss a few, it is no accident.
_FAILED_MIN = 2
_FAILED_S_MIN = 5.0


@dataclass(frozen=True)
class Failing:
    """Rounds of one kind that came to nothing, one after the other."""

    rounds: int
    since: float  # when the first of them began
    why: str  # of the last


class Groups:
    """The WishTaker of group means.

    Args:
        key: 32 bytes that guard every exchange.
        codec_name: the swarm's.
        live: who is alive, as the failure detector knows.

    Attributes:
        on_mean: told of each mean over whom it is.
        on_wish: told of each round that begins.
        on_worker_gone: told that the next worker begins anew.
        on_end: told of each round's end, and whether its mean is applied.
        is_beside: whether all places of the group were taken by others at the last wish.
        committed_total, refused_total: means applied, and wishes that did not even begin.
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
        lender: Lender,
        live: Callable[[], Collection[PeerId]],
        env: Env,
    ) -> None:
        self._self_id = self_id
        self._swarm_id = swarm_id
        self._key = key
        self._codec_name = codec_name
        self._partners = partners
        self._lender = lender
        self._env = env
        self._running: dict[bytes, _Lane] = {}
        self._newest: dict[_Lane, bytes] = {}  # bounded as wishes are, like the next
        self._wished_at: dict[_Lane, float] = {}
        self._failing: dict[_Lane, Failing] = {}
        self._is_known = False  # to the worker, or it is dead: nothing came of the wish
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
        self.on_wish: Callable[[Wish], None] = lambda _wish: None
        self.on_end: Callable[[bool], None] = lambda _is_applied: None
        self.on_worker_gone: Callable[[], None] = lambda: None
        self.is_beside = False
        self.committed_total = self.refused_total = self.payloads_refused_total = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve wishes until cancelled."""
        await self.runs.run(task_status=task_status)

    # --- as a WishTaker ------------------------------------------------------------------------

    def wished(self, wish: Wish) -> None:
        """Look for others who wish the same; an earlier wish that still waits is given up."""
        lane = (wish.tag, wish.fragment)
        self._replace(lane)
        self.on_wish(wish)
        members, is_full = self._members(wish)
        self.is_beside = self._self_id not in members
        if self.is_beside:
            self.refused_total += 1
            self._failing.pop(lane, None)
            self._lender.drop(wish, f"busy: {len(members)} others have all places of the group")
            self.on_end(False)
            return
        enlist_s = self._enlist_s(lane)
        gid = events.group_id(self._key, wish.tag, wish.fragment, wish.round, wish.base_version)
        pieces = cut_pieces(cut_chunks(wish, self._codec_name))
        if not pieces or not self.runs.may_begin(gid):
            self.refused_total += 1
            why = "round: it is over here, or too many run at once"
            self._note_failure(lane, why)
            self._lender.drop(wish, why)
            return
        self._running[gid] = lane
        self._newest[lane] = gid
        begin = events.Begin(
            gid,
            members,
            len(pieces),
            wish.weight,
            enlist_s,
            transfer_limit_s(wish.numel),
            # There may be more members than are known here, who think that others have the places.
            electorate=members if is_full else (),
        )
        ended = partial(self._ended, wish, gid)
        cargo = GroupPayload(
            wish, pieces, self._lender, self._self_id, ended, self._note_refused_payload
        )
        self.runs.begin(begin, cargo)

    def worker_gone(self) -> None:
        """Leave all runs: the payload, and the room for the mean, were the worker's."""
        for gid in list(self._running):
            self._give_up_quietly(gid, "the worker went away")
        self._newest.clear()
        self._wished_at.clear()
        self._failing.clear()
        self.is_beside = False
        self.on_worker_gone()

    def partners_changed(self) -> None:
        """Go on without the dead. Whoever came is in the next round."""
        self.runs.members_changed()

    # --- inside --------------------------------------------------------------------------------

    def _replace(self, lane: _Lane) -> None:
        """The worker knows already that nothing came of a wish that it lent nothing for."""
        gid = self._newest.get(lane, b"")
        if self.runs.is_enlisting(gid):
            self._give_up_quietly(gid, "nobody came before the next round")

    def _give_up_quietly(self, gid: bytes, why: str) -> None:
        self._is_known = True
        self.runs.give_up(gid, why)
        self._is_known = False

    def _enlist_s(self, lane: _Lane) -> float:
        now = self._env.monotonic()
        before = self._wished_at.get(lane)
        self._wished_at[lane] = now
        if before is None:
            return limits.GROUP_ENLIST_S_MAX
        share = limits.GROUP_ENLIST_SHARE * (now - before)
        return min(max(share, limits.GROUP_ENLIST_S_MIN), limits.GROUP_ENLIST_S_MAX)

    def failing(self, now: float) -> Failing | None:
        """Return the rounds that come to nothing again and again, if others are there, or were."""
        if not (self.committed_total or len(self._partners.partners()) > 1):
            return None  # the first node of a swarm waits for the second
        found = [
            each
            for each in self._failing.values()
            if each.rounds >= _FAILED_MIN and now - each.since >= _FAILED_S_MIN
        ]
        return min(found, key=lambda each: each.since, default=None)

    def _note_failure(self, lane: _Lane, why: str) -> None:
        before = self._failing.get(lane)
        since = self._wished_at.get(lane, self._env.monotonic()) if before is None else before.since
        self._failing[lane] = Failing(1 if before is None else before.rounds + 1, since, why)

    def _called(self, peer: PeerId, message: wire.Message) -> None:
        """A member waits for this node, which has no place: let it go on."""
        if self.is_beside and isinstance(message, wire.Enlist):
            self.runs.refuse(peer, message.gid, "others have all places of the group")

    def _members(self, wish: Wish) -> tuple[tuple[PeerId, ...], bool]:
        """Return with whom, and whether all places are taken.

        All meet. Or it is this node's part of the round's order where the strategy wants groups
        of a size, and has no lineages, which parts of a round would be.
        """
        everybody = {*self._partners.partners(), self._self_id}
        size = min(wish.group_size_max or limits.GROUP_MEMBERS_MAX, limits.GROUP_MEMBERS_MAX)
        if not wish.group_size_max or wish.lineage is not None:
            return groups.seats(everybody, size), len(everybody) >= size
        salt = self._swarm_id + f"/{wish.tag}/{wish.fragment}".encode()
        ordered = matching.order(salt, wish.round, everybody)
        begin = ordered.index(self._self_id) // size * size
        return tuple(ordered[begin : begin + size]), False

    def _note_refused_payload(self) -> None:
        self.payloads_refused_total += 1

    def _ended(
        self, wish: Wish, gid: bytes, loan: Loan | None, how: events.Commit | events.Abort
    ) -> None:
        lane = self._running.pop(gid)
        if self._newest.get(lane) == gid:
            del self._newest[lane]
        if isinstance(how, events.Commit) and loan is not None:
            present = tuple(bytes(peer) for peer in how.contributors)
            is_applied = self._lender.apply(loan, gid, present=present)
            self.committed_total += is_applied
            self._failing.pop(lane, None)
            self.on_mean(how.contributors)
            self.on_end(is_applied)
            _log.info(
                "group mean",
                tag=wish.tag,
                round=wish.round,
                members=len(present),
                result=how.result.hex()[:16],
                is_applied=is_applied,
            )
            return
        why = how.why if isinstance(how, events.Abort) else "nothing was lent"
        _log.info("no group mean", tag=wish.tag, round=wish.round, why=why)
        if loan is not None:
            self._lender.give_back(loan, why)
        elif not self._is_known:
            self._lender.drop(wish, why)
        self._note_failure(lane, why)
        self.on_end(False)


def transfer_limit_s(numel: int) -> float:
    """Return how long one share or sum may take: a slow step, and all of it at a slow uplink."""
    payload_s = numel * FLOAT32_BYTES / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
    wanted_s = limits.EXCHANGE_TRANSFER_S_MIN + limits.EXCHANGE_VIEW_S + payload_s
    return min(wanted_s, limits.GROUP_TRANSFER_S_MAX)
