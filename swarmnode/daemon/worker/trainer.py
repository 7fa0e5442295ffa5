"""The parent side of training: keeps a worker alive, and passes on its intents and buffers.

One worker at a time. When it dies, whatever it had posted and lent is lost with it, and
another is started from the last snapshot, until the restart budget is spent.
Nothing here waits for the worker, and the worker waits for nothing here.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping

import trio

from swarmnode import limits
from swarmnode.daemon.worker.briefing import (
    Assigner,
    Briefing,
    NoAssigner,
    NoBriefing,
    data_alarm,
    place_in_words,
)
from swarmnode.daemon.worker.fitting import Fitting, Models, NoModels, death_kind, raise_if_fatal
from swarmnode.daemon.worker.leases import Applications, IntentHandler, SlotLessor
from swarmnode.daemon.worker.link import (
    SAID_NOTHING,
    MergeDesk,
    RestartBudget,
    SilenceWatch,
    StartWorker,
    WorkerLink,
)
from swarmnode.env import Env
from swarmnode.errors import (
    DeadlineExceeded,
    Overloaded,
    StorageError,
    WorkerCrashed,
    WorkerError,
    WorkerHung,
    WorkerLeft,
    first_leaf,
)
from swarmnode.ipc.comparing import Compared
from swarmnode.ipc.control import (
    Applied,
    BatchFit,
    Configure,
    FromWorker,
    MergeFailed,
    MergeWeighed,
    NoView,
    Pause,
    PostedIntent,
    Progress,
    Resume,
    SaveSnapshot,
    ShardDone,
    Share,
    ShareGiven,
    SlotReady,
    SnapshotFailed,
    SnapshotSaved,
    ToWorker,
    Weighed,
    WorkerFailed,
    WorkerReady,
)
from swarmnode.ipc.names import PROGRAM_TASK
from swarmnode.ipc.segment import StaleSlot
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.membership import PeerState

_log = get_logger("swarmnode.daemon.worker")
_WAITING = "waiting for the program that trains; see docs/integrations.md"


class Trainer:
    """Runs the worker of one swarm.

    Args:
        configure: what the worker is told first.
        start_worker: starts a process, or a fake of one in tests.
        on_applied: the worker has merged this exchange.
        on_saved: the worker has written a snapshot.
        on_lost: an exchange has committed, but the worker died before it merged it.
        on_event: told that training begins, for the terminal.
        share: of the time of its threads, or of its GPU, that the worker may take.
        fitting: remembers over all workers how batches are cut to fit into memory.
        models: of the others, for a worker to begin with.

    Attributes:
        lessor: lends the slots of the worker that runs.
        handlers: what serves intents, by their kind.
        briefing: tells the worker of the others; without one it knows of no member.
        on_log_round: a worker is up that wants the log from here on, after a round of this digest.
        assigner: deals data shards; without one the worker trains on its own stream.
    """

    def __init__(
        self,
        configure: Configure,
        *,
        start_worker: StartWorker,
        env: Env,
        on_applied: Callable[[Applied], None],
        on_lost: Callable[[bytes], None],
        on_saved: Callable[[SnapshotSaved], None] = lambda _saved: None,
        on_event: Callable[[str], None] = lambda _text: None,
        share: float = 1.0,
        fitting: Fitting | None = None,
        models: Models | None = None,
    ) -> None:
        self.configure = configure
        self.state: PeerState = "starting"
        self.reason = _WAITING if configure.task == PROGRAM_TASK else "starting the worker"
        self.ready: WorkerReady | None = None
        self.progress: Progress | None = None
        self.last_snapshot: SnapshotSaved | None = None
        self.snapshot_failure: SnapshotFailed | None = None  # of the newest attempt
        self.pauses_s = deque[float](maxlen=limits.STEP_PAUSES_KEPT)  # of steps, for exchanges
        self.applications = Applications()
        self.restarts = 0
        self.failures: Counter[str] = Counter()  # by one of WORKER_FAILURES
        self.is_loss_finite: bool | None = None  # None: there was none yet
        self.saved_total = self.unsaved_total = 0  # snapshots
        self.saved_unix_s: float | None = None
        self.worker_pid: int | None = None
        self.lessor = SlotLessor(self.post, on_lost)
        self.handlers: Mapping[str, IntentHandler] = {}
        self.on_log_round: Callable[[int, bytes], None] = lambda _round, _head: None
        self.briefing: Briefing | NoBriefing = NoBriefing()
        self.merges = MergeDesk(self._ask_of_worker)
        self._share = share
        self._fitting = fitting or Fitting()
        self._models = models or NoModels()
        self._start_worker = start_worker
        self._env = env
        self._on_applied = on_applied
        self._on_saved = on_saved
        self._on_event = on_event
        self.assigner: Assigner = NoAssigner()
        self._silence = SilenceWatch(self._worker_silent)
        self._is_running = False
        self._outgoing = _closed_channel()
        self._read = trio.Event()
        self._failure = SAID_NOTHING
        self._why_paused = ""
        self._may_live = trio.Event()  # whether a worker may have memory at all
        self._may_live.set()
        self._unloaded = trio.Event()
        self._why_renewed = ""
        self._renewals = RestartBudget(env.rng)
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
            await self._may_live.wait()
            try:
                await self._one_life()
                self._worker_gone()  # its memory is wanted back
                self._set_state("paused", self._why_paused)
                await self._fetch_model_if_wanted()
            except WorkerLeft as left:  # another may come: nothing that the budget is for
                self._worker_gone()
                self._set_state("starting", f"{left}; {_WAITING}")
                _log.info("the program that trains has gone", why=str(left))
            except (WorkerCrashed, WorkerHung) as error:
                self._worker_gone()
                self._count_failure(error)
                raise_if_fatal(error, self._failure)
                if await self._models.mend(self._failure):
                    continue
                pause_s = 0.0
                if not self._fitting.died(error, self._failure):
                    pause_s = budget.next_pause_s(self._env.monotonic())
                if math.isinf(pause_s):
                    raise WorkerError(
                        f"the worker died {limits.WORKER_RESTARTS_MAX + 1} times in"
                        f" {limits.WORKER_RESTARTS_WINDOW_S / 60:.0f} minutes, last: {error}"
                    ) from error
                self.restarts += 1
                words = self._fitting.words()
                self._set_state("starting", f"restarting the worker: {error}{words}")
                _log.warning("worker died", why=str(error), restart_in_s=pause_s)
                await trio.sleep(pause_s)

    async def _fetch_model_if_wanted(self) -> None:
        if not self._why_renewed:
            return
        self._set_state("starting", f"fetching a model of the others: {self._why_renewed}")
        pause_s = self._renewals.next_pause_s(self._env.monotonic())
        await trio.sleep(min(pause_s, limits.WORKER_RESTARTS_WINDOW_S))
        await self._models.begin_anew()
        self._why_renewed = ""
        if self._may_live.is_set():
            self._unloaded = trio.Event()

    async def _one_life(self) -> None:
        send, receive = trio.open_memory_channel[ToWorker](limits.TRAINER_OUTBOX_MAX)
        self._failure = SAID_NOTHING
        try:
            async with self._start_worker(self._fitting.begin(self.configure)) as link:
                self._is_running, self._outgoing = True, send
                self.worker_pid = link.pid
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, link, receive)
                    nursery.start_soon(self.briefing.run)
                    nursery.start_soon(self.briefing.pace)
                    nursery.start_soon(self.briefing.follow)
                    nursery.start_soon(self._silence.run)
                    nursery.start_soon(self._end_when_unwanted, nursery.cancel_scope)
                    if self._share < 1:
                        self.post(Share(fraction=self._share))
                    if self._why_paused:
                        self.post(Pause())
                    while True:
                        self._take(link, await link.receive())
        except* (WorkerCrashed, WorkerHung, WorkerLeft) as group:
            error = first_leaf(group)
            assert isinstance(error, WorkerError)
            raise error from None
        finally:
            self._is_running, self._outgoing = False, _closed_channel()

    async def _write(self, link: WorkerLink, receive: trio.MemoryReceiveChannel[ToWorker]) -> None:
        async for message in receive:
            self._read.set()
            # A slot that went with its worker cannot be given back; receive() says why.
            with contextlib.suppress(StaleSlot):
                await link.send(message)

    def _worker_gone(self) -> None:
        self.worker_pid = None
        self.lessor.worker_gone()
        self.merges.worker_gone()
        self._read.set()
        self._wake_savers()
        self._is_resting = False
        self._silence.worker_gone()
        self.assigner.worker_gone()
        self.briefing.worker_gone()
        for handler in self.handlers.values():
            handler.worker_gone()

    def _count_failure(self, error: WorkerError) -> None:
        kind = death_kind(error, self._failure)
        self.failures[kind] += 1
        if kind == "diverged":
            self.is_loss_finite = False

    # --- messages of the worker -----------------------------------------------------------

    def _take(self, link: WorkerLink, message: FromWorker) -> None:
        match message:
            case WorkerReady():
                self._take_ready(link, message)
            case PostedIntent():
                self._take_intent(message)
            case SlotReady():
                self.lessor.slot_ready(message)
            case NoView():
                self.lessor.no_view(message)
            case Weighed():
                self.lessor.weighed(message)
            case Compared():
                self.lessor.compared(message)
            case Applied():
                self.applications = Applications(
                    self.applications.applied + 1,
                    self.applications.staleness_steps + message.staleness_steps,
                )
                self.lessor.applied(message)
                self._on_applied(message)
            case Progress():
                self._take_progress(message)
                if why := self._models.complaint(message):
                    self._failure = WorkerFailed(kind="snapshot", message=why)
                    raise WorkerCrashed(why)
            case BatchFit():
                self._fitting.take(message)
            case ShardDone(epoch=epoch, index=index):
                self.assigner.finished(epoch, index)
            case SnapshotSaved():
                self.last_snapshot, self.snapshot_failure = message, None
                self.saved_total += 1
                self.saved_unix_s = self._env.wall()
                self._on_saved(message)
                self._wake_savers()
            case SnapshotFailed():
                self.snapshot_failure = message
                self.unsaved_total += 1
                _log.error("snapshot not written", step=message.step, why=message.message)
                self._wake_savers()
            case ShareGiven() | MergeWeighed() | MergeFailed():
                self.merges.take(message)
            case WorkerFailed():
                self._failure = message
                _log.warning("worker reports a failure", kind=message.kind, why=message.message)

    def _take_ready(self, link: WorkerLink, ready: WorkerReady) -> None:
        self.ready = ready
        self.lessor.worker_ready(link.slot_view, ready.payload_numel)
        place = place_in_words(self.configure, ready)
        self._set_training(f"on {place}, {ready.threads} threads")
        _log.info("worker ready", device=ready.device, step=ready.step, numel=ready.numel)
        self._on_event(f"training on {place}, from step {ready.step:,} on")
        if said := data_alarm(self.configure, ready):
            own, creator = ready.data_hash[:12], self.configure.data_hash[:12]
            _log.warning("other data than the creator's", own=own, creator=creator, why=said)
        self.assigner.worker_ready(ready)
        self.briefing.worker_ready(ready)
        self.on_log_round(ready.log_round, ready.log_head)

    def _take_progress(self, message: Progress) -> None:
        self.progress = message
        self.pauses_s.extend(message.pauses_s)
        self._fitting.watch()
        if (was_silent := self._silence.heard(message)) and not self._why_paused:
            self.post(Resume())
        self._note_loss(message)
        self.briefing.progress(message)
        self._tell_assigner(is_resting=message.paused or message.finished)
        if message.at_target:
            self._set_state("finished", "the swarm has trained all the tokens of its target")
        elif message.finished:
            self._set_state("stopped", f"reached the {self.configure.steps_max} steps asked for")
        elif message.paused:
            self._set_state("paused", self._why_paused or "the worker rests")
        elif self.ready is not None and not was_silent:  # else once it has heard of it
            self._set_training(f"on {place_in_words(self.configure, self.ready)}")

    def _worker_silent(self, since_s: float) -> None:
        """The others go on, and it is to ask them, when it can, as after a rest."""
        if self.state == "training":
            self._set_state("starting", f"the worker has said nothing for {since_s:.0f} s")
            _log.warning("the worker is silent", since_s=round(since_s, 1))
            self.post(Pause())

    def _note_loss(self, progress: Progress) -> None:
        """A NaN is what a worker says before its first step, or first look at the probe."""
        if math.isinf(progress.loss) or math.isinf(progress.eval_loss):
            self.is_loss_finite = False
        elif math.isfinite(progress.loss):
            self.is_loss_finite = True

    def _tell_assigner(self, *, is_resting: bool) -> None:
        if is_resting != self._is_resting:
            tell = self.assigner.rests if is_resting else self.assigner.goes_on
            tell()
        self._is_resting = is_resting

    def _take_intent(self, intent: PostedIntent) -> None:
        if intent.kind in self.handlers:
            self.handlers[intent.kind].intent_posted(intent)
        elif not intent.is_open:
            self.lessor.drop(intent, f"other: this node does nothing of the kind {intent.kind}")

    def _wake_savers(self) -> None:
        self._saved.set()
        self._saved = trio.Event()

    def _set_training(self, how: str) -> None:
        failed = self.snapshot_failure
        alarm = f"; ALARM: no snapshot can be written: {failed.message}" if failed else ""
        self._set_state("training", how + self._fitting.words() + alarm)

    def _set_state(self, state: PeerState, reason: str) -> None:
        self.state, self.reason = state, reason

    # --- what others ask for --------------------------------------------------------------

    def partners_changed(self) -> None:
        """A member came or went: there may be one to exchange with."""
        self.briefing.members_changed()
        for handler in self.handlers.values():
            handler.partners_changed()

    def pause(self, why: str = "paused by hand") -> None:
        """Stop stepping until :meth:`resume`; also across restarts. Raises Overloaded."""
        self._ask(Pause())
        self._why_paused = why
        if self.state == "paused":
            self.reason = why

    def resume(self) -> None:
        """Go on. Raises Overloaded."""
        self._ask(Resume())
        self._why_paused = ""

    def unload(self) -> None:
        """Let the worker save and end, so that its memory is free, until :meth:`load`."""
        if self._may_live.is_set():
            self._may_live = trio.Event()
            self._unloaded.set()

    def load(self) -> None:
        """Let a worker run."""
        if not self._may_live.is_set():
            self._unloaded = trio.Event()
            self._may_live.set()

    def begin_anew(self, why: str) -> None:
        """Let this worker end, and the next begin with a model of the others: not a program."""
        if self.configure.task != PROGRAM_TASK:
            self._why_renewed = why
            self._unloaded.set()

    async def _end_when_unwanted(self, life: trio.CancelScope) -> None:
        """End a life once its memory is wanted back, and nothing is lent that would be lost."""
        await self._unloaded.wait()
        with trio.move_on_after(limits.UNLOAD_DRAIN_S):
            await self.lessor.wait_idle()
        life.cancel()

    async def save_snapshot(self, deadline_s: float) -> SnapshotSaved:
        """Have a snapshot written now.

        Raises:
            WorkerError: there is no worker, or it died over it.
            StorageError: it could not write.
            DeadlineExceeded: it took longer than ``deadline_s``.
        """
        if not self._can_answer:
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
                if not self._is_running or self.restarts != life:
                    raise WorkerError("the worker died before it wrote the snapshot: try again")
                await self._saved.wait()
        raise DeadlineExceeded("waiting for the worker to write a snapshot", deadline_s)

    @property
    def _can_answer(self) -> bool:
        return self._is_running and self.ready is not None

    def _ask_of_worker(self, message: ToWorker) -> None:
        if not self._can_answer:
            raise WorkerError(f"no worker runs here: {self.reason}")
        self._ask(message)

    def _ask(self, message: ToWorker) -> None:
        """Post what a person wants, with room left for what exchanges have to say."""
        if self._is_half_full:
            raise Overloaded("the worker has not read what was asked before: try again later")
        self.post(message)

    async def tell(self, message: ToWorker) -> None:
        """Pass on one of many messages, as soon as the worker has read those before.

        Nothing happens if no worker runs. Checkpoint: yes.
        """
        await trio.lowlevel.checkpoint()
        while self._is_half_full:
            self._read = trio.Event()
            await self._read.wait()
        self.post(message)

    @property
    def _is_half_full(self) -> bool:
        """Whether only what exchanges have to say may still be posted."""
        used = self._outgoing.statistics().current_buffer_used
        return 2 * used >= limits.TRAINER_OUTBOX_MAX

    def post(self, message: ToWorker) -> None:
        """Pass a message on to the worker that runs now, if there is one."""
        with contextlib.suppress(trio.ClosedResourceError):  # there is no worker
            self._outgoing.send_nowait(message)


def _closed_channel() -> trio.MemorySendChannel[ToWorker]:
    """Return what takes messages while no worker runs: they go nowhere."""
    send, _ = trio.open_memory_channel[ToWorker](0)
    send.close()
    return send
