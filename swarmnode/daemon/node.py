"""One node, put together: the only composition root.

::

    identity -> services -> neighbours (sessions, peer book)
                   |  \\-> manifest
                   |   \\-> exchanges <-> trainer <-> worker
                 control API, /metrics

A node starts in this order and stops in the reverse one, in under two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from swarmnode import __version__, limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.addresses import reachable_addresses
from swarmnode.daemon.control import control_routes, metrics_routes
from swarmnode.daemon.exchange import Exchanges, ExchangeTotals
from swarmnode.daemon.manifests import ManifestKeeper
from swarmnode.daemon.neighbours import Neighbours
from swarmnode.daemon.newcomer import Newcomer, SnapshotService
from swarmnode.daemon.status import NodeView
from swarmnode.daemon.trainer import Trainer
from swarmnode.daemon.worker_link import StartWorker
from swarmnode.env import Env
from swarmnode.errors import StorageError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Applied, Configure
from swarmnode.net.channel import Transport
from swarmnode.net.http import serve_http
from swarmnode.net.services import Services
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.peerbook import sign_peer_record
from swarmnode.protocol.swarm import SwarmLink, compatibility_key
from swarmnode.store.files import HistoryFile
from swarmnode.store.swarms import save_link
from swarmnode.telemetry.logs import get_logger
from swarmnode.telemetry.metrics import Histogram
from swarmnode.tensor.codec import get_codec
from swarmnode.wire.membership import PeerRecord
from swarmnode.wire.swarm import Manifest, Signed

_log = get_logger(__name__)


@dataclass(frozen=True)
class TrainingChoice:
    """What the owner of a node decides about its share of the work."""

    device: str = "auto"
    threads: int = 0
    steps_max: int = 0  # 0: until told to stop
    data_dir: str = ""


class Node:
    """A daemon for one swarm.

    Args:
        boot_epoch: on disk before it is given here, and never given twice.
        transport: how bytes reach other nodes.
        start_worker: how the worker is started.
        on_event: told of each step on the way to training, for the terminal.
        on_finished: told of each exchange that ended.
        find_addresses: where others reach a listener that is bound to an address.
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
    ) -> None:
        self.env = env
        self._config = config
        self._link = link
        self._identity = identity
        self._boot_epoch = boot_epoch
        self._sequence = 0
        self._start_worker = start_worker
        self._training = training
        self._on_event = on_event
        self._on_finished = on_finished
        self._find_addresses = find_addresses
        self._stop = trio.Event()
        self._stop_reason = ""
        self._failure: SwarmNodeError | None = None
        self._history = HistoryFile(config.paths.history)
        self._history_fails = False
        self._services = Services()
        self._neighbours = Neighbours(
            identity=identity,
            network_id=link.network_id,
            transport=transport,
            services=self._services,
            env=env,
            sign_own_record=self._sign_own_record,
        )
        self._manifests = ManifestKeeper(link, config.paths, env, self._services)
        self._snapshots = SnapshotService(self._services, self._newest_snapshot)
        self.view = NodeView(
            manifest=None,
            neighbours=self._neighbours,
            trainer=None,
            exchanges=None,
            peer=str(identity.peer_id),
            swarm=link.name,
            address="",
            started_monotonic_s=env.monotonic(),
            started_unix_s=env.wall(),
            exchange_duration=Histogram(),
        )
        self._neighbours.on_session_end = self.view.count_closed

    def stop(self, reason: str) -> None:
        """Leave the swarm and end :meth:`run`."""
        self._stop_reason = self._stop_reason or reason
        self._stop.set()

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
                nursery.start_soon(self._take_part, manifest, nursery)
                await self._stop.wait()
                if self._failure is None:  # a failure is raised below, and said once
                    self._on_event(f"leaving: {self._stop_reason}")
                await self._leave()
                nursery.cancel_scope.cancel()
        finally:
            self._history.close()
        if self._failure is not None:
            raise self._failure

    # --- coming up ------------------------------------------------------------------------

    async def _listen(self, nursery: trio.Nursery) -> None:
        config = self._config
        await nursery.start(serve_http, config.paths.control_socket, control_routes(self))
        if config.metrics_address is not None:
            serve = partial(serve_http, any_host=config.metrics_allow_remote)
            await nursery.start(serve, config.metrics_address, metrics_routes(self))
        self.view.address = await nursery.start(self._neighbours.run, config.listen)
        self._on_event(f"{self._identity.peer_id.short}… listens on {self.view.address}")
        self._neighbours.add_hints(self._link.hints)

    async def _take_part(self, manifest: Manifest | None, nursery: trio.Nursery) -> None:
        """Get the manifest, then train; a failure ends the node in an orderly way."""
        try:
            if manifest is None:
                self.view.waiting_for = "looking for a peer that has the manifest"
                asked = ", ".join(hint.address for hint in self._link.hints)
                self._on_event(f"asking for the manifest of the swarm at {asked or 'no peer'}")
                manifest = await self._manifests.fetch(self._neighbours)
            save_link(self._link, self._config.paths)
            self.view.manifest = manifest
            self._on_event(
                f"swarm {manifest.name}: task {manifest.task}, {manifest.numel:,} parameters,"
                f" strategy {manifest.strategy}, codec {manifest.codec}"
            )
            await self._catch_up(manifest)
            trainer = self._make_trainer(manifest)
            exchanges = self._make_exchanges(manifest, trainer)
            trainer.exchanges = exchanges
            self._neighbours.on_session_opened = exchanges.session_opened
            await nursery.start(exchanges.run)
            nursery.start_soon(self._say_progress)
            self.view.trainer, self.view.exchanges = trainer, exchanges
            await trainer.run()
        except SwarmNodeError as error:
            self._failure = error
            self.stop("it cannot go on")  # peers are told this: the error may name our files

    async def _say_progress(self) -> None:
        """One line now and then for whoever looks at the terminal."""
        while True:
            await trio.sleep(limits.PROGRESS_LINE_S)
            status = self.view.node_status(self.env.monotonic())
            loss, swarm = (
                "-" if value is None else f"{value:.4f}"
                for value in (status.eval_loss, status.swarm_loss)
            )
            self._on_event(
                f"{status.state} ({status.reason}): step {status.step:,}, held-out loss {loss},"
                f" swarm {swarm}, {status.peers_connected} peers,"
                f" {status.exchanges_committed} exchanges"
            )

    async def _catch_up(self, manifest: Manifest) -> None:
        newcomer = Newcomer(
            self._neighbours,
            self._config.paths.swarm(manifest.name).snapshots,
            numel=manifest.numel,
            on_event=self._on_event,
        )
        others = [hint for hint in self._link.hints if hint.peer != self._identity.peer_id]
        if others and not newcomer.has_own():
            self.view.waiting_for = "fetching the swarm's model from a peer"
            await newcomer.catch_up()

    def _newest_snapshot(self) -> tuple[int, Path] | None:
        saved = self.view.trainer.last_snapshot if self.view.trainer is not None else None
        return None if saved is None else (saved.step, Path(saved.path))

    def _make_trainer(self, manifest: Manifest) -> Trainer:
        choice, swarm_paths = self._training, self._config.paths.swarm(manifest.name)
        configure = Configure(
            task=manifest.task,
            task_config=manifest.task_config,
            strategy=manifest.strategy,
            strategy_settings=manifest.strategy_settings,
            swarm_seed=manifest.seed,
            # Every node has its own stream of batches, and the same one after a restart.
            shard_seed=int.from_bytes(self._identity.peer_id[:4], "big"),
            snapshot_dir=str(swarm_paths.snapshots),
            device=choice.device,
            steps_max=choice.steps_max,
            data_dir=choice.data_dir,
            layout_hash=manifest.layout_hash,
            data_hash=manifest.data_hash.hex(),
            task_version=manifest.task_version,
            threads=choice.threads,
        )
        return Trainer(
            configure,
            compatibility_key=compatibility_key(manifest),
            start_worker=self._start_worker,
            env=self.env,
            on_applied=self._record_applied,
            on_lost=self._record_lost,
        )

    def _make_exchanges(self, manifest: Manifest, trainer: Trainer) -> Exchanges:
        return Exchanges(
            self_id=self._identity.peer_id,
            network_id=self._link.network_id,
            neighbours=self._neighbours,
            services=self._services,
            codec=get_codec(manifest.codec),
            env=self.env,
            apply=trainer.apply,
            release=trainer.release,
            record=self._record_finished,
            lost=self._record_lost,
        )

    # --- going down -----------------------------------------------------------------------

    async def _leave(self) -> None:
        """Let a running exchange end, say goodbye; the worker saves when it is cancelled."""
        self.view.leaving = True
        exchanges, trainer = self.view.exchanges, self.view.trainer
        if exchanges is not None and trainer is not None:
            with trio.move_on_after(limits.LEAVE_DRAIN_S):
                await exchanges.drain()
            exchanges.give_up("leaving")
            with trio.move_on_after(limits.LEAVE_DECISION_S):
                await exchanges.drain()
                await trainer.drain()
        with trio.move_on_after(limits.GOODBYE_DEADLINE_S):
            await self._neighbours.say_goodbye(self._stop_reason)

    # --- what is written down -------------------------------------------------------------

    def _sign_own_record(self, bound: str) -> Signed:
        self._sequence += 1
        record = PeerRecord(
            network_id=self._link.network_id,
            public_key=self._identity.public_key,
            addresses=self._config.advertise or self._find_addresses(bound),
            role="trainer",
            version=__version__,
            boot_epoch=self._boot_epoch,
            sequence=self._sequence,
            status=self.view.peer_status(),
        )
        return sign_peer_record(record, self._identity)

    def _record_finished(self, finished: Finished) -> None:
        self._on_finished(finished)
        if finished.outcome == "committed":
            self.view.exchange_duration.observe(finished.ended - finished.started)
            self.view.last_exchange_unix_s = self.env.wall()
        self._write_history(
            {
                "event": "finished",
                "xid": finished.xid.hex(),
                "peer": str(PeerId(finished.peer)),
                "role": str(finished.role),
                "outcome": str(finished.outcome),
                "reason": finished.reason,
                "in_doubt": finished.in_doubt,
                "took_s": round(finished.ended - finished.started, 6),
            }
        )

    def _record_applied(self, applied: Applied) -> None:
        self._write_history(
            {
                "event": "applied",
                "xid": applied.xid.hex(),
                "step": applied.step,
                "staleness_steps": applied.staleness_steps,
            }
        )

    def _record_lost(self, xid: bytes) -> None:
        self._write_history({"event": "lost", "xid": xid.hex()})

    def _write_history(self, entry: dict[str, object]) -> None:
        entry = {**entry, "boot": self._boot_epoch, "unix_s": round(self.env.wall(), 3)}
        try:
            self._history.append(entry)
        except StorageError as error:
            # A full disk must not stop training, nor fill the log with a line an exchange.
            if not self._history_fails:
                _log.error("exchanges are not written down", why=str(error))
            self._history_fails = True
        else:
            self._history_fails = False
