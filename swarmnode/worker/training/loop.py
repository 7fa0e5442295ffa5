"""The training loop: what a node does all day.

Nothing in it waits for the network or the daemon. Between two steps it merges what was
exchanged meanwhile, lends views of the model to exchanges, posts intents as the strategy
says, and tells how it is going.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ipc.comparing import Compare
from swarmnode.ipc.control import (
    Apply,
    Called,
    Drop,
    DropShard,
    GiveShare,
    Members,
    Pause,
    Release,
    Resume,
    RoundSteps,
    SaveSnapshot,
    ShardDone,
    Share,
    Stop,
    Stray,
    SwarmProgress,
    TakeShard,
    TakeView,
    ToWorker,
    Weigh,
    WeighMerge,
)
from swarmnode.ipc.records import Records
from swarmnode.ipc.segment import Segment
from swarmnode.strategies.base import Intent, Meta, Record, StepInfo, Strategy
from swarmnode.worker.channel import Channel, DaemonGone
from swarmnode.worker.exchange.handoff import Handoff, never
from swarmnode.worker.exchange.intents import PendingIntents
from swarmnode.worker.failures import Diverged
from swarmnode.worker.model.prepare import Surroundings
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.report import Reporter
from swarmnode.worker.snapshots.saver import Saver
from swarmnode.worker.training.clocks import Clocks, Pauses, share_of
from swarmnode.worker.training.learn import local_step
from swarmnode.worker.training.progress import SwarmCount

# One bad batch may overflow; this many in a row mean that the model is lost.
DIVERGED_STEPS = 5
# Others wait for the view of a node that they have called. It would be asked for a moment after the
# node has said that it comes, and answer a whole step later: so it waits that moment, for at most
# this share of a step. It is called by those that are faster, and once a mean. Of a short step that
# would be less than a question takes.
ASKED_SHARE = 0.05
_ASKED_S_MIN = 0.01
_END = object()  # of a shard


class Loop:
    """One run of training over ``state``; ``steps_max`` 0 means until told to stop.

    The strategy has been started by its ``surroundings``.

    Class attributes:
        owns_steps: whether nothing but this loop changes the model.
    """

    owns_steps: ClassVar[bool] = True

    def __init__(
        self,
        state: TrainState,
        strategy: Strategy,
        *,
        surroundings: Surroundings,
        channel: Channel,
        segment: Segment,
        saver: Saver,
        rng: random.Random,
        steps_max: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``clock``: by which the loop sees how long views and merges hold it up."""
        self.state, self.strategy, self.surroundings = state, strategy, surroundings
        self.channel, self.saver = channel, saver
        self.intents = PendingIntents(strategy, channel.send)
        self.handoff = Handoff(segment, strategy, self.intents, self.now)
        self.pauses = Pauses(clock)
        self.clocks = Clocks(strategy, rng)
        self.reporter = Reporter(channel, strategy.metrics, self.pauses.take)
        self.share = share_of(state.device)
        self.feed = Feed(state.shard_batches, channel.send)
        self.swarm = SwarmCount()
        self.steps_max = steps_max
        self.rung: Sequence[Intent] = ()  # what the clock made due last
        self.paused = self.stopping = self.has_ended = False
        self.is_called = False  # and others have not asked for its view yet
        self.bad_steps = 0
        self.counted_tokens = state.tokens

    def run(self, shard_seed: int) -> None:
        """Train until told to stop or the daemon is gone, then save. Raises Diverged.

        ``shard_seed`` is of this node's own batches, for when it has no shard to train.
        """
        own = self.state.batches(shard_seed)
        with contextlib.suppress(DaemonGone):  # no daemon to report to: save and leave
            self.intents.offer_answers(self.state)
            while not self.stopping:
                self.listen()
                if not self.is_resting:
                    if not self.clocks.rest_s() and not self.share.rest_s():
                        self.train_step(*self.next_batches(own))
                    else:
                        self.settle()
                    self.ring_clock()
                else:
                    self.settle()
                self.see_end()
                self.keep_books()
        self.end()

    def end(self) -> None:
        """Merge what has committed, and save a last time."""
        self.stopping = True
        self.saver.wait_read()
        with contextlib.suppress(DaemonGone):
            self.merge_due()  # the other side of each has merged it, or will
        with contextlib.suppress(DaemonGone):
            self.saver.finish(self.state, self.strategy)

    @property
    def finished(self) -> bool:
        """Whether all steps are done; peers may still exchange with what was learnt.

        Those of the swarm are done at its target, and are not if that is moved on.
        """
        return self.at_target or 0 < self.steps_max <= self.state.step

    @property
    def at_target(self) -> bool:
        """Whether the swarm has trained as much as it was to."""
        return self.swarm.is_at_target(self.state.tokens)

    @property
    def swarm_tokens(self) -> float:
        """How far the swarm is now."""
        return self.swarm.tokens(self.state.tokens)

    @property
    def is_waiting(self) -> bool:
        """Whether it is not known yet how far the swarm is, which its recipe goes by."""
        return self.state.recipe is not None and not self.swarm.is_known

    @property
    def is_resting(self) -> bool:
        """Whether no step follows, as far as is known."""
        return self.paused or self.finished or self.stopping or self.is_waiting

    # --- a step --------------------------------------------------------------------------

    def next_batches(self, own: Iterator[Any]) -> list[Any]:
        """Return the batches of the next step."""
        return [self.feed.next_batch(own) for _ in range(self.state.applied.batches_per_step)]

    def train_step(self, *batches: Any) -> None:
        """Take one step of local training, and see what it makes due."""
        started = time.perf_counter()
        self.pauses.begin_step()
        self.strategy.flow(self.clocks.begin_step())
        self.set_lr()
        loss = local_step(self.state, self.strategy, *batches)
        self.after_step(loss, time.perf_counter() - started)

    def after_step(self, loss: float, seconds: float) -> None:
        """A step was taken: merge what has come meanwhile, and see what it makes due."""
        self.clocks.end_step(seconds)
        self.share.note_step(seconds)
        if not math.isfinite(loss):
            self.note_bad_step(loss)
            return
        self.bad_steps = 0
        self.reporter.note_step(loss, seconds + self.share.rest_s())
        self.merge_due()
        step = self.state.step
        self.state.applied.average(step, self.swarm_tokens)
        info = StepInfo(step, self.clocks.t, loss, seconds, self.learnt_tokens())
        self.hear_calls()
        due = self.strategy.after_step(info)
        self.intents.post(due, self.state)
        if self.is_called and self.intents.has_waiting(due):
            self.await_question(ASKED_SHARE * seconds)
        if step % self.state.task.eval_every_steps == 0 and not self.finished:
            self.settle()
            self.evaluate()
        self.see_end()

    def learnt_tokens(self) -> int:
        """Return the tokens of the steps since this was asked last."""
        before, self.counted_tokens = self.counted_tokens, self.state.tokens
        return self.counted_tokens - before

    def see_end(self) -> None:
        """Do what follows the last step; at the swarm's target, others may have taken that."""
        finished, self.has_ended = self.has_ended, self.finished
        if self.has_ended and not finished:
            self.settle()
            self.intents.post(self.strategy.finalize(), self.state)
            self.evaluate()
            self.reporter.report_soon()

    def set_lr(self) -> None:
        """Take the next step with the learning rate of the whole swarm."""
        swarm, tokens = self.swarm, self.swarm_tokens
        self.state.applied.set_lr(tokens, swarm.horizon, swarm.members(tokens))
        if self.state.recipe is not None:
            self.state.progressed(tokens, swarm.horizon.target_tokens)

    def evaluate(self) -> None:
        """Measure the loss on the task's probe, of what an export has."""
        self.reporter.eval_loss = self.state.evaluate_at(self.state.applied.exported)
        self.state.note_loss(self.reporter.eval_loss)

    def note_bad_step(self, loss: float) -> None:
        """Count steps without a finite loss. Raises Diverged after several in a row."""
        self.bad_steps += 1
        if self.bad_steps >= DIVERGED_STEPS:
            raise Diverged(
                f"the loss was {loss} in {self.bad_steps} steps in a row after step "
                f"{self.state.step}; lower the learning rate"
            )

    def ring_clock(self) -> None:
        """Serve a ring of the strategy's clock, once what the last one made due has begun."""
        if self.clocks.rings and not self.intents.has_waiting(self.rung):
            self.clocks.rings -= 1
            self.rung = self.strategy.on_clock(self.clocks.t)
            self.intents.post(self.rung, self.state)

    def merge_due(self) -> None:
        """Merge the exchanges that have committed, as far as their time has come."""
        self.handoff.merge_due(self.state.step, at_once=self.is_resting)
        self.now()
        self.exchange()

    def exchange(self) -> None:
        """Go on with views and merges for as long as that may hold up the next step."""
        self._go_on(never if self.is_resting else self.pauses.is_over)

    def settle(self) -> None:
        """Bring views and merges to their end: no step waits, or the model is looked at whole."""
        self._go_on(never)

    def _go_on(self, is_over: Callable[[], bool]) -> None:
        if not self.handoff.is_working or self.saver.is_reading:
            return  # none is half done while a snapshot is read, and all wait until it is
        with self.pauses.measured(is_training=not self.is_resting):
            answers = self.handoff.go_on(is_over)
        for answer in answers:
            self.channel.send(answer)

    def now(self) -> Meta:
        """Bring the strategy to this moment; return what this node says of itself."""
        t = self.clocks.current()
        self.strategy.flow(t)
        return Meta(self.state.step, self.state.tokens, t)

    def keep_books(self) -> None:
        """Save and report as far as that is due."""
        if not self.stopping:
            self.saver.save_when_due(
                self.state,
                self.strategy,
                last=self.finished,
                settle=self.settle,
                in_passing=self.owns_steps and self.strategy.reads_in_passing,
            )
        self.reporter.report_when_due(
            self.state, paused=self.paused, finished=self.finished, at_target=self.at_target
        )

    # --- messages ------------------------------------------------------------------------

    def listen(self) -> None:
        """Do what the daemon asks; wait for that only as long as there is nothing else to do."""
        nap_s = limits.WORKER_IDLE_POLL_S
        if not self.is_resting:
            nap_s = max(self.clocks.nap_s(), min(nap_s, self.share.rest_s()))
        for message in self.channel.poll(nap_s):
            self.obey(message)

    def hear_calls(self) -> None:
        """See whether others have called this node during the step: the mean is due now, then."""
        with contextlib.suppress(DaemonGone):  # seen again, once the books of the step are kept
            messages = self.channel.poll()
            for message in messages:
                if isinstance(message, Called):
                    self.obey(message)
            self.channel.put_back([each for each in messages if not isinstance(each, Called)])

    def await_question(self, wait_s: float) -> None:
        """Listen until the daemon asks for the view that others wait for, or the time is over."""
        until = time.monotonic() + (wait_s if wait_s >= _ASKED_S_MIN else 0.0)
        while self.is_called and not self.stopping and (left_s := until - time.monotonic()) > 0:
            for message in self.channel.poll(left_s):
                self.obey(message)
        self.is_called = False

    def obey(self, message: ToWorker) -> None:
        """Do what the daemon asks, between two steps."""
        match message:
            case TakeView():
                self.is_called = False
                self.handoff.lend(message)
                self.exchange()
            case Drop():
                self.intents.drop(message.number, message.why)
            case Weigh():
                self.handoff.weigh(message)
                self.exchange()
            case Compare():
                self.handoff.compare(message)
                self.exchange()
            case Apply():
                self.handoff.take(message)
                self.merge_due()
            case Release():
                self.handoff.release(message)
            case Records():
                self.take_records(message)
            case Members():
                self.settle()
                self.surroundings.take(message)
                self.intents.offer_answers(self.state)
            case Stray():
                self.settle()
                (self.strategy.on_doubt if message.is_here else self.strategy.on_stray)()
            case Called():
                self.is_called = True
                self.strategy.on_call(message.lineage)
            case RoundSteps():
                self.strategy.set_round_steps(message.steps)
            case SwarmProgress():
                self.swarm.tell(message)
            case SaveSnapshot():
                self.saver.ask(message.request)
            case TakeShard():
                self.feed.take(message)
            case DropShard():
                self.feed.drop(message)
            case GiveShare() | WeighMerge():
                self.help_merge(message)
            case Pause() | Resume():
                was_paused, self.paused = self.paused, isinstance(message, Pause)
                if was_paused and not self.paused:
                    self.strategy.on_resume()
                self.merge_due()
                self.reporter.report_soon()
            case Share():
                self.share.keep(message.fraction)
            case Stop():
                self.stopping = True

    def help_merge(self, message: GiveShare | WeighMerge) -> None:
        """Do this node's share of a merge of all models: loaded here, most runs never see one."""
        from swarmnode.worker.exchange.merges import Merges

        self.settle()
        self.saver.wait_read()  # the model is another one for a moment
        Merges(self.state, self.channel.send).obey(message)

    def take_records(self, message: Records) -> None:
        """Hand the strategy a round of the log, unless it is not the next one."""
        self.settle()
        if message.round == self.strategy.log_round():
            records = [Record(r.author, r.payload, r.round) for r in message.records]
            self.strategy.on_records(message.round, records)
            self.state.log_head = message.digest


class Feed:
    """What the loop trains next: the shards it was told to take, else the node's own stream.

    The daemon assigns a shard before the one in training is over. If none has come in time, the
    node trains batches of its own rather than wait.

    Args:
        batches_of: returns the batches of a shard.
        send: tells the daemon which shard is done.
    """

    def __init__(
        self, batches_of: Callable[[TakeShard], Iterator[Any]], send: Callable[[ShardDone], None]
    ) -> None:
        self._batches_of = batches_of
        self._send = send
        self._queue: deque[tuple[TakeShard, Iterator[Any]]] = deque()

    def take(self, order: TakeShard) -> None:
        """Train this shard after those taken before.

        Raises:
            LocalProtocolError: it is one more than the daemon may claim.
        """
        if len(self._queue) >= limits.SHARD_CLAIMS_MAX:
            raise LocalProtocolError(
                f"expected at most {limits.SHARD_CLAIMS_MAX} shards at once, got one more"
            )
        self._queue.append((order, self._batches_of(order)))

    def drop(self, order: DropShard) -> None:
        """Forget this shard, also if it is in training; one that is over is no news."""
        key = (order.epoch, order.index)
        kept = [held for held in self._queue if (held[0].epoch, held[0].index) != key]
        self._queue = deque(kept)

    def next_batch(self, own: Iterator[Any]) -> Any:
        """Return the next batch of the oldest shard taken, or one of ``own``.

        A shard is reported as done when the step after its last batch is about to begin.
        """
        while self._queue:
            order, batches = self._queue[0]
            batch = next(batches, _END)
            if batch is not _END:
                return batch
            self._queue.popleft()
            self._send(ShardDone(epoch=order.epoch, index=order.index))
        return next(own)
