"""A node's part in a merge of all members' models that somebody asked for; see ``finalize.py``."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.daemon.exchange.group.runs import GroupRuns
from swarmnode.daemon.exchange.merge.global_mean import Vector, global_mean
from swarmnode.daemon.exchange.pair.exchanges import Partners
from swarmnode.daemon.worker.merge_desk import MergeDesk
from swarmnode.env import Env
from swarmnode.errors import Overloaded, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import MergeWeighed, ShareGiven
from swarmnode.net.session import Session
from swarmnode.store.files import make_private_dir
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import finalize as wire
from swarmnode.wire.packing import decode_record, encode_record

_KEY_DOMAIN = b"swarmnode/finalize/1\0"
_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
_log = get_logger("swarmnode.daemon.exchange")


class Swarm(Partners, Protocol):
    """What is needed of our part in the swarm."""

    def mergers(self) -> Sequence[PeerId]:
        """Return the live members that have a model, ourselves included."""

    async def connect(self, peer: PeerId) -> Session:
        """Return a session. Raises SwarmNodeError."""


@dataclass
class _Taken:
    """A merge that this node takes part in."""

    fid: bytes
    asker: PeerId
    rule: str
    until: float
    share: ShareGiven | None = None
    is_working: bool = False
    has_worked: bool = False


class MergePart:
    """Takes part in one merge at a time, its own ones included.

    Args:
        key: 32 bytes that guard every exchange.
        runs: of groups, for this alone.
        folder: for what a merge needs on disk; whatever lies there is removed.

    Attributes:
        weighed: the last merged model that this node asked for.
    """

    def __init__(
        self,
        *,
        self_id: PeerId,
        key: bytes,
        swarm: Swarm,
        runs: GroupRuns,
        desk: MergeDesk,
        folder: Path,
        env: Env,
    ) -> None:
        self.weighed: MergeWeighed | None = None
        self._self_id = self_id
        self._key = key
        self._swarm = swarm
        self._runs = runs
        self._desk = desk
        self._folder = folder
        self._env = env
        self._taken: _Taken | None = None
        self._quiet_until = -math.inf

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
        """Have our worker write its share. Raises Overloaded, WorkerError, DeadlineExceeded."""
        now = self._env.monotonic()
        if self._taken is not None and (self._taken.is_working or now < self._taken.until):
            raise Overloaded(
                f"another merge is under way, asked for by {self._taken.asker.short}: try again"
                " later"
            )
        if now < self._quiet_until:
            raise Overloaded(
                f"the last merge has only just been: try again in {self._quiet_until - now:.0f} s"
            )
        until = now + limits.FINALIZE_WORKER_S + limits.FINALIZE_WAIT_S
        self._taken = taken = _Taken(message.fid, peer, message.rule, until)
        _log.info("merging models", rule=message.rule, asked_by=peer.short)
        try:
            await self._env.in_thread(partial(self._clear, with_model=peer == self._self_id))
            taken.share = await self._desk.give_share(
                message.rule, self._folder / "own", limits.FINALIZE_WORKER_S
            )
        except BaseException:  # cancelled too: nothing was taken on, others may ask
            self._taken = None
            raise
        return wire.Prepared(taken.share.numel, taken.share.step, taken.share.tokens)

    async def merge(self, peer: PeerId, message: wire.Merge) -> wire.Merged:
        """Average with the others, and weigh what came of it. Raises SwarmNodeError."""
        taken = self._taken
        is_known = taken is not None and (taken.fid, taken.asker) == (message.fid, peer)
        if taken is None or not is_known or taken.share is None or taken.is_working:
            raise Refused("this merge is not known here, or it is over")
        weights = {PeerId(each.peer): each.weight for each in message.participants}
        if self._self_id not in weights or len(weights) < len(message.participants):
            raise Refused("expected every participant once, and the one that is asked among them")
        taken.is_working = True
        try:
            return await self._work(taken, message.attempt, weights)
        finally:
            taken.is_working, taken.has_worked = False, True
            taken.until = self._env.monotonic() + limits.FINALIZE_WAIT_S

    async def _work(
        self, taken: _Taken, attempt: int, weights: Mapping[PeerId, float]
    ) -> wire.Merged:
        assert taken.share is not None
        own, room = self._folder / f"own.{attempt}", self._folder / f"mean.{attempt}"
        # A grid writes over it, and there may be another attempt.
        await self._env.in_thread(partial(shutil.copyfile, self._folder / "own", own))
        await for_all(self._connect, [each for each in weights if each != self._self_id])
        found = await global_mean(
            self._runs,
            Vector(own, taken.share.numel),
            room,
            self_id=self._self_id,
            key=_mean_key(self._key, taken.fid, attempt, weights),
            weights=weights,
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
        """See that there is a session; who cannot be reached is lost to the group."""
        try:
            with trio.move_on_after(limits.PEER_REQUEST_DEADLINE_S):
                await self._swarm.connect(peer)
        except SwarmNodeError as error:
            _log.info("a member cannot be reached", peer=peer.short, why=str(error))

    def forget(self, peer: PeerId, fid: bytes) -> None:
        """It is over: the next one may come after a while."""
        taken = self._taken
        if taken is not None and (taken.fid, taken.asker) == (fid, peer) and not taken.is_working:
            self._taken = None
            if taken.has_worked:
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


async def for_all(work: Callable[[PeerId], Awaitable[None]], peers: Sequence[PeerId]) -> None:
    """Do it for all of them at once."""
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(work, peer)
