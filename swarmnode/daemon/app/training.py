"""What only a node that trains has, and what follows once the swarm has trained enough.

It is put together here, and brought to its end: a node goes at once, as far as exchanges let it, or
after all that runs is completed. At the swarm's target::

    all members are finished, or have had time to be
      the one with the lowest id   merges all models, and offers the result as a snapshot
      keepers                      fetch that as they fetch the newest one, and write it out

If the one that is to merge dies over it, the next one does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig, SwarmPaths
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.discovery.composition import Composition
from swarmnode.daemon.exchange.history import ExchangeLog
from swarmnode.daemon.exchange.intent_handlers import IntentHandlers
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.membership.assignment import ShardAssigner
from swarmnode.daemon.membership.progress import ProgressWatch
from swarmnode.daemon.membership.swarm import Communicator, SwarmPart
from swarmnode.daemon.snapshots.snapshots import Snapshots
from swarmnode.daemon.status.phases import Member, Training, Work
from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.worker.briefing import Briefing, TrainingChoice
from swarmnode.daemon.worker.link import MergeDesk
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.names import MERGE_RULES
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.swarm import SwarmLink, compatibility_key
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.codec import get_codec
from swarmnode.wire.admission import Role
from swarmnode.wire.swarm import Manifest

if TYPE_CHECKING:
    from swarmnode.daemon.collective.finalize import Finalizer

FINALIZE_SERVICE = "finalize/1"
MERGE_MEANS_SERVICE = "finalize-mean"  # of the group runs
_LOOK_S = 1.0
_log = get_logger("swarmnode.daemon.app")


def make_training(
    composition: Composition,
    link: SwarmLink,
    member: Member,
    trainer: Trainer,
    paths: SwarmPaths,
    *,
    log: ExchangeLog,
    record: Callable[[Finished], None],
) -> Training:
    """Return what trains and exchanges, nothing of it running yet.

    Args:
        record: told how each exchange with a partner ended.
    """
    manifest, part = member.manifest, member.part
    self_id, env = composition.identity.peer_id, composition.env
    communicator = Communicator(
        self_id=self_id,
        key=compatibility_key(manifest),
        partners=part,
        services=part.members.services,
        live=part.members.live,
        trust=part.trust,
        env=env,
    )
    exchanges = Exchanges(
        communicator,
        swarm_id=link.swarm_id,
        topology=manifest.topology,
        codec=get_codec(manifest.codec),
        lessor=trainer.lessor,
        record=record,
        lost=log.lost,
    )
    handlers = IntentHandlers(
        exchanges,
        communicator,
        manifest=manifest,
        swarm_id=link.swarm_id,
        part=part,
        trainer=trainer,
        signer=composition.identity,
    )
    handlers.note_committed(log.means_before)
    merge_runs = GroupRuns(MERGE_MEANS_SERVICE, communicator)

    make_finalizer = partial(
        _make_finalizer,
        communicator,
        runs=merge_runs,
        part=part,
        desk=trainer.merges,
        folder=paths.directory / "merge",
    )
    assigner = ShardAssigner(part, manifest, self_id=self_id, post=trainer.post, env=env)
    training = Training(part, trainer, exchanges, handlers, merge_runs, make_finalizer, assigner)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        return await training.finalizer.answer(peer, payload)

    def partners_changed() -> None:
        trainer.partners_changed()
        merge_runs.members_changed()

    communicator.services.add_request(FINALIZE_SERVICE, answer)
    part.on_partners_changed = partners_changed
    return training


def _make_finalizer(
    communicator: Communicator,
    *,
    runs: GroupRuns,
    part: SwarmPart,
    desk: MergeDesk,
    folder: Path,
) -> Finalizer:
    """Load it: in the task of a request, the owner's or that of the member which leads a merge."""
    from swarmnode.daemon.collective.finalize import Finalizer

    service = communicator.services.name(FINALIZE_SERVICE)
    return Finalizer(communicator, service=service, runs=runs, swarm=part, desk=desk, folder=folder)


def make_briefing(member: Member, trainer: Trainer) -> Briefing:
    """Return what tells the worker of the others, and where the swarm is if that is followed."""
    part = member.part
    briefing = Briefing(
        member.self_id, members=part.partners, speeds=part.step_times_s, post=trainer.post
    )
    match member.progress:
        case ProgressWatch() as watch:
            briefing.swarm, briefing.on_ready = watch.message, watch.begin
            watch.target.on_extended = briefing.tell_progress
    return briefing


async def equipped(choice: TrainingChoice, manifest: Manifest, view: NodeView) -> TrainingChoice:
    """Return the choice with what the swarm asks members to install, if it does.

    Given up when the node stops: the owner may be asked, and not answer.

    Raises:
        SwarmNodeError: the owner said no, or it cannot be had.
    """
    if not manifest.environment:
        return choice
    view.waiting_for = "software and data that the swarm names: installing it, or asking first"
    equip = partial(choice.equip, manifest, choice)
    return await trio.to_thread.run_sync(equip, abandon_on_cancel=True)


async def complete(work: Work) -> None:
    """Return once every exchange that runs has ended and is merged, or after FINISH_S."""
    match work:
        case Training(exchanges=exchanges, trainer=trainer):
            with trio.move_on_after(limits.FINISH_S) as scope:
                await exchanges.drain()
                await trainer.lessor.wait_idle()
            if scope.cancelled_caught:
                _log.warning("not all exchanges ended in time", waited_s=limits.FINISH_S)


async def drain(work: Work) -> None:
    """Let a running exchange end if it is almost through, and give up what is not."""
    match work:
        case Training(exchanges=exchanges, trainer=trainer):
            with trio.move_on_after(limits.LEAVE_DRAIN_S):
                await exchanges.drain()
            exchanges.give_up("leaving")
            with trio.move_on_after(limits.LEAVE_DECISION_S):
                await exchanges.drain()
            exchanges.give_up("leaving, and the partner is away", is_last=True)
            with trio.move_on_after(limits.LEAVE_DECISION_S):
                await trainer.lessor.drain()


async def follow_progress(member: Member, work: Callable[[], Work], config: NodeConfig) -> None:
    """Know where a swarm with a recipe is, and complete it at its target, until cancelled.

    Args:
        work: of this node; one that trains can merge.
    """
    match member.progress:
        case ProgressWatch() as watch:
            completion = Completion(
                part=member.part,
                watch=watch,
                snapshots=member.snapshots,
                work=work,
                role=config.role,
                final_model=config.paths.swarm(member.manifest.name).final_model,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                nursery.start_soon(completion.run)


class Completion:
    """Looks whether the swarm has reached its target, and does this node's part then.

    Args:
        work: of this node; one that trains can merge.
        final_model: where a keeper writes it.
    """

    def __init__(
        self,
        *,
        part: SwarmPart,
        watch: ProgressWatch,
        snapshots: Snapshots,
        work: Callable[[], Work],
        role: Role,
        final_model: Path,
    ) -> None:
        self._part, self._watch, self._snapshots = part, watch, snapshots
        self._work, self._role, self._final_model = work, role, final_model
        self._merged_target = 0  # for which this node has merged the models
        self._written = b""  # the root of what a keeper has written out

    async def run(self) -> None:
        """Do so until cancelled, for each target anew."""
        while True:
            await trio.sleep(_LOOK_S)
            await self._complete()

    async def _complete(self) -> None:
        """Do it until the target is moved on, or at once if it is not reached."""
        since = trio.current_time()
        while self._watch.target.horizon.is_reached(self._watch.counted_tokens):
            match self._work():
                case Training(finalizer=finalizer):
                    if self._is_our_turn(trio.current_time() - since):
                        await self._merge(finalizer)
                case _ if self._role == "keeper":
                    await self._write_out()
            await trio.sleep(_LOOK_S)

    def _is_our_turn(self, waited_s: float) -> bool:
        target = self._watch.target.horizon.target_tokens
        if self._merged_target == target or self._snapshots.is_merged_offered:
            return False
        states = {peer: self._state(peer) for peer in self._part.members.live()}
        if "training" in states.values() and waited_s < limits.COMPLETION_WAIT_S:
            return False
        finished = [peer for peer, state in states.items() if state == "finished"]
        return bool(finished) and min(finished) == self._part.self_id

    def _state(self, peer: PeerId) -> str | None:
        if peer == self._part.self_id:
            return self._part.report().state
        return self._part.peer_report(peer).state

    async def _merge(self, finalizer: Finalizer) -> None:
        target = self._watch.target.horizon.target_tokens
        try:
            found = await finalizer.finalize(MERGE_RULES[0])
            if found.problem:
                _log.warning("the merged model is not offered", why=found.problem)
            else:
                await self._snapshots.offer_merged(Path(found.path), found.loss)
        except (SwarmNodeError, OSError) as error:  # another one merges, members go: again
            _log.warning("the models are not merged yet", why=str(error))
            return
        self._merged_target = target
        _log.info(
            "the swarm is finished",
            target_tokens=target,
            contributors=found.contributors,
            agreed=found.agreed,
            members=found.members,
            path=found.path,
        )

    async def _write_out(self) -> None:
        """Put the furthest model that we hold where people find it."""
        path = self._final_model
        try:
            written = await self._snapshots.write_furthest(path, self._written)
        except (SwarmNodeError, OSError) as error:
            _log.warning("the model is not written out", path=str(path), why=str(error))
            return
        if written != self._written:
            self._written = written
            _log.info("the swarm is finished", path=str(path))
