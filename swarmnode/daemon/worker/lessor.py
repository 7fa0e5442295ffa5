"""Slots of the worker that runs now, lent one at a time; implements ``leases.Lessor``.

::

    borrow --TakeView--> worker --SlotReady--> BufferLease
                                --NoView-----> NoLease
    BufferLease --apply, give_back--> Apply, Release --> worker

All of it is over when the worker dies: callers that wait get NoLease, and leases count no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from swarmnode import limits
from swarmnode.daemon.worker.leases import BufferLease, NoLease
from swarmnode.daemon.worker.link import WorkerLink
from swarmnode.errors import WorkerCrashed
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Drop,
    NoView,
    Partner,
    PostedIntent,
    Release,
    SlotReady,
    TakeView,
    ToWorker,
)
from swarmnode.ipc.segment import StaleSlot
from swarmnode.tensor.magnitude import Scale

_FLOAT32_BYTES = 4
_WHY_CHARACTERS_MAX = 256  # of wire.records.ShortText


@dataclass(eq=False)
class _Ticket:
    """A slot that a caller waits for, or waited."""

    intent: PostedIntent
    settled: trio.Event = field(default_factory=trio.Event)
    lease: BufferLease | None = None
    why: str = ""  # there is none
    is_abandoned: bool = False

    def settle(self, lease: BufferLease | None, why: str = "") -> None:
        self.lease, self.why = lease, why
        self.settled.set()


class SlotLessor:
    """See the module.

    Args:
        post: sends a message to the worker.
        on_lost: this exchange was to be applied, and the worker died before it said so.
    """

    def __init__(self, post: Callable[[ToWorker], None], on_lost: Callable[[bytes], None]) -> None:
        self._post = post
        self._on_lost = on_lost
        self._link: WorkerLink | None = None
        self._payload_numel = 0
        self._numbers = itertools.count(1)
        self._tickets: dict[int, _Ticket] = {}
        self._leases: dict[tuple[int, int], BufferLease] = {}  # by slot and generation
        self._unmerged: dict[bytes, None] = {}  # exchanges that the worker is to apply
        self._changed = trio.Event()

    # --- for exchanges --------------------------------------------------------------------

    async def borrow(
        self, intent: PostedIntent, partner: Partner | None = None, round_number: int | None = None
    ) -> BufferLease:
        """Return a slot with the views of ``intent``; see ``Lessor``. Raises NoLease."""
        if self._link is None:
            raise NoLease("local: the worker went away")
        if len(self._tickets) >= limits.TICKETS_MAX:
            raise NoLease(f"busy: the worker owes {len(self._tickets)} views already")
        number, ticket = next(self._numbers), _Ticket(intent)
        self._tickets[number] = ticket
        self._post(_take_view(number, intent, partner, round_number))
        try:
            await ticket.settled.wait()
        except trio.Cancelled:
            ticket.is_abandoned = True
            if ticket.lease is not None:  # it came in this very moment
                self.give_back(ticket.lease, "nobody waits for it any more")
            raise
        if ticket.lease is None:
            raise NoLease(ticket.why)
        return ticket.lease

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

    def worker_ready(self, link: WorkerLink, payload_numel: int) -> None:
        """A worker can lend; half of a slot has ``payload_numel`` numbers."""
        self._link, self._payload_numel = link, payload_numel

    def worker_gone(self) -> None:
        """It died with everything that it has lent or was to apply."""
        self._link = None
        self._leases.clear()
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.settle(None, "local: the worker went away")
        lost, self._unmerged = self._unmerged, {}
        for xid in lost:
            self._on_lost(xid)
        self._note_change()

    def slot_ready(self, message: SlotReady) -> None:
        """Lend a slot to its caller. Raises WorkerCrashed: none asked for it."""
        ticket = self._take_ticket(message.ticket)
        assert self._link is not None
        try:
            slot = self._link.slot_view(message.slot, message.generation)
        except StaleSlot as error:
            ticket.settle(None, f"local: {error}")  # the worker has died since it sent this
            return
        size, half = (n * _FLOAT32_BYTES for n in (ticket.intent.numel, self._payload_numel))
        lease = BufferLease(
            intent=ticket.intent,
            slot=message.slot,
            generation=message.generation,
            own=slot[:size],
            room=slot[half : 2 * half if ticket.intent.kind == "gather" else half + size],
            step=message.step,
            tokens=message.tokens,
            weights=Scale(message.weights_rms, message.weights_largest),
        )
        self._leases[lease.slot, lease.generation] = lease
        if ticket.is_abandoned:
            self.give_back(lease, "nobody waits for it any more")
        else:
            ticket.settle(lease)

    def no_view(self, message: NoView) -> None:
        """Tell the caller that there is nothing. Raises WorkerCrashed: none asked for it."""
        self._take_ticket(message.ticket).settle(None, message.why)

    def applied(self, message: Applied) -> None:
        """The worker has merged an exchange."""
        self._unmerged.pop(message.xid, None)
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _take_ticket(self, number: int) -> _Ticket:
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            raise WorkerCrashed(f"the worker broke the contract: nobody has ticket {number}")
        return ticket


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
