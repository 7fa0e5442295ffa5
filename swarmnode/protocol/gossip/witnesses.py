"""Who makes a piece of a group's mean a second time, and whose word is doubted when two differ.

What a member says of the piece that it makes is in the mean of all. So another member makes the
same piece from the same shares, and says in PREPARED by which hashes it may go. The witness of
piece p of a plan over n contributors is number p + s mod n, where s, 1 to n − 1, follows from the
plan: no member chooses whose witness it is, and another plan has others.

To make all pieces twice takes half as many bytes again. So a witness tosses a coin, which no other
member sees, and it asks for what the piece is made of when its sum is here: its maker has said by
then what it is, and cannot know whether it will be made again. A lie gets through once in two
times, until the first one is found; from then on, for DOUBT_KEEP_S, all pieces are made twice.

When a hash is none of the witness's, one of the two is faulty, and nothing is applied. Which of
them it is, shows in time: with at most f hostile members an honest one differs from f others at the
most, since it differs from no honest one. Who has differed from more is left out of later groups.

Source: comparing redundant computations, as in S. Rajput, H. Wang, Z. Charles, D. Papailiopoulos,
"DETOX: a redundancy-based framework for faster and more robust gradient aggregation", 2019; that
of an aggregate's parts is E. Gorbunov, A. Borzunov, M. Diskin, M. Ryabinin, "Secure distributed
training at scale" (BTARD), 2021. Deviation: no random audit, and no vote on an accusation: each
member draws its own conclusion from what all have said in PREPARED.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from swarmnode.env import Rng
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import Plan
from swarmnode.wire.exchange.group import Prepared

# Of what it takes to make all pieces twice: a quarter more bytes than without witnesses.
WITNESS_SHARE = 0.5
# Differences that are remembered: the members of a group, a few times each.
_DOUBTS_MAX = 256
# A member that was left out, by a machine that counts wrong or by a mistake, comes again after so
# long; a liar has to be found out again, which takes a few rounds.
DOUBT_KEEP_S = 3600.0


def hostile_max(n_members: int) -> int:
    """Return how many of so many members may lie, as far as agreement goes: a quarter."""
    return n_members // 4


def shift(plan: bytes, n: int) -> int:
    """Return how far behind its maker a piece's witness is, of ``n`` contributors, 2 or more."""
    return 1 + int.from_bytes(plan[:4], "big") % (n - 1)


def witnessed_by(
    peer: PeerId, plan: bytes, contributors: Sequence[PeerId], n_pieces: int
) -> int | None:
    """Return the piece whose witness a contributor is; None: of none, since there are fewer."""
    n = len(contributors)
    piece = (contributors.index(peer) - shift(plan, n)) % n
    return piece if piece < n_pieces else None


def differing(
    plan: Plan, self_id: PeerId, told: Mapping[PeerId, Prepared]
) -> tuple[tuple[PeerId, PeerId], ...]:
    """Return the (maker, witness) of each piece whose hash is none of those that a witness said.

    ``told``: by others, those too who have left since. A witness that said nothing, as one of an
    earlier version, differs from no other member.
    """
    said = {peer: each.witness for peer, each in told.items() if each.plan == plan.plan}
    found = []
    for peer, hashes in {**said, self_id: plan.witness}.items():
        if hashes and plan.hashes and peer in plan.contributors:
            piece = witnessed_by(peer, plan.plan, plan.contributors, plan.n_pieces)
            if piece is not None and plan.hashes[piece] not in hashes:
                found.append((plan.contributors[piece], peer))
    return tuple(found)


def kept_mean(claims: Sequence[tuple[PeerId, ...]]) -> tuple[PeerId, ...]:
    """Return the contributors of the mean that a new view keeps; none: it makes its own.

    ``claims``: what each member of the view says that it holds whole. If one may have finished,
    all honest members hold it. What fewer claim, a liar may have made up: then none finished.
    """
    for claimed, n_claims in Counter(filter(None, claims)).items():
        if n_claims >= len(claims) - hostile_max(len(claims)):
            return claimed
    return ()


def dissenters(
    plan: Plan, self_id: PeerId, view: Iterable[PeerId], told: Mapping[PeerId, Prepared]
) -> frozenset[PeerId]:
    """Return who of a view, all of whom are prepared, holds another mean of the plan than this."""
    others = (peer for peer in view if peer != self_id)
    return frozenset(peer for peer in others if told[peer].result != plan.result)


class Doubts:
    """Which members have differed about a piece, in pairs, and who must be faulty."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[float, PeerId, PeerId]] = deque(maxlen=_DOUBTS_MAX)

    def add(self, one: PeerId, other: PeerId, now: float) -> None:
        """Two members differ; one of them is faulty."""
        self._pairs.append((now, one, other))

    def is_witness(self, now: float, rng: Rng) -> bool:
        """Toss the coin: whether this node makes the piece again whose witness it is."""
        is_calm = all(now >= at + DOUBT_KEEP_S for at, _, _ in self._pairs)
        return not is_calm or rng.random() < WITNESS_SHARE

    def faulty(self, n_members: int, now: float) -> frozenset[PeerId]:
        """Return who has differed from more than a quarter of so many members, one at the least."""
        n_hostile_max = max(1, hostile_max(n_members))
        differs: dict[PeerId, set[PeerId]] = {}
        for at, one, other in self._pairs:
            if now < at + DOUBT_KEEP_S:
                differs.setdefault(one, set()).add(other)
                differs.setdefault(other, set()).add(one)
        return frozenset(peer for peer, others in differs.items() if len(others) > n_hostile_max)
