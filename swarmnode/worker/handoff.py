"""The worker's side of the slots: parameters out, merged exchanges in. One copy each way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from swarmnode.ipc.control import Applied, Apply, Release, SlotReady
from swarmnode.ipc.segment import Owner, Segment
from swarmnode.strategies.base import Exchange, Intent, Meta, Received, Strategy
from swarmnode.worker.state import TrainState


@dataclass(frozen=True)
class _Lent:
    intent: Intent
    meta: Meta


class Handoff:
    """Borrows: the segment, which has its size, and the strategy."""

    def __init__(self, segment: Segment, strategy: Strategy) -> None:
        self._segment = segment
        self._strategy = strategy
        self._tensors = [
            torch.frombuffer(segment.slot_view(slot), dtype=torch.float32)
            for slot in range(segment.slots)
        ]
        self._free = list(range(segment.slots))
        self._lent: dict[int, _Lent] = {}
        self._applied = 0

    def offer(self, intent: Intent, state: TrainState) -> SlotReady | None:
        """Copy what ``intent`` wants sent into a free slot; None while both are travelling."""
        if not self._free:
            return None
        slot = self._free.pop()
        generation = self._segment.claim(slot)
        (view,) = intent.views
        self._strategy.view(intent, view.name, self._tensors[slot])
        self._segment.hand_over(slot, generation, Owner.DAEMON)
        self._lent[slot] = _Lent(intent, Meta(state.step, state.tokens, float(state.step)))
        return SlotReady(
            slot=slot,
            generation=generation,
            round=intent.round,
            step=state.step,
            tokens=state.tokens,
            applied=self._applied,
        )

    def apply(self, message: Apply, state: TrainState) -> Applied:
        """Merge a committed exchange. Raises StaleSlot if the slot was not handed back."""
        lent = self._take_back(message)
        staleness_steps = state.step - lent.meta.steps
        self._strategy.apply(self._exchange(lent, message.slot, staleness_steps))
        self._applied += 1
        return Applied(xid=message.xid, step=state.step, staleness_steps=staleness_steps)

    def release(self, message: Release) -> None:
        """Take back a slot that nothing came of. Raises StaleSlot."""
        self._strategy.on_abort(self._take_back(message).intent, "released")

    def _exchange(self, lent: _Lent, slot: int, steps_since: int) -> Exchange:
        """Return what the slot holds: the daemon has put the difference, partner's minus own."""
        (view,) = lent.intent.views
        difference = self._tensors[slot]
        own = torch.zeros(1).expand(view.numel)  # of no memory: the difference is to it
        partner = Received({view.name: difference}, lent.meta)
        return Exchange(lent.intent, lent.meta, {view.name: own}, {b"": partner}, steps_since)

    def _take_back(self, message: Apply | Release) -> _Lent:
        self._segment.check(message.slot, message.generation, Owner.WORKER)
        self._free.append(message.slot)
        return self._lent.pop(message.slot)
