"""How peers have behaved in exchanges with this node, as far as it has measured that itself.

Each peer has a *budget* of slot-seconds: what it may hold of this node in exchanges that come to
nothing, or that take longer than is usual. A token bucket: it is full at EXCHANGE_BUDGET_S, an
exchange that does not commit takes out what it held, one that commits what it took beyond the usual
patience, and EXCHANGE_BUDGET_REFILL of each second comes back. A peer whose budget is used up is
asked last, and its offers are refused as long as there are others: peers that commit, offer to us
or are offered to, and have budget left. To wait for commits of others would let one that holds a
node from its first exchange on hold it for ever, as no other can commit then. Where there are no
others it is taken all the same, so that two nodes that pause never lose each other.

A peer that left an offer unanswered is *silent*: it is asked last for PARTNER_SLOW_S, or until it
is heard. So a laptop that wakes up is back with its first word.

*Stalls* stretch the patience with a peer, twice for each: a slow volunteer gets its time in the
end, as much of it as its budget pays for. Commits well within the time take one back.

What came of a peer's payloads lasts longer, and is kept elsewhere (``protocol/trust.py``): one that
is trusted less is met in some of the rounds, by its offers as by ours, unless there are no others.

All of it is bounded by EXCHANGE_CONDUCT_MAX peers; what was changed longest ago makes room. Nothing
of it is told to others.

Source: token bucket, RFC 2697; scores of peers from own measurements only, Vyzovitis et al.,
"GossipSub: attack-resilient message propagation", 2020 (there with nine weights; here with none).
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.trust import Seen, Trust

# Less than this is no use: an exchange may hold a slot so long before it gives way.
_CREDIT_S_MIN = limits.EXCHANGE_PATIENCE_S_MIN
# 64 times the usual patience is beyond every hard limit.
_STALLS_MAX = 6
_ANSWERS_MISSED_MAX = 4
# An answer that a node keeps for peers that ask has one round for ever: so often it is another one.
_ROUND_S_MAX = limits.PARTNER_SLOW_S


@dataclass(slots=True)
class _Conduct:
    """Of one peer; three numbers of 8 bytes and two of 1, beside its id of 32."""

    budget_s: float = limits.EXCHANGE_BUDGET_S  # as it was at ``counted_at``
    counted_at: float = 0.0
    silent_until: float = 0.0
    stalls: int = 0
    answers_missed: int = 0


class ConductTable:
    """See the module. ``now`` is monotonic, in seconds; ``peers_max``: so many are kept.

    ``trust``: which peers are met in which rounds; hears of stalls. None: of no peer is anything
    known. ``debt_s_max``: what a peer owes at the most.
    """

    def __init__(
        self,
        trust: Trust | None = None,
        *,
        peers_max: int = limits.EXCHANGE_CONDUCT_MAX,
        debt_s_max: float = limits.EXCHANGE_DEBT_S_MAX,
    ) -> None:
        self._trust = Trust(b"") if trust is None else trust
        self._peers_max, self._debt_s_max = peers_max, debt_s_max
        self._peers: dict[PeerId, _Conduct] = {}  # what was changed last is at the end
        self._others: dict[PeerId, float] = {}  # when the last two in good standing were there

    # --- what is noted -------------------------------------------------------------------

    def note_no_answer(self, peer: PeerId, now: float) -> None:
        """It left an offer unanswered."""
        conduct = self._changed(peer, now)
        conduct.silent_until = now + limits.PARTNER_SLOW_S
        conduct.answers_missed = min(conduct.answers_missed + 1, _ANSWERS_MISSED_MAX)

    def note_heard(self, peer: PeerId) -> None:
        """It says something, though too late for what it was asked."""
        if peer in self._peers:
            self._peers[peer].silent_until = 0.0

    def note_there(self, peer: PeerId, now: float) -> None:
        """It exchanges with us, or would: it offers, or is offered to."""
        if self.is_avoided(peer, now):
            return
        self._others.pop(peer, None)
        self._others[peer] = now
        if len(self._others) > 2:
            del self._others[next(iter(self._others))]

    def note_answer(self, peer: PeerId) -> None:
        """It answered an offer in time."""
        if peer in self._peers:
            conduct = self._peers[peer]
            conduct.silent_until, conduct.answers_missed = 0.0, 0

    def note_held(self, peer: PeerId, held_s: float, now: float, *, is_stall: bool) -> None:
        """An exchange came to nothing for which a slot was lent so long.

        ``is_stall``: because of the time.
        """
        conduct = self._changed(peer, now)
        conduct.budget_s = max(conduct.budget_s - held_s, -self._debt_s_max)
        if is_stall:
            self._trust.note(peer, Seen.SLOW, now)
            conduct.stalls = min(conduct.stalls + 1, _STALLS_MAX)

    def note_refused(self, peer: PeerId, now: float) -> None:
        """What it sent was no payload that could count: that takes all of its budget."""
        self.note_held(peer, limits.EXCHANGE_BUDGET_S, now, is_stall=False)

    def note_commit(
        self, peer: PeerId, now: float, *, is_quick: bool = True, excess_s: float = 0.0
    ) -> None:
        """An exchange with it counts.

        ``is_quick``: in an eighth of the patience with it. ``excess_s``: what it took beyond the
        patience with any other. Else one that always takes all of its time would hold a node and
        pay nothing.
        """
        if excess_s > 0:
            self.note_held(peer, excess_s, now, is_stall=False)
        self.note_there(peer, now)
        if is_quick and peer in self._peers:
            conduct = self._peers[peer]
            conduct.stalls = max(0, conduct.stalls - 1)

    # --- what follows from it ------------------------------------------------------------

    def is_avoided(self, peer: PeerId, now: float) -> bool:
        """Whether others are asked first."""
        conduct = self._peers.get(peer)
        return conduct is not None and (
            conduct.silent_until > now or _budget_s(conduct, now) < _CREDIT_S_MIN
        )

    def is_silent(self, peer: PeerId, now: float) -> bool:
        """Whether it left an offer unanswered, and has not been heard since."""
        return peer in self._peers and self._peers[peer].silent_until > now

    def budget_s(self, peer: PeerId, now: float) -> float:
        """What it may hold yet; below zero where it owes."""
        conduct = self._peers.get(peer)
        return limits.EXCHANGE_BUDGET_S if conduct is None else _budget_s(conduct, now)

    def may_hold(self, peer: PeerId, now: float) -> bool:
        """Whether an offer of it may be accepted."""
        conduct = self._peers.get(peer)
        if conduct is None or _budget_s(conduct, now) >= _CREDIT_S_MIN:
            return True
        return not self._has_others(peer, now)

    def is_admitted(self, peer: PeerId, round_number: int, now: float) -> bool:
        """Whether a peer is one of those that are asked in this round."""
        return self._trust.admits(peer, round_number + int(now / _ROUND_S_MAX), now)

    def may_meet(self, peer: PeerId, round_number: int, now: float) -> bool:
        """Whether an offer for an intent of this round may be accepted."""
        return self.is_admitted(peer, round_number, now) or not self._has_others(peer, now)

    def patience(self, peer: PeerId) -> float:
        """How many times the usual patience a transfer with it has."""
        return 2.0 ** self._peers[peer].stalls if peer in self._peers else 1.0

    def answer_patience(self, peer: PeerId) -> float:
        """The same of its answers to offers."""
        return 2.0 ** self._peers[peer].answers_missed if peer in self._peers else 1.0

    def __len__(self) -> int:
        return len(self._peers)

    def _has_others(self, peer: PeerId, now: float) -> bool:
        """Whether another one in good standing has been there of late."""
        return any(
            other != peer and now - at < limits.PARTNER_SLOW_S and not self.is_avoided(other, now)
            for other, at in self._others.items()
        )

    def _changed(self, peer: PeerId, now: float) -> _Conduct:
        conduct = self._peers.pop(peer, None) or _Conduct()
        if len(self._peers) >= self._peers_max:
            del self._peers[next(iter(self._peers))]
        self._peers[peer] = conduct
        conduct.budget_s, conduct.counted_at = _budget_s(conduct, now), now
        return conduct


def _budget_s(conduct: _Conduct, now: float) -> float:
    back_s = (now - conduct.counted_at) * limits.EXCHANGE_BUDGET_REFILL
    return min(conduct.budget_s + back_s, limits.EXCHANGE_BUDGET_S)
