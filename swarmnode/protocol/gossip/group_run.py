"""One run of a group mean on one member: its view, its plan, what it holds. See group.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import hearsay
from swarmnode.protocol.gossip.group_events import (
    Abort,
    Assemble,
    Begin,
    Commit,
    CutApart,
    Effect,
    HeldRound,
    KeepShare,
    KeepSum,
    Phase,
    Plan,
    Reduce,
    Send,
    SendShare,
    SendSum,
    TakePayload,
    UsePlan,
    Witness,
    plan_id,
)
from swarmnode.protocol.gossip.groups import weights_of
from swarmnode.protocol.gossip.round_patience import Roll, StageTimes
from swarmnode.protocol.gossip.witnesses import differing, dissenters, kept_mean, witnessed_by
from swarmnode.wire.exchange import group as wire

_REASON_CHARACTERS_MAX = 256  # of wire.records.ShortText


class Run:
    """Owns: ``effects``, which the core takes away after every event."""

    def __init__(self, self_id: PeerId, begin: Begin, now: float) -> None:
        self.self_id, self.begin, self.gid = self_id, begin, begin.gid
        self.effects: list[Effect] = []
        self.phase = Phase.ENLIST
        self.outcome: Commit | Abort | None = None
        self.view: tuple[PeerId, ...] = tuple(sorted({*begin.members, self_id}))
        self.roll, self.times = Roll(begin, self_id, now), StageTimes(now)
        self.words = hearsay.Words(begin)
        self._gone: set[PeerId] = set()
        self._since, self._resend_at = now, now + limits.GROUP_RESEND_S  # of the phase, of words
        self._flush = wire.Flush(self.gid, (), ())
        self._flushes: dict[PeerId, tuple[PeerId, ...]] = {}
        self.adopted: set[tuple[PeerId, ...]] = set()  # views; each is smaller than the last
        self._plan: Plan | None = None
        self._asked: set[tuple[PeerId, int]] = set()  # shares; others are not taken
        self._shares: set[tuple[PeerId, int]] = set()
        self._agreed = dict(zip(begin.members, begin.weights, strict=bool(begin.weights)))
        self._is_loaded, self._weights = False, {self_id: begin.weight}
        self._wants: dict[PeerId, wire.Want] = {}
        self._prepared: dict[PeerId, wire.Prepared] = {}
        self._sent: set[SendShare | SendSum] = set()
        self._tell(self.view, self._enlist_message(wants_answer=True))
        self._close_roll_if_complete(now)

    def receive(self, peer: PeerId, message: wire.Message, now: float) -> None:
        """Take in a message of a peer. Raises RemoteProtocolError: it cannot be honest."""
        if isinstance(message, wire.Prepared) and peer in self.begin.members:
            self._prepared[peer] = message  # a witness is heard when it has left, too
        if peer not in self.view:
            if not isinstance(message, wire.Leave | wire.Finished):
                self._send(peer, wire.Leave(self.gid, "not in this view"))
            return
        match message:
            case wire.Enlist(wants_answer=wants_answer):
                self._enlist(peer, wants_answer=wants_answer, now=now)
            case wire.Flush():
                self._take_flush(peer, message, now)
            case wire.Want():
                hearsay.check_pieces(peer, self.begin.pieces_max, *message.shares, *message.sums)
                self._wants[peer] = message
                self._serve(peer)
            case wire.Share() | wire.Sum():
                hearsay.check_pieces(peer, self.begin.pieces_max, message.piece)
                if self.expects(peer, message):
                    self._take(peer, message, now)
            case wire.Prepared():
                if self._is_prepared(peer):
                    self.times.note(3, peer, now)
                self._finish_if_all_are_prepared(now)
            case wire.Finished():
                self._take_finished(message)
            case wire.Leave(reason=reason):
                self.roll.note_left(peer, reason)
                self.lose(peer, now)

    def expects(self, peer: PeerId, message: wire.Share | wire.Sum) -> bool:
        """Whether this payload would be kept if it were here whole."""
        plan = self._plan
        if peer not in self.view or plan is None or plan.plan != message.plan:
            return False
        if isinstance(message, wire.Share):
            return (peer, message.piece) in self._asked - self._shares
        return message.piece in plan.missing and peer == plan.source(message.piece)

    def lose(self, peer: PeerId, now: float) -> None:
        """Go on without a member that is dead, unreachable or unwilling."""
        if self.phase is Phase.OVER or peer not in self.view or peer == self.self_id:
            return
        self._gone.add(peer)
        if self.phase is Phase.ENLIST:
            self.view = tuple(member for member in self.view if member != peer)
            self.roll.remove(peer)
            self._close_roll_if_complete(now)
        else:
            self._adopt(set(self.view) - {peer}, now)

    def note_loaded(self, weight: float, now: float) -> None:
        """The shell has the own payload, of this weight; 0: as it was said at the beginning."""
        self._is_loaded = True
        self._weights[self.self_id] = weight or self.begin.weight
        self._go_on(now)

    def note_reduced(self, plan: bytes, piece: int, now: float) -> None:
        """The shell has the sum of a piece."""
        if self._plan is not None and self._plan.plan == plan:
            self._plan.held.add(piece)
            self._go_on(now)

    def note_witnessed(self, plan: bytes, hashes: tuple[bytes, ...], now: float) -> None:
        """The shell has made the piece whose witness this member is."""
        if self._plan is not None and self._plan.plan == plan:
            self._plan.witness = hashes
            self._advance(now)

    def note_assembled(
        self, plan: bytes, result: bytes, hashes: tuple[bytes, ...], now: float
    ) -> None:
        """The shell has the whole mean."""
        if self._plan is not None and self._plan.plan == plan:
            self._plan.result, self._plan.hashes = result, hashes
            self._advance(now)

    def give_up(self, why: str, differ: tuple[tuple[PeerId, PeerId], ...] = ()) -> None:
        """End it here; the others go on without this member."""
        if self.phase is Phase.OVER:
            return
        self._tell(self.view, wire.Leave(self.gid, why[:_REASON_CHARACTERS_MAX]))
        self._end(Abort(self.gid, why, self._is_prepared(self.self_id), differ))

    # --- time ----------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When this run wants attention."""
        return min(self._resend_at, self._phase_ends_at)

    def handle_deadline(self, now: float) -> None:
        """Ask again, or go on without the members that are silent."""
        if self._resend_at <= now:
            self._resend_at = now + limits.GROUP_RESEND_S
            self._resend()
            self._agree_if_possible(now)
        if self._phase_ends_at <= now:
            self._lose_patience(now)

    @property
    def _phase_ends_at(self) -> float:
        if self.phase is Phase.ENLIST:
            return self.roll.closes_at
        if self.phase is Phase.FLUSH:
            return self._since + min(limits.GROUP_FLUSH_S, self.begin.stage_s)
        plan, lacks, begin = self._plan, self._lacks_shares, self.begin
        assert plan is not None, "a run has a plan"
        stage = plan.stage(lacks_shares=lacks, has_witnesses=begin.has_witnesses)
        ends_at = self._since + begin.stage_s * stage
        if lacks and begin.silence_s:
            return min(ends_at, self.times.quiet_since(self.waits_for) + begin.silence_s)
        n = len(self.view) if plan.is_prepared else None
        return min(ends_at, self.times.prepared_at(n) + begin.stage_s)

    def _lose_patience(self, now: float) -> None:
        silent = self.waits_for
        if now < self._since + self.begin.stage_s and self._lacks_shares:
            silent = self.times.quiet(silent, self.begin.silence_s, now)
        if self.phase is Phase.ENLIST and len(self.roll.came) < 2:
            self.give_up("no other member came")
        elif silent:
            self._charge(hearsay.equal_parts(silent), now)
            self._adopt(set(self.view) - silent, now)
        else:
            self.give_up("timeout: this node is too slow itself")

    def _waited_s(self, now: float) -> float:
        return self.roll.waited_s(now) if self.phase is Phase.ENLIST else now - self._since

    def _charge(self, parts: Mapping[PeerId, float], now: float) -> None:
        """Charge members for the wait, each its part."""
        peers, s = set(parts), self._waited_s(now)
        if self.phase is Phase.ENLIST:  # where none is called, honest members come out of phase
            peers = peers - self.roll.behind if self.roll.has_called else set()
        self.effects += (HeldRound(self.gid, peer, parts[peer] * s) for peer in sorted(peers))

    def _said(self, peer: PeerId, view: set[PeerId], now: float) -> hearsay.Said:
        left_out, missing = frozenset(self.view) - view, frozenset(self.waits_for)
        waited_s, left_s = self._waited_s(now), self._phase_ends_at - now
        is_early = self.phase is Phase.RUN and left_s > hearsay.EARLY_SHARE * self.begin.stage_s
        is_open = self.phase is Phase.ENLIST
        return hearsay.Said(peer, left_out, missing, waited_s, left_s, is_open, is_early)

    @property
    def waits_for(self) -> set[PeerId]:
        """The other members that this phase waits for."""
        if self.phase is Phase.ENLIST:
            return set(self.view) - self.roll.came
        if self.phase is Phase.FLUSH:
            return set(self.view) - self._flushes.keys()
        plan = self._plan
        if plan is None or self.phase is Phase.OVER:
            return set()
        if plan.is_prepared:
            return {peer for peer in self.view if not self._is_prepared(peer)}
        if lacking := self._lacking_shares(is_own_only=True):
            return {peer for peer, _ in lacking}
        makers = {plan.source(piece) for piece in plan.missing}
        return (makers or {peer for peer, _ in self._lacking_shares()}) - {self.self_id}

    @property
    def spare(self) -> set[PeerId]:
        """The members that it waits for, if the others may finish without them."""
        missing = self.waits_for
        others = set(self.view) - missing
        return missing if len(others) > 1 and self.begin.may_finish(others) else set()

    def go_on_without(self, silent: set[PeerId], now: float) -> None:
        """Wait for none of these; a roll stays open for others that have not come either."""
        missing = self.spare & silent if silent else silent
        if missing and (self.phase is not Phase.ENLIST or missing == self.waits_for):
            self._adopt(set(self.view) - missing, now)

    def _resend(self) -> None:
        """Repeat what may have been lost. All of it may come twice."""
        missing = sorted(self.waits_for)
        if self.phase is Phase.ENLIST:
            self._tell(missing, self._enlist_message(wants_answer=True))
        elif self.phase is Phase.FLUSH:
            self._tell(missing, self._flush_message(wants_answer=True))
        elif self._is_prepared(self.self_id):
            self._send_prepared(missing)
        else:
            self._ask()

    # --- which members take part ---------------------------------------------------------

    def _enlist_message(self, *, wants_answer: bool) -> wire.Enlist:
        return wire.Enlist(self.gid, wants_answer, self.begin.lineage, self.begin.attempt)

    def _enlist(self, peer: PeerId, *, wants_answer: bool, now: float) -> None:
        if wants_answer:
            self._send(peer, self._enlist_message(wants_answer=False))
        if self.phase is Phase.ENLIST:
            self.roll.add(peer, now)
            self._close_roll_if_complete(now)

    def _close_roll_if_complete(self, now: float) -> None:
        if len(self.view) < 2:
            self.give_up("no other member is there")
        elif self.roll.is_complete(self.view):
            self._adopt(self.roll.came, now)

    def _take_flush(self, peer: PeerId, message: wire.Flush, now: float) -> None:
        theirs = {PeerId(member) for member in message.view}
        prepared = tuple(PeerId(member) for member in message.prepared)
        if self.self_id not in theirs or (prepared and not self.adopted):
            self.lose(peer, now)  # it goes on without us, or speaks of a life of ours before
            return
        if not self.begin.is_quorum(theirs):  # no honest member tells such a view
            self.effects.append(CutApart(self.gid, peer))
            self.lose(peer, now)
            return
        hearsay.check_flush(peer, theirs, prepared, self.adopted)
        common, said, words = set(self.view) & theirs, self._said(peer, theirs, now), self.words
        words.note(peer, theirs, prepared)
        is_kept = words.keeps(said, self.roll.came)
        self._charge(words.parts(said, is_kept=is_kept), now)
        if not is_kept and (said.is_open or said.left_out):
            self.effects += words.named(said, self.roll.came)
            self._adopt(common, now)
        if self.phase is not Phase.OVER and theirs == set(self.view):
            if message.wants_answer:
                self._send(peer, self._flush_message())
            self._flushes[peer] = prepared
        self._agree_if_possible(now)

    def _agree_if_possible(self, now: float) -> None:
        """Agree when all have told this view; none waits for those that never will."""
        missing = self.waits_for
        if self.phase is Phase.FLUSH and not missing:
            self._agree(now)
        elif all(self.words.never_agrees(peer, self.view) for peer in missing):
            self.go_on_without(missing, now)

    def _adopt(self, view: Iterable[PeerId], now: float) -> None:
        """Take a smaller view, freeze, and tell all members in it."""
        left_out = set(self.view) - set(view) - self._gone
        self.view = tuple(sorted(view))
        self._tell(sorted(left_out), wire.Leave(self.gid, "left out of the view"))
        if not self.begin.may_finish(self.view):
            self.effects += self.words.cut_apart
            self.give_up("too few are left")
            return
        if not self.adopted:
            self.effects.append(TakePayload(self.gid))
        self.phase, self._since = Phase.FLUSH, now
        self.adopted.add(self.view)
        plan = self._plan
        prepared = plan.contributors if plan is not None and plan.is_prepared else ()
        self._flush = wire.Flush(self.gid, self.view, prepared)
        self._flushes = {**self.words.agreed(self.view), self.self_id: prepared}
        self._tell(self.view, self._flush)
        self._agree_if_possible(now)

    def _flush_message(self, *, wants_answer: bool = False) -> wire.Flush:
        # As when the view was adopted: it binds until all have agreed.
        return wire.Flush(self.gid, self._flush.view, self._flush.prepared, wants_answer)

    # --- what is averaged ------------------------------------------------------------------

    def _agree(self, now: float) -> None:
        """All of the view have said the same: every member comes to the same plan by itself.

        A member that finished had heard from its whole view that all are prepared. So if one may
        have finished, every member that is left is prepared, with one and the same mean: keep it.
        """
        self.phase, self._since = Phase.RUN, now
        kept = kept_mean([self._flushes[peer] for peer in self.view])
        contributors = kept or self.view
        if len(contributors) < 2:
            self.give_up("no other member is left")
            return
        plan, used = plan_id(self.gid, contributors), self._plan
        if used is None or used.plan != plan:
            n_pieces = min(self.begin.pieces_max, len(contributors))
            used = Plan(contributors, plan, n_pieces, set(), set())
            if self.begin.has_witnesses and self.begin.is_witness:
                used.witnessed = witnessed_by(self.self_id, plan, contributors, n_pieces)
            self._plan, self.times = used, StageTimes(now)
            self._asked, self._shares = set(), set()  # what came was cut in another way
            self.effects.append(UsePlan(self.gid, plan, n_pieces, contributors))
        used.sources = tuple(peer for peer in self.view if kept and self._flushes[peer] == kept)
        if used.is_prepared:
            self._send_prepared(self.view)
        self._ask()
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        for peer in self.view:
            self._serve(peer)
        self._advance(now)

    def _lacking_shares(self, *, is_own_only: bool = False) -> set[tuple[PeerId, int]]:
        """Return (contributor, piece) of what is missing for the sums that are made here."""
        plan = self._plan
        if plan is None or plan.sources:
            return set()
        pieces = {p for p in range(plan.n_pieces) if plan.contributors[p] == self.self_id}
        # As a witness it asks when the sum is here: its maker did not know that it is made again.
        if plan.witnessed is not None and not is_own_only:
            pieces |= {plan.witnessed} & plan.held
        return plan.shares(pieces, self.self_id) - self._shares

    @property
    def _lacks_shares(self) -> bool:
        return self.phase is Phase.RUN and bool(self._lacking_shares(is_own_only=True))

    def _ask(self) -> None:
        """Tell each peer what is wanted of it."""
        plan = self._plan
        if plan is None:
            return
        lacking, missing = self._lacking_shares(), plan.missing
        self._asked |= lacking
        for peer in self.view:
            shares = tuple(sorted(piece for owner, piece in lacking if owner == peer))
            sums = tuple(sorted(piece for piece in missing if plan.source(piece) == peer))
            if peer != self.self_id and (shares or sums):
                self._send(peer, wire.Want(self.gid, plan.plan, shares, sums))

    def _serve(self, peer: PeerId) -> None:
        """Give a peer what it wants, as far as it is here; each thing once."""
        want, plan = self._wants.get(peer), self._plan
        if want is None or plan is None or plan.plan != want.plan or peer not in self.view:
            return
        gid, weight, shares = self.gid, self._weights[self.self_id], want.shares
        due: list[SendShare | SendSum] = [
            SendShare(gid, peer, plan.plan, piece, weight)
            for piece in (shares if self._is_loaded else ())
            if piece < plan.n_pieces
        ]
        due += (SendSum(gid, peer, plan.plan, piece) for piece in want.sums if piece in plan.held)
        self.effects += (effect for effect in dict.fromkeys(due) if effect not in self._sent)
        self._sent.update(due)

    def _take(self, peer: PeerId, message: wire.Share | wire.Sum, now: float) -> None:
        plan, piece = self._plan, message.piece
        assert plan is not None, "what is expected is of a plan"
        if isinstance(message, wire.Share):
            self.times.note(1, peer, now)
            self._shares.add((peer, piece))
            self._weights[peer] = message.weight
            self.effects.append(KeepShare(self.gid, peer, piece))
        else:
            self.times.note(2, peer, now)
            plan.held.add(piece)
            self.effects.append(KeepSum(self.gid, plan.plan, piece))
            if piece == plan.witnessed and self.phase is Phase.RUN:
                self._ask()
        self._advance(now)

    def _advance(self, now: float) -> None:
        """Do what has become possible. While the view changes nothing may be prepared."""
        plan = self._plan
        if plan is None or self.phase is not Phase.RUN:
            return
        if not plan.sources and self._is_loaded:
            self._reduce_what_is_complete(plan)
        if len(plan.held) == plan.n_pieces and not plan.is_assembling:
            plan.is_assembling = True
            self.effects.append(Assemble(self.gid, plan.plan))
        has_witnessed = plan.witnessed is None or plan.witness or plan.sources
        if plan.result and has_witnessed and not plan.is_prepared:
            plan.is_prepared = True
            self._send_prepared(self.view)
        self._finish_if_all_are_prepared(now)

    def _reduce_what_is_complete(self, plan: Plan) -> None:
        lacking = {piece for _, piece in self._lacking_shares()}
        for piece in range(plan.n_pieces):
            is_ready = piece not in lacking and piece not in plan.reducing
            if plan.contributors[piece] == self.self_id and is_ready and piece not in plan.held:
                plan.reducing.add(piece)
                weights = weights_of(plan.contributors, self._agreed, self._weights)
                self.effects.append(Reduce(self.gid, plan.plan, piece, plan.contributors, weights))
        theirs, peers = plan.witnessed, plan.contributors
        if theirs is not None and theirs in plan.held - lacking and not plan.is_witnessing:
            plan.is_witnessing = True
            weights, maker = weights_of(peers, self._agreed, self._weights), peers[theirs]
            self.effects.append(Witness(self.gid, plan.plan, theirs, peers, weights, maker))

    # --- the end -------------------------------------------------------------------------

    def _send_prepared(self, peers: Iterable[PeerId]) -> None:
        plan = self._plan
        assert plan is not None, "only a plan is prepared"
        self._tell(peers, wire.Prepared(self.gid, plan.plan, plan.result, plan.witness))

    def _is_prepared(self, peer: PeerId) -> bool:
        plan, said = self._plan, self._prepared.get(peer)
        if plan is None or peer == self.self_id:
            return plan is not None and plan.is_prepared
        return said is not None and said.plan == plan.plan

    def _finish_if_all_are_prepared(self, now: float) -> None:
        plan = self._plan
        are_all = all(map(self._is_prepared, self.view))
        if plan is None or self.phase is not Phase.RUN or not are_all:
            return
        others = dissenters(plan, self.self_id, self.view, self._prepared)
        differ = differing(plan, self.self_id, self._prepared)
        if 2 * len(others) >= len(self.view):
            self.give_up("the hashes of the mean differ: one of the members is faulty", differ)
        elif others:  # one that lies about its hash ends no run of the others
            self._adopt(set(self.view) - others, now)
        elif differ:
            self.give_up("a part of the mean differs from its witness's", differ)
        else:
            self._commit(plan)

    def _take_finished(self, message: wire.Finished) -> None:
        plan, told = self._plan, (message.plan, message.result)
        if plan is not None and plan.is_prepared and (plan.plan, plan.result) == told:
            self._commit(plan)
        else:
            self.give_up("the others finished without this node")

    def _commit(self, plan: Plan) -> None:
        self.effects += self.times.held(self.gid, self.begin.stage_s)
        self._end(Commit(self.gid, plan.plan, plan.contributors, plan.result, self.times.usual_s))

    def _end(self, outcome: Commit | Abort) -> None:
        self.phase, self.outcome = Phase.OVER, outcome
        self.effects.append(outcome)

    def _send(self, peer: PeerId, message: wire.Message) -> None:
        if peer != self.self_id:
            self.effects.append(Send(peer, message))

    def _tell(self, peers: Iterable[PeerId], message: wire.Message) -> None:
        for peer in peers:
            self._send(peer, message)
