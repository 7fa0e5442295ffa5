"""A worker without torch or a process: a vector that drifts, on Trio's (virtual) clock.

It keeps the same contract as the real one (``ipc/control.py``): an intent every few steps, views in
slots, ``x += ½ (theirs − own)`` at a step boundary, heartbeats, crash and restart. Because every
drift it takes
is summed up, and every exchange it merged is in its ledger, a test can check that exchanges
conserve what training put in::

    sum of x over all nodes == sum of first x + sum of drift_sum        (to 1e-6 and better)

A crash takes the ledger back together with ``x``, so that after one the difference is exactly
the exchanges that are in one ledger only.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import trio

from swarmnode import limits
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Configure,
    Drop,
    DropShard,
    FromWorker,
    GiveShare,
    Members,
    NoView,
    Pause,
    PostedIntent,
    Progress,
    Release,
    Resume,
    RoundSteps,
    SaveSnapshot,
    ShardDone,
    Share,
    SlotReady,
    SnapshotSaved,
    Stop,
    SwarmProgress,
    TakeShard,
    TakeView,
    ToWorker,
    Weigh,
    Weighed,
    WeighMerge,
    WorkerFailed,
    WorkerReady,
)
from swarmnode.ipc.records import ViewShape
from swarmnode.ipc.segment import StaleSlot
from swarmnode.tensor.snapshot_format import FETCHED_NAME
from swarmnode.testing.fake_files import Vector, answer_merge, read_fetched, write_snapshot
from swarmnode.worker.training.progress import SwarmCount


def no_drift(step: int, x: Vector) -> Vector:
    """Train nothing: what is left is averaging."""
    del step
    return np.zeros_like(x)


@dataclass
class _Slot:
    halves: npt.NDArray[np.float32]  # [2, numel]: own, the partner's
    generation: int = 0
    is_daemons: bool = False
    is_free: bool = True
    taken_at_step: int = 0


@dataclass(frozen=True)
class SavedState:
    """What the next life begins with."""

    x: Vector
    drift_sum: Vector
    step: int
    ledger: Mapping[bytes, Vector]


@dataclass(repr=False)
class FakeWorker:
    """One node's worker over all its lives; pass :meth:`start` where a worker is started.

    Args:
        initial: first parameters, float [numel]; kept in float64, travels as float32.
        step_s: time of a step.
        every: steps between two intents to exchange.
        drift: what a step adds, from (step, x).
        save_every: steps between two saved snapshots, by default ten seconds of them; 0: when asked
            to, and at the end, only.
        shard_steps: steps that a shard takes.

    Attributes:
        x: the parameters now. drift_sum: what all steps added that are part of ``x``.
        ledger: what each exchange added that is part of ``x``, by its id.
        step: how many were taken, as the real worker reports it; each is a token.
        members: those that train, as the daemon told last.
        shards: those trained to their end in any life, as (epoch, index).
        round_steps: of the rounds that begin now, as the daemon told last; ``every`` by itself.
        rounds_at_s: when each round ended, in virtual time.
        swarm: how far the swarm is, as the daemon told last.
    """

    initial: npt.ArrayLike
    step_s: float = 0.05
    every: int = 8
    drift: Callable[[int, Vector], Vector] = no_drift
    save_every: int = 200
    shard_steps: int = 200
    layout_hash: bytes = b"\x00" * 32
    data_hash: str = ""
    x: Vector = field(init=False)
    drift_sum: Vector = field(init=False)
    ledger: dict[bytes, Vector] = field(default_factory=dict, init=False)
    step: int = 0
    members: tuple[bytes, ...] = ()
    lives: int = 0
    shards: list[tuple[int, int]] = field(default_factory=list, init=False)
    round_steps: int = field(init=False)
    rounds_at_s: list[float] = field(default_factory=list, init=False)
    swarm: SwarmCount = field(init=False)

    def __post_init__(self) -> None:
        self.x = np.array(self.initial, dtype=np.float64)
        self.drift_sum = np.zeros_like(self.x)
        self.round_steps = self.every
        self.swarm = SwarmCount(trio.current_time)
        self.keep()
        self._generations = itertools.count(1)
        self._life: _Life | None = None

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[_Life]:
        """Live once: go on from what was saved, until the block is left; save then.

        The first life begins with the snapshot that the daemon has fetched, if there is one. One
        that is not finite is unfit: the life ends at once, as a real worker's does.
        """
        folder = Path(configure.snapshot_dir)
        fetched = read_fetched(folder)
        if fetched is not None and not np.isfinite(fetched).all():
            (folder / FETCHED_NAME).unlink()
            yield _Life(self, configure, unfit="tensor x is not finite")
            return
        if fetched is not None and not self.lives:
            self.initial = self.x = fetched
            self.keep()
        self._restore()
        self.members, self.round_steps = (), self.every
        self.swarm = SwarmCount(trio.current_time)
        self.lives += 1
        self._life = life = _Life(self, configure)
        try:
            yield life
        finally:
            if not life.crashed:
                life.obey_all()
                life.save()

    def crash(self) -> None:
        """Die at once, as by ``kill -9``: what was not saved is lost."""
        if self._life is not None:
            self._life.crashed = True
        self._restore()

    def keep(self) -> None:
        """Remember the state that the next life begins with."""
        self._saved = SavedState(self.x.copy(), self.drift_sum.copy(), self.step, dict(self.ledger))

    def _restore(self) -> None:
        saved = self._saved
        self.x, self.drift_sum, self.step = saved.x.copy(), saved.drift_sum.copy(), saved.step
        self.ledger = dict(saved.ledger)


class _Life:
    """One run of a fake worker; implements ``WorkerLink``. It steps while it is listened to."""

    pid = None

    def __init__(self, worker: FakeWorker, configure: Configure, unfit: str = "") -> None:
        self._worker = worker
        self._steps_max = configure.steps_max
        self._snapshots = Path(configure.snapshot_dir)
        numel = worker.x.size
        self._slots = [
            _Slot(np.zeros((2, numel), np.float32)) for _ in range(limits.SLOTS_PER_WORKER)
        ]
        last_words = WorkerFailed("snapshot", unfit)
        self._outbox: deque[FromWorker] = deque([last_words if unfit else self._ready()])
        self._orders: deque[ToWorker] = deque()
        self._shards: dict[tuple[int, int], int] = {}  # taken, to the steps that are left
        self._next_report_s = 0.0
        self._is_paused = False
        self._intents = 0  # so far
        self._round = worker.step // worker.every
        self._due_step = (self._round + 1) * worker.every
        self._intent: int | None = None  # the number of the one that waits
        self.crashed = False
        self._is_unfit = bool(unfit)

    # --- the daemon's side -----------------------------------------------------------

    async def send(self, message: ToWorker) -> None:
        """Take a message; it is obeyed at the next step boundary."""
        await trio.lowlevel.checkpoint()
        if isinstance(message, Apply | Release):
            self._check(message.slot, message.generation)
            self._slots[message.slot].is_daemons = False
        self._orders.append(message)

    async def receive(self) -> FromWorker:
        """Return the next message. Raises WorkerCrashed after :meth:`FakeWorker.crash`."""
        await trio.lowlevel.checkpoint()
        if self._is_unfit and not self._outbox:
            raise WorkerCrashed("the worker ended with status 18")
        while not self._outbox and not self.crashed:
            await trio.sleep(self._worker.step_s)
            if not self.crashed:
                self._tick()
        if self.crashed:
            raise WorkerCrashed("the worker was killed by SIGKILL", signal_number=9)
        return self._outbox.popleft()

    def slot_view(self, slot: int, generation: int) -> memoryview:
        """Return the bytes of a slot that is the daemon's."""
        self._check(slot, generation)
        return self._slots[slot].halves.data.cast("B")

    def _check(self, slot: int, generation: int) -> None:
        found = self._slots[slot]
        if self.crashed or not found.is_daemons or found.generation != generation:
            raise StaleSlot(f"slot {slot}: generation {generation} is not the daemon's")

    # --- the worker's side -----------------------------------------------------------

    def obey_all(self) -> None:
        """Do what has been sent, in its order."""
        while self._orders:
            match self._orders.popleft():
                case TakeView(ticket=ticket, number=number):
                    self._outbox.append(self._lend(ticket, number))
                case Weigh(slot=slot, generation=generation):
                    self._outbox.append(Weighed(slot, generation))
                case Apply() as order:
                    self._apply(order)
                case Release(slot=slot):
                    self._slots[slot].is_free = True
                case Members(members=members):
                    self._worker.members = members
                case RoundSteps(steps=steps):
                    self._worker.round_steps = steps
                case SwarmProgress() as told:
                    self._worker.swarm.tell(told)
                case SaveSnapshot(request=request):
                    self.save(request)
                case GiveShare() | WeighMerge() as order:
                    worker = self._worker
                    self._outbox.append(answer_merge(order, worker.x, worker.step))
                case TakeShard(epoch=epoch, index=index):
                    self._shards[epoch, index] = self._worker.shard_steps
                case DropShard(epoch=epoch, index=index):
                    self._shards.pop((epoch, index), None)
                case Pause():
                    self._is_paused = True
                case Resume():
                    self._is_paused = False
                case Drop() | Stop() | Configure() | Share():
                    pass  # it has no use for it; leaving the block is the stop

    def save(self, request: int = 0) -> None:
        """Write a snapshot; the next life begins with it."""
        worker = self._worker
        worker.keep()
        path = write_snapshot(self._snapshots, worker.x, worker.step)
        saved = SnapshotSaved(request=request, step=worker.step, path=str(path))
        self._outbox.append(saved)

    def _tick(self) -> None:
        self.obey_all()
        if not self._is_paused and not self._is_finished:
            self._take_step()
        if trio.current_time() >= self._next_report_s:
            self._next_report_s = trio.current_time() + limits.WORKER_PROGRESS_S
            self._report()

    @property
    def _is_finished(self) -> bool:
        return self._at_target or 0 < self._steps_max <= self._worker.step

    @property
    def _at_target(self) -> bool:
        return self._worker.swarm.is_at_target(self._worker.step)

    def _ready(self) -> WorkerReady:
        return WorkerReady(
            layout_hash=self._worker.layout_hash,
            numel=self._worker.x.size,
            payload_numel=self._worker.x.size,
            slots=limits.SLOTS_PER_WORKER,
            step=self._worker.step,
            tokens=self._worker.step,
            device="fake",
            torch_version="none",
            threads=1,
            data_hash=self._worker.data_hash,
            round_steps=self._worker.every,
        )

    def _take_step(self) -> None:
        worker = self._worker
        worker.step += 1
        drift = worker.drift(worker.step, worker.x)
        worker.x += drift
        worker.drift_sum += drift
        if worker.save_every and worker.step % worker.save_every == 0:
            self.save()
        self._train_shard()
        if worker.step >= self._due_step:
            self._make_intent()

    def _train_shard(self) -> None:
        for shard, steps_left in self._shards.items():
            self._shards[shard] = steps_left - 1
            if steps_left == 1:
                del self._shards[shard]
                self._worker.shards.append(shard)
                self._outbox.append(ShardDone(epoch=shard[0], index=shard[1]))
            return

    def _make_intent(self) -> None:
        worker = self._worker
        self._intents += 1
        self._intent = self._intents
        self._round += 1
        self._due_step = worker.step + worker.round_steps
        worker.rounds_at_s.append(trio.current_time())
        intent = PostedIntent(
            number=self._intents,
            kind="pair",
            tag="x",
            fragment=0,
            round=self._round,
            selector="matching",
            views=(ViewShape("x", "", worker.x.size),),
            step=worker.step,
            tokens=worker.step,
        )
        self._outbox.append(intent)

    def _lend(self, ticket: int, number: int) -> SlotReady | NoView:
        worker = self._worker
        if number != self._intent:
            return NoView(ticket, "no-wish: it is over here")
        if not all(slot.is_free for slot in self._slots):
            return NoView(ticket, "busy: in another exchange of the same")
        if not np.isfinite(worker.x).all():
            return NoView(ticket, "local: the parameters are not finite")
        self._intent = None
        slot = self._slots[0]
        slot.halves[0] = worker.x
        slot.generation = next(worker._generations)
        slot.is_daemons, slot.is_free = True, False
        slot.taken_at_step = worker.step
        return SlotReady(ticket, 0, slot.generation, worker.step, worker.step)

    def _apply(self, order: Apply) -> None:
        worker, slot = self._worker, self._slots[order.slot]
        own, theirs = slot.halves.astype(np.float64)
        change = 0.5 * (theirs - own)
        worker.x += change
        worker.ledger[order.xid] = change
        slot.is_free = True
        staleness_steps = worker.step - slot.taken_at_step
        self._outbox.append(
            Applied(xid=order.xid, step=worker.step, staleness_steps=staleness_steps)
        )

    def _report(self) -> None:
        norm = float(np.linalg.norm(self._worker.x))
        progress = Progress(
            step=self._worker.step,
            tokens=self._worker.step,
            loss=norm,
            eval_loss=norm if self._worker.step else math.nan,
            step_time_s=self._worker.step_s,
            paused=self._is_paused,
            finished=self._is_finished,
            at_target=self._at_target,
        )
        self._outbox.append(progress)
