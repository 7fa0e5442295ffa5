"""The worker's side of the slots: views out, what came of them in. One copy each way.

::

    TakeView -> SlotReady   a slot is lent, its first half holds the views
             -> NoView      why not; an intent is over, an answer is not
    Weigh    -> Weighed     of a pair: whether what came may count, and no more of it than so
    Compare  -> Compared    of a group: which of two candidates for a part of its mean is better
    Apply    -> Applied     merged, at once or when the intent's steps have been taken
    Release  ->             nothing came of it

Views and merges of a large vector are done in pieces, with local steps in between, in the order in
which they were asked for and one at a time: what a strategy is asked meanwhile waits until the one
under way is whole. So no view, verdict or snapshot ever sees half a merge, and a worker that is
killed between two pieces has lost the exchange with everything since its snapshot: ``Applied`` is
said behind the last piece.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import torch

from swarmnode.errors import LocalProtocolError
from swarmnode.ipc.comparing import Compare, Compared
from swarmnode.ipc.control import (
    Applied,
    Apply,
    NoView,
    Release,
    SlotReady,
    TakeView,
    Weigh,
    Weighed,
)
from swarmnode.ipc.records import Partner
from swarmnode.ipc.segment import Owner, Segment, StaleSlot
from swarmnode.strategies.base import (
    Exchange,
    Intent,
    Kind,
    Message,
    Meta,
    Offer,
    Received,
    Strategy,
    View,
)
from swarmnode.strategies.merging.slot import Verdict
from swarmnode.strategies.ranges import scale_of
from swarmnode.tensor import coded
from swarmnode.tensor.codec import Codec, get_codec
from swarmnode.worker.exchange.intents import PendingIntents, Posted
from swarmnode.worker.model.device import Copied, Staging, staging_of

_NOT_FINITE = "local: the parameters are not finite"
_WHY_CHARACTERS_MAX = 256  # of wire.records.ShortText
# So many are in use at a time; locking memory takes a tenth of a second for a large model, which no
# step has to wait for before the first one.
_SLOTS_AT_FIRST = 2

_Topic = tuple[str, int, bool]


@dataclass(frozen=True)
class _Lent:
    posted: Posted
    intent: Intent  # that of an answer has the round and base version of the asking peer
    meta: Meta
    share: float = 1.0  # of what came, by the verdict of the strategy

    @property
    def topic(self) -> _Topic:
        return _topic(self.posted)

    @property
    def due_step(self) -> int:
        return self.meta.steps + self.intent.apply_after_steps


Told = SlotReady | NoView | Weighed | Compared | Applied
# Yields wherever a local step may come between; a copy, where nothing is to be done until it is.
_Job = Generator[Copied | None, None, Told]


def never() -> bool:
    """No step waits: the pause may last."""
    return False


class Handoff:
    """Borrows: the segment, which has its size, the strategy and its intents.

    Calls come between two steps. ``now`` returns what this node says of itself at that moment, to
    which it has brought the strategy.
    """

    def __init__(
        self,
        segment: Segment,
        strategy: Strategy,
        intents: PendingIntents,
        now: Callable[[], Meta],
        staging: Callable[[torch.Tensor], Staging | None] = staging_of,
    ) -> None:
        """``staging``: returns that of the vector that the strategy has."""
        self._segment, self._strategy, self._intents = segment, strategy, intents
        self._now = now
        self._own, self._room = [], []
        for slot in range(segment.slots):
            own, room = (torch.frombuffer(h, dtype=strategy.x.dtype) for h in segment.halves(slot))
            self._own.append(own)
            self._room.append(room)
        self._staging = staging(strategy.x)
        self._free = list(range(segment.slots))
        for slot in self._free[-_SLOTS_AT_FIRST:]:
            self._lock(slot)
        self._lent: dict[int, _Lent] = {}
        self._held: list[Apply] = []  # in the order in which they came
        self._jobs: deque[_Job] = deque()  # the first may be half done
        self._copied: Copied | None = None  # what it waits for

    @property
    def is_working(self) -> bool:
        """Whether something was asked that has no answer yet."""
        return bool(self._jobs)

    @property
    def is_lending(self) -> bool:
        """Whether the daemon has a slot, or one has come back that is not merged yet."""
        return bool(self._lent or self._jobs)

    def go_on(self, is_over: Callable[[], bool] = never) -> list[Told]:
        """Do what was asked, piece by piece, until the pause ``is_over``; return answers."""
        answers: list[Told] = []
        while self._jobs and not is_over():
            if self._copied is not None:
                if is_over is not never and not self._copied.is_done():
                    break
                self._copied.wait()
            try:
                self._copied = next(self._jobs[0])
            except StopIteration as end:
                self._copied = None
                self._jobs.popleft()
                answers.append(end.value)
        return answers

    def lend(self, order: TakeView) -> None:
        """Have what an intent wants sent copied into a slot.

        The answer is SlotReady, or NoView; then the intent is over.
        """
        self._jobs.append(self._lending(order))

    def weigh(self, message: Weigh) -> None:
        """Have it said whether what came counts, of which all is in the slot: Weighed."""
        self._jobs.append(_at_once(partial(self._weigh, message)))

    def compare(self, message: Compare) -> None:
        """Have it said which of the two candidates in a slot is better: Compared.

        Raises:
            LocalProtocolError: there is no room for two so long.
        """
        room, numel = self._room[message.slot], message.numel
        if not 0 < 2 * numel <= room.numel():
            raise LocalProtocolError(f"expected two candidates in {room.numel()}, got {message}")
        self._jobs.append(_at_once(partial(self._compare, message)))

    def release(self, message: Release) -> None:
        """Take back a slot that nothing came of. Raises StaleSlot."""
        self._segment.check(message.slot, message.generation, Owner.WORKER)
        lent = self._take_back(message.slot)
        if not lent.posted.only_gives:
            self._strategy.on_abort(lent.intent, message.why)

    def take(self, message: Apply) -> None:
        """Keep a committed exchange until :meth:`merge_due`.

        Raises:
            StaleSlot: the slot was not handed back.
            LocalProtocolError: it lacks a partner or group.
        """
        self._segment.check(message.slot, message.generation, Owner.WORKER)
        kind = self._lent[message.slot].intent.kind
        is_of_many = kind in (Kind.GROUP, Kind.GATHER)
        if (message.partner is None) != is_of_many or (is_of_many and not message.present):
            raise LocalProtocolError(f"expected who took part in a {kind}, got {message}")
        self._held.append(message)

    def merge_due(self, step: int, *, at_once: bool) -> None:
        """Have merged what is held as long as its intent says; all of it with ``at_once``.

        The answer to each is Applied.
        """
        due = [m for m in self._held if at_once or step >= self._lent[m.slot].due_step]
        if due:
            self._held = [message for message in self._held if message not in due]
            self._jobs.extend(self._merging(message) for message in due)

    # --- what peers sent, before it counts -------------------------------------------------

    def _weigh(self, message: Weigh) -> Weighed:
        began_s = time.perf_counter()
        try:
            self._segment.check(message.slot, message.generation, Owner.DAEMON)
        except StaleSlot:
            # The exchange is over, and the slot on its way back: no one waits for the verdict. A
            # partner can have it so, with an ABORT behind its last chunk.
            return Weighed(message.slot, message.generation)
        lent = self._lent[message.slot]
        steps_since = self._now().steps - lent.meta.steps
        verdict = self._strategy.weigh(
            self._exchange(message.slot, lent, steps_since, message.partner)
        )
        self._lent[message.slot] = replace(lent, share=verdict.share)
        return Weighed(
            message.slot,
            message.generation,
            str(verdict.refusal or ""),
            time.perf_counter() - began_s,
            is_useful=self._is_useful(verdict),
        )

    def _is_useful(self, verdict: Verdict) -> bool:
        """Whether the model takes some of what came, and the public probe is no worse for it."""
        context = self._strategy.ctx
        is_seen = context.weighs and context.probe is not None
        return is_seen and verdict.refusal is None and verdict.share > 0

    def _compare(self, message: Compare) -> Compared:
        began_s = time.perf_counter()
        room, numel = self._room[message.slot], message.numel
        try:
            self._segment.check(message.slot, message.generation, Owner.DAEMON)
        except StaleSlot:  # the daemon has given it back since: it waits for no answer
            return Compared(message.ticket, 1)
        candidates = [room[:numel].clone(), room[numel : 2 * numel].clone()]
        intent = self._lent[message.slot].intent
        best = self._strategy.prefer(intent, message.begin, candidates)
        return Compared(message.ticket, best, time.perf_counter() - began_s)

    # --- lending -------------------------------------------------------------------------

    def _lending(self, order: TakeView) -> _Job:
        posted = self._intents.find(order.number)
        if posted is None:
            return NoView(order.ticket, "no-wish: it is over here")
        now = self._now()
        refusal = self._refusal(posted, order)
        if refusal is not None:
            return self._refuse(posted, order, refusal)
        self._intents.take(posted)
        intent = _as_asked(posted, order)
        slot = self._free.pop()
        generation = self._segment.claim(slot)
        if not posted.only_takes and not (yield from self._write(slot, intent)):
            self._free.append(slot)
            self._strategy.on_abort(intent, _NOT_FINITE)
            return NoView(order.ticket, _NOT_FINITE)
        weight = self._strategy.weight(intent) if intent.kind is Kind.GROUP else intent.weight
        meta = replace(now, base_version=intent.base_version, weight=weight)
        self._lent[slot] = _Lent(posted, intent, meta)
        self._segment.hand_over(slot, generation, Owner.DAEMON)
        scale = scale_of(self._strategy.x)
        return SlotReady(
            order.ticket, slot, generation, now.steps, now.tokens, scale.rms, scale.largest, weight
        )

    def _refusal(self, posted: Posted, order: TakeView) -> str | None:
        is_lent = _topic(posted) in {lent.topic for lent in self._lent.values()}
        if is_lent and not self._strategy.adds_up:
            return "busy: in another exchange of the same"
        if not self._free:
            return "busy: all slots are lent"
        if order.peer is None or posted.only_takes:
            return None
        theirs = Meta(order.step, order.tokens, 0.0, order.base_version, order.weight)
        asked = replace(_as_asked(posted, order), round=order.round, weight=order.weight)
        return self._strategy.accept(Offer(order.peer, asked, theirs))

    def _refuse(self, posted: Posted, order: TakeView, why: str) -> NoView:
        self._intents.drop(posted.number, why)
        return NoView(order.ticket, why[:_WHY_CHARACTERS_MAX])

    def _write(self, slot: int, intent: Intent) -> Generator[Copied | None, None, bool]:
        """Write the views; return whether they are finite.

        A NaN or an infinity spoils the sum of a piece, and hardly anything else does: the daemon
        refuses what is not finite, so all that is at stake is how soon that is said.
        """
        is_finite = True
        for name, out in _split(self._own[slot], intent.views).items():
            room = self._room_beside(slot, out)
            if room is not None:
                is_finite = (yield from self._write_beside(room, intent, name, out)) and is_finite
                continue
            done = 0
            for end in self._strategy.viewing(intent, name, out):
                is_finite = is_finite and _is_finite(out[done:end])
                done = end
                yield None
            is_finite = is_finite and _is_finite(out[done:])
        return is_finite

    def _room_beside(self, slot: int, out: torch.Tensor) -> torch.Tensor | None:
        """Return where a view is taken that is then copied beside the training."""
        if self._staging is None:
            return None
        self._lock(slot)
        return self._staging.room(out.numel())

    def _lock(self, slot: int) -> None:
        if self._staging is not None:
            self._staging.lock(self._own[slot])
            self._staging.lock(self._room[slot])

    def _write_beside(
        self, room: torch.Tensor, intent: Intent, name: str, out: torch.Tensor
    ) -> Generator[Copied | None, None, bool]:
        assert self._staging is not None
        for _ in self._strategy.viewing(intent, name, room):
            yield None
        copied = self._staging.down(room, out)
        yield copied
        return math.isfinite(copied.sum()) or _is_finite(out)

    # --- merging -------------------------------------------------------------------------

    def _merging(self, message: Apply) -> _Job:
        slot = message.slot
        lent = self._lent[slot]
        staleness_steps = self._now().steps - lent.meta.steps
        if lent.intent.kind is Kind.GATHER:
            exchange = self._gathering(message, lent, staleness_steps)
        else:
            exchange = self._exchange(slot, lent, staleness_steps, message.partner, message.present)
            exchange.clip(lent.share)
            lifted = None if self._staging is None else self._staging.up(exchange)
            if lifted is not None:
                exchange, copied = lifted
                yield copied
        yield from self._strategy.applying(exchange)
        self._take_back(slot)
        return Applied(message.xid, self._now().steps, staleness_steps)

    def _exchange(
        self,
        slot: int,
        lent: _Lent,
        steps_since: int,
        partner: Partner | None,
        present: tuple[bytes, ...] = (),
    ) -> Exchange:
        """Return what a slot holds, in the memory of the slot."""
        views = lent.intent.views
        came = _split(self._room[slot], views)
        return Exchange(
            intent=lent.intent,
            meta=lent.meta,
            sent={} if lent.posted.only_takes else _split(self._own[slot], views),
            got={} if partner is None else {partner.peer: Received(came, _meta(partner))},
            steps_since=steps_since,
            mean=came if partner is None else {},
            present=present,
        )

    def _gathering(self, message: Apply, lent: _Lent, steps_since: int) -> Exchange:
        views = lent.intent.views
        return Exchange(
            intent=lent.intent,
            meta=lent.meta,
            sent=_split(self._own[message.slot], views),
            got={},
            steps_since=steps_since,
            present=message.present,
            messages=self._messages(message, views[0]),
        )

    def _messages(self, message: Apply, view: View) -> tuple[Message, ...]:
        """Return what lies coded in a slot, one after the other."""
        codec = get_codec(view.codec)
        size = coded.coded_bytes(codec, view.numel)
        room = self._room[message.slot].numpy().data.cast("B")
        return tuple(
            Message(author, partial(_decoded, codec, room[at : at + size], view.numel))
            for at, author in zip(count(0, size), message.present, strict=False)
        )

    def _take_back(self, slot: int) -> _Lent:
        self._free.append(slot)
        return self._lent.pop(slot)


def _at_once(answer: Callable[[], Told]) -> _Job:
    """Return a job of one piece."""
    yield from ()
    return answer()


def _is_finite(values: torch.Tensor) -> bool:
    return math.isfinite(values.sum()) or bool(torch.isfinite(values).all())


def _decoded(codec: Codec, data: memoryview, numel: int) -> Iterator[torch.Tensor]:
    for payload, n_elems in coded.sizes(codec, data, numel):
        values = torch.empty(n_elems, dtype=torch.float32)
        codec.decode(payload, values.numpy().data)
        yield values


def _topic(posted: Posted) -> _Topic:
    """Return what is lent once at a time. Reading is no hindrance to what this node wants."""
    return posted.intent.tag, posted.intent.fragment, posted.only_gives


def _as_asked(posted: Posted, order: TakeView) -> Intent:
    if not posted.is_open:
        return posted.intent
    return replace(posted.intent, round=order.round, base_version=order.base_version)


def _meta(partner: Partner) -> Meta:
    """Return what a partner said of itself; no node tells another the time t."""
    return Meta(partner.step, partner.tokens, 0.0, partner.base_version, partner.weight)


def _split(half: torch.Tensor, views: Sequence[View]) -> dict[str, torch.Tensor]:
    """Return where the views lie in a half of a slot, by their names."""
    found, begin = {}, 0
    for view in views:
        found[view.name] = half[begin : begin + view.numel]
        begin += view.numel
    return found
