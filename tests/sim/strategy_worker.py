"""A worker without a process that runs a real strategy, on Trio's (virtual) clock.

The worker's own code for intents and slots, and the strategies, without its loop: a step here is
``step_s`` of virtual time, and its gradient pulls every parameter towards a point of the node's.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch
import trio

from swarmnode import limits
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.comparing import Compare
from swarmnode.ipc.control import (
    Apply,
    Called,
    Configure,
    Drop,
    FromWorker,
    Members,
    Pause,
    Progress,
    Release,
    Resume,
    RoundSteps,
    Stray,
    TakeView,
    ToWorker,
    Weigh,
    WorkerReady,
)
from swarmnode.ipc.records import Records
from swarmnode.ipc.segment import Owner, Segment
from swarmnode.strategies.base import Context, Meta, Record, StepInfo, Strategy, TaskFacts
from swarmnode.strategies.exchanges import Intent
from swarmnode.tensor.layout import Layout
from swarmnode.worker.exchange.handoff import Handoff
from swarmnode.worker.exchange.intents import PendingIntents
from swarmnode.worker.training.clocks import Clocks
from swarmnode.worker.training.loop import ASKED_SHARE

_LOOK_S = 0.001  # between two looks at what the daemon says, where the worker waits for it


@dataclass(repr=False)
class StrategyWorker:
    """One node's worker; pass :meth:`start` where a worker is started.

    Args:
        initial: of its size are the parameters, which begin as zeros, the same on every node.
        make: builds the strategy over them.
        step_s: time of a step.
        late_s: by how much it takes longer on the average, each time another one, as where cores
            are shared by many.
        spread: how far the goals of a node's parameters lie apart. Else nodes learn the same of
            each, and gatherings take the messages of two with one goal for copies.
        is_paced: whether its rounds are fitted to the speeds of the others.
        dtype: of the parameters.

    Attributes:
        strategy: of the running life.
        step: how many were taken in it.
    """

    initial: npt.ArrayLike
    make: Callable[[torch.Tensor], Strategy]
    step_s: float = 0.05
    late_s: float = 0.0
    spread: float = 0.0
    is_paced: bool = False
    dtype: torch.dtype = torch.float32
    strategy: Any = field(default=None, init=False)
    step: int = field(default=0, init=False)
    tokens: int = field(default=0, init=False)
    _life: _Life | None = field(default=None, init=False)

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[_Life]:
        """Live once, from the beginning."""
        self.step = 0
        self._life = life = _Life(self, configure)
        try:
            yield life
        finally:
            life.segment.close()

    def crash(self) -> None:
        """Die at once, as by ``kill -9``."""
        if self._life is not None:
            self._life.crashed = True


class _Life:
    """One run; implements ``WorkerLink``. It steps while it is listened to."""

    pid = None

    def __init__(self, worker: StrategyWorker, configure: Configure) -> None:
        self._worker = worker
        numel = len(worker.initial)  # type: ignore[arg-type]
        # Weights of a size beside which slow weights that are 200 apart are plausible.
        self._x = torch.full((numel,), 100.0, dtype=worker.dtype)
        self._goal = torch.full_like(self._x, 100.0 + configure.self_id[0] % 7)
        own = torch.Generator().manual_seed(configure.self_id[1])
        self._goal += worker.spread * torch.randn(numel, generator=own)
        worker.strategy = self._strategy = worker.make(self._x)
        layout = Layout.of([("x", (numel,), str(worker.dtype).removeprefix("torch."))])
        self._strategy.start(
            Context(
                self_id=configure.self_id,
                seed=configure.swarm_seed,
                rng=random.Random(configure.shard_seed),
                layout=layout,
                members=(configure.self_id,),
                facts=TaskFacts("sim", strong_convexity=1.0, smoothness=1.0),
            )
        )
        payload_numel = max(self._strategy.payload_numel(), 1)
        self.segment = Segment.create()
        words = self._x.element_size() // 4  # slots are counted in float32
        self.segment.format(2 * words * payload_numel, limits.SLOTS_PER_WORKER)
        self._outbox: deque[FromWorker] = deque()
        self._orders: deque[ToWorker] = deque()
        self._outbox.append(
            WorkerReady(
                layout_hash=layout.layout_hash,
                numel=numel,
                payload_numel=payload_numel,
                slots=limits.SLOTS_PER_WORKER,
                step=0,
                tokens=0,
                device="sim",
                torch_version="none",
                threads=1,
                log_round=self._strategy.log_round(),
                round_steps=self._strategy.round_steps() if worker.is_paced else 0,
            )
        )
        self._intents = PendingIntents(self._strategy, self._outbox.append)
        self._handoff = Handoff(self.segment, self._strategy, self._intents, self._now)
        self._intents.offer_answers(self._state)
        self._rng = random.Random(configure.shard_seed)
        self._clocks = Clocks(
            self._strategy, random.Random(f"{configure.shard_seed}/clock"), trio.current_time
        )
        self._rung: Sequence[Intent] = ()  # what the clock made due last
        self._is_called = self._is_paused = False
        self._asked_until_s = 0.0
        self._next_report_s = 0.0
        self.crashed = False

    # --- the daemon's side -------------------------------------------------------------------

    async def send(self, message: ToWorker) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(message, Apply | Release):
            self.segment.hand_over(message.slot, message.generation, Owner.WORKER)
        self._orders.append(message)

    async def receive(self) -> FromWorker:
        await trio.lowlevel.checkpoint()
        while not self._outbox and not self.crashed:
            await self._await_question()
            if self._outbox:
                break
            late_s = self._worker.late_s
            await trio.sleep(
                self._worker.step_s + (self._rng.expovariate(1 / late_s) if late_s else 0)
            )
            if not self.crashed:
                self._tick()
        if self.crashed:
            raise WorkerCrashed("the worker was killed by SIGKILL", signal_number=9)
        return self._outbox.popleft()

    def slot_view(self, slot: int, generation: int) -> memoryview:
        self.segment.check(slot, generation, Owner.DAEMON)
        return self.segment.slot_view(slot)

    # --- the worker's side -------------------------------------------------------------------

    @property
    def _state(self) -> Any:
        return self._worker  # all that intents are told of it is in these two

    def _tick(self) -> None:
        while self._orders:
            self._obey(self._orders.popleft())
        if not self._is_paused:
            if not self._clocks.rest_s():
                self._take_step()
            self._ring_clock()
        if trio.current_time() >= self._next_report_s:
            self._next_report_s = trio.current_time() + limits.WORKER_PROGRESS_S
            self._report()

    async def _await_question(self) -> None:
        """Let the daemon ask for the view that others wait for, as the worker's loop does."""
        while self._is_called and not self._outbox and trio.current_time() < self._asked_until_s:
            await trio.sleep(_LOOK_S)
            while self._orders:
                self._obey(self._orders.popleft())

    def _take_step(self) -> None:
        worker, strategy = self._worker, self._strategy
        strategy.flow(self._clocks.begin_step())
        probe = strategy.gradient_point()
        if probe is None:
            gradient = self._x - self._goal
            self._x.lerp_(self._goal, 0.01)
            strategy.local_update(gradient)
            loss = self._loss()
        else:
            loss = probe(self._loss)
        worker.step += 1
        self._clocks.end_step(worker.step_s)
        self._merge()
        info = StepInfo(worker.step, self._clocks.t, loss, worker.step_s)
        due = strategy.after_step(info)
        self._intents.post(due, self._state)
        if self._is_called and self._intents.has_waiting(due):
            self._asked_until_s = trio.current_time() + ASKED_SHARE * worker.step_s

    def _ring_clock(self) -> None:
        if self._clocks.rings and not self._intents.has_waiting(self._rung):
            self._clocks.rings -= 1
            self._rung = self._strategy.on_clock(self._clocks.t)
            self._intents.post(self._rung, self._state)

    def _loss(self) -> float:
        return float((self._x - self._goal).square().mean())

    def _merge(self) -> None:
        self._handoff.merge_due(self._worker.step, at_once=False)
        self._outbox.extend(self._handoff.go_on())

    def _now(self) -> Meta:
        steps = self._worker.step
        return Meta(steps, steps, float(steps))

    def _obey(self, message: ToWorker) -> None:
        match message:
            case TakeView():
                self._is_called = False
                self._handoff.lend(message)
                self._outbox.extend(self._handoff.go_on())
            case Weigh():
                self._handoff.weigh(message)
                self._outbox.extend(self._handoff.go_on())
            case Compare():
                self._handoff.compare(message)
                self._outbox.extend(self._handoff.go_on())
            case Drop():
                self._intents.drop(message.number, message.why)
            case Apply():
                self._handoff.take(message)
                self._merge()
            case Release():
                self._handoff.release(message)
            case Members():
                self._strategy.on_membership(message.members)
                self._intents.offer_answers(self._state)
            case Stray():
                (self._strategy.on_doubt if message.is_here else self._strategy.on_stray)()
            case RoundSteps():
                self._strategy.set_round_steps(message.steps)
            case Called(lineage=lineage):
                self._is_called = True
                self._strategy.on_call(lineage)
            case Records() if message.round == self._strategy.log_round():
                records = [Record(r.author, r.payload, r.round) for r in message.records]
                self._strategy.on_records(message.round, records)
            case Pause() | Resume():
                was_paused, self._is_paused = self._is_paused, isinstance(message, Pause)
                if was_paused and not self._is_paused:
                    self._strategy.on_resume()

    def _report(self) -> None:
        steps = self._worker.step
        progress = Progress(
            step=steps,
            tokens=steps,
            loss=self._loss(),
            eval_loss=self._loss(),
            step_time_s=self._worker.step_s,
            strategy=self._strategy.metrics(),
            paused=self._is_paused,
        )
        self._outbox.append(progress)
