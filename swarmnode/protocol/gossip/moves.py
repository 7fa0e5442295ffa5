"""What a node does in an exchange: offer, start, commit, abort, and remember how it ended.

When it does which is said by the core, ``exchange.py``, which is made on top of this.
"""

from __future__ import annotations

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.events import Effect, Finished, PairIntent, Role, Send, StartTransfer
from swarmnode.protocol.gossip.flight import (
    Flight,
    FlightTable,
    IntentTable,
    State,
    new_xid,
    offer_of,
    terms_of,
)
from swarmnode.protocol.gossip.outcomes import Outcome, OutcomeTable
from swarmnode.protocol.gossip.patience import Patience
from swarmnode.wire.exchange import gossip as wire

_REASON_CHARACTERS_MAX = 256  # of wire.records.ShortText


class Moves:
    """The state of one node's exchanges, and the moves that change it."""

    def __init__(self, self_id: PeerId, key: bytes, rng: Rng, patience: Patience) -> None:
        self._self_id = self_id
        self._key = key
        self._rng = rng
        self._flights = FlightTable()
        self.patience, self._conduct = patience, patience.conduct
        self._intents = IntentTable()
        self._outcomes = OutcomeTable()
        self._effects: list[Effect] = []
        self._tally = events.Tally()

    def _offer(
        self, intent: PairIntent, candidates: tuple[PeerId, ...], limit_s: float, now: float
    ) -> bool:
        """Offer to the first candidate with which there is no exchange; False if there is none."""
        free = tuple(peer for peer in candidates if self._flights.with_peer(peer) is None)
        if not free:
            return False
        xid = new_xid(self._self_id, free[0], self._rng)
        flight = self._new_flight(free[0], xid, Role.INITIATOR, intent, limit_s, now)
        flight.further = free[1:]
        self._flights.add(flight)
        self._send(flight, offer_of(intent, xid, self._key))
        return True

    def _try_next(self, flight: Flight, reason: str, now: float, *, by_peer: bool = False) -> None:
        """End an offer that was not accepted and turn to the next candidate, if any."""
        self._finish(flight, Outcome.DECLINED, reason, now, by_peer=by_peer)
        current = self._intents.current(flight.intent)
        limit_s = flight.transfer_limit_s
        if current is None or not self._offer(current, flight.further, limit_s, now):
            self._effects.append(events.Untaken(flight.intent.number, reason))

    def _start(self, flight: Flight, theirs: wire.Offer | wire.Accept) -> None:
        self._effects.append(
            StartTransfer(
                xid=flight.xid,
                peer=flight.peer,
                role=flight.role,
                number=flight.intent.number,
                theirs=terms_of(theirs, flight.intent),
            )
        )

    def _commit(self, flight: Flight, now: float) -> None:
        self._effects.append(events.Commit(flight.xid))
        self.patience.note_commit(flight, now)
        self._finish(flight, Outcome.COMMITTED, "", now)
        if flight.role is Role.INITIATOR:
            self._send(flight, wire.Commit(xid=flight.xid))

    def _abort(
        self,
        flight: Flight,
        reason: str,
        now: float,
        *,
        by_peer: bool = False,
        in_doubt: bool = False,
    ) -> None:
        reason = reason[:_REASON_CHARACTERS_MAX]
        if flight.state is State.OFFERED:
            self._effects.append(events.Untaken(flight.intent.number, reason))
        else:
            self._effects.append(events.Abort(flight.xid, reason))
            self.patience.note_failure(flight, reason, now, by_peer=by_peer)
        self._finish(flight, Outcome.ABORTED, reason, now, by_peer=by_peer, in_doubt=in_doubt)
        if not by_peer:
            self._send(flight, wire.Abort(xid=flight.xid, reason=reason))

    def _finish(
        self,
        flight: Flight,
        outcome: Outcome,
        reason: str,
        now: float,
        *,
        by_peer: bool = False,
        in_doubt: bool = False,
    ) -> None:
        """Forget the flight, remember how it ended."""
        self._flights.remove(flight)
        committed = outcome is Outcome.COMMITTED
        self._outcomes.record(flight.peer, flight.xid, committed=committed, now=now)
        finished = Finished(
            xid=flight.xid,
            peer=flight.peer,
            role=flight.role,
            outcome=outcome,
            reason=reason,
            by_peer=by_peer,
            in_doubt=in_doubt,
            started=flight.started,
            ended=now,
        )
        self._tally.count_finished(finished)
        self._effects.append(finished)

    def _dispute(self, peer: PeerId, xid: bytes) -> None:
        if self._outcomes.dispute(peer, xid):
            self._tally.half_applied += 1

    def _send(self, flight: Flight, message: wire.Message) -> None:
        self._effects.append(Send(flight.peer, message))

    def _new_flight(
        self, peer: PeerId, xid: bytes, role: Role, intent: PairIntent, limit_s: float, now: float
    ) -> Flight:
        return Flight(
            xid=xid,
            peer=peer,
            role=role,
            state=State.OFFERED,
            intent=intent,
            transfer_limit_s=min(limit_s, limits.EXCHANGE_TRANSFER_S_MAX),
            started=now,
            give_up_at=now + self.patience.answer_s(peer),
        )

    def _jitter_s(self) -> float:
        """Return a wait in (0, EXCHANGE_STATUS_RETRY_S]."""
        return limits.EXCHANGE_STATUS_RETRY_S * (1.0 - self._rng.random())
