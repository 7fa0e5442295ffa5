"""What exchanges of every kind need of the worker: slots, lent for one intent at a time.

::

    intent -> IntentHandler.intent_posted
    borrow -> BufferLease -> apply | give_back     or   NoLease -> drop

    borrow --TakeView--> worker --SlotReady--> BufferLease
                                --NoView-----> NoLease
    BufferLease --weigh--> Weigh --> worker --Weighed-->
    BufferLease --compare--> Compare --> worker --Compared-->
    BufferLease --apply, give_back--> Apply, Release --> worker

Kinds of exchange know no worker, and the lessor, which is a part of the trainer, knows no network.
All of it is over when the worker dies: callers that wait get NoLease, and leases count no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from swarmnode import limits
from swarmnode.errors import WorkerCrashed, WorkerError
from swarmnode.ipc.comparing import Compare, Compared
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Drop,
    NoView,
    PostedIntent,
    Release,
    SlotReady,
    TakeView,
    ToWorker,
    Weigh,
    Weighed,
)
from swarmnode.ipc.records import Partner
from swarmnode.ipc.segment import StaleSlot
from swarmnode.tensor.magnitude import UNKNOWN, Scale

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WHY_CHARACTERS_MAX = 256  # of wire.records.ShortText


class NoLease(WorkerError):
    """The worker does not lend: the message begins with a code of ``wire/exchange/gossip.py``."""


@dataclass(frozen=True, eq=False)
class BufferLease:
    """A slot of the worker, as it was at local step ``step``; until it is applied or given back.

    Attributes:
        own: writable bytes of the own views: [intent.numel] numbers, in their order.
        room: writable bytes for what comes, of the same size; of a gathering all that there is.
        weights: how large the worker's weights are.
        weight: of the views in a mean; 0: as the intent says.
    """

    intent: PostedIntent
    slot: int
    generation: int
    own: memoryview
    room: memoryview
    step: int
    tokens: int
    weights: Scale = UNKNOWN
    weight: float = 0.0


class Lessor(Protocol):
    """Lends slots. Every lease ends in exactly one apply or give_back."""

    async def borrow(
        self, intent: PostedIntent, partner: Partner | None = None, round_number: int | None = None
    ) -> BufferLease:
        """Return a slot with the views of ``intent``, taken at the next step boundary.

        Args:
            intent: one that the worker made, an answer too.
            partner: the peer that offered or accepted; None in a group.
            round_number: the partner's, for an answer.

        Cancelled, it gives back what still comes. Checkpoint: yes.

        Raises:
            NoLease: the worker refuses or has gone, or the intent has been replaced.
        """

    def apply(
        self,
        lease: BufferLease,
        xid: bytes,
        partner: Partner | None = None,
        present: tuple[bytes, ...] = (),
    ) -> bool:
        """Let the worker merge a committed exchange; False if the worker of the lease is gone."""

    def give_back(self, lease: BufferLease, why: str) -> None:
        """End a lease of which nothing came. Nothing happens if its worker is gone."""

    def drop(self, intent: PostedIntent, why: str) -> None:
        """Tell the worker that nothing came of an intent that no slot was lent for."""


class WeighingLessor(Lessor, Protocol):
    """A lessor whose worker weighs what came before it counts."""

    async def weigh(self, lease: BufferLease, partner: Partner) -> Weighed:
        """Return what the worker says of what a partner sent, all of which is in the room.

        Until then the slot is not to be touched. Checkpoint: yes.

        Raises:
            NoLease: the worker of the lease is gone.
        """


class ComparingLessor(Lessor, Protocol):
    """A lessor whose worker has a model, on which it tries what may become of a part of a mean."""

    async def compare(self, lease: BufferLease, begin: int, candidates: Sequence[Buffer]) -> int:
        """Return which of two candidates for a part of a mean the worker finds better.

        Args:
            begin: the first element of the part, in the first view.
            candidates: of as many float32 each; they are put into the lease's room, before any
                other task runs.

        It is the last one where the worker has no telling, or is gone. Checkpoint: yes.
        """


@dataclass(frozen=True)
class Applications:
    """What became of committed exchanges in the worker."""

    applied: int = 0
    staleness_steps: int = 0  # summed


class IntentHandler(Protocol):
    """One kind of exchange."""

    def intent_posted(self, intent: PostedIntent) -> None:
        """Serve this intent as soon as can be; it replaces one of the same tag and fragment."""

    def worker_gone(self) -> None:
        """Forget every intent and lease: their worker is dead."""

    def partners_changed(self) -> None:
        """There may be a peer to exchange with."""


@dataclass(eq=False)
class _Ticket:
    """A slot that a caller waits for, or waited."""

    intent: PostedIntent
    settled: trio.Event = field(default_factory=trio.Event)
    leases: list[BufferLease] = field(default_factory=list)  # one, unless it was refused
    why: str = ""  # there is none
    is_abandoned: bool = False

    def settle(self, lease: BufferLease) -> None:
        self.leases.append(lease)
        self.settled.set()

    def refuse(self, why: str) -> None:
        self.why = why
        self.settled.set()


@dataclass(eq=False)
class _Weighing:
    """What a caller waits for; ``answers``: one, or none if the worker went away."""

    settled: trio.Event = field(default_factory=trio.Event)
    answers: tuple[Weighed, ...] = ()

    def settle(self, *answers: Weighed) -> None:
        self.answers = answers
        self.settled.set()


@dataclass(eq=False)
class _Comparison:
    """What a caller waits for; ``best``: the last candidate, until the worker has answered."""

    best: int
    settled: trio.Event = field(default_factory=trio.Event)


def _no_slot(slot: int, generation: int) -> memoryview:
    raise StaleSlot(f"slot {slot}, generation {generation}: its worker has gone")


class SlotLessor:
    """Lends the slots of the worker that runs now, one at a time; implements ``WeighingLessor`` and
    ``ComparingLessor``.

    Args:
        post: sends a message to the worker.
        on_lost: this exchange was to be applied, and the worker died before it said so.
    """

    def __init__(self, post: Callable[[ToWorker], None], on_lost: Callable[[bytes], None]) -> None:
        self._post = post
        self._on_lost = on_lost
        self._is_lending = False
        self._slot_view: Callable[[int, int], memoryview] = _no_slot
        self._payload_numel = 0
        self._numbers = itertools.count(1)
        self._tickets: dict[int, _Ticket] = {}
        self._leases: dict[tuple[int, int], BufferLease] = {}  # by slot and generation
        self._weighing: dict[tuple[int, int], _Weighing] = {}  # one for each lease at the most
        self._unmerged: dict[bytes, None] = {}  # exchanges that the worker is to apply
        self._comparisons: dict[int, _Comparison] = {}  # one for each lease at the most
        self.comparing_s = 0.0  # that workers took no step for it
        self._changed = trio.Event()

    # --- for exchanges --------------------------------------------------------------------

    async def borrow(
        self, intent: PostedIntent, partner: Partner | None = None, round_number: int | None = None
    ) -> BufferLease:
        """Return a slot with the views of ``intent``; see ``Lessor``. Raises NoLease."""
        if not self._is_lending:
            raise NoLease("local: the worker went away")
        if len(self._tickets) >= limits.TICKETS_MAX:
            raise NoLease(f"busy: the worker owes {len(self._tickets)} views already")
        number, ticket = next(self._numbers), _Ticket(intent)
        self._tickets[number] = ticket
        self._post(_take_view(number, intent, partner, round_number))
        try:
            await ticket.settled.wait()
            # It may have come in the very moment in which the caller's round ended: the round has
            # no lease to give back then, so the slot would be lent for ever.
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            ticket.is_abandoned = True
            for lease in ticket.leases:  # it came in this very moment
                self.give_back(lease, "no caller waits for it any more")
            raise
        if not ticket.leases:
            raise NoLease(ticket.why)
        return ticket.leases[0]

    async def weigh(self, lease: BufferLease, partner: Partner) -> Weighed:
        """Return what the worker says of what came; see ``WeighingLessor``. Raises NoLease."""
        place = lease.slot, lease.generation
        if self._leases.get(place) is not lease:
            raise NoLease("local: the worker went away")
        weighing = self._weighing[place] = _Weighing()
        self._post(Weigh(lease.slot, lease.generation, partner))
        await weighing.settled.wait()
        if not weighing.answers:
            raise NoLease("local: the worker went away")
        return weighing.answers[0]

    def apply(
        self,
        lease: BufferLease,
        xid: bytes,
        partner: Partner | None = None,
        present: tuple[bytes, ...] = (),
    ) -> bool:
        """Let the worker merge a committed exchange; False if the worker of the lease is gone."""
        if not self._end(lease):
            return False
        self._unmerged[xid] = None
        self._post(Apply(lease.slot, lease.generation, xid, partner, present))
        return True

    def give_back(self, lease: BufferLease, why: str) -> None:
        """End a lease of which nothing came."""
        if self._end(lease):
            self._post(Release(lease.slot, lease.generation, why[:_WHY_CHARACTERS_MAX]))

    def drop(self, intent: PostedIntent, why: str) -> None:
        """Tell the worker that nothing came of an intent that no slot was lent for."""
        self._post(Drop(intent.number, why[:_WHY_CHARACTERS_MAX]))

    async def compare(self, lease: BufferLease, begin: int, candidates: Sequence[Buffer]) -> int:
        """Return which candidate the worker finds better; see ``ComparingLessor``."""
        last, at = len(candidates) - 1, 0
        n_bytes = memoryview(candidates[0]).nbytes
        is_lent = self._leases.get((lease.slot, lease.generation)) is lease
        if not is_lent or len(candidates) * n_bytes > lease.room.nbytes:
            return last
        for candidate in candidates:
            lease.room[at : at + n_bytes] = candidate
            at += n_bytes
        number = next(self._numbers)
        answer = self._comparisons[number] = _Comparison(last)
        self._post(Compare(number, lease.slot, lease.generation, begin, n_bytes // 4))
        try:
            await answer.settled.wait()
        finally:
            self._comparisons.pop(number, None)
        return answer.best

    async def drain(self) -> None:
        """Return when the worker has merged all that it was to apply, or is gone."""
        while self._unmerged:
            await self._changed.wait()

    async def wait_idle(self) -> None:
        """Return when nothing is lent and all is merged, or the worker is gone."""
        while self._unmerged or self._leases:
            await self._changed.wait()

    @property
    def unmerged(self) -> frozenset[bytes]:
        """Exchanges that have committed, and that the worker has not merged yet."""
        return frozenset(self._unmerged)

    def _end(self, lease: BufferLease) -> bool:
        """Take a lease out of the books; False if it went with its worker."""
        place = lease.slot, lease.generation
        if self._leases.get(place) is not lease:
            return False
        del self._leases[place]
        self._note_change()
        return True

    # --- what the worker says -------------------------------------------------------------

    def worker_ready(self, slot_view: Callable[[int, int], memoryview], payload_numel: int) -> None:
        """A worker can lend; half of a slot has ``payload_numel`` numbers.

        ``slot_view`` gives the bytes of a slot, as that of ``WorkerLink``.
        """
        self._slot_view, self._payload_numel = slot_view, payload_numel
        self._is_lending = True

    def worker_gone(self) -> None:
        """It died with everything that it has lent or was to apply."""
        self._is_lending, self._slot_view = False, _no_slot
        self._leases.clear()
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.refuse("local: the worker went away")
        weighing, self._weighing = self._weighing, {}
        for each in weighing.values():
            each.settle()
        for comparison in self._comparisons.values():
            comparison.settled.set()
        lost, self._unmerged = self._unmerged, {}
        for xid in lost:
            self._on_lost(xid)
        self._note_change()

    def slot_ready(self, message: SlotReady) -> None:
        """Lend a slot to its caller. Raises WorkerCrashed: none asked for it."""
        ticket = self._take_ticket(message.ticket)
        try:
            slot = self._slot_view(message.slot, message.generation)
        except StaleSlot as error:
            ticket.refuse(f"local: {error}")  # the worker has died since it sent this
            return
        value_bytes = max((view.value_bytes for view in ticket.intent.views), default=4)
        size, half = (n * value_bytes for n in (ticket.intent.numel, self._payload_numel))
        lease = BufferLease(
            intent=ticket.intent,
            slot=message.slot,
            generation=message.generation,
            own=slot[:size],
            room=slot[half : 2 * half if ticket.intent.kind == "gather" else half + size],
            step=message.step,
            tokens=message.tokens,
            weights=Scale(message.weights_rms, message.weights_largest),
            weight=message.weight,
        )
        self._leases[lease.slot, lease.generation] = lease
        if ticket.is_abandoned:
            self.give_back(lease, "no caller waits for it any more")
        else:
            ticket.settle(lease)

    def no_view(self, message: NoView) -> None:
        """Tell the caller that there is nothing. Raises WorkerCrashed: none asked for it."""
        self._take_ticket(message.ticket).refuse(message.why)

    def weighed(self, message: Weighed) -> None:
        """Tell the caller what the worker says. Raises WorkerCrashed: none asked for it."""
        place = message.slot, message.generation
        if place not in self._weighing:
            raise WorkerCrashed("the worker broke the contract: it weighed what it was not asked")
        self._weighing.pop(place).settle(message)

    def compared(self, message: Compared) -> None:
        """Tell the caller what the worker says, if it still waits."""
        if message.ticket in self._comparisons:
            answer = self._comparisons[message.ticket]
            answer.best = min(message.best, answer.best)
            answer.settled.set()
        self.comparing_s += message.seconds

    def applied(self, message: Applied) -> None:
        """The worker has merged an exchange."""
        self._unmerged.pop(message.xid, None)
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _take_ticket(self, number: int) -> _Ticket:
        if number not in self._tickets:
            raise WorkerCrashed(f"the worker broke the contract: no caller has ticket {number}")
        return self._tickets.pop(number)


def _take_view(
    number: int, intent: PostedIntent, partner: Partner | None, round_number: int | None
) -> TakeView:
    round_number = intent.round if round_number is None else round_number
    if partner is None:
        return TakeView(number, intent.number, round=round_number, base_version=intent.base_version)
    return TakeView(
        number,
        intent.number,
        peer=partner.peer,
        round=round_number,
        base_version=partner.base_version,
        step=partner.step,
        tokens=partner.tokens,
        weight=partner.weight,
    )
