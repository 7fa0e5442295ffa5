"""A node's part in a merge of all members' models that an operator asked for; see ``finalize.py``.

The exact mean of one vector of each member, in files, by rounds of groups.

One group if it can be, else a grid of them (``protocol/gossip/groups.py``): after the last round
all members hold the same bits, by weight over all members, unless one died on the way. In one
group that costs nothing, since the others then hold the mean over the members left. In a grid it
makes the result a little wrong: :attr:`GlobalMean.is_exact` says so.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.daemon.collective.payload import GroupPayload, transfer_limit_s
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.driver import run_concurrently
from swarmnode.daemon.membership.swarm import Communicator, Partners
from swarmnode.daemon.worker.leases import BufferLease
from swarmnode.daemon.worker.link import MergeDesk
from swarmnode.errors import Overloaded, Refused, SwarmNodeError, WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import MergeWeighed, PostedIntent
from swarmnode.ipc.records import Partner, ViewShape
from swarmnode.net.session import Session
from swarmnode.protocol.blobs.bucket import Rates
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.groups import Group, fair_weights, grid
from swarmnode.store.files import make_private_dir
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.pieces import FLOAT32_BYTES, count_grains, cut_chunks
from swarmnode.wire.exchange import finalize as wire
from swarmnode.wire.packing import decode_record, encode_record

_log = get_logger("swarmnode.daemon.collective")


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
    in_thread: Callable[..., Awaitable[Any]],
) -> GlobalMean:
    """Average with all members in ``weights``, this node among them, which do the same.

    Args:
        weights: what each member counts, and none says otherwise on the way.
        own: overwritten where there are several rounds.
        room: another file, for what comes.
        key: 32 bytes that name this mean, the same for all.
        in_thread: as that of ``Env``.

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
        found = await _one_round(
            runs, vector, other, number, group, self_id=self_id, key=key, in_thread=in_thread
        )
        if found < len(group.members):
            present, is_exact = found, len(rounds) == 1
        vector, other = Vector(other, own.numel), vector.path
    return GlobalMean(vector.path, present, is_exact)


def groups_of(weights: Mapping[PeerId, float], key: bytes) -> tuple[tuple[Group, ...], ...]:
    """Return the groups of each round; the same on every member."""
    members = sorted(weights)
    if len(members) <= limits.FINALIZE_GROUP_MEMBERS_MAX:
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
    in_thread: Callable[..., Awaitable[Any]],
) -> int:
    """Average ``own`` into ``room``; return over how many. Raises WorkerError."""
    weight = group.weights[group.members.index(self_id)]
    view = ViewShape(_TAG, _CODEC, own.numel)
    intent = PostedIntent(0, "group", _TAG, 0, number, "all", (view,), weight=weight)
    n_bytes = own.numel * FLOAT32_BYTES
    lessor = _FileLessor(_mapped(own.path, n_bytes), _mapped(room, n_bytes))
    made = cut_chunks(intent.views, _CODEC)
    gid = events.group_id(key, _TAG, 0, number, b"")
    begin = events.Begin(
        gid,
        group.members,
        count_grains(made),
        weight,
        limits.FINALIZE_ENLIST_S,
        transfer_limit_s(own.numel),
        weights=group.weights,
    )
    cargo = GroupPayload(intent, made, lessor, self_id, lessor.ended, in_thread=in_thread)
    runs.begin(begin, cargo)
    try:
        await lessor.is_over.wait()
    finally:
        runs.give_up(gid, "asked to stop")
    if not isinstance(lessor.outcome, events.Commit):
        raise WorkerError(f"no mean over all members: {lessor.outcome.why}")
    return len(lessor.outcome.contributors)


class _FileLessor:
    """Lends one file, once. It is a ``Lessor`` of which a group's cargo uses ``borrow`` only."""

    def __init__(self, own: memoryview, room: memoryview) -> None:
        self._own, self._room = own, room
        self.is_over = trio.Event()
        self.outcome: events.Commit | events.Abort = events.Abort(b"", "it was stopped", False)

    async def borrow(
        self,
        intent: PostedIntent,
        partner: Partner | None = None,  # noqa: ARG002
        round_number: int | None = None,  # noqa: ARG002
    ) -> BufferLease:
        await trio.lowlevel.checkpoint()
        return BufferLease(intent, 0, 0, self._own, self._room, 0, 0)

    def ended(self, lease: BufferLease | None, how: events.Commit | events.Abort) -> None:  # noqa: ARG002
        self.outcome = how
        self.is_over.set()

    def apply(self, *_: object, **__: object) -> bool:
        return True

    def give_back(self, lease: BufferLease, why: str) -> None:
        """Nothing is owed."""

    def drop(self, intent: PostedIntent, why: str) -> None:
        """No caller waits to hear it."""


def _mapped(path: Path, n_bytes: int) -> memoryview:
    """Map a file of that size, made if it is not there; what is written is in the file.

    It is unmapped when no task holds a part of it any more: cancelled work lets go of it late.
    """
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(n_bytes)
        return memoryview(mmap.mmap(file.fileno(), n_bytes))


_KEY_DOMAIN = b"swarmnode/finalize/1\0"
_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type


class Swarm(Partners, Protocol):
    """What is needed of our part in the swarm."""

    def mergers(self) -> Sequence[PeerId]:
        """Return the live members that have a model, ourselves included."""

    def is_in_good_standing(self, peer: PeerId) -> bool:
        """Whether a member may ask others for work."""

    async def connect(self, peer: PeerId) -> Session:
        """Return a session. Raises SwarmNodeError."""


@dataclass
class _Taken:
    """A merge that this node takes part in."""

    fid: bytes
    asker: PeerId
    rule: str
    until: float
    numel: int = 0  # of our own share, once the worker has written it
    is_working: bool = False
    has_worked: bool = False


class MergePart:
    """Takes part in one merge at a time, its own ones included.

    Args:
        runs: of groups, for this alone.
        folder: for what a merge needs on disk; whatever lies there is removed.

    Attributes:
        weighed: the last merged model that this node asked for.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        swarm: Swarm,
        runs: GroupRuns,
        desk: MergeDesk,
        folder: Path,
    ) -> None:
        self.weighed: MergeWeighed | None = None
        self._self_id, self._key = communicator.self_id, communicator.key
        self._swarm = swarm
        self._runs = runs
        self._desk = desk
        self._folder = folder
        self._env = communicator.env
        self._taken: dict[tuple[bytes, PeerId], _Taken] = {}  # by its id and asker; one at most
        self._quiet_until = -math.inf
        self._askers: Rates[PeerId] = Rates(
            1 / limits.FINALIZE_ASKER_S, 1, limits.FINALIZE_ASKERS_MAX
        )

    async def answer(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer a request of a member. Raises SwarmNodeError."""
        message: wire.Message = decode_record(payload, _MESSAGE)
        match message:
            case wire.Prepare():
                return encode_record(await self.prepare(peer, message))
            case wire.Merge():
                return encode_record(await self.merge(peer, message))
            case wire.Done():
                self.forget(peer, message.fid)
        return b""

    async def prepare(self, peer: PeerId, message: wire.Prepare) -> wire.Prepared:
        """Have our worker write its share.

        Raises:
            Overloaded: another merge is under way, or the asker's last one was only just.
            Refused: the asker is not known for long enough, or has no model.
            WorkerError, DeadlineExceeded: our worker gives none.
        """
        now = self._env.monotonic()
        for each in self._taken.values():
            if each.is_working or now < each.until:
                raise Overloaded(
                    f"another merge is under way, asked for by {each.asker.short}: try again later"
                )
        if now < self._quiet_until:
            raise Overloaded(
                f"the last merge has only just been: try again in {self._quiet_until - now:.0f} s"
            )
        if peer != self._self_id:
            self._check_asker(peer, now)
        until = now + limits.FINALIZE_WORKER_S + limits.FINALIZE_WAIT_S
        taken = _Taken(message.fid, peer, message.rule, until)
        self._taken = {(message.fid, peer): taken}
        _log.info("merging models", rule=message.rule, asked_by=peer.short)
        with ExitStack() as undo:
            # Cancelled too: others may ask.
            undo.callback(self._taken.pop, (message.fid, peer), None)
            await self._env.in_thread(partial(self._clear, with_model=peer == self._self_id))
            share = await self._desk.give_share(
                message.rule, self._folder / "own", limits.FINALIZE_WORKER_S
            )
            undo.pop_all()
        taken.numel = share.numel
        return wire.Prepared(share.numel, share.step, share.tokens)

    def _check_asker(self, peer: PeerId, now: float) -> None:
        """Raise Refused or Overloaded: every share costs a worker some copies of its model."""
        if not self._swarm.is_in_good_standing(peer):
            raise Refused(
                "expected a member with a model that is known here for"
                f" {limits.STANDING_S / 60:.0f} minutes to ask for a merge: try again later"
            )
        if not self._askers.try_take(peer, now):
            raise Overloaded(
                f"expected one merge of {peer.short} in {limits.FINALIZE_ASKER_S / 60:.0f} minutes,"
                " got another: try again later"
            )

    async def merge(self, peer: PeerId, message: wire.Merge) -> wire.Merged:
        """Average with the others, and weigh what came of it. Raises SwarmNodeError."""
        if not self._is_ready_for(message.fid, peer):
            raise Refused("this merge is not known here, or it is over")
        taken = self._taken[message.fid, peer]
        weights = {PeerId(each.peer): each.weight for each in message.participants}
        if self._self_id not in weights or len(weights) < len(message.participants):
            raise Refused("expected every participant once, and the one that is asked among them")
        taken.is_working = True
        try:
            return await self._work(taken, message.attempt, weights)
        finally:
            taken.is_working, taken.has_worked = False, True
            taken.until = self._env.monotonic() + limits.FINALIZE_WAIT_S

    def _is_ready_for(self, fid: bytes, asker: PeerId) -> bool:
        if (fid, asker) not in self._taken:
            return False
        taken = self._taken[fid, asker]
        return taken.numel > 0 and not taken.is_working

    async def _work(
        self, taken: _Taken, attempt: int, weights: Mapping[PeerId, float]
    ) -> wire.Merged:
        own, room = self._folder / f"own.{attempt}", self._folder / f"mean.{attempt}"
        # A grid writes over it, and there may be another attempt.
        await self._env.in_thread(partial(shutil.copyfile, self._folder / "own", own))
        others = [peer for peer in weights if peer != self._self_id]
        await run_concurrently(*(partial(self._connect, peer) for peer in others))
        found = await global_mean(
            self._runs,
            Vector(own, taken.numel),
            room,
            self_id=self._self_id,
            key=_mean_key(self._key, taken.fid, attempt, weights),
            weights=weights,
            in_thread=self._env.in_thread,
        )
        is_asker = taken.asker == self._self_id
        weighed = await self._desk.weigh(
            taken.rule,
            found.path,
            found.contributors,
            self._folder / "model" if is_asker else None,
            limits.FINALIZE_WORKER_S,
        )
        if is_asker:
            self.weighed = weighed
        return wire.Merged(weighed.digest, found.contributors, weighed.loss, weighed.own_loss)

    async def _connect(self, peer: PeerId) -> None:
        """See that there is a session; a member that cannot be reached is lost to the group."""
        try:
            with trio.move_on_after(limits.PEER_REQUEST_DEADLINE_S):
                await self._swarm.connect(peer)
        except SwarmNodeError as error:
            _log.info("a member cannot be reached", peer=peer.short, why=str(error))

    def forget(self, peer: PeerId, fid: bytes) -> None:
        """It is over: the next one may come after a while."""
        if (fid, peer) not in self._taken or self._taken[fid, peer].is_working:
            return
        if self._taken.pop((fid, peer)).has_worked:
            self._quiet_until = self._env.monotonic() + limits.FINALIZE_PAUSE_S
        self._clear(with_model=False)

    def _clear(self, *, with_model: bool) -> None:
        """Remove what earlier merges left. Raises StorageError."""
        make_private_dir(self._folder)
        for path in self._folder.glob("*"):
            if path.is_file():
                path.unlink(missing_ok=True)
            elif with_model:
                shutil.rmtree(path, ignore_errors=True)


def _mean_key(key: bytes, fid: bytes, attempt: int, weights: Mapping[PeerId, float]) -> bytes:
    """Return what names the means of one attempt: only those with the same participants meet."""
    material = msgspec.msgpack.encode(sorted((bytes(p), w) for p, w in weights.items()))
    return hashlib.sha256(_KEY_DOMAIN + key + fid + bytes([attempt]) + material).digest()


def merge_weights(rule: str, prepared: Mapping[PeerId, wire.Prepared]) -> dict[PeerId, float]:
    """Return what each member counts, in order of their ids; tokens are the members' word."""
    if rule != "tokens":
        return dict.fromkeys(prepared, 1.0)
    claimed = [float(max(1, each.tokens)) for each in prepared.values()]
    fair = fair_weights(claimed, most=limits.FINALIZE_WEIGHT_MEDIANS_MAX, least=0.0)
    return dict(zip(prepared, fair, strict=True))


def mean_problem(loss: float, mean_loss: float) -> str:
    """Models of different basins have a mean that lies between them: say so, or nothing."""
    if loss - mean_loss <= limits.MERGE_BARRIER_SHARE_MAX * abs(mean_loss):
        return ""
    return (
        f"expected the merged model to be as good as those that it is made of, got a loss of"
        f" {loss:.4g} against {mean_loss:.4g} on average: the nodes trained apart for too long, or"
        " from other inits; let them exchange longer, or export the model of one node"
    )


def finite(value: float) -> float | None:
    """Return the value, or None where there is none."""
    return value if math.isfinite(value) else None
