"""What the strategy wants of others, and what it gives to peers that ask: numbered intents.

An intent waits here until a slot is lent for it, the daemon drops it, or the next of the same kind,
tag and fragment takes its place. Answers stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from swarmnode import limits
from swarmnode.errors import InvariantViolation
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.records import ViewShape
from swarmnode.strategies.base import Intent, Kind, Strategy
from swarmnode.worker.model.state import TrainState

_Place = tuple[Kind, str, int, bool]


@dataclass(frozen=True)
class Posted:
    """An intent that the daemon knows by ``number``, unique in the life of this worker."""

    number: int
    intent: Intent
    is_open: bool

    @property
    def only_gives(self) -> bool:
        """Whether a peer reads, and nothing comes back."""
        return self.is_open and self.intent.kind is Kind.PULL

    @property
    def only_takes(self) -> bool:
        """Whether this node reads what a peer gives, and sends nothing."""
        return not self.is_open and self.intent.kind is Kind.PULL


class PendingIntents:
    """Borrows: the strategy, and ``send`` to the daemon, which may raise DaemonGone."""

    def __init__(self, strategy: Strategy, send: Callable[[PostedIntent], None]) -> None:
        self._strategy = strategy
        self._send = send
        self._payload_numel = strategy.payload_numel()
        self._last_number = 0
        self._posted: dict[_Place, Posted] = {}

    def post(self, intents: Sequence[Intent], state: TrainState) -> None:
        """Post intents; what one replaces has come to nothing."""
        for intent in intents:
            old = self._put(intent, state, is_open=False)
            if old is not None and intent.kind is not Kind.LOG:  # records are under way at once
                self._strategy.on_abort(old.intent, "no peer came before the next round")
        self._forget_oldest()

    def offer_answers(self, state: TrainState) -> None:
        """Say what peers can have of this node, as far as that has changed.

        What they only read is asked for by round and base version of theirs.
        """
        for intent in self._strategy.answers():
            posted = self._posted.get(_place(intent, is_open=True))
            if posted is None or (posted.intent != intent and not posted.only_gives):
                self._put(intent, state, is_open=True)

    def find(self, number: int) -> Posted | None:
        """Return what has this number, unless it is over."""
        return next((p for p in self._posted.values() if p.number == number), None)

    def has_waiting(self, intents: Sequence[Intent]) -> bool:
        """Return whether an intent of the kind, tag and fragment of one of these is waiting."""
        return any(_place(intent, is_open=False) in self._posted for intent in intents)

    def take(self, posted: Posted) -> None:
        """A slot is lent for it; an answer is there for the next peer that asks."""
        if not posted.is_open:
            del self._posted[_place(posted.intent, is_open=False)]

    def drop(self, number: int, why: str) -> None:
        """Nothing came of an intent, unless it has been taken or replaced meanwhile."""
        posted = self.find(number)
        if posted is not None and not posted.is_open:
            self.take(posted)
            self._strategy.on_abort(posted.intent, why)

    def _put(self, intent: Intent, state: TrainState, *, is_open: bool) -> Posted | None:
        """Post an intent; return what was in its place."""
        if intent.numel > self._payload_numel:
            raise InvariantViolation(
                f"strategy {self._strategy.name}: expected views of at most payload_numel() = "
                f"{self._payload_numel} elements, got {intent.numel} of {intent.tag}"
            )
        self._last_number += 1
        place = _place(intent, is_open=is_open)
        old = self._posted.pop(place, None)  # the new one goes to the end
        self._posted[place] = Posted(self._last_number, intent, is_open)
        message = _message(self._last_number, intent, state, self._strategy, is_open=is_open)
        self._send(message)
        return old

    def _forget_oldest(self) -> None:
        waiting = [posted for posted in self._posted.values() if not posted.is_open]
        for posted in waiting[: -limits.INTENTS_MAX]:
            self.drop(posted.number, "too many intents at once")


def _place(intent: Intent, *, is_open: bool) -> _Place:
    return intent.kind, intent.tag, intent.fragment, is_open


def _message(
    number: int, intent: Intent, state: TrainState, strategy: Strategy, *, is_open: bool
) -> PostedIntent:
    value_bytes: Literal[4, 8] = 8 if strategy.x.dtype == torch.float64 else 4
    return PostedIntent(
        number=number,
        kind=intent.kind.value,
        tag=intent.tag,
        fragment=intent.fragment,
        round=intent.round,
        selector=intent.selector.value,
        views=tuple(
            ViewShape(view.name, view.codec, view.numel, view.is_scaled, value_bytes)
            for view in intent.views
        ),
        group_size_max=intent.group_size_max,
        round_skew_max=intent.round_skew_max,
        base_version=intent.base_version,
        lineage=intent.lineage,
        sketch=intent.sketch,
        weight=intent.weight,
        record=intent.record,
        merge=intent.merge,
        step=state.step,
        tokens=state.tokens,
        is_open=is_open,
        adds_up=intent.kind is Kind.PAIR and strategy.adds_up,
    )
