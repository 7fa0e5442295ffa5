"""Builds what only a node that trains has; ``node.py`` connects it."""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarmnode.config import NodeConfig, SwarmPaths
from swarmnode.daemon.app.completion import Completion
from swarmnode.daemon.discovery.composition import Composition
from swarmnode.daemon.exchange.history import ExchangeLog
from swarmnode.daemon.exchange.merge.finalize import Finalizer
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.membership.progress import ProgressWatch
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.membership.target import TargetKeeper
from swarmnode.daemon.snapshots.snapshots import Snapshots
from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.worker.briefing import Briefing
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.env import Env
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.swarm import SwarmLink, compatibility_key
from swarmnode.tensor.codec import get_codec
from swarmnode.wire.swarm import Manifest


def make_exchanges(
    composition: Composition,
    link: SwarmLink,
    manifest: Manifest,
    part: SwarmPart,
    trainer: Trainer,
    *,
    log: ExchangeLog,
    record: Callable[[Finished], None],
) -> Exchanges:
    """Return what exchanges with partners; ``record`` is told how each exchange ended."""
    return Exchanges(
        self_id=composition.identity.peer_id,
        swarm_id=link.swarm_id,
        key=compatibility_key(manifest),
        topology=manifest.topology,
        partners=part,
        services=part.members.services,
        codec=get_codec(manifest.codec),
        env=composition.env,
        lessor=trainer.lessor,
        record=record,
        lost=log.lost,
    )


def make_finalizer(
    composition: Composition,
    manifest: Manifest,
    part: SwarmPart,
    trainer: Trainer,
    paths: SwarmPaths,
) -> Finalizer:
    """Return what merges all models when somebody asks for it."""
    return Finalizer(
        self_id=composition.identity.peer_id,
        key=compatibility_key(manifest),
        swarm=part,
        services=part.members.services,
        live=part.members.live,
        desk=trainer.merges,
        folder=paths.directory / "merge",
        env=composition.env,
    )


def follow_progress(
    view: NodeView,
    part: SwarmPart,
    snapshots: Snapshots,
    config: NodeConfig,
    env: Env,
    nursery: trio.Nursery,
) -> None:
    """Know where a swarm with a recipe is, and complete it at its target."""
    manifest, paths = part.manifest, config.paths.swarm(part.manifest.name)
    if not manifest.recipe:
        return
    target = TargetKeeper(manifest, paths.extension)
    target.load()
    view.progress_watch = watch = ProgressWatch(part, env, target, lambda: view.progress()[1])
    completion = Completion(
        part=part,
        watch=watch,
        snapshots=snapshots,
        finalizer=lambda: view.finalizer,
        role=config.role,
        final_model=paths.final_model,
    )
    nursery.start_soon(watch.run)
    nursery.start_soon(completion.run)


def make_briefing(part: SwarmPart, trainer: Trainer, watch: ProgressWatch | None) -> Briefing:
    """Return what tells the worker of the others, and where the swarm is if that is watched."""
    briefing = Briefing(
        part.self_id, members=part.partners, speeds=part.step_times_s, post=trainer.post
    )
    if watch is not None:
        briefing.swarm, briefing.on_ready = watch.message, watch.begin
        watch.target.on_extended = briefing.tell_progress
    return briefing
