"""SafeMerge: whether a peer's model is merged, in pairs, and how much of it.

One peer at a time says what it has learnt, so there is no majority to ask. What speaks for a
vector is that it is no further away than others have been, and that the mean of the two models
is no worse than the own one on a public probe, which no peer chooses. With d = y − x, r = ‖d‖, the
median A of the last distances that were accepted, the median mvn of the own movements of a round,
and L the loss on the probe::

    structure   d is finite                                    else refuse, strike
    window      no older than before, not seen before          else refuse, strike
    distance    far = r > κ ref,   ref = max(A, mvn), or 2.5 mvn as long as few are known
    probe       l0 = L(x), l1 = L(x + w d);  bad = l1 > l0      unless far
                bad, and l1 > 1.1 l0 + .02                      refuse, strike *
                bad                                             accept, taking nothing
    clip        x ← x + w min(1, A / r) d
    escape      far, but L(y) < min(0.98 l0, 0.9 L0), and no worse for the clipped step: accept
                far, and L(y) > l0                              accept, taking nothing; strike *
                far                                             refuse, strike *
    * only if L(y) > L0 > l0: the peer's model is worse than none, and the own one is better; the
      first time, and again when the strike is forgotten: accept, taking nothing; strike

Without a probe none can show that it has learnt something, and a node that came late, or was alone
for a while, would be too far from the others for ever, as they come closer and closer. So there ::

    far = r > s κ ref       s: 1, doubled by each refusal of this peer for its distance, 16 at most
    far from κ ref on       accept, and clip as above: s stays; else s = 1

Zero tolerance, because slack is what attackers that know these gates spend: with 1.1 l0 + .02
they took 8 of 20 nodes' accuracy to .53, without to .89. Clipped after the loss was measured,
because a small step of a harmful vector hides its harm. The escape asks for the peer's own model,
because shrinking towards zero may improve the mean for a node that knows one class only; and for
the step, because a good model has others that are the same function, with hidden units in another
order or of the other sign: all of them are far, and the way to them is ruin.

Sources: L. He, S. P. Karimireddy, M. Jaggi, "Byzantine-robust decentralized learning via
ClippedGossip", 2022 (the clip around oneself); C. Xie, S. Koyejo, I. Gupta, "Zeno", 2019 (the loss
on examples of the receiver). The order, the escape and the constants were measured for pairs, on
digits with labels by a Dirichlet distribution; docs/threat-model.md has the figures, and what this
does not stop: what is neutral to the loss, and data that differ very much.

Deviations from what was measured there, one node reading from another: here an exchange counts on
both sides or on neither, so that a refusal is the pair's. So a node that has no use for a model of
which it does not think ill takes nothing and gives its own, or the other would lose by it; a peer
that is far and worse than itself gets it, too, as often as three strikes allow, or none could
escape. Rounds are compared with what the same peer
said before, because nodes count their own; a peer that really went back, to an older snapshot, is
banned for a while, and then begins anew. The bound of the first contacts grows with refusals, too,
and begins at half: in the first rounds all have nearly the same model, and to average one with its
own negative costs no loss yet, so a sign flip got through at 5 mvn and set honest nodes apart.
Only a model that is worse than one that has learnt nothing is refused for its distance or the harm
that it does, and only by a node whose own is better: early in training, and with uneven labels,
honest models are far from each other and harm each other. Before, honest nodes banned each other,
10 times in 592 contacts, and lost one in five of their meetings; and a node with one label, which
all others banned as soon as they could, kept an accuracy of .63 beside .95. And even such a peer is
given this node's model once: it costs nothing, and a node with few labels, which attackers kept
from the means of the first rounds, was refused by all others for ever (.48 beside .92).
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from statistics import median

import torch

from swarmnode.strategies.merging.slot import Pair, Reason, Verdict, is_mild

DISTANCE_RATIO_MAX = 2.0  # κ: 1.5 to 4 do the same against fixed attacks
MERGE_WEIGHT = 0.5  # w: the mean of the two
_KNOWN_MIN = 4  # accepted distances, from which on they are the reference
_DISTANCES_KEPT = 8
_MOVEMENTS_KEPT = 5
_FIRST_RATIO = 2.5  # of the own movement, before that many are known
_FIRST_CLIP = 2.0
_FIRST_GROWTH = 2.0  # of that, for each peer that is provably good
_RELAXED = 1.1  # a node that refuses all others is let go by so much ...
_RELAX_ROUNDS = 5  # ... once in so many rounds
_ESCAPE_RATIO = 0.98  # of the own loss
_TRIVIAL_RATIO = 0.9  # of the loss of a model that has learnt nothing
# Vectors of who only repeats what it got are no measure of how far others are.
_NEAR_RATIO, _NEAR_MOVED = 0.2, 0.5
_STRIKES_MAX = 3
_STRIKE_DECAY = 0.25  # for each vector that is accepted
_BAN_ROUNDS = 60
_SLACK_MAX = 16.0  # what turns a model around, or is huge, is further than that
_ROUNDS_OLD_MAX = 20
_PEERS_MAX = 4096  # the ones met last: as many as a swarm's members may be, 64 bytes each
_TOPICS_MAX = 64  # fragments
_DIGESTS_MAX = 1024  # of vectors that were merged last
_DIGEST_BYTES = 16
_DIGEST_ELEMS = 2**16  # who changes one number gets past any digest, so a sample serves


class Stage(enum.StrEnum):
    """What may be switched off, to show that it is needed."""

    STRUCTURE = "structure"
    WINDOW = "window"
    DISTANCE = "distance"
    PROBE = "probe"
    CLIP = "clip"
    STRIKES = "strikes"
    ESCAPE = "escape"


class Harm(enum.Enum):
    """What a merge does to the loss on the public probe."""

    NONE = enum.auto()
    MILD = enum.auto()  # honest peers do it, too, as each fits its own data
    GRAVE = enum.auto()


@dataclass
class GuardTotals:
    """What was weighed so far. ``contacts``: with banned peers, too; ``bans``: that began.

    ``given``: of those accepted, from which nothing was taken.
    """

    contacts: int = 0
    accepted: int = 0
    clipped: int = 0
    escaped: int = 0
    given: int = 0
    bans: int = 0
    refused: Counter[Reason] = field(default_factory=Counter)


@dataclass
class _Topic:
    """What is known of one kind of vector."""

    distances: deque[float] = field(default_factory=lambda: deque(maxlen=_DISTANCES_KEPT))
    movements: deque[float] = field(default_factory=lambda: deque(maxlen=_MOVEMENTS_KEPT))
    moved_in: int = -1  # the round of the last movement
    relaxed_in: int = -_RELAX_ROUNDS
    first_ratio: float = _FIRST_RATIO
    digest: bytes = b""  # of what was accepted last, unless it was aborted

    @property
    def is_known(self) -> bool:
        return len(self.distances) >= _KNOWN_MIN

    @property
    def usual(self) -> float:
        return median(self.distances)

    @property
    def moved(self) -> float:
        return median(self.movements) if self.movements else 0.0

    @property
    def escape_clip(self) -> float:
        """How much is taken at once of a model that is far, and provably good."""
        return self.usual if self.distances else _FIRST_CLIP * self.moved

    @property
    def reference(self) -> float:
        """How far a vector may be, but for κ; infinite where nothing is known at all."""
        if self.is_known:
            return max(self.usual, self.moved)
        return self.first_ratio * self.moved if self.movements else math.inf

    def note_moved(self, moved: float, round_number: int) -> None:
        if moved > 0 and round_number != self.moved_in:
            self.movements.append(moved)
            self.moved_in = round_number

    def relax(self, round_number: int, *, has_probe: bool) -> None:
        """Let a little more pass, so that no node is locked out by its own past."""
        if has_probe and round_number - self.relaxed_in < _RELAX_ROUNDS:
            return
        self.relaxed_in = round_number
        if self.is_known:
            self.distances.append(_RELAXED * self.usual)
        else:
            self.first_ratio *= _RELAXED


@dataclass
class _Peer:
    strikes: float = 0.0
    banned_until: int = 0
    round: int = 0  # the latest that it said
    slack: float = 1.0  # where there is no probe: how much further than others it may be


class SafeMerge:
    """A pair rule; one for each node. ``off``: stages that are left out, to show what they do."""

    def __init__(self, off: frozenset[Stage] = frozenset()) -> None:
        self.totals = GuardTotals()
        self._off = off
        self._topics: dict[str, _Topic] = {}
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()
        self._merged: OrderedDict[bytes, None] = OrderedDict()

    def is_banned(self, peer: bytes, round_number: int) -> bool:
        """Return whether what a peer sends is refused unseen in this round."""
        return peer in self._peers and round_number < self._peers[peer].banned_until

    @property
    def kept(self) -> tuple[int, int, int]:
        """How many topics, peers and digests are remembered."""
        return len(self._topics), len(self._peers), len(self._merged)

    def weigh(self, pair: Pair) -> Verdict:
        """Return whether ``pair`` counts, and how much.

        Cost: two passes over the vectors, and two evaluations on the probe.
        """
        topic = self._topic(pair.topic)
        topic.note_moved(pair.moved, pair.round)
        self._note_merged(topic)
        self.totals.contacts += 1
        if self.is_banned(pair.peer, pair.round):
            return self._refuse(pair, Reason.BANNED)
        distance = float(torch.linalg.vector_norm(pair.theirs - pair.own, dtype=torch.float64))
        if not math.isfinite(distance) and Stage.STRUCTURE not in self._off:
            return self._refuse(pair, Reason.NOT_FINITE)
        digest = digest_of(pair.theirs) if distance else b""  # equal ones change nothing
        why = None if Stage.WINDOW in self._off else self._outside_window(pair, digest)
        if why is not None:
            return self._refuse(pair, why)
        verdict = self._by_distance(pair, topic, distance)
        is_taken = verdict.refusal is None and verdict.share > 0
        topic.digest = digest if is_taken else b""
        return verdict

    def aborted(self, topic: str) -> None:
        """Nothing came of what was weighed last: it may come again."""
        self._topic(topic).digest = b""

    def _note_merged(self, topic: _Topic) -> None:
        """What was accepted before, and was not aborted, has been merged."""
        if topic.digest:
            self._merged[topic.digest] = None
            topic.digest = b""
        while len(self._merged) > _DIGESTS_MAX:
            self._merged.popitem(last=False)

    # --- the stages ----------------------------------------------------------------------

    def _outside_window(self, pair: Pair, digest: bytes) -> Reason | None:
        peer = self._peer(pair.peer)
        if pair.their_round < peer.round - _ROUNDS_OLD_MAX:
            return Reason.ROUND
        if digest in self._merged:
            return Reason.REPLAY
        peer.round = max(peer.round, pair.their_round)
        return None

    def _by_distance(self, pair: Pair, topic: _Topic, distance: float) -> Verdict:
        bound = DISTANCE_RATIO_MAX * topic.reference
        is_far = distance > bound * self._slack(pair, topic, is_near=distance <= bound)
        if is_far and Stage.DISTANCE not in self._off:
            return self._if_far(pair, topic, distance)
        harm = Harm.NONE if Stage.PROBE in self._off else harm_of(pair)
        if harm is Harm.GRAVE and _has_learnt_nothing(pair):
            return self._help_or_refuse(pair, Reason.PROBE)
        if harm is not Harm.NONE:
            topic.relax(pair.round, has_probe=True)
            return self._give()
        return self._accept(pair, topic, distance)

    def _if_far(self, pair: Pair, topic: _Topic, distance: float) -> Verdict:
        if pair.loss_along is None or Stage.ESCAPE in self._off:
            return self._refuse(pair, Reason.DISTANCE)
        own, theirs = pair.loss_along(0.0), pair.loss_along(1.0)
        if theirs < _escape_bound(pair, own):
            share = min(1.0, topic.escape_clip / distance)
            if pair.loss_along(MERGE_WEIGHT * share) <= own:
                return self._escape(pair, topic, distance, share)
        if _has_learnt_nothing(pair):
            return self._help_or_refuse(pair, Reason.DISTANCE)
        topic.relax(pair.round, has_probe=True)
        return self._give()

    def _slack(self, pair: Pair, topic: _Topic, *, is_near: bool) -> float:
        """Return how much further than others a peer may be; ESCAPE is what leads there, too."""
        if pair.loss_along is not None or Stage.ESCAPE in self._off or not topic.is_known:
            return 1.0
        peer = self._peer(pair.peer)
        if is_near:
            peer.slack = 1.0
        return peer.slack

    # --- verdicts ------------------------------------------------------------------------

    def _escape(self, pair: Pair, topic: _Topic, distance: float, share: float) -> Verdict:
        if topic.is_known:
            topic.distances.append(_RELAXED * topic.usual)
        else:
            # A node that has fitted all of its data moves no more, so its own movement is no
            # measure: by that alone it would take a thousandth of each good model, for ever.
            topic.distances.append(min(distance, _FIRST_GROWTH * topic.escape_clip))
        self.totals.escaped += 1
        return self._count(pair, share)

    def _help_or_refuse(self, pair: Pair, why: Reason) -> Verdict:
        """Let a peer that has learnt nothing have this node's model once, and refuse it then."""
        peer = self._peer(pair.peer)
        if peer.strikes >= 1 or Stage.STRIKES in self._off:
            return self._refuse(pair, why)
        peer.strikes += 1
        self._topic(pair.topic).relax(pair.round, has_probe=True)
        return self._give()

    def _give(self) -> Verdict:
        """Let a peer have this node's model, and take nothing of theirs."""
        self.totals.given += 1
        self.totals.accepted += 1
        return Verdict(share=0.0)

    def _accept(self, pair: Pair, topic: _Topic, distance: float) -> Verdict:
        clip = topic.usual if topic.is_known and Stage.CLIP not in self._off else math.inf
        share = min(1.0, clip / distance) if distance else 1.0
        near = _NEAR_RATIO * topic.reference if topic.is_known else 0.0
        if distance >= max(near, _NEAR_MOVED * topic.moved):
            topic.distances.append(min(distance, DISTANCE_RATIO_MAX * topic.reference))
        return self._count(pair, share)

    def _count(self, pair: Pair, share: float) -> Verdict:
        peer = self._peer(pair.peer)
        peer.strikes = max(0.0, peer.strikes - _STRIKE_DECAY)
        self.totals.accepted += 1
        self.totals.clipped += share < 1
        return Verdict(share=share)

    def _refuse(self, pair: Pair, why: Reason) -> Verdict:
        self.totals.refused[why] += 1
        if why is Reason.BANNED:
            return Verdict(why)
        if why in (Reason.DISTANCE, Reason.PROBE):
            has_probe = pair.loss_along is not None
            self._topic(pair.topic).relax(pair.round, has_probe=has_probe)
        if why is Reason.DISTANCE:
            peer = self._peer(pair.peer)
            peer.slack = min(2 * peer.slack, _SLACK_MAX)
        if Stage.STRIKES not in self._off:
            self._strike(pair)
        return Verdict(why)

    def _strike(self, pair: Pair) -> None:
        peer = self._peer(pair.peer)
        peer.strikes += 1
        if peer.strikes >= _STRIKES_MAX:
            until = pair.round + _BAN_ROUNDS
            self._peers[pair.peer] = _Peer(banned_until=until, slack=peer.slack)
            self.totals.bans += 1

    # --- memory --------------------------------------------------------------------------

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics and len(self._topics) >= _TOPICS_MAX:
            del self._topics[next(iter(self._topics))]
        return self._topics.setdefault(name, _Topic())

    def _peer(self, peer: bytes) -> _Peer:
        found = self._peers.setdefault(peer, _Peer())
        self._peers.move_to_end(peer)
        while len(self._peers) > _PEERS_MAX:
            self._peers.popitem(last=False)
        return found


def _escape_bound(pair: Pair, own: float) -> float:
    """Return below what loss a peer's own model is provably good, and better than this node's."""
    bound = _ESCAPE_RATIO * own if math.isfinite(own) else math.inf
    if pair.loss_trivial is None:
        return bound
    return min(bound, _TRIVIAL_RATIO * pair.loss_trivial)


def _has_learnt_nothing(pair: Pair) -> bool:
    """Return whether a peer's own model is worse than a trivial one, and this node's is better."""
    assert pair.loss_along is not None, "without a probe no model is judged"
    trivial = math.inf if pair.loss_trivial is None else pair.loss_trivial
    own, theirs = pair.loss_along(0.0), pair.loss_along(1.0)
    return own < trivial and not (math.isfinite(theirs) and theirs <= trivial)


def harm_of(pair: Pair) -> Harm:
    """Return what the merge does to the loss on the probe; without one, none is seen."""
    if pair.loss_along is None:
        return Harm.NONE
    before, after = pair.loss_along(0.0), pair.loss_along(MERGE_WEIGHT)
    if after <= before or (math.isfinite(after) and not math.isfinite(before)):
        return Harm.NONE
    return Harm.MILD if is_mild(before, after) else Harm.GRAVE


def digest_of(vector: torch.Tensor) -> bytes:
    """Return the hash of a sample of a vector: 16 bytes."""
    stride = max(1, vector.numel() // _DIGEST_ELEMS)
    sample = vector.detach()[::stride].contiguous().numpy()
    return hashlib.blake2b(sample.tobytes(), digest_size=_DIGEST_BYTES).digest()
