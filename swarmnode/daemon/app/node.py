"""One node, put together: the only composition root.

::

    identity -> services -> network (sessions) -> discovery (DHT, LAN) -> rendezvous
                                |                                           |
                                +-> manifest -> our part in the swarm <-----+
                                                (members, shared state, blobs)
                                                       |
                                          exchanges <-> lessor, trainer <-> worker
                 control API, /metrics

A node starts in this order and stops in the reverse one, in under two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.app.training import (
    complete,
    drain,
    equipped,
    follow_progress,
    make_briefing,
    make_training,
)
from swarmnode.daemon.discovery.composition import can_meet, compose, make_beacon
from swarmnode.daemon.discovery.rendezvous import ManifestKeeper, SwarmRendezvous, check_strategy
from swarmnode.daemon.exchange.history import ExchangeLog
from swarmnode.daemon.exchange.pair.transfer import ExchangeTotals
from swarmnode.daemon.membership.progress import watch_progress
from swarmnode.daemon.membership.report import SelfReport
from swarmnode.daemon.membership.swarm import SwarmPart, make_gate
from swarmnode.daemon.snapshots.blobs import Blobs, snapshot_bytes_max
from swarmnode.daemon.snapshots.snapshots import Snapshots
from swarmnode.daemon.status.control import control_routes, metrics_routes, target_address
from swarmnode.daemon.status.dashboard import Dashboard, Sharing
from swarmnode.daemon.status.phases import Listening, Member, Outside, Serving, SwarmTerms
from swarmnode.daemon.status.view import METRICS_SERVICE, NodeView, in_one_line
from swarmnode.daemon.transport.key_guard import KeyGuard
from swarmnode.daemon.transport.reach import reachable_addresses
from swarmnode.daemon.volunteer.machine import before_joining
from swarmnode.daemon.volunteer.rules import Machine, Volunteer
from swarmnode.daemon.volunteer.totals import TotalsKeeper
from swarmnode.daemon.worker.briefing import TrainingChoice as TrainingChoice
from swarmnode.daemon.worker.briefing import configure_of
from swarmnode.daemon.worker.link import StartWorker
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.env import Env
from swarmnode.errors import StorageError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.names import PROGRAM_TASK
from swarmnode.names import default_name
from swarmnode.net.channel import Transport
from swarmnode.net.lan.beacon import LanBeacon, LanPeer, LanSwarm
from swarmnode.net.lan.datagrams import DatagramNet
from swarmnode.net.web.http import serve_http
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.gossip.group_events import MeanEnded
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.quantities import parse_bytes
from swarmnode.store.blobs import BlobStore
from swarmnode.store.swarms import save_link
from swarmnode.store.training_data import save_training_data
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

if TYPE_CHECKING:
    from swarmnode.daemon.status.readings import ReadingsDesk
    from swarmnode.daemon.status.scrape import Metrics

_log = get_logger("swarmnode.daemon.app")


class Node:
    """A daemon for one swarm.

    Args:
        boot_epoch: on disk before it is given here, and never given twice.
        transport: how bytes reach other nodes.
        start_worker: how the worker is started.
        on_event: told of each step on the way to training, for the terminal.
        on_finished: told of each exchange that ended.
        lan: what beacons are sent on, if not the real LAN.
        find_addresses: where others reach a listener that is bound to an address.
        machine: what the owner's rules look at; None: nothing.

    Attributes:
        volunteer: the owner's rules at work.
        beacon: finds nodes on the LAN; None if that is switched off.
        metrics_listener: where this machine reaches them over TCP; empty: nowhere.
    """

    def __init__(
        self,
        *,
        config: NodeConfig,
        link: SwarmLink,
        identity: Identity,
        boot_epoch: int,
        transport: Transport,
        start_worker: StartWorker,
        env: Env,
        training: TrainingChoice,
        on_event: Callable[[str], None] = lambda _text: None,
        on_finished: Callable[[Finished], None] = lambda _finished: None,
        find_addresses: Callable[[str], tuple[str, ...]] = reachable_addresses,
        lan: DatagramNet | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.env = env
        self._config = config
        self._link = link = link if "link" in config.rendezvous else replace(link, hints=())
        self._identity = identity
        self._start_worker, self._training = start_worker, training
        self._on_event, self._on_finished = on_event, on_finished
        self._find_addresses = find_addresses
        self._stop = trio.Event()
        self._stop_reason = ""
        self._finish = trio.Event()
        self._failure: SwarmNodeError | None = None
        self._files = ExitStack()  # what is open on the disk
        self._log = ExchangeLog(config.paths.history, boot_epoch, env, link.swarm_id)
        self._files.callback(self._log.close)
        self._composition = composition = compose(config, identity, boot_epoch, transport, env)
        self._network, self._discovery = composition.network, composition.discovery
        self._key_guard = KeyGuard(self._network, boot_epoch, env, self._fail)
        self._rendezvous = SwarmRendezvous(
            link,
            discovery=self._discovery,
            self_id=identity.peer_id,
            env=env,
            is_lonely=self._is_lonely,
            elsewhere=config if can_meet(config, transport, link) else None,
        )
        self.beacon = self._make_beacon(lan) if config.lan else None
        self._manifests = ManifestKeeper(link, config.paths, env, composition.services)
        self._totals = TotalsKeeper(config.paths.totals, link.name, env)
        self.volunteer = Volunteer(config, composition.services.traffic, machine, env, on_event)
        self.nat = composition.nat
        self.view = NodeView(
            Listening(
                network=self._network,
                discovery=self._discovery,
                key_guard=self._key_guard,
                self_id=identity.peer_id,
                swarm=link.name,
                role=config.role,
                node_name=config.node_name or default_name(identity.peer_id),
                started_monotonic_s=env.monotonic(),
                started_unix_s=env.wall(),
                totals=self._totals,
                volunteer=self.volunteer,
                nat=self.nat.snapshot,
                addresses=self._addresses,
                own_addresses=self._direct_addresses,
                hints=(*link.hints, *map(Hint.parse, config.bootstrap)),
            )
        )
        self.dashboard = Dashboard(self, config.dashboard_address, Sharing.of(config))
        self.metrics_listener = ""
        self._network.on_session_end = self.view.count_closed

    @cached_property
    def readings(self) -> ReadingsDesk:
        """The metrics of this node; few nodes are scraped."""
        from swarmnode.daemon.status.readings import ReadingsDesk

        return ReadingsDesk(self.view, self._config.home)

    @cached_property
    def metrics(self) -> Metrics:
        """What answers members and Prometheus, in the task of their first question."""
        from swarmnode.daemon.status.scrape import Metrics

        return Metrics(self)

    def stop(self, reason: str) -> None:
        """Leave the swarm and end :meth:`run`."""
        self._stop_reason = self._stop_reason or reason
        self._stop.set()

    def finish(self) -> None:
        """Complete what runs, then :meth:`stop`."""
        self._finish.set()

    async def _finish_when_asked(self) -> None:
        await self._finish.wait()
        self.volunteer.finish()  # begin nothing new
        await complete(self.view.work)
        self.stop("asked to finish")

    async def wait_stopping(self) -> None:
        """Return once :meth:`stop` was called. Checkpoint: yes."""
        await self._stop.wait()

    def exchange_totals(self) -> ExchangeTotals:
        """Return the running sums over exchanges. Raises NotRunning before the node trains."""
        return self.view.training().exchanges.totals

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until :meth:`stop`; ``start`` gives the address once it listens.

        Raises:
            SwarmNodeError: the node cannot go on; everything is closed and saved by then.
        """
        manifest = self._manifests.load()
        with self._files:
            async with trio.open_nursery() as nursery:
                await self._listen(nursery)
                task_status.started(self._network.address)
                nursery.start_soon(self._totals.run, self.view.given)
                await nursery.start(self.volunteer.run)
                nursery.start_soon(self._finish_when_asked)
                nursery.start_soon(self._take_part, manifest, nursery)
                await self._stop.wait()
                if self._failure is None:  # a failure is raised below, and said once
                    self._on_event(f"leaving: {self._stop_reason}")
                await self._leave()
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    # --- coming up ------------------------------------------------------------------------

    async def _listen(self, nursery: trio.Nursery) -> None:
        config = self._config
        await nursery.start(serve_http, config.paths.control_socket, control_routes(self))
        if config.metrics_address is not None:
            serve = partial(serve_http, any_host=config.metrics_allow_remote)
            listeners = await nursery.start(serve, config.metrics_address, metrics_routes(self))
            port = listeners[0].socket.getsockname()[1]
            self.metrics_listener = target_address(config.metrics_address.host, port)
        if config.metrics_textfile or config.metrics_file_sd:
            nursery.start_soon(self.metrics.keep_files, config)
        await nursery.start(self.dashboard.run, self._on_event)
        address = await nursery.start(self._network.run, config.listen)
        self._on_event(f"{self._identity.peer_id.short}… listens on {address}")
        self._discovery.reachable_at(self._direct_addresses())
        await nursery.start(self._discovery.run)
        await nursery.start(self.nat.run, address)
        for hint in map(Hint.parse, config.bootstrap):
            self._discovery.discovered(hint.peer, (hint.address,))
        if self.beacon is not None:
            names = await nursery.start(self.beacon.run)
            self._on_event(f"looking for peers on the LAN: {', '.join(names) or 'no interface'}")

    async def _take_part(self, manifest: Manifest | None, nursery: trio.Nursery) -> None:
        """Get the manifest, then train; a failure ends the node in an orderly way."""
        try:
            await self._check_own_key()
            nursery.start_soon(self._rendezvous.run)
            nursery.start_soon(self._key_guard.run)
            if manifest is None:
                manifest = await self._fetch_manifest()
            save_link(self._link, self._config.paths)
            save_training_data(self._link.name, self._config.paths, self._training.remembered)
            self.view.membership = Outside(SwarmTerms.of(manifest))
            if self._config.role == "trainer":
                check_strategy(manifest)
                self._training = await equipped(self._training, manifest, self.view)
            self._on_event(
                f"swarm {manifest.name}: task {manifest.task}, {manifest.numel:,} parameters,"
                f" strategy {manifest.strategy}"
            )
            if self._config.role == "trainer" and manifest.task != PROGRAM_TASK:
                look = partial(before_joining, manifest, self._config, self._training.device)
                self._on_event(await self.env.in_thread(look))
            member = await self._join(manifest, nursery)
            nursery.start_soon(follow_progress, member, lambda: self.view.work, self._config)
            nursery.start_soon(self._say_progress)
            if self._config.role == "trainer":
                if self._rendezvous.candidates:  # the swarm's creator begins alone
                    await self.volunteer.wait_for_line()
                    self.view.waiting_for = "fetching the swarm's model"
                    self.view.has_peers_model = await member.snapshots.catch_up()
                await self._train(member, nursery)
            else:
                self.view.work = Serving()
        except SwarmNodeError as error:
            self._fail(error)

    async def _say_progress(self) -> None:
        """One line now and then for a person who looks at the terminal."""
        while True:
            await trio.sleep(limits.PROGRESS_LINE_S)
            status = self.view.node_status(self.env.monotonic())
            self._on_event(in_one_line(status))
            if status.alarm:
                self._on_event(f"ALARM: {status.alarm}")

    async def _check_own_key(self) -> None:
        """A copied home is noticed where the link leads to the original. Raises KeyInUse."""
        own = [hint.address for hint in self._link.hints if hint.peer == self._identity.peer_id]
        await self._network.check_own_key(tuple(own))

    async def _fetch_manifest(self) -> Manifest:
        self.view.waiting_for = "looking for a peer that has the manifest"
        asked = ", ".join(hint.address for hint in self._link.hints)
        self._on_event(f"looking for the swarm: {asked or 'the link names no peer'}, the DHT")
        return await self._manifests.fetch(self._network, lambda: self._rendezvous.candidates)

    async def _join(self, manifest: Manifest, nursery: trio.Nursery) -> Member:
        """Become a member, and learn what the others say."""
        self.view.waiting_for = "meeting the other members"
        store = await self._open_store(manifest)
        member = self._make_member(manifest, store)
        part = member.part
        self.view.membership = member
        await nursery.start(part.run)
        self.nat.on_addresses = part.addresses_changed
        self.nat.prefers = lambda peer: part.peer_report(peer).role == "relay"
        await nursery.start(member.snapshots.run)
        return member

    def _make_member(self, manifest: Manifest, store: BlobStore) -> Member:
        """Put together what a member has. No checkpoint: its services answer from now on."""
        self_id, paths = self._identity.peer_id, self._config.paths.swarm(manifest.name)
        gate = make_gate(
            manifest, self._link, role=self._config.role, self_id=self_id, paths=paths, env=self.env
        )
        part = SwarmPart(
            self._composition,
            link=self._link,
            manifest=manifest,
            paths=paths,
            rendezvous=self._rendezvous,
            gate=gate,
            report=self._report,
        )
        part.members.on_key_conflict = self._key_guard.seen_elsewhere
        part.members.on_expelled = self._fail
        part.state.on_key_elsewhere = self._key_guard.seen_elsewhere
        blobs = Blobs(
            store,
            self._composition.services,
            part.members.connect,
            self.env,
            may_serve=part.members.is_member,
            upload_bytes_per_s=self._config.snapshot_upload_bytes_per_s or None,
            download_bytes_per_s=self._config.snapshot_download_bytes_per_s or None,
            run=self.env.in_thread,
        )
        snapshots = Snapshots(
            blobs=blobs,
            part=part,
            discovery=self._discovery,
            folder=paths.snapshots,
            self_id=self_id,
            env=self.env,
            on_event=self._on_event,
        )
        progress = watch_progress(
            part, paths.extension, self.env, own_tokens=lambda: self.view.work.figures().tokens
        )
        services = part.members.services
        services.add_request(METRICS_SERVICE, lambda *asked: self.metrics.answer(*asked))
        return Member(self_id, manifest, part, blobs, snapshots, progress)

    async def _open_store(self, manifest: Manifest) -> BlobStore:
        """Open what keeps snapshots. Raises StorageError."""
        blobs = self._config.paths.swarm(manifest.name).blobs
        bytes_max = limits.SNAPSHOT_BLOBS_MAX * snapshot_bytes_max(manifest.numel)
        if self._config.disk:  # the other half is for the worker's own snapshots
            bytes_max = min(bytes_max, parse_bytes(self._config.disk) // 2)
        store: BlobStore = await self.env.in_thread(partial(BlobStore, blobs, bytes_max=bytes_max))
        self._files.callback(store.close)
        return store

    async def _train(self, member: Member, nursery: trio.Nursery) -> None:
        manifest = member.manifest
        trainer = self._make_trainer(member)
        training = make_training(
            self._composition,
            self._link,
            member,
            trainer,
            self._config.paths.swarm(manifest.name),
            log=self._log,
            record=self._record_finished,
        )
        handlers = training.handlers
        trainer.handlers = handlers.by_kind()
        handlers.groups.on_mean = self._note_mean
        handlers.record(self._record_mean)
        trainer.on_log_round = handlers.worker_ready
        trainer.briefing = make_briefing(member, trainer)
        handlers.use_call_time(trainer.briefing.call_s)
        trainer.assigner = training.assigner
        nursery.start_soon(training.assigner.run)
        await nursery.start(training.merge_runs.run)
        await nursery.start(handlers.run)
        self.view.work = training
        self.volunteer.snapshot_bytes = snapshot_bytes_max(manifest.numel)
        self.volunteer.hold(trainer)
        await trainer.run()

    def _make_beacon(self, lan: DatagramNet | None) -> LanBeacon:
        return make_beacon(
            self._config,
            self._composition,
            swarms=self._announced_swarms,
            on_peer=self._met_on_lan,
            net=lan,
        )

    def _announced_swarms(self) -> tuple[LanSwarm, ...]:
        match self.view.membership:
            case Member(manifest=manifest, part=part):
                members = len(part.members.live())
                return (LanSwarm(manifest.name, manifest.swarm_key, members, manifest.created_at),)
        return ()

    def _met_on_lan(self, peer: LanPeer) -> None:
        if any(swarm.swarm_key == self._link.swarm_key for swarm in peer.swarms):
            if peer.address not in self._rendezvous.candidates.get(peer.peer, ()):
                self._on_event(f"met {peer.peer.short}… of this swarm on the LAN")
            self._rendezvous.found(peer.peer, (peer.address,))

    def _is_lonely(self) -> bool:
        match self.view.membership:
            case Member(part=part):
                return len(part.sessions) < limits.SWARM_LONELY_NEIGHBOURS
        return True

    def _direct_addresses(self) -> tuple[str, ...]:
        # Looked up each time: a laptop moves from one network to another.
        bound = self._network.address  # empty until we listen: a status may be asked for before
        return self._config.advertise or (self._find_addresses(bound) if bound else ())

    def _addresses(self) -> tuple[str, ...]:
        """Where others reach us: what strangers have confirmed, then relays, then our own word."""
        found = (*self._config.advertise, *self.nat.addresses(), *self._direct_addresses())
        return tuple(dict.fromkeys(found))

    def _report(self) -> SelfReport:
        return self.view.report(self._addresses(), self.env.monotonic())

    def _fail(self, error: SwarmNodeError) -> None:
        self._failure = self._failure or error
        self.stop("it cannot go on")  # peers are told this: the error may name our files

    def _make_trainer(self, member: Member) -> Trainer:
        configure = configure_of(
            member.manifest, self._config, self._training, self._identity.peer_id
        )
        return Trainer(
            configure,
            start_worker=self._start_worker,
            env=self.env,
            on_applied=self._log.applied,
            on_lost=self._log.lost,
            on_saved=member.snapshots.saved,
            on_event=self._on_event,
            share=self._config.cpu_percent / 100,
            models=member.snapshots,
        )

    # --- going down -----------------------------------------------------------------------

    async def _leave(self) -> None:
        """Let a running exchange end, say goodbye; the worker saves when it is cancelled."""
        self.view.is_leaving = True
        await drain(self.view.work)
        with trio.move_on_after(limits.GOODBYE_DEADLINE_S):
            match self.view.membership:
                case Member(part=part):
                    await part.leave(self._stop_reason)
        try:
            self._discovery.remember()  # before questions under way fail with their sessions
        except StorageError as error:
            _log.error("good peers are not written down", why=str(error))
        with trio.move_on_after(limits.GOODBYE_DEADLINE_S):
            await self._network.close(self._stop_reason)

    def _note_mean(self, contributors: Collection[PeerId]) -> None:
        self.view.note_met(contributors, trio.current_time(), self.env.wall())

    def _record_mean(self, mean: MeanEnded) -> None:
        if mean.result:
            self.view.exchange_duration.observe(mean.took_s)
        self._log.mean_ended(mean)

    def _record_finished(self, finished: Finished) -> None:
        self._on_finished(finished)
        if finished.outcome == "committed":
            self.view.exchange_duration.observe(finished.ended - finished.started)
            self.view.note_met((finished.peer,), trio.current_time(), self.env.wall())
        self._log.finished(finished)
