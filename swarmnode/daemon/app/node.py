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
from functools import partial

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.app.assembly import (
    follow_progress,
    make_briefing,
    make_exchanges,
    make_finalizer,
)
from swarmnode.daemon.app.stop import complete, drain
from swarmnode.daemon.discovery.composition import compose, make_beacon
from swarmnode.daemon.discovery.manifests import ManifestKeeper, check_strategy
from swarmnode.daemon.discovery.rendezvous import SwarmRendezvous
from swarmnode.daemon.exchange.history import ExchangeLog
from swarmnode.daemon.exchange.intent_handlers import IntentHandlers
from swarmnode.daemon.exchange.pair.transfer import ExchangeTotals
from swarmnode.daemon.membership.admission import AdmissionGate
from swarmnode.daemon.membership.assignment import ShardAssigner
from swarmnode.daemon.membership.report import SelfReport
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.nat.addresses import reachable_addresses
from swarmnode.daemon.snapshots.blobs import Blobs
from swarmnode.daemon.snapshots.snapshots import Snapshots, snapshot_bytes_max
from swarmnode.daemon.status.control import control_routes
from swarmnode.daemon.status.dashboard import Dashboard
from swarmnode.daemon.status.peer_metrics import share_metrics
from swarmnode.daemon.status.readings import ReadingsDesk
from swarmnode.daemon.status.scrape import keep_metrics_files, metrics_routes, target_address
from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.status.words import in_one_line
from swarmnode.daemon.transport.key_guard import KeyGuard
from swarmnode.daemon.volunteer.footprint import before_joining
from swarmnode.daemon.volunteer.rules import Machine, Volunteer
from swarmnode.daemon.volunteer.totals import TotalsKeeper
from swarmnode.daemon.worker.briefing import TrainingChoice as TrainingChoice
from swarmnode.daemon.worker.briefing import configure_of
from swarmnode.daemon.worker.link import StartWorker
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.env import Env
from swarmnode.errors import StorageError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PROGRAM_TASK
from swarmnode.net.channel import Transport
from swarmnode.net.lan.beacon import LanBeacon, LanPeer, LanSwarm
from swarmnode.net.lan.datagrams import DatagramNet
from swarmnode.net.web.http import serve_http
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.quantities import parse_bytes
from swarmnode.store.blobs import BlobStore
from swarmnode.store.swarms import save_link
from swarmnode.store.training_data import save_training_data
from swarmnode.telemetry.logs import get_logger
from swarmnode.telemetry.metrics import Histogram
from swarmnode.wire.swarm import Manifest

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
        readings: the metrics of this node.
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
        self._link = link
        self._identity = identity
        self._start_worker, self._training = start_worker, training
        self._on_event, self._on_finished = on_event, on_finished
        self._find_addresses = find_addresses
        self._stop = trio.Event()
        self._stop_reason = ""
        self._finish = trio.Event()
        self._failure: SwarmNodeError | None = None
        self._store: BlobStore | None = None
        self._snapshots: Snapshots
        self._log = ExchangeLog(config.paths.history, boot_epoch, env)
        self._composition = composition = compose(config, identity, boot_epoch, transport, env)
        self._network, self._discovery = composition.network, composition.discovery
        self._key_guard = KeyGuard(self._network, boot_epoch, env, self._fail)
        self._rendezvous = SwarmRendezvous(
            link,
            discovery=self._discovery,
            self_id=identity.peer_id,
            env=env,
            is_lonely=self._is_lonely,
        )
        self.beacon = self._make_beacon(lan) if config.lan else None
        self._manifests = ManifestKeeper(link, config.paths, env, composition.services)
        self._totals = TotalsKeeper(config.paths.totals, link.name, env)
        self.view = NodeView(
            network=self._network,
            discovery=self._discovery,
            key_guard=self._key_guard,
            self_id=identity.peer_id,
            swarm=link.name,
            role=config.role,
            started_monotonic_s=env.monotonic(),
            started_unix_s=env.wall(),
            exchange_duration=Histogram(),
            node_name=config.node_name,
            totals=self._totals,
        )
        self.dashboard = Dashboard(self, config.dashboard_address)
        self.readings = ReadingsDesk(self.view, config.home)
        self.metrics_listener = ""
        self.volunteer = self.view.volunteer = Volunteer(
            config, composition.services.traffic, machine, env, on_event
        )
        self.view.owner_limits = self.volunteer.snapshot
        self._network.on_session_end = self.view.count_closed
        self.view.addresses, self.view.own_addresses = self._addresses, self._direct_addresses
        if composition.nat is not None:
            self.view.nat = composition.nat.snapshot
        self.nat = composition.nat

    def stop(self, reason: str) -> None:
        """Leave the swarm and end :meth:`run`."""
        self._stop_reason = self._stop_reason or reason
        self._stop.set()

    def finish(self) -> None:
        """Complete what runs, then :meth:`stop`."""
        self._finish.set()

    async def _finish_when_asked(self) -> None:
        await self._finish.wait()
        await complete(self.view, self.volunteer)
        self.stop("asked to finish")

    async def wait_stopping(self) -> None:
        """Return once :meth:`stop` was called. Checkpoint: yes."""
        await self._stop.wait()

    def exchange_totals(self) -> ExchangeTotals:
        """Return the running sums over exchanges; only once the node trains."""
        assert self.view.exchanges is not None
        return self.view.exchanges.totals

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until :meth:`stop`; ``start`` gives the address once it listens.

        Raises:
            SwarmNodeError: the node cannot go on; everything is closed and saved by then.
        """
        manifest = self._manifests.load()
        try:
            async with trio.open_nursery() as nursery:
                await self._listen(nursery)
                task_status.started(self.view.address)
                nursery.start_soon(self._totals.run, self.view.given)
                await nursery.start(self.volunteer.run)
                nursery.start_soon(self._finish_when_asked)
                nursery.start_soon(self._take_part, manifest, nursery)
                await self._stop.wait()
                if self._failure is None:  # a failure is raised below, and said once
                    self._on_event(f"leaving: {self._stop_reason}")
                await self._leave()
                nursery.cancel_scope.cancel()
        finally:
            self._log.close()
            if self._store is not None:
                self._store.close()
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
            nursery.start_soon(
                keep_metrics_files, self, config.metrics_textfile, config.metrics_file_sd
            )
        await nursery.start(self.dashboard.run, self._on_event)
        self.view.address = await nursery.start(self._network.run, config.listen)
        self._on_event(f"{self._identity.peer_id.short}… listens on {self.view.address}")
        self._discovery.reachable_at(self._direct_addresses())
        await nursery.start(self._discovery.run)
        if self._composition.nat is not None:
            await nursery.start(self._composition.nat.run, self.view.address)
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
            self.view.manifest = manifest
            if self._config.role == "trainer":
                check_strategy(manifest)
            self._on_event(
                f"swarm {manifest.name}: task {manifest.task}, {manifest.numel:,} parameters,"
                f" strategy {manifest.strategy}, codec {manifest.codec}"
            )
            if self._config.role == "trainer" and manifest.task != PROGRAM_TASK:
                look = partial(before_joining, manifest, self._config, self._training.device)
                self._on_event(await self.env.in_thread(look))
            part = await self._join(manifest, nursery)
            follow_progress(self.view, part, self._snapshots, self._config, self.env, nursery)
            nursery.start_soon(self._say_progress)
            if self._config.role == "trainer":
                if self._rendezvous.candidates:  # who made the swarm begins alone
                    await self.volunteer.wait_for_line()
                    self.view.waiting_for = "fetching the swarm's model"
                    self.view.has_peers_model = await self._snapshots.catch_up()
                await self._train(manifest, part, nursery)
            else:
                self.view.is_serving = True
        except SwarmNodeError as error:
            self._fail(error)

    async def _say_progress(self) -> None:
        """One line now and then for whoever looks at the terminal."""
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

    async def _join(self, manifest: Manifest, nursery: trio.Nursery) -> SwarmPart:
        """Become a member, and learn what the others say."""
        self.view.waiting_for = "meeting the other members"
        part = SwarmPart(
            self._composition,
            link=self._link,
            manifest=manifest,
            paths=self._config.paths.swarm(manifest.name),
            rendezvous=self._rendezvous,
            gate=AdmissionGate(
                manifest,
                self._link,
                role=self._config.role,
                self_id=self._identity.peer_id,
                paths=self._config.paths.swarm(manifest.name),
                env=self.env,
            ),
            report=self._report,
        )
        part.members.on_key_conflict = self._key_guard.seen_elsewhere
        part.members.on_expelled = self._fail
        part.state.on_key_elsewhere = self._key_guard.seen_elsewhere
        self.view.part = part
        self.view.peer_metrics = share_metrics(
            self.readings, part, self._identity.peer_id, self.env
        )
        await nursery.start(part.run)
        if self._composition.nat is not None:
            self._composition.nat.on_addresses = part.addresses_changed
            self._composition.nat.prefers = lambda peer: part.peer_report(peer).role == "relay"
        self._snapshots = await self._open_snapshots(manifest, part)
        await nursery.start(self._snapshots.run)
        return part

    async def _open_snapshots(self, manifest: Manifest, part: SwarmPart) -> Snapshots:
        paths = self._config.paths.swarm(manifest.name)
        bytes_max = limits.SNAPSHOT_BLOBS_MAX * snapshot_bytes_max(manifest.numel)
        if self._config.disk:  # the other half is for the worker's own snapshots
            bytes_max = min(bytes_max, parse_bytes(self._config.disk) // 2)
        self._store = await self.env.in_thread(partial(BlobStore, paths.blobs, bytes_max=bytes_max))
        blobs = Blobs(
            self._store,
            self._composition.services,
            part.members.connect,
            self.env,
            may_serve=part.members.is_member,
            upload_bytes_per_s=self._config.snapshot_upload_bytes_per_s or None,
            download_bytes_per_s=self._config.snapshot_download_bytes_per_s or None,
            run=self.env.in_thread,
        )
        self.view.blobs = blobs
        return Snapshots(
            blobs=blobs,
            part=part,
            discovery=self._discovery,
            folder=paths.snapshots,
            self_id=self._identity.peer_id,
            env=self.env,
            on_event=self._on_event,
        )

    async def _train(self, manifest: Manifest, part: SwarmPart, nursery: trio.Nursery) -> None:
        trainer = self._make_trainer(manifest)
        exchanges = make_exchanges(
            self._composition,
            self._link,
            manifest,
            part,
            trainer,
            log=self._log,
            record=self._record_finished,
        )
        handlers = IntentHandlers(
            exchanges,
            manifest=manifest,
            swarm_id=self._link.swarm_id,
            part=part,
            trainer=trainer,
            self_id=self._identity.peer_id,
            env=self.env,
        )
        trainer.handlers = handlers.by_kind()
        handlers.groups.on_mean = self._note_mean
        trainer.on_log_round = handlers.log.worker_ready
        trainer.briefing = make_briefing(part, trainer, self.view.progress_watch)
        assigner = ShardAssigner(
            part, manifest, self_id=self._identity.peer_id, post=trainer.post, env=self.env
        )
        trainer.assigner = self.view.assigner = assigner
        nursery.start_soon(assigner.run)
        swarm_paths = self._config.paths.swarm(manifest.name)
        finalizer = make_finalizer(self._composition, manifest, part, trainer, swarm_paths)
        part.on_partners_changed = partial(_tell_all, trainer.partners_changed, finalizer.look)
        await nursery.start(finalizer.run)
        await nursery.start(handlers.run)
        self.view.trainer, self.view.exchanges = trainer, exchanges
        self.view.finalizer, self.view.groups = finalizer, handlers.groups
        self.view.handlers = handlers
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
        manifest, part = self.view.manifest, self.view.part
        if manifest is None or part is None:
            return ()
        members = len(part.members.live())
        return (LanSwarm(manifest.name, manifest.swarm_key, members, manifest.created_at),)

    def _met_on_lan(self, peer: LanPeer) -> None:
        if any(swarm.swarm_key == self._link.swarm_key for swarm in peer.swarms):
            if peer.address not in self._rendezvous.candidates.get(peer.peer, ()):
                self._on_event(f"met {peer.peer.short}… of this swarm on the LAN")
            self._rendezvous.found(peer.peer, (peer.address,))

    def _is_lonely(self) -> bool:
        part = self.view.part
        return part is None or len(part.sessions) < limits.SWARM_LONELY_NEIGHBOURS

    def _direct_addresses(self) -> tuple[str, ...]:
        # Looked up each time: a laptop moves from one network to another.
        bound = self._network.address  # empty until we listen: a status may be asked for before
        return self._config.advertise or (self._find_addresses(bound) if bound else ())

    def _addresses(self) -> tuple[str, ...]:
        """Where others reach us: what strangers have confirmed, then relays, then our own word."""
        found = self._composition.nat.addresses() if self._composition.nat is not None else ()
        return tuple(dict.fromkeys((*self._config.advertise, *found, *self._direct_addresses())))

    def _report(self) -> SelfReport:
        return self.view.report(self._addresses(), self.env.monotonic())

    def _fail(self, error: SwarmNodeError) -> None:
        self._failure = self._failure or error
        self.stop("it cannot go on")  # peers are told this: the error may name our files

    def _make_trainer(self, manifest: Manifest) -> Trainer:
        configure = configure_of(manifest, self._config, self._training, self._identity.peer_id)
        return Trainer(
            configure,
            start_worker=self._start_worker,
            env=self.env,
            on_applied=self._log.applied,
            on_lost=self._log.lost,
            on_saved=self._snapshots.saved,
            on_event=self._on_event,
            share=self._config.cpu_percent / 100,
            mend=self._snapshots.mend,
        )

    # --- going down -----------------------------------------------------------------------

    async def _leave(self) -> None:
        """Let a running exchange end, say goodbye; the worker saves when it is cancelled."""
        self.view.leaving = True
        await drain(self.view)
        with trio.move_on_after(limits.GOODBYE_DEADLINE_S):
            if self.view.part is not None:
                await self.view.part.leave(self._stop_reason)
        with trio.move_on_after(limits.GOODBYE_DEADLINE_S):
            await self._network.close(self._stop_reason)
        try:
            self._discovery.remember()
        except StorageError as error:
            _log.error("good peers are not written down", why=str(error))

    def _note_mean(self, contributors: Collection[PeerId]) -> None:
        for peer in contributors:
            if peer != self._identity.peer_id:
                self.view.meetings.note(peer, trio.current_time())
        self.view.last_exchange_unix_s = self.env.wall()

    def _record_finished(self, finished: Finished) -> None:
        self._on_finished(finished)
        if finished.outcome == "committed":
            self.view.exchange_duration.observe(finished.ended - finished.started)
            self.view.meetings.note(finished.peer, trio.current_time())
            self.view.last_exchange_unix_s = self.env.wall()
        self._log.finished(finished)


def _tell_all(*listeners: Callable[[], None]) -> None:
    for listener in listeners:
        listener()
