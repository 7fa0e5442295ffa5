"""What exchanges of every kind need of the worker: slots, lent for one wish at a time.

::

    wish -> WishTaker.wished     borrow -> Loan -> apply | give_back     or   NoLoan -> drop

The trainer is the lender. Kinds of exchange know no worker, and the trainer knows no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from swarmnode.errors import WorkerError
from swarmnode.ipc.control import Partner, Wish
from swarmnode.tensor.magnitude import UNKNOWN, Scale


class NoLoan(WorkerError):
    """The worker does not lend: the message begins with a code of ``wire/exchange/gossip.py``."""


@dataclass(frozen=True, eq=False)
class Loan:
    """A slot of the worker, as it was at local step ``step``; until it is applied or given back.

    Attributes:
        own: writable bytes of the own views: float32 [wish.numel], in their order.
        room: writable bytes for what comes, of the same size.
        weights: how large the worker's weights are.
    """

    wish: Wish
    slot: int
    generation: int
    own: memoryview
    room: memoryview
    step: int
    tokens: int
    weights: Scale = UNKNOWN


class Lender(Protocol):
    """Lends slots. Every loan ends in exactly one apply or give_back."""

    async def borrow(
        self, wish: Wish, partner: Partner | None = None, round_number: int | None = None
    ) -> Loan:
        """Return a slot with the views of ``wish``, taken at the next step boundary.

        Args:
            wish: one that the worker made, an answer too.
            partner: who offered or accepted; None in a group.
            round_number: the partner's, for an answer.

        Cancelled, it gives back what still comes. Checkpoint: yes.

        Raises:
            NoLoan: the worker refuses or has gone, or the wish has been replaced.
        """

    def apply(
        self,
        loan: Loan,
        xid: bytes,
        partner: Partner | None = None,
        present: tuple[bytes, ...] = (),
    ) -> bool:
        """Let the worker merge a committed exchange; False if the worker of the loan is gone."""

    def give_back(self, loan: Loan, why: str) -> None:
        """End a loan of which nothing came. Nothing happens if its worker is gone."""

    def drop(self, wish: Wish, why: str) -> None:
        """Tell the worker that nothing came of a wish that no slot was lent for."""


class WishTaker(Protocol):
    """One kind of exchange."""

    def wished(self, wish: Wish) -> None:
        """Serve this wish as soon as can be; it replaces one of the same tag and fragment."""

    def worker_gone(self) -> None:
        """Forget every wish and loan: their worker is dead."""

    def partners_changed(self) -> None:
        """There may be somebody to exchange with."""
