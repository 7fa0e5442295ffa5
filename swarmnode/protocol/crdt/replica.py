"""The shared state of a swarm as one node holds it: what it says, hears, passes on and keeps.

Every member signs what it says of itself into a chain of records (records.py, chains.py); a
ledger decides which records get in and adds them up (ledger.py, document.py). This core
moves them between neighbours (courier.py)::

    fresh records   pushed to STATE_PUSH_FANOUT random neighbours, a batch at a time
    everything else Summary of ranges -> Summary of their parts -> Listing -> Push and Want

The first is fast, the second complete: every STATE_SYNC_INTERVAL_S one neighbour is asked
whether anything differs, which costs one small message where nothing does. No peer is sent a
record that it is known to have.

Invariants: equal version vectors mean equal canonical bytes, whatever came in which order,
twice or not at all. A record of ours is shown to others only after it is on disk. Whatever a
neighbour sends changes the state by the rules of the ledger, or is left out and counted.

Messages and rules for other implementations: proto/crdt.md.
Source: Demers et al., "Epidemic algorithms for replicated database maintenance", 1987.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import LocalProtocolError, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.chains import OwnChain
from swarmnode.protocol.crdt.clock import HybridClock
from swarmnode.protocol.crdt.courier import Courier
from swarmnode.protocol.crdt.events import Effect, Event, StateStatistics
from swarmnode.protocol.crdt.ledger import SENDER_AT_FAULT, Judgement, Ledger, Verdict
from swarmnode.protocol.crdt.records import Opened, Read, check, check_proof, open_record
from swarmnode.protocol.crdt.views import View
from swarmnode.protocol.identity import Signer, Verify
from swarmnode.protocol.identity import verify as verify_ed25519
from swarmnode.wire import crdt as wire
from swarmnode.wire.crdt import Head, Proof
from swarmnode.wire.swarm import Signed


class SharedState:
    """Sans-IO core of one node's shared state; see the module for what it promises."""

    def __init__(
        self,
        signer: Signer,
        swarm_id: bytes,
        *,
        epoch: int,
        wall_unix_s: float,
        now: float,
        rng: Rng,
        verify: Verify = verify_ed25519,
        read: Read = open_record,
    ) -> None:
        """Make an empty one.

        Args:
            signer: our identity.
            swarm_id: 32 bytes of the swarm; records of others are refused.
            epoch: the boot epoch, on disk already and never used before.
            wall_unix_s: Unix time at ``now`` (monotonic seconds).
            rng: chooses neighbours and spreads deadlines.
            verify: checks signatures; another one goes with another kind of signer.
            read: opens the records of others.
        """
        self._self_id = signer.peer_id
        self._public_key = signer.public_key
        self._swarm_id = swarm_id
        self._verify = verify
        self._clock = HybridClock(wall_unix_s, now)
        self._ledger = Ledger(self._self_id, swarm_id, self._clock, verify, read)
        self._own = OwnChain(signer, swarm_id, epoch, self._clock)
        self._courier = Courier(self._self_id, self._ledger, self._clock, rng)
        self._renew_at = math.inf
        self._effects: list[Effect] = []
        self._verdicts: Counter[str] = Counter()
        self.view = View(self._ledger)

    # --- the five methods ----------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in one event.

        Raises:
            LocalProtocolError: the shell broke a rule, or says what no record can hold; a
                bug. Nothing that a neighbour sends raises.
        """
        match event:
            case events.Received(peer, message):
                if peer in self._courier.neighbours:
                    self._receive(peer, message, now)
            case events.Update():
                self._own.update(event)
            case events.Persisted(sequence):
                self._show(self._own.persisted(sequence), now)
            case events.NeighbourUp(peer):
                self._ledger.near.add(peer)
                self._courier.up(peer, now)
            case events.NeighbourDown(peer):
                self._ledger.near.discard(peer)
                self._courier.down(peer)
            case events.Restored(records):
                self._restore(records, now)
            case events.ClockSet(wall_unix_s):
                self._clock.set_wall(wall_unix_s, now)
                if self._own.has_spoken:  # what we said by the old clock may be refused
                    self._own.begin_anew()
        self._finish(now)

    def poll_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        deadline = min(
            self._courier.next_deadline(), self._renew_at, self._ledger.next_retirement()
        )
        return None if deadline == math.inf else deadline

    def handle_deadline(self, now: float) -> None:
        """Push, compare, renew and retire what is due."""
        self._courier.handle_deadline(now)
        if now >= self._renew_at:
            self._renew_at = math.inf  # set again when the record is on disk
            self._own.renew()
        self._retire(now)
        self._finish(now)

    def statistics(self) -> StateStatistics:
        """Return sizes and counts."""
        skews = [n.clock_skew_s for n in self._courier.neighbours.values()]
        known = sorted((skew_s for skew_s in skews if skew_s is not None), key=abs)
        return StateStatistics(
            authors=len(self._ledger.chains),
            bans=len(self._ledger.bans),
            held_bytes=self._ledger.size_bytes,
            neighbours=len(self._courier.neighbours),
            types=MappingProxyType(self._ledger.document.statistics()),
            records_total=MappingProxyType(dict(self._verdicts)),
            own_sequence=self._own.sequence,
            messages_total=MappingProxyType(dict(self._courier.messages)),
            records_sent_total=self._courier.records_sent,
            clock_skew_s=known[(len(known) - 1) // 2] if known else None,
        )

    # --- what a shell reads ---------------------------------------------------------------

    def version_vector(self) -> tuple[Head, ...]:
        """Return the newest record of every author that is held, in id order."""
        return self._ledger.version_vector()

    def canonical(self) -> bytes:
        """Return bytes that are equal where version vectors are."""
        return self._ledger.document.canonical()

    def digest(self) -> bytes:
        """Return 32 bytes that are equal where the canonical bytes are."""
        return hashlib.sha256(self.canonical()).digest()

    def journal_records(self) -> Iterator[Signed]:
        """Yield what a journal must hold, in order, to restore this state and its bans."""
        for proof in self._ledger.bans.values():
            yield from (proof.first, proof.second)
        for opened in self._ledger.records():
            yield opened.signed

    # --- our own records ------------------------------------------------------------------

    def _finish(self, now: float) -> None:
        """Sign what is to be said, and hand out what is to be sent."""
        if self._own.is_pending:
            opened = self._own.stage(now)
            if opened is not None:
                self._effects.append(events.Persist(opened.signed, opened.sequence))
        if self._courier.outbox:
            self._effects += self._courier.take()

    def _show(self, opened: Opened, now: float) -> None:
        """Our record is on disk: it counts here, and goes to others."""
        judgement = self._ledger.accept(opened.signed, now, now)
        if judgement.verdict is not Verdict.ACCEPTED:
            raise LocalProtocolError(f"our own record was refused: {judgement.verdict}")
        self._note_changed(opened.actor.peer, judgement.changed)
        self._courier.publish(opened, now)
        self._renew_at = now + self._own.lease_s() / 3

    def _restore(self, records: tuple[Signed, ...], now: float) -> None:
        """Take in a journal. For how long we were away only the clocks on the wall can tell."""
        if self._own.has_spoken:
            raise LocalProtocolError("the journal comes before everything else")
        for signed in records:
            judgement = self._ledger.accept(signed, now, now - limits.STATE_LEASE_S_MAX)
            self._verdicts[judgement.verdict] += 1
            if judgement.proof is not None:
                self._ledger.ban(judgement.proof)
        self._ledger.go_by_stamps(now)
        mine = self._ledger.chains.get(self._self_id)
        if mine is not None:
            if mine.actor.epoch >= self._own.epoch:
                raise LocalProtocolError(
                    f"boot epoch {self._own.epoch} is not after {mine.actor.epoch}, which was "
                    "used already: count it up, and sync it, before each start"
                )
            document = self._ledger.document
            self._own.carry(document.counters.of(mine.actor), document.maxima.of(mine.actor))

    # --- records of others ----------------------------------------------------------------

    def _receive(self, peer: PeerId, message: wire.Message, now: float) -> None:
        match message:
            case wire.Summary():
                self._courier.answer_summary(peer, message, now)
            case wire.Listing():
                self._courier.answer_listing(peer, message, now)
            case wire.Want(heads):
                self._courier.send_newer(peer, heads, now)
            case wire.Push(records, more):
                self._take_records(peer, records, now)
                if more and peer in self._courier.neighbours:
                    self._courier.compare_with(peer, now)
            case wire.Proofs(proofs):
                self._take_proofs(peer, proofs, now)

    def _take_records(self, peer: PeerId, records: tuple[wire.Carried, ...], now: float) -> None:
        gaps: dict[PeerId, None] = {}
        for carried in records:
            if carried.record.public_key == self._public_key:
                self._meet_own(carried.record)
                continue
            judgement = self._ledger.accept(carried.record, now, now - carried.age_s)
            self._verdicts[judgement.verdict] += 1
            if judgement.verdict in SENDER_AT_FAULT:
                why = f"state record: {judgement.verdict}"
                self._effects.append(events.Penalise(peer, why))
                break  # what else it sent is as likely to be bad, and costs a signature each
            self._take(peer, judgement, gaps, now)
        if gaps:
            self._courier.ask(peer, gaps, now)

    def _take(
        self, peer: PeerId, judgement: Judgement, gaps: dict[PeerId, None], now: float
    ) -> None:
        """Act on the verdict on a record that is well formed."""
        opened = judgement.opened
        assert opened is not None
        author = opened.actor.peer
        match judgement.verdict:
            case Verdict.ACCEPTED:
                self._courier.received(peer, opened, now)
                self._effects.append(events.Persist(opened.signed))
                self._note_changed(author, judgement.changed)
                self._courier.publish(opened, now)
            case Verdict.FULL:  # others may have gone for it, and that was not enough
                self._note_changed(author, judgement.changed)
            case Verdict.DUPLICATE | Verdict.STALE:
                self._courier.received(peer, opened, now)
            case Verdict.GAP:
                gaps[author] = None
            case Verdict.EQUIVOCATION:
                assert judgement.proof is not None
                self._ban(judgement.proof, now)
            case Verdict.BANNED:
                self._courier.tell_ban(peer, author, now)

    def _take_proofs(self, peer: PeerId, proofs: tuple[Proof, ...], now: float) -> None:
        for proof in proofs:
            try:
                if PeerId.from_public_key(proof.first.public_key) == self._self_id:
                    check_proof(proof, self._swarm_id, self._verify)
                    self._meet_own(proof.first)
                    self._meet_own(proof.second)
                else:
                    self._ban(proof, now)
            except RemoteProtocolError as error:
                self._effects.append(events.Penalise(peer, str(error)))
                return

    def _ban(self, proof: Proof, now: float) -> None:
        """Raises RemoteProtocolError if it proves nothing."""
        banned = self._ledger.ban(proof)
        if banned is None:
            return
        author, changed = banned
        self._effects.append(events.Ban(author, proof))
        self._effects += [events.Persist(proof.first), events.Persist(proof.second)]
        self._note_changed(author, changed)
        for peer in sorted(self._courier.neighbours):
            self._courier.tell_ban(peer, author, now)

    def _meet_own(self, signed: Signed) -> None:
        """A record with our name came back: is it one of ours?"""
        try:
            opened = open_record(signed, self._swarm_id)
            check(opened, self._verify)
        except RemoteProtocolError:
            return  # a peer passes on nonsense about us; no node believes it
        epoch, sequence = opened.actor.epoch, opened.sequence
        if epoch < self._own.epoch:
            # An earlier life: if our journal was lost, this is how its totals come back.
            self._own.carry(opened.record.counters, opened.record.maxima)
            return
        mine = self._ledger.chains.get(self._self_id)
        held = None if mine is None or mine.actor != opened.actor else mine.at(sequence)
        is_other = held is not None and held.hash != opened.hash
        if epoch > self._own.epoch or sequence > self._own.sequence or is_other:
            self._effects.append(events.KeyElsewhere(epoch, sequence))

    def _retire(self, now: float) -> None:
        for author, changed in self._ledger.retire_silent(now):
            self._note_changed(author, changed)

    def _note_changed(self, author: PeerId, names: frozenset[str]) -> None:
        if names:
            self._effects.append(events.Changed(author, names))
