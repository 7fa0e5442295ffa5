"""The exact mean of one vector of each member, in files, by rounds of groups.

One group if it can be, else a grid of them (``protocol/gossip/groups.py``): after the last round
all members hold the same bits, by weight over everybody, unless somebody died on the way. In one
group that costs nothing, since the others then hold the mean over those who are left. In a grid it
makes the result a little wrong: :attr:`GlobalMean.is_exact` says so.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.group.groups import transfer_limit_s
from swarmnode.daemon.exchange.group.payload import (
    FLOAT32_BYTES,
    GroupPayload,
    cut_chunks,
    cut_pieces,
)
from swarmnode.daemon.exchange.group.runs import GroupRuns
from swarmnode.daemon.worker.loans import Loan
from swarmnode.errors import WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Partner, ViewShape, Wish
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.groups import Group, grid

_CODEC = "RAW32"
_TAG = "finalize"


@dataclass(frozen=True)
class GlobalMean:
    """``path``: float32, little-endian. ``contributors``: whose vectors are in it."""

    path: Path
    contributors: int
    is_exact: bool


@dataclass(frozen=True)
class Vector:
    """A file of ``numel`` float32 numbers."""

    path: Path
    numel: int


async def global_mean(
    runs: GroupRuns,
    own: Vector,
    room: Path,
    *,
    self_id: PeerId,
    key: bytes,
    weights: Mapping[PeerId, float],
) -> GlobalMean:
    """Average with all of ``weights``, this node among them, who do the same.

    Args:
        weights: what everybody counts, and nobody says otherwise on the way.
        own: overwritten where there are several rounds.
        room: another file, for what comes.
        key: 32 bytes that name this mean, the same for all.

    Raises:
        WorkerError: nothing came of it here.
    """
    rounds = groups_of(weights, key)
    present, is_exact = len(weights), True
    vector, other = own, room
    for number, groups in enumerate(rounds):
        group = next(each for each in groups if self_id in each.members)
        if len(group.members) == 1:
            continue
        found = await _one_round(runs, vector, other, number, group, self_id=self_id, key=key)
        if found < len(group.members):
            present, is_exact = found, len(rounds) == 1
        vector, other = Vector(other, own.numel), vector.path
    return GlobalMean(vector.path, present, is_exact)


def groups_of(weights: Mapping[PeerId, float], key: bytes) -> tuple[tuple[Group, ...], ...]:
    """Return the groups of each round; the same on every member."""
    members = sorted(weights)
    if len(members) <= limits.GROUP_MEMBERS_MAX:
        return ((Group(tuple(members), tuple(weights[peer] for peer in members)),),)
    return grid(key, members, limits.FINALIZE_GROUP_SIZE, weights)


async def _one_round(
    runs: GroupRuns,
    own: Vector,
    room: Path,
    number: int,
    group: Group,
    *,
    self_id: PeerId,
    key: bytes,
) -> int:
    """Average ``own`` into ``room``; return over how many. Raises WorkerError."""
    weight = group.weights[group.members.index(self_id)]
    view = ViewShape(_TAG, _CODEC, own.numel)
    wish = Wish(0, "group", _TAG, 0, number, "all", (view,), weight=weight)
    n_bytes = own.numel * FLOAT32_BYTES
    lender = _FileLender(_mapped(own.path, n_bytes), _mapped(room, n_bytes))
    pieces = cut_pieces(cut_chunks(wish, _CODEC))
    gid = events.group_id(key, _TAG, 0, number, b"")
    begin = events.Begin(
        gid,
        group.members,
        len(pieces),
        weight,
        limits.FINALIZE_ENLIST_S,
        transfer_limit_s(own.numel),
        weights=group.weights,
    )
    runs.begin(begin, GroupPayload(wish, pieces, lender, self_id, lender.ended))
    try:
        await lender.is_over.wait()
    finally:
        runs.give_up(gid, "asked to stop")
    if not isinstance(lender.outcome, events.Commit):
        why = lender.outcome.why if lender.outcome is not None else "it was stopped"
        raise WorkerError(f"no mean over all members: {why}")
    return len(lender.outcome.contributors)


class _FileLender:
    """Lends one file, once. It is a ``Lender`` of which a group's cargo uses ``borrow`` only."""

    def __init__(self, own: memoryview, room: memoryview) -> None:
        self._own, self._room = own, room
        self.is_over = trio.Event()
        self.outcome: events.Commit | events.Abort | None = None

    async def borrow(
        self,
        wish: Wish,
        partner: Partner | None = None,  # noqa: ARG002
        round_number: int | None = None,  # noqa: ARG002
    ) -> Loan:
        await trio.lowlevel.checkpoint()
        return Loan(wish, 0, 0, self._own, self._room, 0, 0)

    def ended(self, loan: Loan | None, how: events.Commit | events.Abort) -> None:  # noqa: ARG002
        self.outcome = how
        self.is_over.set()

    def apply(self, *_: object, **__: object) -> bool:
        return True

    def give_back(self, loan: Loan, why: str) -> None:
        """Nothing is owed."""

    def drop(self, wish: Wish, why: str) -> None:
        """Nobody waits to hear it."""


def _mapped(path: Path, n_bytes: int) -> memoryview:
    """Map a file of that size, made if it is not there; what is written is in the file.

    It is unmapped when nobody holds a part of it any more: cancelled work lets go of it late.
    """
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(n_bytes)
        return memoryview(mmap.mmap(file.fileno(), n_bytes))
