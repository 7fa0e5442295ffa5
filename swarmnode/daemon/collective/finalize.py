"""``finalize``: one merge of all members' models, when an operator asks for it.

::

the caller                              every member that has a worker, the asker too
      --prepare(rule)-->                    its worker writes its share to a file
      --merge(participants, weights)-->     means by rounds of groups; the worker weighs the result
                        <--merged--         hash of the parameters, losses
      --done-->                             forgets it

Training goes on meanwhile, with each node's own model. A member that dies is left out: the others
end with the mean over those that are left. One merge at a time: a caller that finds a third of the
members busy with another one gives its own up. The contract for others is ``proto/finalize.md``.

A swarm merges once, at its end, and most nodes are gone by then: this is imported when the first
merge is asked for (``make_training`` of ``daemon/app``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import trio

from swarmnode import limits
from swarmnode.daemon.collective.merge_part import (
    MergePart,
    Swarm,
    finite,
    mean_problem,
    merge_weights,
)
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.driver import run_concurrently
from swarmnode.daemon.membership.swarm import Communicator
from swarmnode.daemon.worker.link import MergeDesk
from swarmnode.errors import ConfigError, Overloaded, Refused, SwarmNodeError, WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.names import MERGE_RULES
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.exchange import finalize as wire
from swarmnode.wire.packing import decode_record, encode_record

_FID_BYTES = 16
_log = get_logger("swarmnode.daemon.collective")


class Finalized(msgspec.Struct, frozen=True):
    """What ``swarmnode finalize --json`` prints.

    Attributes:
        digest: SHA-256 of the merged parameters as little-endian float32, hex.
        agreed, members: so many of the members asked came to this very digest.
        contributors: whose models are in it.
        loss, own_loss: on the task's probe, of the merged model and of this node's.
        barrier: how far the merged model's loss lies above the mean of its members' own ones.
        problem: empty if it is as good as those; else what to do.
        path: of the merged model, as safetensors.
        left_out: members that did not take part to the end, and why.
    """

    rule: str
    digest: str
    agreed: int
    members: int
    contributors: int
    loss: float | None
    own_loss: float | None
    barrier: float | None
    problem: str
    path: str
    step: int
    tokens: int
    left_out: dict[str, str]


@dataclass
class _Round:
    """What the asker knows of one merge."""

    fid: bytes
    prepared: dict[PeerId, wire.Prepared] = field(default_factory=dict)
    merged: dict[PeerId, wire.Merged] = field(default_factory=dict)
    left_out: dict[PeerId, str] = field(default_factory=dict)
    busy: dict[PeerId, str] = field(default_factory=dict)  # and what they say


class Finalizer:
    """Begins merges, and takes part in those of others.

    Args:
        service: under which members answer, in this swarm.
        runs: of groups, for this alone.
        swarm: our part in it.
        desk: where the worker is asked.
        folder: for what a merge needs on disk; whatever lies there is removed.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        service: str,
        runs: GroupRuns,
        swarm: Swarm,
        desk: MergeDesk,
        folder: Path,
    ) -> None:
        self._self_id, self._env = communicator.self_id, communicator.env
        self._service, self._swarm = service, swarm
        self._part = MergePart(communicator, swarm=swarm, runs=runs, desk=desk, folder=folder)

    async def answer(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer a request of a member. Raises SwarmNodeError."""
        return await self._part.answer(peer, payload)

    async def finalize(self, rule: str) -> Finalized:
        """Merge the models of all members by ``rule``; this node's worker writes the result.

        Raises:
            ConfigError: no such rule.
            Overloaded: another merge is under way, or has just been, here or at many members.
            WorkerError, DeadlineExceeded: this node could not take part to the end.
        """
        if rule not in MERGE_RULES:
            raise ConfigError(f"expected a merge rule among {', '.join(MERGE_RULES)}, got {rule!r}")
        members = sorted({*self._swarm.mergers(), self._self_id})
        if len(members) > limits.FINALIZE_MEMBERS_MAX:
            raise Refused(
                f"expected at most {limits.FINALIZE_MEMBERS_MAX} members that train for one merge,"
                f" this swarm has {len(members)}"
            )
        this = _Round(self._env.token(_FID_BYTES))
        try:
            return await self._lead(this, rule, members)
        finally:
            with trio.move_on_after(limits.GOODBYE_DEADLINE_S, shield=True):
                await self._tell_done(this)

    async def _lead(self, this: _Round, rule: str, members: Sequence[PeerId]) -> Finalized:
        # Ourselves first: a node that is busy asks no other.
        own = await self._part.prepare(self._self_id, _prepare(this, rule))
        this.prepared[self._self_id] = own
        others = [peer for peer in members if peer != self._self_id]
        await run_concurrently(*(partial(self._prepare, this, rule, peer) for peer in others))
        if len(this.busy) >= limits.FINALIZE_BUSY_SHARE_MIN * len(members):
            peer, why = this.busy.popitem()
            raise Overloaded(f"{peer.short} takes no part: {why}")
        this.left_out |= this.busy
        taking_part = [
            peer for peer, said in this.prepared.items() if self._is_alike(this, peer, said, own)
        ]
        for attempt in range(limits.FINALIZE_ATTEMPTS_MAX):
            asked = {peer: this.prepared[peer] for peer in sorted(taking_part)}
            weights = merge_weights(rule, asked)
            this.merged.clear()
            merge = partial(self._merge, this, attempt, weights)
            await run_concurrently(*(partial(merge, peer) for peer in taking_part))
            if self._self_id not in this.merged:
                raise WorkerError(
                    f"no merge: {this.left_out.get(self._self_id, 'nothing came of it here')}"
                )
            taking_part = sorted(this.merged)
            if self._is_settled(this, len(weights)):
                break
        return self._outcome(this, rule, members)

    def _is_alike(
        self, this: _Round, peer: PeerId, said: wire.Prepared, own: wire.Prepared
    ) -> bool:
        if said.numel != own.numel:
            this.left_out[peer] = f"it has {said.numel:,} numbers to merge, not {own.numel:,}"
        return said.numel == own.numel

    def _is_settled(self, this: _Round, n: int) -> bool:
        """Whether going on with the members that are left would change anything."""
        if n > limits.FINALIZE_GROUP_MEMBERS_MAX and len(this.merged) < n:
            return False
        return len({each.digest for each in this.merged.values()}) == 1

    def _outcome(self, this: _Round, rule: str, members: Sequence[PeerId]) -> Finalized:
        own = this.merged[self._self_id]
        digests = Counter(each.digest for each in this.merged.values())
        mean_loss = sum(each.own_loss for each in this.merged.values()) / len(this.merged)
        prepared = [this.prepared[peer] for peer in this.merged]
        left_out = {str(peer): why for peer, why in sorted(this.left_out.items())}
        for peer, each in this.merged.items():
            if each.digest != own.digest:
                left_out[str(peer)] = f"it came to another model: {each.digest.hex()[:16]}"
        weighed = self._part.weighed
        assert weighed is not None, "the node that asks weighs the result itself"
        return Finalized(
            rule=rule,
            digest=own.digest.hex(),
            agreed=digests[own.digest],
            members=len(members),
            contributors=own.contributors,
            loss=finite(own.loss),
            own_loss=finite(own.own_loss),
            barrier=finite(own.loss - mean_loss),
            problem=mean_problem(own.loss, mean_loss),
            path=weighed.path,
            step=max(each.step for each in prepared),
            tokens=sum(each.tokens for each in prepared),
            left_out=left_out,
        )

    async def _prepare(self, this: _Round, rule: str, peer: PeerId) -> None:
        try:
            answer = await self._request(
                peer,
                _prepare(this, rule),
                limits.FINALIZE_WORKER_S + limits.PEER_REQUEST_DEADLINE_S,
            )
            this.prepared[peer] = decode_record(answer, wire.Prepared)
        except Overloaded as error:
            this.busy[peer] = str(error)
        except SwarmNodeError as error:
            this.left_out[peer] = str(error)

    async def _merge(
        self, this: _Round, attempt: int, weights: Mapping[PeerId, float], peer: PeerId
    ) -> None:
        participants = tuple(wire.Participant(each, weight) for each, weight in weights.items())
        message = wire.Merge(this.fid, attempt, participants)
        try:
            if peer == self._self_id:
                this.merged[peer] = await self._part.merge(peer, message)
            else:
                answer = await self._request(peer, message, limits.FINALIZE_MERGE_S)
                this.merged[peer] = decode_record(answer, wire.Merged)
        except SwarmNodeError as error:
            this.left_out[peer] = str(error)

    async def _tell_done(self, this: _Round) -> None:
        async def tell(peer: PeerId) -> None:
            if peer == self._self_id:
                self._part.forget(peer, this.fid)
                return
            try:
                deadline_s = limits.GOODBYE_DEADLINE_S
                await self._request(peer, wire.Done(this.fid), deadline_s)
            except SwarmNodeError as error:
                _log.debug("not told that a merge is over", peer=peer.short, why=str(error))

        await run_concurrently(*(partial(tell, peer) for peer in this.prepared))

    async def _request(
        self, peer: PeerId, message: wire.FinalizeRequest, deadline_s: float
    ) -> bytes:
        session = await self._swarm.connect(peer)
        return await session.request(self._service, encode_record(message), deadline_s=deadline_s)


def _prepare(this: _Round, rule: str) -> wire.Prepare:
    return wire.Prepare(this.fid, msgspec.convert(rule, wire.Rule))
