"""Atomic exchange between two peers: it counts on both sides or on neither.

::

    initiator   idle -Begin-> OFFERED -ACCEPT-> TRANSFER -READY & LocalDone-> committed
    responder   idle -OFFER-> TRANSFER -LocalDone-> READY -COMMIT-> committed

The initiator decides; up to then either side aborts freely. A responder that
has sent READY gave that freedom away: it waits for COMMIT, asks STATUS, and
gives up only when the initiator is silent for EXCHANGE_IN_DOUBT_S or has lost
its memory. No protocol can do better over a network that may stay cut (two
generals), so those cases are counted: ``in_doubt_total``, and where we learn
that it went wrong, ``half_applied_total``.

A node has any number of intents that wait, one for each tag and fragment, and
answers beside them. An intent is used up when it is accepted or its offer is;
then only the shell gets ready what it gives, so what is sent is fresh.

Invariants, under loss, duplication and reordering of any message:
a node has at most EXCHANGE_FLIGHTS_MAX exchanges in flight, each with another
peer and of another topic (but for one that stands aside, see ``flight.py``),
and an offer for which there is no place is refused at once, so no wait can
form a cycle; an intent starts at most one transfer;
every StartTransfer ends in exactly one Commit or Abort; whatever a peer sends
either changes the state as the table below says, or is dropped, or raises
RemoteProtocolError with nothing changed.

No peer holds a place for long: how long it is waited for follows from what is
usual here (``patience.py``), how often it may fail from what it did before
(``conduct.py``), and a transfer that is overdue gives way (``flight.py``).

Messages, state tables and timeouts for other implementations: proto/gossip.md.
Source: presumed abort two-phase commit, Mohan and Lindsay, "Efficient commit
protocols for the tree of processes model", 1983; averaging with try-lock, Lian
et al., "Asynchronous decentralized parallel SGD", 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swarmnode import limits
from swarmnode.errors import LocalProtocolError, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import events
from swarmnode.protocol.gossip.events import Effect, Event, MergeChunk, Role, Send
from swarmnode.protocol.gossip.flight import Flight, State, acceptance_of, refusal
from swarmnode.protocol.gossip.moves import Moves
from swarmnode.protocol.gossip.outcomes import Outcome, status_of
from swarmnode.wire.exchange import gossip as wire


class ExchangeCore(Moves):
    """Sans-IO core of one node's exchanges; see the module for what it promises.

    ``key``: 32-byte digest of all that must be equal for two nodes to exchange. ``patience``: how
    long peers are waited for, and what is known of how they behave; the core writes both.
    """

    # --- the five methods ----------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in one event.

        Raises:
            LocalProtocolError: the shell broke the order of events: a bug.
            RemoteProtocolError: the peer broke a rule; nothing has changed.
        """
        match event:
            case events.Received(peer, message):
                self._receive(peer, message, now)
            case events.Available(intent, transfer_limit_s):
                _check_local(0 < intent.n_chunks <= limits.EXCHANGE_CHUNKS_MAX, "chunk count")
                _check_local(transfer_limit_s > 0, "transfer limit")
                self._intents.put(event)
                self._give_way(now)
            case events.Unavailable(number):
                self._intents.remove(number)
            case events.Begin():
                self._begin(event, now)
            case events.ViewLent(xid):
                self._view_lent(xid, now)
            case events.ChunkSent(xid):
                self._chunk_sent(xid, now)
            case events.LocalDone(xid):
                self._local_done(xid, now)
            case events.LocalFailed():
                self._local_failed(event, now)
            case events.PeerLost(peer):
                self._peer_lost(peer, now)

    def poll_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        return min((flight.deadline for flight in self._flights), default=None)

    def handle_deadline(self, now: float) -> None:
        """Give up, or ask again, if it is time to."""
        for flight in self._flights:
            if flight.deadline <= now and self._flights.get(flight.xid) is flight:
                self._flight_due(flight, now)

    def _flight_due(self, flight: Flight, now: float) -> None:
        if flight.state is State.OFFERED:
            self._conduct.note_no_answer(flight.peer, now)
            self._send(flight, wire.Abort(xid=flight.xid, reason="timeout"))
            self._try_next(flight, "timeout", now)
        elif flight.state is State.TRANSFER:
            if flight.give_up_at <= now:
                self._abort(flight, "timeout", now)
            else:
                flight.is_known_overdue = True
                self._give_way(now)
        elif flight.doubt_at <= now:
            self._abort(flight, "in-doubt: no answer", now, in_doubt=True)
        else:
            self._send(flight, flight.next_question(now))
            flight.ask_at = now + self._jitter_s()

    def _give_way(self, now: float) -> None:
        """End transfers that are overdue where an intent of ours waits for their place."""
        for topic in self._intents.topics():
            for flight in self._flights.to_give_way(topic, now) or ():
                self._abort(flight, "timeout", now)

    def statistics(self) -> events.ExchangeStatistics:
        """Return a frozen record of counters."""
        return self._tally.statistics(
            is_busy=len(self._flights) > 0,
            intents=len(self._intents),
            outcomes_kept=len(self._outcomes),
        )

    @property
    def is_idle(self) -> bool:
        """Whether no exchange is in flight."""
        return not len(self._flights)

    def may_begin(self, topic: events.Topic, now: float) -> bool:
        """Whether there is a place for an exchange of this topic, so that Begin is allowed."""
        return self._flights.to_give_way(topic, now) is not None

    def is_exchanging_with(self, peer: PeerId) -> bool:
        """Whether an exchange with this peer is in flight: no other begins meanwhile."""
        return self._flights.with_peer(peer) is not None

    # --- what our own side says ----------------------------------------------------------

    def _begin(self, event: events.Begin, now: float) -> None:
        topic = event.tag, event.fragment
        intent, late = self._intents.intent(topic), self._flights.to_give_way(topic, now)
        if late is None or intent is None:
            raise LocalProtocolError("Begin needs a core with this intent and a place for it")
        candidates = tuple(dict.fromkeys(event.candidates))[: limits.EXCHANGE_CANDIDATES_MAX]
        _check_local(bool(candidates) and self._self_id not in candidates, "candidates")
        _check_local(event.transfer_limit_s > 0, "transfer limit")
        for flight in late:
            self._abort(flight, "timeout", now)
        for peer in candidates:
            self._conduct.note_there(peer, now)
        if not self._offer(intent, candidates, event.transfer_limit_s, now):
            self._effects.append(events.Untaken(intent.number, "busy: in an exchange with each"))

    def _view_lent(self, xid: bytes, now: float) -> None:
        flight = self._flights.get(xid)
        if flight is not None:
            flight.lend(self.patience.transfer_s(flight.peer, flight.transfer_limit_s), now)

    def _local_done(self, xid: bytes, now: float) -> None:
        flight = self._flights.get(xid)
        if flight is None:
            return  # it was aborted while the shell was finishing it
        if flight.state is not State.TRANSFER or not flight.has_all_chunks or flight.local_done:
            raise LocalProtocolError(
                f"LocalDone after {len(flight.seen)} of {flight.intent.n_chunks} chunks "
                f"in state {flight.state}"
            )
        flight.local_done = True
        flight.waited_s = now - flight.lent_at if flight.lent_at is not None else 0.0
        if flight.role is Role.RESPONDER:
            self._become_ready(flight, now)
        elif flight.peer_ready:
            self._commit(flight, now)

    def _become_ready(self, flight: Flight, now: float) -> None:
        decide_s = self.patience.decision_s(flight.peer)
        n_chunks = flight.intent.n_chunks
        self._send(flight, wire.Ready(xid=flight.xid, n_chunks=n_chunks, decide_s=decide_s))
        ask_at = now + limits.EXCHANGE_STATUS_AFTER_S + self._jitter_s()
        flight.become_ready(now, ask_at, decide_s)

    def _local_failed(self, event: events.LocalFailed, now: float) -> None:
        flight = self._flights.get(event.xid)
        if flight is None:
            return
        is_ready = flight.state is State.READY  # not ours to decide any more
        if event.is_last or not is_ready:
            self._abort(flight, event.reason, now, in_doubt=is_ready)

    def _peer_lost(self, peer: PeerId, now: float) -> None:
        flight = self._flights.with_peer(peer)
        if flight is None:
            return
        if flight.state is State.OFFERED:
            self._try_next(flight, "unreachable", now)
        elif flight.state is State.TRANSFER:
            self._abort(flight, "unreachable", now)
        else:
            flight.ask_at = now + self._jitter_s()

    # --- what a peer says ----------------------------------------------------------------

    def _receive(self, peer: PeerId, message: wire.Message, now: float) -> None:
        flight = self._flights.get(message.xid)
        if flight is None:
            self._receive_stale(peer, message, now)
            return
        if peer != flight.peer:
            raise RemoteProtocolError(
                f"expected messages of exchange {message.xid.hex()} from its partner only, "
                f"got {_name(message)}",
                peer=str(peer),
            )
        action = TRANSITIONS.get((flight.role, flight.state, type(message)))
        if action is None:
            raise RemoteProtocolError(
                f"unexpected {_name(message)} for a {flight.role} in state {flight.state}",
                peer=str(peer),
            )
        action(self, flight, message, now)

    def _receive_stale(self, peer: PeerId, message: wire.Message, now: float) -> None:
        """Handle a message of an exchange that is new, over, or unknown here."""
        known = self._outcomes.lookup(peer, message.xid)
        match message:
            case wire.Offer() if known is None:
                self._consider(peer, message, now)
                return
            case wire.Accept() | wire.Ready() | wire.StatusQuery():
                # The peer that asks waits for us; it must learn what we know, or that we do not.
                number = message.number if isinstance(message, wire.StatusQuery) else 0
                reply = wire.StatusReply(xid=message.xid, outcome=status_of(known), number=number)
                self._effects.append(Send(peer, reply))
                self._conduct.note_heard(peer)
            case wire.Busy():
                self._conduct.note_heard(peer)
            case wire.Abort() if known is None:
                self._outcomes.record(peer, message.xid, committed=False, now=now)
            case wire.Abort() if known is Outcome.COMMITTED:
                self._dispute(peer, message.xid)
            case wire.Commit() | wire.StatusReply(outcome="committed") if known is Outcome.ABORTED:
                self._dispute(peer, message.xid)
            case wire.Chunk():
                self._tally.chunks_dropped += 1
        self._tally.stale_messages += 1

    def _consider(self, peer: PeerId, offer: wire.Offer, now: float) -> None:
        """Accept or refuse a new offer; of two that cross, the smaller peer id's wins."""
        self._conduct.note_heard(peer)
        found = self._find(peer, offer, now)
        crossing = self._flights.with_peer(peer)
        if isinstance(found, str):
            self._tally.refused[wire.reason_code(found)] += 1
            self._outcomes.record(peer, offer.xid, committed=False, now=now)
            self._effects.append(Send(peer, wire.Busy(xid=offer.xid, reason=found)))
        elif crossing is None:
            for flight in self._flights.to_give_way((offer.tag, offer.fragment), now) or ():
                self._abort(flight, "timeout", now)
            self._accept(peer, offer, found, now)
        else:
            self._tally.crossed_offers += 1
            if peer < self._self_id:
                self._finish(crossing, Outcome.DECLINED, "yielded", now)
                self._accept(peer, offer, found, now)

    def _find(self, peer: PeerId, offer: wire.Offer, now: float) -> events.Available | str:
        """Return what fits a new offer, or why there is nothing."""
        flight, topic = self._flights.with_peer(peer), (offer.tag, offer.fragment)
        if offer.key != self._key:
            return "incompatible: other strategy, settings, layout or codec"
        self._conduct.note_there(peer, now)
        if flight is None:
            if not self.may_begin(topic, now):
                return "busy"
            if not self._conduct.may_hold(peer, now):
                return "busy: too many exchanges with it came to nothing"
            found = self._intents.for_offer(topic)
            if found is None:
                return "no-wish"
            if not self._conduct.may_meet(peer, found.intent.round, now):
                return "busy: it is met in fewer rounds, for what came of it before"
        elif flight.state is State.OFFERED and flight.intent.topic == topic:
            found = events.Available(flight.intent, flight.transfer_limit_s)
        else:
            return "busy"
        return refusal(found.intent, offer) or found

    def _accept(self, peer: PeerId, offer: wire.Offer, given: events.Available, now: float) -> None:
        intent = self._intents.use_up(given.intent)
        flight = self._new_flight(
            peer, offer.xid, Role.RESPONDER, intent, given.transfer_limit_s, now
        )
        flight.start_transfer(now)
        self._flights.add(flight)
        self._send(flight, acceptance_of(intent, offer))
        self._start(flight, offer)

    # --- actions of the transition table -------------------------------------------------

    def _on_accept(self, flight: Flight, message: wire.Accept, now: float) -> None:
        self.patience.note_answer(flight, now)
        flight.intent = self._intents.use_up(flight.intent)
        flight.start_transfer(now)
        self._start(flight, message)

    def _on_declined(self, flight: Flight, message: wire.Busy | wire.Abort, now: float) -> None:
        self.patience.note_answer(flight, now)
        self._try_next(flight, message.reason, now, by_peer=True)

    def _chunk_sent(self, xid: bytes, now: float) -> None:
        flight = self._flights.get(xid)
        if flight is not None:
            flight.n_sent += 1
            flight.note_progress(flight.n_sent, now)

    def _on_chunk(self, flight: Flight, message: wire.Chunk, now: float) -> None:
        if flight.take_chunk(message.index):
            flight.note_progress(len(flight.seen), now)
            self._tally.chunks_merged += 1
            self._effects.append(MergeChunk(flight.xid, message.index))
        else:
            self._tally.chunks_dropped += 1

    def _on_ready(self, flight: Flight, message: wire.Ready, now: float) -> None:
        if message.n_chunks != flight.intent.n_chunks:
            raise RemoteProtocolError(
                f"expected READY for {flight.intent.n_chunks} chunks, got {message.n_chunks}",
                peer=str(flight.peer),
            )
        self._note_peer_ready(flight, message.decide_s, now)

    def _on_query(self, flight: Flight, message: wire.StatusQuery, now: float) -> None:
        """Only a partner that is ready asks, so this stands in for a READY that was lost.

        Once the time to decide has passed, "pending" would be the word of a liar: R must be able
        to rely on that, also when this node was asleep and its deadline is yet to be handled.
        """
        if flight.peer_ready and flight.give_up_at <= now:
            self._abort(flight, "timeout", now)
            return
        self._note_peer_ready(flight, message.decide_s, now)
        if self._flights.get(flight.xid) is flight:  # else COMMIT has just been sent
            reply = wire.StatusReply(flight.xid, "pending", number=message.number)
            self._send(flight, reply)

    def _note_peer_ready(self, flight: Flight, decide_s: float, now: float) -> None:
        flight.peer_ready = True
        if flight.local_done:
            self._commit(flight, now)
        elif decide_s > 0:
            flight.give_up_at = min(flight.give_up_at, now + decide_s)

    def _on_abort(self, flight: Flight, message: wire.Busy | wire.Abort, now: float) -> None:
        self._abort(flight, message.reason, now, by_peer=True)

    def _on_commit(self, flight: Flight, _message: wire.Commit, now: float) -> None:
        self._commit(flight, now)

    def _on_reply(self, flight: Flight, message: wire.StatusReply, now: float) -> None:
        """Learn the decision after READY."""
        if message.outcome == "pending":
            if not flight.note_pending(message.number, now):
                self._abort(flight, "in-doubt: it did not decide in time", now, in_doubt=True)
        elif message.outcome == "committed":
            self._commit(flight, now)
        elif message.outcome == "aborted":
            self._abort(flight, "other: the initiator had aborted", now, by_peer=True)
        else:
            self._abort(flight, "in-doubt: it kept no trace", now, in_doubt=True)

    def _on_early_decision(
        self, flight: Flight, message: wire.Commit | wire.StatusReply, now: float
    ) -> None:
        """Drop an exchange that is over for the initiator, though we were never READY.

        If it committed, then with a former self of ours that died: a duplicated offer
        came after our restart.
        """
        self._abort(flight, "other: over for the initiator", now, by_peer=True)
        if isinstance(message, wire.Commit) or message.outcome == "committed":
            self._dispute(flight.peer, flight.xid)

    def _ignore(self, _flight: Flight, _message: wire.Message, _now: float) -> None:
        self._tally.stale_messages += 1


def _check_local(holds: bool, what: str) -> None:
    if not holds:
        raise LocalProtocolError(f"bad {what} in an event from the shell")


def _name(message: wire.Message) -> str:
    return type(message).__name__


# What a message of the partner does to the exchange in flight. A pair that is missing
# cannot come from an honest peer, whatever the network does, and is refused.
_I, _R = Role.INITIATOR, Role.RESPONDER
TRANSITIONS: dict[tuple[Role, State, type], Callable[[ExchangeCore, Flight, Any, float], None]] = {
    (_I, State.OFFERED, wire.Accept): ExchangeCore._on_accept,
    (_I, State.OFFERED, wire.Busy): ExchangeCore._on_declined,
    (_I, State.OFFERED, wire.Abort): ExchangeCore._on_declined,
    (_I, State.OFFERED, wire.Chunk): ExchangeCore._ignore,  # it overtook ACCEPT
    (_I, State.TRANSFER, wire.Accept): ExchangeCore._ignore,
    (_I, State.TRANSFER, wire.Busy): ExchangeCore._on_abort,  # R restarted, OFFER came twice
    (_I, State.TRANSFER, wire.Chunk): ExchangeCore._on_chunk,
    (_I, State.TRANSFER, wire.Ready): ExchangeCore._on_ready,
    (_I, State.TRANSFER, wire.StatusQuery): ExchangeCore._on_query,
    (_I, State.TRANSFER, wire.Abort): ExchangeCore._on_abort,
    (_R, State.TRANSFER, wire.Offer): ExchangeCore._ignore,
    (_R, State.TRANSFER, wire.Chunk): ExchangeCore._on_chunk,
    (_R, State.TRANSFER, wire.Abort): ExchangeCore._on_abort,
    (_R, State.TRANSFER, wire.Commit): ExchangeCore._on_early_decision,
    (_R, State.TRANSFER, wire.StatusReply): ExchangeCore._on_early_decision,
    (_R, State.READY, wire.Offer): ExchangeCore._ignore,
    (_R, State.READY, wire.Chunk): ExchangeCore._on_chunk,
    (_R, State.READY, wire.Commit): ExchangeCore._on_commit,
    (_R, State.READY, wire.Abort): ExchangeCore._on_abort,
    (_R, State.READY, wire.StatusReply): ExchangeCore._on_reply,
}
