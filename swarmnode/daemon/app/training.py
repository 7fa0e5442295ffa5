"""What only a node that trains has: it is put together here, and brought to its end.

A node goes at once, as far as exchanges let it, or after all that runs is completed.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.config import SwarmPaths
from swarmnode.daemon.collective.finalize import Finalizer
from swarmnode.daemon.discovery.composition import Composition
from swarmnode.daemon.exchange.history import ExchangeLog
from swarmnode.daemon.exchange.intent_handlers import IntentHandlers
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.membership.assignment import ShardAssigner
from swarmnode.daemon.membership.progress import ProgressWatch
from swarmnode.daemon.status.phases import Member, Training, Work
from swarmnode.daemon.worker.briefing import Briefing
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.swarm import SwarmLink, compatibility_key
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.codec import get_codec

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
    key = compatibility_key(manifest)
    exchanges = Exchanges(
        self_id=self_id,
        swarm_id=link.swarm_id,
        key=key,
        topology=manifest.topology,
        partners=part,
        services=part.members.services,
        codec=get_codec(manifest.codec),
        env=env,
        lessor=trainer.lessor,
        record=record,
        lost=log.lost,
    )
    handlers = IntentHandlers(
        exchanges,
        manifest=manifest,
        swarm_id=link.swarm_id,
        part=part,
        trainer=trainer,
        signer=composition.identity,
        env=env,
    )
    finalizer = Finalizer(
        self_id=self_id,
        key=key,
        swarm=part,
        services=part.members.services,
        live=part.members.live,
        desk=trainer.merges,
        folder=paths.directory / "merge",
        env=env,
    )
    assigner = ShardAssigner(part, manifest, self_id=self_id, post=trainer.post, env=env)
    return Training(part, trainer, exchanges, handlers, finalizer, assigner)


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
