"""The parent side of training: keeps a worker alive and lends its slots to exchanges.

One worker at a time. When it dies, whatever it had lent is lost with it, and
another is started from the last snapshot, until the restart budget is spent.
Nothing here waits for the worker, and the worker waits for nothing here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.exchange import Exchanges, SlotLease
from swarmnode.daemon.worker_link import RestartBudget, StartWorker, WorkerLink
from swarmnode.env import Env
from swarmnode.errors import (
    ConfigError,
    DeadlineExceeded,
    Overloaded,
    SpecMismatch,
    StorageError,
    WorkerCrashed,
    WorkerError,
    WorkerHung,
)
from swarmnode.ipc.control import (
    FATAL_KINDS,
    Applied,
    Apply,
    Configure,
    DropShard,
    FromWorker,
    Pause,
    Progress,
    Release,
    Resume,
    SaveSnapshot,
    ShardDone,
    SlotReady,
    SnapshotFailed,
    SnapshotSaved,
    TakeShard,
    ToWorker,
    WorkerFailed,
    WorkerReady,
)
from swarmnode.ipc.segment import StaleSlot
from swarmnode.protocol.gossip.events import Snapshot
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.layout import chunks
from swarmnode.wire.membership import PeerState

_log = get_logger(__name__)
PAIR_TAG = "x"  # one vector, the parameters: strategies with several will name theirs


@dataclass(frozen=True)
class Applications:
    """What became of committed exchanges in the worker."""

    applied: int = 0
    staleness_steps: int = 0  # summed


class ShardDealer(Protocol):
    """Hears what the worker does with its shards; see ``daemon/dealer.py``."""

    def worker_ready(self, ready: WorkerReady) -> None:
        """It trains."""

    def worker_gone(self) -> None:
        """It died."""

    def rests(self) -> None:
        """It is paused, or has done all that was asked."""

    def goes_on(self) -> None:
        """It trains again."""

    def finished(self, epoch: int, index: int) -> None:
        """It has trained a shard to the end."""


class Trainer:
    """Runs the worker of one swarm.

    Args:
        configure: what the worker is told first.
        compatibility_key: 32 bytes that guard every exchange.
        start_worker: starts a process, or a fake of one in tests.
        on_applied: the worker has merged this exchange.
        on_saved: the worker has written a snapshot.
        dealer: deals data shards; without one the worker trains on its own stream.
        on_lost: an exchange has committed, but the worker died before it merged it.
        on_event: told that training begins, for the terminal.
    """

    def __init__(
        self,
        configure: Configure,
        *,
        compatibility_key: bytes,
        start_worker: StartWorker,
        env: Env,
        on_applied: Callable[[Applied], None],
        on_lost: Callable[[bytes], None],
        on_saved: Callable[[SnapshotSaved], None] = lambda _saved: None,
        on_event: Callable[[str], None] = lambda _text: None,
        dealer: ShardDealer | None = None,
    ) -> None:
        self.configure = configure
        self.state: PeerState = "starting"
        self.reason = "starting the worker"
        self.ready: WorkerReady | None = None
        self.progress: Progress | None = None
        self.last_snapshot: SnapshotSaved | None = None
        self.snapshot_failure: SnapshotFailed | None = None  # of the newest attempt
        self.applications = Applications()
        self.restarts = 0
        self.worker_pid: int | None = None
        self.exchanges: Exchanges | None = None
        self._key = compatibility_key
        self._start_worker = start_worker
        self._env = env
        self._on_applied = on_applied
        self._on_lost = on_lost
        self._on_saved = on_saved
        self._on_event = on_event
        self.dealer = dealer
        self._link: WorkerLink | None = None
        self._outgoing: trio.MemorySendChannel[ToWorker] | None = None
        self._generations: dict[int, int] = {}
        self._sent_applies = 0  # to the worker that runs now
        self._unmerged: dict[bytes, None] = {}  # of those, exchanges it has not merged yet
        self._changed = trio.Event()
        self._failure: WorkerFailed | None = None
        self._paused = False
        self._is_resting = False
        self._requests = 0
        self._saved = trio.Event()

    # --- life -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a worker running until cancelled.

        Raises:
            ConfigError, SpecMismatch: what a restart cannot mend.
            WorkerError: it died too often; the message is that of its last death.
        """
        budget = RestartBudget(self._env.rng)
        while True:
            try:
                await self._one_life()
            except (WorkerCrashed, WorkerHung) as error:
                self._worker_gone()
                self._raise_if_fatal(error)
                pause_s = budget.next_pause_s(self._env.monotonic())
                if pause_s is None:
                    raise WorkerError(
                        f"the worker died {limits.WORKER_RESTARTS_MAX + 1} times in"
                        f" {limits.WORKER_RESTARTS_WINDOW_S / 60:.0f} minutes, last: {error}"
                    ) from error
                self.restarts += 1
                self._set_state("starting", f"restarting the worker: {error}")
                _log.warning("worker died", why=str(error), restart_in_s=pause_s)
                await trio.sleep(pause_s)

    async def _one_life(self) -> None:
        send, receive = trio.open_memory_channel[ToWorker](limits.TRAINER_OUTBOX_MAX)
        self._failure = None
        try:
            async with self._start_worker(self.configure) as link:
                self._link, self._outgoing = link, send
                self.worker_pid = link.pid
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, link, receive)
                    if self._paused:
                        self._post(Pause())
                    while True:
                        self._take(await link.receive())
        except* (WorkerCrashed, WorkerHung) as group:
            raise _first(group) from None
        finally:
            self._link = self._outgoing = None

    async def _write(self, link: WorkerLink, receive: trio.MemoryReceiveChannel[ToWorker]) -> None:
        async for message in receive:
            # A slot that went with its worker cannot be given back; receive() says why.
            with contextlib.suppress(StaleSlot):
                await link.send(message)

    def _worker_gone(self) -> None:
        self.worker_pid = None
        self._generations.clear()
        self._sent_applies = 0
        lost, self._unmerged = self._unmerged, {}
        for xid in lost:
            self._on_lost(xid)
        self._changed.set()
        self._wake_savers()
        self._is_resting = False
        if self.dealer is not None:
            self.dealer.worker_gone()
        if self.exchanges is not None:
            self.exchanges.worker_lost()

    def _raise_if_fatal(self, error: WorkerError) -> None:
        failed = self._failure
        if failed is None or failed.kind not in FATAL_KINDS:
            return
        if failed.kind == "layout":
            raise SpecMismatch(failed.message) from error
        raise ConfigError(failed.message) from error

    # --- messages of the worker -----------------------------------------------------------

    def _take(self, message: FromWorker) -> None:
        match message:
            case WorkerReady():
                self.ready = message
                self._set_training(f"on {message.device}, {message.threads} threads")
                _log.info(
                    "worker ready", device=message.device, step=message.step, numel=message.numel
                )
                self._on_event(f"training on {message.device}, from step {message.step:,} on")
                self._compare_data(message.data_hash)
                if self.dealer is not None:
                    self.dealer.worker_ready(message)
            case SlotReady():
                self._take_slot(message)
            case Applied():
                self.applications = Applications(
                    self.applications.applied + 1,
                    self.applications.staleness_steps + message.staleness_steps,
                )
                self._unmerged.pop(message.xid, None)
                self._changed.set()
                self._on_applied(message)
            case Progress():
                self._take_progress(message)
            case ShardDone(epoch=epoch, index=index):
                if self.dealer is not None:
                    self.dealer.finished(epoch, index)
            case SnapshotSaved():
                self.last_snapshot, self.snapshot_failure = message, None
                self._on_saved(message)
                self._wake_savers()
            case SnapshotFailed():
                self.snapshot_failure = message
                _log.error("snapshot not written", step=message.step, why=message.message)
                self._wake_savers()
            case WorkerFailed():
                self._failure = message
                _log.warning("worker reports a failure", kind=message.kind, why=message.message)

    def _compare_data(self, data_hash: str) -> None:
        """Other data is allowed, a shard of one's own for example, but not in silence."""
        expected = self.configure.data_hash
        if expected and data_hash and data_hash != expected:
            _log.warning(
                "this node trains on other data than the swarm's creator; for the same, give"
                " `join` the same --data",
                own=data_hash[:12],
                creator=expected[:12],
            )

    def _take_progress(self, message: Progress) -> None:
        self.progress = message
        self._tell_dealer(is_resting=message.paused or message.finished)
        if message.finished:
            self._set_state("stopped", f"reached the {self.configure.steps_max} steps asked for")
        elif message.paused:
            self._set_state("paused", "paused by hand")
        elif self.ready is not None:
            self._set_training(f"on {self.ready.device}")

    def _tell_dealer(self, *, is_resting: bool) -> None:
        if self.dealer is None or is_resting == self._is_resting:
            return
        self._is_resting = is_resting
        if is_resting:
            self.dealer.rests()
        else:
            self.dealer.goes_on()

    def _take_slot(self, message: SlotReady) -> None:
        """Lend the snapshot, unless an exchange has committed since it was taken."""
        self._generations[message.slot] = message.generation
        link, exchanges = self._link, self.exchanges
        if exchanges is None or link is None or message.applied != self._sent_applies:
            self.release(message.slot)
            return
        try:
            view = link.slot_view(message.slot, message.generation)
        except StaleSlot:
            return  # the worker has died since it sent this
        snapshot = Snapshot(
            slot=message.slot,
            key=self._key,
            tag=PAIR_TAG,
            fragment=0,
            round=message.round,
            n_chunks=len(list(chunks(len(view) // 4))),
            step=message.step,
            tokens=message.tokens,
        )
        exchanges.snapshot_ready(SlotLease(snapshot, view))

    def _wake_savers(self) -> None:
        self._saved.set()
        self._saved = trio.Event()

    def _set_training(self, how: str) -> None:
        failed = self.snapshot_failure
        alarm = f"; ALARM: no snapshot can be written: {failed.message}" if failed else ""
        self._set_state("training", how + alarm)

    def _set_state(self, state: PeerState, reason: str) -> None:
        self.state, self.reason = state, reason

    # --- what others ask for --------------------------------------------------------------

    def apply(self, slot: int, xid: bytes) -> None:
        """A committed exchange: the worker merges the slot at its next step boundary."""
        self._sent_applies += 1
        self._unmerged[xid] = None
        self._post(Apply(slot=slot, generation=self._generations.pop(slot), xid=xid))

    def release(self, slot: int) -> None:
        """The slot is the worker's again, as if nothing had been offered."""
        generation = self._generations.pop(slot, None)
        if generation is not None:
            self._post(Release(slot=slot, generation=generation))

    def pause(self) -> None:
        """Stop stepping until :meth:`resume`; also across restarts. Raises Overloaded."""
        self._ask(Pause())
        self._paused = True

    def resume(self) -> None:
        """Go on. Raises Overloaded."""
        self._ask(Resume())
        self._paused = False

    async def drain(self) -> None:
        """Return when every committed exchange has been merged by the worker."""
        while self._link is not None and self._unmerged:
            self._changed = trio.Event()
            await self._changed.wait()

    async def save_snapshot(self, deadline_s: float) -> SnapshotSaved:
        """Have a snapshot written now.

        Raises:
            WorkerError: there is no worker, or it died over it.
            StorageError: it could not write.
            DeadlineExceeded: it took longer than ``deadline_s``.
        """
        if self._link is None or self.ready is None:
            raise WorkerError(f"no worker to write a snapshot: {self.reason}")
        self._requests += 1
        request, life = self._requests, self.restarts
        self._ask(SaveSnapshot(request=request))
        with trio.move_on_after(deadline_s):
            while True:
                saved, failed = self.last_snapshot, self.snapshot_failure
                if saved is not None and saved.request >= request:
                    return saved
                if failed is not None and failed.request >= request:
                    raise StorageError(failed.message)
                if self._link is None or self.restarts != life:
                    raise WorkerError("the worker died before it wrote the snapshot: try again")
                await self._saved.wait()
        raise DeadlineExceeded("waiting for the worker to write a snapshot", deadline_s)

    def _ask(self, message: ToWorker) -> None:
        """Post what a person wants, with room left for every slot that has to go back."""
        channel = self._outgoing
        if channel is not None:
            waiting = channel.statistics().current_buffer_used
            if waiting + limits.SEGMENT_SLOTS_MAX >= limits.TRAINER_OUTBOX_MAX:
                raise Overloaded(f"the worker has not read {waiting} messages yet: try again later")
        self._post(message)

    def post(self, message: TakeShard | DropShard) -> None:
        """Pass a shard on to the worker, or take it back."""
        self._post(message)

    def _post(self, message: ToWorker) -> None:
        if self._outgoing is not None:
            self._outgoing.send_nowait(message)


def finite_or_none(value: float | None) -> float | None:
    """JSON and wire have no NaN: no number yet is None."""
    return value if value is not None and math.isfinite(value) else None


def _first(group: BaseExceptionGroup[WorkerError]) -> WorkerError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WorkerError)
    return error
