"""SWIM: which nodes are in the swarm and which are gone, each node checking one other at a time.

::

                suspected by a probe or by hearsay          not refuted in time
    (unknown) -> ALIVE ------------------------> SUSPECT ------------------> DEAD
                   ^   <------------------------    |                          |
                   |     signed, higher incarnation |                          |
                   +----------------------------------------------------------+
    any -- signed goodbye --> LEFT -- signed, higher epoch --> ALIVE

A version is (boot epoch, left, incarnation), signed by the member, so it never falls and
no other node can raise it. A doubt is hearsay about exactly one version; the member itself
refutes it with the next one.

Deviations from the papers. *Dead* from others is a certain suspicion, not a fact: every node
gives a member its own shortest time to refute, so one node in trouble kills no other for
others. Time in which this process stood still counts against no member (``LivedClock``). A ping
has its sender's own claim. Doubts carry their accusers as a set: news about one member is one
claim. Dead members are called now and then, which heals partitions. A node can tell of thousands
that do not exist: a member that never answered us is not passed on, and lives here only while
fewer such than others do; what finds no place is pinged (``Hearsay``).

Sources: Das et al., "SWIM: scalable weakly-consistent infection-style process group membership
protocol", 2002; Dadgar et al., "Lifeguard: local health awareness for more accurate failure
detection", 2018. For other implementations: proto/swim.md.
"""

from __future__ import annotations

import math

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.membership import swim_events as events
from swarmnode.protocol.membership.claims import Notary, rank_of
from swarmnode.protocol.membership.health import (
    LivedClock,
    LocalHealth,
    Probe,
    Relay,
    SuspicionTimes,
)
from swarmnode.protocol.membership.swim_events import Changed, MemberState, Send
from swarmnode.protocol.membership.table import (
    Hearsay,
    Member,
    MemberTable,
    Rumours,
    Suspicion,
    claim_of,
    without_hearsay,
)
from swarmnode.wire import swim as wire


class SwimCore:
    """Sans-IO core of one node's failure detector; see the module for what it promises."""

    def __init__(self, notary: Notary, epoch: int, rng: Rng) -> None:
        """``epoch``: this start's boot epoch, on disk before it is used, never used twice."""
        self._notary = notary
        self._rng = rng
        self._self_id = PeerId.from_public_key(notary.public_key)
        self._table = MemberTable(rng)
        self._rumours = Rumours()
        self._hearsay = Hearsay()
        self._health = LocalHealth()
        self._clock = LivedClock()
        self._own = self._sign(epoch, 0, None)
        self._effects: list[events.Effect] = []
        self._tally = events.Tally()
        self._seq = 0
        self._probe: Probe | None = None
        self._relays: dict[int, Relay] = {}
        self._probe_at: float | None = None  # lived time, as those below; only events bring one
        self._sync_at = self._mending_until = 0.0
        self._recall_at = math.inf
        self._rumours.push(self._self_id)

    # --- the five methods ----------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> None:
        """Take in one event.

        Raises:
            LocalProtocolError: an event after Leave other than what peers still send.
            RemoteProtocolError: the peer broke a rule; nothing has changed.
        """
        lived = self._live_until(now)
        if self._own.left is not None:
            if isinstance(event, events.Contact | events.Leave):
                raise LocalProtocolError(f"{type(event).__name__} after Leave")
            return
        if self._probe_at is None:
            self._start(lived)
        match event:
            case events.Received(peer, message):
                self._receive(peer, message, lived)
            case events.Contact(peer):
                self._send_page(peer, wants_reply=True)
            case events.SendFailed(peer, carriers):
                self._send_failed(peer, carriers, lived)
            case events.Leave(reason, reach):
                self._leave(reason, reach)

    def poll_effects(self) -> list[events.Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        due = self._next_due()
        return None if due is None else self._clock.monotonic(due)

    def handle_deadline(self, now: float) -> None:
        """Probe, judge, ask helpers, spread: whatever is due."""
        lived = self._live_until(now)
        if self._probe_at is None or self._own.left is not None:
            return
        self._end_relays(lived)
        self._end_suspicions(lived)
        probe = self._probe
        if probe is not None and not probe.helpers_asked and probe.helpers_at <= lived:
            self._ask_helpers(probe)
        if self._probe_at <= lived:
            self._judge(lived)
            self._begin_probe(lived)
            for peer in self._hearsay.next_to_ping(limits.SWIM_HEARSAY_AT_ONCE):
                self._ping(peer, self._next_seq())
            if self._is_flooded(lived):
                self._sync_at = min(self._sync_at, lived + limits.SWIM_PERIOD_S)
        if self._sync_at <= lived:
            interval_s = limits.SWIM_PERIOD_S if self._is_flooded(lived) else limits.SWIM_SYNC_S
            self._sync_at = lived + self._jittered(interval_s)
            self._table.forget_gone(lived - limits.SWIM_GONE_KEEP_S)
            for peer in self._table.some_live(1):
                self._compare(peer)
        if self._recall_at <= lived:
            self._plan_recall(lived)
            if (dead := self._table.dead_to_call()) is not None:
                self._compare(dead)

    def statistics(self) -> events.SwimStatistics:
        """Return a frozen record of counters. Cost: O(members)."""
        states = [member.state for member in self._table]
        own = self._own.incarnation, self._health.score
        return self._tally.statistics(states, *own, len(self._rumours), self._clock.stalls)

    # --- what a shell reads --------------------------------------------------------------

    def live_members(self) -> tuple[PeerId, ...]:
        """Return members that may be partners, without ourselves: alive or suspect, in id order."""
        return self._table.live_ids()

    def members(self) -> tuple[PeerId, ...]:
        """Return all members that we know, also those gone, without ourselves."""
        return tuple(member.peer for member in self._table)

    def state_of(self, peer: PeerId) -> MemberState | None:
        """Return what we hold of a member, or None if we do not know it."""
        member = self._table.get(peer)
        return None if member is None else member.state

    def version_of(self, peer: PeerId) -> tuple[int, int] | None:
        """Return (epoch, incarnation) of a member or of ourselves, or None."""
        known = self._own if peer == self._self_id else self._table.claim_of(peer)
        return None if known is None else (known.epoch, known.incarnation)

    # --- time ----------------------------------------------------------------------------

    def _live_until(self, now: float) -> float:
        lived, has_stalled = self._clock.lived(now, self._next_due())
        if has_stalled:
            self._health.worsen()
        return lived

    def _start(self, now: float) -> None:
        self._probe_at = now + self._rng.uniform(0.0, limits.SWIM_PERIOD_S)
        self._sync_at = now + self._rng.uniform(0.0, limits.SWIM_SYNC_S)

    def _next_due(self) -> float | None:
        due, table, probe = self._probe_at, self._table, self._probe
        if due is None or self._own.left is not None:
            return None
        if self._sync_at < due:
            due = self._sync_at
        if probe is not None and not probe.helpers_asked and probe.helpers_at < due:
            due = probe.helpers_at
        if table.suspects and table.next_suspicion_end < due:
            due = table.next_suspicion_end
        if self._recall_at < due:
            due = self._recall_at
        if self._relays:
            due = min(due, *(relay.give_up_at for relay in self._relays.values()))
        return due

    def _plan_recall(self, now: float) -> None:
        self._recall_at = now + self._jittered(
            limits.SWIM_RECALL_S * self._table.periods_until_call()
        )

    def _is_flooded(self, now: float) -> bool:
        """Whether there is more news than pings can carry: they are rare while we are unwell,
        and while a partition heals each has another half of it.
        """
        return len(self._rumours) > limits.SWIM_NEWS_MAX or now < self._mending_until

    def _jittered(self, period_s: float) -> float:
        return period_s * self._rng.uniform(1 - limits.SWIM_JITTER, 1 + limits.SWIM_JITTER)

    # --- probing -------------------------------------------------------------------------

    def _begin_probe(self, now: float) -> None:
        multiplier = self._health.multiplier
        self._probe_at = now + self._jittered(limits.SWIM_PERIOD_S) * multiplier
        self._probe = None
        member = self._table.next_to_probe()
        if member is None:
            return
        self._tally.probes += 1
        helpers_at = now + limits.SWIM_ACK_S * multiplier
        self._probe = Probe(self._next_seq(), member.peer, helpers_at)
        self._ping(member.peer, self._probe.seq)

    def _ask_helpers(self, probe: Probe, carriers: tuple[PeerId, ...] = ()) -> None:
        probe.helpers_asked = True
        drawn = self._table.some_live(limits.SWIM_HELPERS, besides=probe.target)
        known = [peer for peer in carriers if peer in self._table and peer != probe.target]
        for helper in tuple(dict.fromkeys((*known, *drawn)))[: limits.SWIM_HELPERS]:
            probe.helpers.add(helper)
            request = wire.PingRequest(probe.seq, probe.target, self._news(helper))
            self._effects.append(Send(helper, request))

    def _judge(self, now: float) -> None:
        """The period is over: suspect the member that we probed if no member reached it."""
        probe, self._probe = self._probe, None
        if probe is None:
            return
        member = self._table.get(probe.target)
        if member is None or not member.is_live:
            return  # it left, or was forgotten, while we waited
        self._tally.probes_failed += 1
        # Helpers that say "not so far" show that we can be heard: then it is not our fault.
        self._health.worsen(probe.n_silent_helpers if probe.helpers else 1)
        self._suspect(member, (self._self_id,), now)

    def _ping(self, peer: PeerId, seq: int) -> None:
        news = (self._own, *self._news(peer, besides=(self._self_id,)))
        self._effects.append(Send(peer, wire.Ping(seq, news[: limits.SWIM_NEWS_MAX])))

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _acked(self, peer: PeerId, seq: int) -> None:
        probe = self._probe
        if probe is not None and probe.seq == seq and probe.may_ack(peer):
            self._probe = None
            self._health.improve()
            return
        relay = self._relays.get(seq)
        if relay is not None and relay.target == peer:
            del self._relays[seq]
            answer = wire.Ack(relay.seq, self._news(relay.requester))
            self._effects.append(Send(relay.requester, answer))

    def _relay(self, peer: PeerId, request: wire.PingRequest, now: float) -> None:
        target = PeerId(request.target)
        if target == self._self_id:
            self._effects.append(Send(peer, wire.Ack(request.seq, self._news(peer))))
            return
        if len(self._relays) >= limits.SWIM_RELAYS_MAX or target not in self._table:
            self._effects.append(Send(peer, wire.Nack(request.seq)))
            return
        seq = self._next_seq()
        give_up_at = now + limits.SWIM_NACK_SHARE * (limits.SWIM_PERIOD_S - limits.SWIM_ACK_S)
        self._relays[seq] = Relay(peer, request.seq, target, give_up_at)
        self._ping(target, seq)

    def _end_relays(self, now: float) -> None:
        for seq, relay in [r for r in self._relays.items() if r[1].give_up_at <= now]:
            del self._relays[seq]
            self._effects.append(Send(relay.requester, wire.Nack(relay.seq)))

    def _send_failed(self, peer: PeerId, carriers: tuple[PeerId, ...], now: float) -> None:
        """Do not wait for an answer to what was never sent."""
        probe = self._probe
        if probe is not None and probe.target == peer and not probe.helpers_asked:
            self._ask_helpers(probe, carriers)
        for relay in self._relays.values():
            if relay.target == peer:
                relay.give_up_at = now

    # --- what a peer says ----------------------------------------------------------------

    def _receive(self, peer: PeerId, message: wire.Message, now: float) -> None:
        if peer == self._self_id:
            raise RemoteProtocolError("a message of failure detection from ourselves")
        if isinstance(message, wire.Sync):
            self._learn(peer, message.claims, now)
        elif not isinstance(message, wire.Nack):
            self._learn(peer, message.news, now)
        self._met(peer, now)
        match message:
            case wire.Ping(seq=seq):
                self._effects.append(Send(peer, wire.Ack(seq, self._news(peer))))
            case wire.Ack(seq=seq):
                self._acked(peer, seq)
            case wire.PingRequest():
                self._relay(peer, message, now)
            case wire.Nack(seq=seq):
                if self._probe is not None and self._probe.seq == seq:
                    self._probe.take_nack(peer)
            case wire.Sync(wants_reply=True, digest=None):
                self._send_page(peer, wants_reply=False)
            case wire.Sync(digest=digest) if digest is not None:
                if digest != self._table.digest_with(self._own):
                    self._send_page(peer, wants_reply=True)

    def _met(self, peer: PeerId, now: float) -> None:
        """A peer has said something: if it is a member it is there, and others may hear of it."""
        member, claim = self._table.get(peer), self._hearsay.take(peer)
        if member is None and claim is not None:
            self._enter(peer, claim, now, is_met=True)
        elif member is not None and not member.has_answered:
            self._table.meet(member)
            if now < member.since + limits.SWIM_MENDING_S:  # else others have met it as well
                self._rumours.push(peer)

    def _enter(self, peer: PeerId, claim: wire.Claim, now: float, *, is_met: bool) -> None:
        member = self._table.add(peer, without_hearsay(claim), now, is_met=is_met)
        if member is None:
            self._tally.table_full += 1
        else:
            self._tell(member, None)

    def _learn(self, sender: PeerId, claims: tuple[wire.Claim, ...], now: float) -> None:
        """Check everything, then merge everything."""
        named: list[tuple[PeerId, wire.Claim]] = []
        for claim in claims:
            member = self._table.by_key(claim.key)
            if member is None:
                named.append((PeerId.from_public_key(claim.key), claim))
            elif member.is_news(claim):
                named.append((member.peer, claim))
        for subject, claim in named:
            if self._is_newer(subject, claim):
                try:
                    self._notary.check(claim)
                except AuthenticationFailed as error:
                    # Each member checks what it passes on: this is the sender's own doing.
                    raise AuthenticationFailed(str(error), peer=str(sender)) from error
        for subject, claim in named:
            if subject == self._self_id:
                self._hear_of_ourselves(claim)
            else:
                self._merge(sender, subject, claim, now)

    def _is_newer(self, subject: PeerId, claim: wire.Claim) -> bool:
        if subject == self._self_id:
            return rank_of(claim) > rank_of(self._own)
        member = self._table.get(subject)
        return member is None or rank_of(claim) > member.rank

    def _hear_of_ourselves(self, claim: wire.Claim) -> None:
        if rank_of(claim) > rank_of(self._own):
            self._effects.append(events.KeyConflict(claim.epoch, claim.incarnation))
        elif claim.doubt != "none" and rank_of(claim) == rank_of(self._own):
            self._tally.refuted += 1
            self._health.worsen()
            self._own = self._sign(self._own.epoch, self._own.incarnation + 1, None)
            self._rumours.push(self._self_id)

    def _merge(self, sender: PeerId, subject: PeerId, claim: wire.Claim, now: float) -> None:
        member = self._table.get(subject)
        if member is None:
            if claim.left is not None or claim.doubt != "none":
                return  # no member needs to learn of the gone, and one that is there says so itself
            is_met = subject == sender
            if not is_met and not self._table.has_room_for_unmet:
                self._hearsay.note(subject, without_hearsay(claim), sender)
                return
            self._hearsay.take(subject)
            self._enter(subject, claim, now, is_met=is_met)
            return
        if rank_of(claim) > member.rank and self._may_renew(member, sender):
            self._renew(member, claim, now)
        elif rank_of(claim) != member.rank:
            return
        if claim.doubt == "none" or not member.is_live:
            return
        accusers = tuple(PeerId(raw) for raw in claim.by if raw != subject)
        self._suspect(member, accusers or (sender,), now, is_certain=claim.doubt == "dead")

    def _may_renew(self, member: Member, sender: PeerId) -> bool:
        """One that is gone, and that only others ever met, would else be brought back at will."""
        is_known = member.is_live or member.has_answered or member.peer == sender
        return is_known or self._table.has_room_for_unmet

    def _renew(self, member: Member, claim: wire.Claim, now: float) -> None:
        was, epoch = member.state, member.claim.epoch
        state = MemberState.ALIVE if claim.left is None else MemberState.LEFT
        self._table.renew(member, without_hearsay(claim), state, now)
        if was is MemberState.DEAD and state is MemberState.ALIVE:
            self._mending_until = now + limits.SWIM_MENDING_S
        if state is not was or claim.epoch > epoch:
            self._tell(member, was)
        else:
            self._spread(member)

    # --- judging -------------------------------------------------------------------------

    def _suspect(
        self, member: Member, accusers: tuple[PeerId, ...], now: float, *, is_certain: bool = False
    ) -> None:
        """Begin a suspicion, or add to it what is new."""
        if is_new := member.suspicion is None:
            self._tally.suspected += 1
            self._table.set_state(member, MemberState.SUSPECT, now)
            times = SuspicionTimes.for_swarm(self._table.n_live + 1)
            member.suspicion = Suspicion(now, times)
            self._tell(member, MemberState.ALIVE)
        if self._table.accuse(member, accusers, now, is_certain=is_certain):
            self._spread(member)
        if is_new and self._table.is_to_warn(member):
            self._ping(member.peer, self._next_seq())

    def _end_suspicions(self, now: float) -> None:
        overdue = self._table.overdue(now)
        for member in overdue:
            self._tally.died += 1
            self._table.set_state(member, MemberState.DEAD, now)
            self._tell(member, MemberState.SUSPECT)
        if overdue:  # the more there are, the sooner one is called
            self._plan_recall(now)

    def _leave(self, reason: str, reach: frozenset[PeerId]) -> None:
        self._own = self._sign(self._own.epoch, self._own.incarnation, reason[:64] or "left")
        farewell = wire.Sync(wants_reply=False, claims=(self._own,))
        live = self._table.some_live(self._table.n_live)
        live.sort(key=lambda peer: peer not in reach)
        for peer in live[: limits.SWIM_FAREWELLS]:
            self._effects.append(Send(peer, farewell))

    # --- spreading -----------------------------------------------------------------------

    def _tell(self, member: Member, was: MemberState | None) -> None:
        """Report a change to the shell and spread it."""
        claim = member.claim
        self._effects.append(Changed(member.peer, was, member.state, claim.epoch, claim.left or ""))
        self._spread(member)

    def _spread(self, member: Member) -> None:
        """Pass on what is new about a member: that it is there only if we know so ourselves."""
        if member.is_to_tell:
            self._rumours.push(member.peer)

    def _news(self, peer: PeerId, besides: tuple[PeerId, ...] = ()) -> tuple[wire.Claim, ...]:
        """Return claims for a message to ``peer``: first whatever it must refute, then rumours."""
        first = self._table.doubt_about(peer)
        if not len(self._rumours):
            return first
        besides = (*besides, peer)
        room = limits.SWIM_NEWS_MAX - len(first) - 1
        subjects = self._rumours.take(room, self._table.n_live + 1, besides)
        return (*first, *(claim for s in subjects if (claim := self._claim_of(s)) is not None))

    def _claim_of(self, subject: PeerId) -> wire.Claim | None:
        if subject == self._self_id:
            return self._own
        member = self._table.get(subject)
        if member is not None and member.is_to_tell:
            return claim_of(member)
        self._rumours.drop(subject)  # it made room for another, or a doubt was refuted
        return None

    def _compare(self, peer: PeerId) -> None:
        """Ask for a page only if we do not hold the same: in calm none is sent."""
        claims = (self._own, *self._table.doubt_about(peer))
        digest = self._table.digest_with(self._own)
        self._effects.append(Send(peer, wire.Sync(True, claims, digest)))

    def _send_page(self, peer: PeerId, *, wants_reply: bool) -> None:
        doubt = self._table.doubt_about(peer)
        room = limits.SWIM_SYNC_CLAIMS_MAX - 1 - len(doubt)
        # The receiver's own claim is in it as well: that is how it learns of a copy of its key.
        members = self._table.page(room)
        claims = (self._own, *doubt, *(claim_of(member) for member in members))
        self._effects.append(Send(peer, wire.Sync(wants_reply, claims)))

    def _sign(self, epoch: int, incarnation: int, left: str | None) -> wire.Claim:
        signature = self._notary.sign(epoch, incarnation, left)
        return wire.Claim(self._notary.public_key, epoch, incarnation, signature, left)
