"""How long a node waits for a partner: a few times what is usual, as it has measured it.

Three waits are measured, of exchanges with any peer: until an offer is answered; from the moment
when our view is lent until a transfer is whole; and, of a responder that is ready, until the
initiator has decided. What is usual is a median over peers: a mean would follow one peer that
always takes just less than the limit, and the limit with it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.events import Role
from swarmnode.protocol.gossip.flight import Flight
from swarmnode.wire.exchange.gossip import reason_code

# Why an exchange ends here of which the partner, or the way to it, is the cause.
_PARTNERS_REASONS = ("timeout", "in-doubt", "unreachable")


class Usual:
    """The median over peers of what is usual with each, which is the median of its last waits.

    Over all waits it would be that of the one peer with which most exchanges are made: a peer that
    drags from a node's first exchange on, and so leaves no time for others, would be what is usual.
    """

    def __init__(self) -> None:
        # The peer that was met longest ago makes room; bounded by EXCHANGE_USUAL_MAX.
        self._last: dict[PeerId | None, deque[float]] = {}

    def note(self, waited_s: float, peer: PeerId | None = None) -> None:
        """Count a wait that ended well; ``peer``: with whom, None: with all at once."""
        last = self._last.pop(peer, None) or deque(maxlen=limits.EXCHANGE_USUAL_MAX)
        last.append(waited_s)
        self._last[peer] = last
        if len(self._last) > limits.EXCHANGE_USUAL_MAX:
            del self._last[next(iter(self._last))]

    def limit_s(self, least_s: float, first_s: float) -> float:
        """Return how long to wait, ``least_s`` or more; ``first_s``: nothing was measured yet."""
        if not self._last:
            return first_s
        usual_s = statistics.median_low([statistics.median(last) for last in self._last.values()])
        return max(least_s, limits.EXCHANGE_PATIENCE * usual_s)


class Patience:
    """The three limits, for each peer, and what is measured for them.

    Borrows what is known of how peers behave, and notes there what they held for nothing.
    """

    def __init__(self, conduct: ConductTable) -> None:
        self.conduct = conduct
        self.call_s: Callable[[], float] = lambda: 0.0  # for a view, as members tell; 0: unknown
        self._answers, self._transfers, self._decisions = Usual(), Usual(), Usual()

    def answer_s(self, peer: PeerId) -> float:
        """Return how long an offer waits for its answer."""
        return answer_s(self._answers, self.conduct, peer, limits.EXCHANGE_OFFER_S)

    def transfer_s(self, peer: PeerId, transfer_limit_s: float) -> float:
        """Return when a transfer gives way; after ``transfer_limit_s`` it ends anyway."""
        return self._usual_s(transfer_limit_s) * self.conduct.patience(peer)

    def decision_s(self, peer: PeerId) -> float:
        """Return within what time the initiator is to decide, once it hears that we are ready."""
        least_s = limits.EXCHANGE_PATIENCE_S_MIN
        usual_s = self._transfers.limit_s(least_s, limits.EXCHANGE_OFFER_S)
        usual_s = self._decisions.limit_s(least_s, usual_s)
        return min(usual_s * self.conduct.patience(peer), limits.EXCHANGE_DECISION_S_MAX)

    # --- what is measured ----------------------------------------------------------------

    def note_answer(self, flight: Flight, now: float) -> None:
        """Its offer was accepted, or declined, in time."""
        self.conduct.note_answer(flight.peer)
        self._answers.note(now - flight.started, flight.peer)

    def note_commit(self, flight: Flight, now: float) -> None:
        """It counts."""
        usual_s = self._usual_s(flight.transfer_limit_s)
        limit_s = usual_s * self.conduct.patience(flight.peer)
        held_s = 0.0 if flight.lent_at is None else now - flight.lent_at
        is_quick = flight.waited_s < limit_s / 8
        excess_s = held_s - usual_s
        self.conduct.note_commit(flight.peer, now, is_quick=is_quick, excess_s=excess_s)
        if flight.lent_at is not None:
            self._transfers.note(flight.waited_s, flight.peer)
        if flight.role is Role.RESPONDER:
            self._decisions.note(now - flight.ready_at, flight.peer)

    def note_failure(self, flight: Flight, reason: str, now: float, *, by_peer: bool) -> None:
        """It came to nothing: the partner pays for the time for which our view was lent."""
        code = reason_code(reason)
        if flight.lent_at is None or not (by_peer or code in _PARTNERS_REASONS):
            return
        is_stall = code in ("timeout", "in-doubt") and not by_peer
        self.conduct.note_held(flight.peer, now - flight.lent_at, now, is_stall=is_stall)

    def _usual_s(self, transfer_limit_s: float) -> float:
        least_s = limits.EXCHANGE_PATIENCE_S_MIN
        allowed_s = first_s(transfer_limit_s, 2 * self.call_s(), limits.EXCHANGE_FIRST_S)
        most_s = max(least_s, transfer_limit_s - limits.EXCHANGE_VIEW_S)
        return self._transfers.limit_s(least_s, allowed_s or most_s)


def answer_s(answers: Usual, conduct: ConductTable, peer: PeerId, most_s: float) -> float:
    """Return how long a peer may take to answer."""
    usual_s = answers.limit_s(limits.EXCHANGE_ANSWER_S_MIN, limits.EXCHANGE_ANSWER_S_FIRST)
    return min(usual_s * conduct.answer_patience(peer), most_s)


def first_s(transfer_limit_s: float, steps_s: float, allowed_s: float) -> float:
    """Return how long to wait while nothing was measured; 0: members told of no steps yet."""
    line_s = transfer_limit_s - limits.EXCHANGE_VIEW_S - limits.EXCHANGE_TRANSFER_S_MIN
    return steps_s + max(0.0, line_s) + allowed_s if steps_s else 0.0
