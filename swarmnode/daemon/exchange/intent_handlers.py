"""What serves the intents of a worker, by their kind; all but pairs are put together here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio

from swarmnode.daemon.exchange.gather.gathers import Gathers
from swarmnode.daemon.exchange.group.groups import Groups
from swarmnode.daemon.exchange.lineages import Lineages
from swarmnode.daemon.exchange.log import Log
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.exchange.pull import Pulls
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.worker.leases import IntentHandler
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.records import Signer
from swarmnode.protocol.swarm import compatibility_key
from swarmnode.wire.swarm import Manifest


class IntentHandlers:
    """Pairs, group means, gatherings, pulls and the log of one swarm that is trained here.

    Args:
        signer: this node's key.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        *,
        manifest: Manifest,
        swarm_id: bytes,
        part: SwarmPart,
        trainer: Trainer,
        signer: Signer,
        env: Env,
    ) -> None:
        self_id = signer.peer_id
        key = compatibility_key(manifest)
        services = part.members.services
        self.exchanges = exchanges
        self.groups = Groups(
            self_id=self_id,
            swarm_id=swarm_id,
            key=key,
            codec_name=manifest.codec,
            partners=part,
            services=services,
            lessor=trainer.lessor,
            live=part.members.live,
            env=env,
        )
        self.gathers = Gathers(
            self_id=self_id,
            key=key,
            codec_name=manifest.codec,
            signer=signer,
            partners=part,
            services=services,
            lessor=trainer.lessor,
            live=part.members.live,
            env=env,
        )
        self.pulls = Pulls(
            key=key,
            codec_name=manifest.codec,
            self_id=self_id,
            partners=part,
            services=services,
            lessor=trainer.lessor,
            env=env,
        )
        self.lineages = Lineages(partial(_said_lineages, part, self_id), trainer.post)
        for rounds in (self.groups, self.gathers):
            rounds.on_intent = self.lineages.intent_posted
            rounds.on_end = self.lineages.round_ended
            rounds.on_worker_gone = self.lineages.worker_gone
        self.pulls.prefers, self.pulls.on_pulled = self.lineages.preferred, self.lineages.pulled
        self.log = Log(
            self_id=self_id,
            key=key,
            partners=part,
            services=services,
            lessor=trainer.lessor,
            tell=trainer.tell,
            live=part.members.live,
            env=env,
        )

    def by_kind(self) -> dict[str, IntentHandler]:
        """Return the handler of each kind of intent."""
        return {
            "pair": self.exchanges,
            "group": self.groups,
            "gather": self.gathers,
            "pull": self.pulls,
            "log": self.log,
        }

    @property
    def rounds(self) -> Groups | Gathers:
        """Of the kinds that meet in rounds the one that this swarm's strategy wants."""
        return self.gathers if self.gathers.is_used else self.groups

    def round_bytes(self) -> tuple[int, int]:
        """Return the bytes of payloads sent and received in rounds, since the start."""
        runs, messages = (self.groups.runs, self.gathers.runs), self.gathers.messages
        return (
            messages.sent_bytes + sum(each.sent_bytes for each in runs),
            messages.received_bytes + sum(each.received_bytes for each in runs),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            for handler in (self.exchanges, self.groups, self.gathers, self.pulls, self.log):
                await nursery.start(handler.run)
            task_status.started()


def _said_lineages(part: SwarmPart, self_id: PeerId) -> Mapping[PeerId, str]:
    """Return what the others who train at this moment say of their slow weights."""
    reports = (part.peer_report(peer) for peer in part.partners() if peer != self_id)
    return {each.peer: each.lineage for each in reports if each.state == "training"}
