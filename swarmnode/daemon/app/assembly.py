"""Builds what only a node that trains has; ``node.py`` connects it."""

from __future__ import annotations

from collections.abc import Callable

from swarmnode.config import SwarmPaths
from swarmnode.daemon.discovery.composition import Composition
from swarmnode.daemon.exchange.history import ExchangeLog
from swarmnode.daemon.exchange.merge.finalize import Finalizer
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.worker.trainer import Trainer
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
