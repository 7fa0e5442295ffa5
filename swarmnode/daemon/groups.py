"""Wishes for a group mean: who takes part, how long they are waited for, and what becomes of it.

::

    Wish --members, gid--> GroupRuns.begin ... roll closed --> Lender.borrow ... Commit --> apply
                                                                             Abort --> give_back

Training goes on while a wish waits for others, so waiting costs no step; the payload is taken when
the roll closes. How long it stays open follows from how often this node wishes the same: see
GROUP_ENLIST_SHARE. Before that is known it is GROUP_ENLIST_S_MAX, for workers that start together
build their models at different speed; the next wish takes the place of one that still waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.group_payload import FLOAT32_BYTES, GroupPayload, cut_chunks, cut_pieces
from swarmnode.daemon.group_runs import GroupRuns
from swarmnode.daemon.loans import Lender, Loan
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Wish
from swarmnode.net.services import ScopedServices
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip import matching
from swarmnode.telemetry.logs import get_logger

if TYPE_CHECKING:
    from swarmnode.daemon.exchange import Partners


GROUP_SERVICE = "group"
_log = get_logger(__name__)
_Lane = tuple[str, int]  # tag, fragment


class Groups:
    """The WishTaker of group means.

    Args:
        key: 32 bytes that guard every exchange.
        codec_name: the swarm's.
        live: who is alive, as the failure detector knows.

    Attributes:
        on_mean: told of each mean over whom it is.
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
        self._is_known = False  # to the worker, or it is dead: nothing came of the wish
        self.runs = GroupRuns(
            GROUP_SERVICE,
            self_id=self_id,
            partners=partners,
            services=services,
            live=live,
            env=env,
        )
        self.on_mean: Callable[[Collection[PeerId]], None] = lambda _contributors: None
        self.committed_total = self.refused_total = self.payloads_refused_total = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve wishes until cancelled."""
        await self.runs.run(task_status=task_status)

    # --- as a WishTaker ------------------------------------------------------------------------

    def wished(self, wish: Wish) -> None:
        """Look for others who wish the same; an earlier wish that still waits is given up."""
        lane = (wish.tag, wish.fragment)
        self._replace(lane)
        enlist_s = self._enlist_s(lane)
        gid = events.group_id(self._key, wish.tag, wish.fragment, wish.round, wish.base_version)
        pieces = cut_pieces(cut_chunks(wish, self._codec_name))
        if not pieces or not self.runs.may_begin(gid):
            self.refused_total += 1
            self._lender.drop(wish, "round: it is over here, or too many run at once")
            return
        self._running[gid] = lane
        self._newest[lane] = gid
        begin = events.Begin(
            gid,
            self._members(wish),
            len(pieces),
            wish.weight,
            enlist_s,
            transfer_limit_s(wish.numel),
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

    def _members(self, wish: Wish) -> tuple[PeerId, ...]:
        """Return with whom, this node included: all, or its part of the round's order."""
        salt = self._swarm_id + f"/{wish.tag}/{wish.fragment}".encode()
        everybody = {*self._partners.partners(), self._self_id}
        ordered = matching.order(salt, wish.round, everybody)
        size = min(wish.group_size_max or limits.GROUP_MEMBERS_MAX, limits.GROUP_MEMBERS_MAX)
        begin = ordered.index(self._self_id) // size * size
        return tuple(ordered[begin : begin + size])

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
            self.on_mean(how.contributors)
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


def transfer_limit_s(numel: int) -> float:
    """Return how long one share or sum may take: a slow step, and all of it at a slow uplink."""
    payload_s = numel * FLOAT32_BYTES / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
    wanted_s = limits.EXCHANGE_TRANSFER_S_MIN + limits.EXCHANGE_VIEW_S + payload_s
    return min(wanted_s, limits.GROUP_TRANSFER_S_MAX)
