"""What a node makes of each peer's contributions: its trust in it.

A node notes what it measured itself in each contact with a peer (:class:`Seen`), as evidence g for
the peer and b against it, and hears what others have measured. Its weight is ::

    w = (g + 2) / (g + b + 4 + s)           NEUTRAL, 1/2, for a peer of which nothing is known
    s = 3 (1 - m / NEUTRAL)                 m: the median of what others say, <= NEUTRAL

**Own evidence counts fully.** It fades with time, to a half in HALF_LIFE_S, and with each contact,
to 7/8: so g + b is never above 8, the last dozen contacts decide, a long good record buys no long
betrayal, and a member that was misjudged comes back, by useful contacts or by time alone.

**The word of others only lowers.** Voters are the peers that have been more useful than harmful to
this node itself. One that says nothing of a peer votes neutral. The median of the votes is m: while
fewer than half of the voters lie, m lies between honest votes, and to drop some at both ends first
would not move it. The most that others can do counts as s = 3, as much as 4 useful contacts
undo. A node passes on what it measured, never what it heard, and only what is below neutral.

**What follows from it** is how often a peer is met: :meth:`Trust.chance` is 1 from neutral on, and
below it the cube of w / NEUTRAL. One that is always refused is met in a 27th of its rounds, and so
is seen when it mends.

Kept are PEERS_MAX peers of 64 bytes on disk (:data:`RECORD`); what was changed longest ago
makes room. A flood of new identities can only push out what they could have left behind anyway.

Source: A. Jøsang and R. Ismail, "The beta reputation system", 2002: weight and forgetting factor.
The median over met members instead of a sum, and no rating above neutral, as praise costs colluding
members nothing, follow K. Hoffman, D. Zage, C. Nita-Rotaru, "A survey of attack and defense
techniques for reputation systems", 2009. Gauntlet (J. Lidin et al., "Incentivizing permissionless
distributed learning of LLMs", 2025) scores what members send by what it does to the loss, and looks
for copies: that is evidence here, with no validator, no OpenSkill rating and nothing to earn.
Whether an update helps more on its author's own shard than on other data is no evidence here: that
takes twenty looks of four steps each to say something (docs/threat-model.md).
"""

from __future__ import annotations

import enum
import hashlib
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from swarmnode import limits
from swarmnode.ids import PEER_ID_BYTES, PeerId

NEUTRAL = 0.5
HALF_LIFE_S = 1800.0
PEERS_MAX = 4096  # as many as a swarm's members may be

_FADED = 7 / 8  # by one contact, so that the sum of evidence stays below 8
_EVIDENCE_MAX = 1 / (1 - _FADED)
_PRIOR = 2.0
_SAID_MAX = 3.0  # s, at most
_LEFT_OUT_BELOW = 0.25  # two faults, or five refusals in a row
_CHANCE_POWER = 3
_SAY_BELOW = 0.45  # what rounds to fewer tenths than neutral
_COUNT_MAX = 2**32 - 1
# Ten half-lives leave a thousandth: what is older is as good as nothing.
_AGE_S_MAX = 10 * HALF_LIFE_S
# id, when (Unix time, s), evidence for and against it then, counts: 64 bytes.
RECORD = struct.Struct(f"<{PEER_ID_BYTES}sdff4I")


class Seen(enum.StrEnum):
    """What a node measured itself in one contact with a peer: the label of a metric."""

    USEFUL = "useful"  # what it sent counted, something of it was taken, and the probe is no worse
    REFUSED = "refused"  # as honest members are, too, now and then: too far, or the probe is worse
    FAULTY = "faulty"  # what no honest member sends
    SLOW = "slow"  # it held its place until the time was over
    COPY = "copy"  # it sent what another member of the round sent


# For and against a peer, in useful contacts.
_MASSES: Mapping[Seen, tuple[float, float]] = {
    Seen.USEFUL: (1.0, 0.0),
    Seen.REFUSED: (0.0, 1.0),
    Seen.FAULTY: (0.0, 3.0),
    Seen.SLOW: (0.0, 0.5),
    Seen.COPY: (0.0, 3.0),
}


@dataclass(frozen=True)
class Counts:
    """How often each was seen of one peer, over all lives of this node."""

    useful: int = 0
    refused: int = 0  # faulty ones, too
    slow: int = 0
    copied: int = 0


# To which of the counts each belongs.
_COUNTED: Mapping[Seen, int] = {
    Seen.USEFUL: 0,
    Seen.REFUSED: 1,
    Seen.FAULTY: 1,
    Seen.SLOW: 2,
    Seen.COPY: 3,
}


@dataclass(slots=True)
class _Evidence:
    """Of one peer, as it was at ``at``, monotonic."""

    good: float
    bad: float
    at: float
    counts: list[int]

    def faded(self, now: float) -> tuple[float, float]:
        share = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        return self.good * share, self.bad * share

    def note(self, seen: Seen, now: float) -> None:
        good, bad = self.faded(now)
        for_it, against_it = _MASSES[seen]
        left = _FADED ** (for_it + against_it)
        self.good = good * left + _units(for_it)
        self.bad = bad * left + _units(against_it)
        self.at = now
        index = _COUNTED[seen]
        self.counts[index] = min(self.counts[index] + 1, _COUNT_MAX)


class Trust:
    """See the module. ``now`` is monotonic, in seconds.

    Args:
        salt: 16 random bytes that no other node knows: they choose in which rounds a peer below
            neutral is met.

    Attributes:
        seen_total: what was noted since the start, over all peers.
    """

    def __init__(self, salt: bytes, *, peers_max: int = PEERS_MAX) -> None:
        self._salt = salt
        self.seen_total: Counter[str] = Counter()
        self._peers_max = peers_max
        self._peers: OrderedDict[PeerId, _Evidence] = OrderedDict()  # changed last: at the end
        self._voters: set[PeerId] = set()
        self._said: dict[PeerId, dict[PeerId, float]] = {}  # author -> subject -> weight
        self._about: dict[PeerId, dict[PeerId, float]] = {}  # the same, subject -> author -> weight
        self._changed: dict[PeerId, None] = {}  # since they were last written down

    def __len__(self) -> int:
        return len(self._peers)

    # --- what is noted -------------------------------------------------------------------

    def note(self, peer: PeerId, seen: Seen, now: float) -> None:
        """Count what this node has measured of a peer."""
        evidence = self._peers.pop(peer, None) or _Evidence(0.0, 0.0, now, [0] * 4)
        evidence.note(seen, now)
        self._put(peer, evidence)
        self._changed[peer] = None
        self.seen_total[seen] += 1

    def told(self, author: PeerId, verdicts: Mapping[PeerId, float]) -> None:
        """Take in all that a member says of others now, in the place of what it said before.

        What praises counts as neutral, and its word on itself not at all.
        """
        for subject in self._said.pop(author, {}):
            del self._about[subject][author]
            if not self._about[subject]:
                del self._about[subject]
        said = {
            subject: min(max(weight, 0.0), NEUTRAL)
            for subject, weight in sorted(verdicts.items())[: limits.STATE_VERDICTS_PER_AUTHOR_MAX]
            if subject != author
        }
        if said and (author in self._peers or len(self._said) < self._peers_max):
            self._said[author] = said
            for subject, weight in said.items():
                self._about.setdefault(subject, {})[author] = weight

    # --- what follows from it ------------------------------------------------------------

    def weight(self, peer: PeerId, now: float) -> float:
        """Return what a peer is worth: above 0, NEUTRAL if nothing is known, below 1."""
        good, bad = self._own(peer, now)
        return _weight(good, bad, _SAID_MAX * (1 - self.heard_of(peer) / NEUTRAL))

    def own_weight(self, peer: PeerId, now: float) -> float:
        """Return the same from what this node has measured alone."""
        return _weight(*self._own(peer, now), 0.0)

    def heard_of(self, peer: PeerId) -> float:
        """Return what others say of a peer: NEUTRAL, or less."""
        about = self._about.get(peer, {})
        votes = [weight for author, weight in about.items() if author in self._voters]
        if not votes:
            return NEUTRAL
        n_voters = len(self._voters) - (peer in self._voters)
        return median([*votes, *[NEUTRAL] * (n_voters - len(votes))])

    def chance(self, peer: PeerId, now: float) -> float:
        """Return in what share of the rounds a peer is met: above 0, to 1."""
        return min(1.0, (self.weight(peer, now) / NEUTRAL) ** _CHANCE_POWER)

    def admits(self, peer: PeerId, number: int, now: float) -> bool:
        """Return whether a peer is met in round ``number`` of this node.

        The answer for a round stays the same while the weight does: to offer again is of no use.
        """
        chance = self.chance(peer, now)
        data = number.to_bytes(8, "big") + peer
        place = hashlib.blake2b(data, key=self._salt, digest_size=8).digest()
        return int.from_bytes(place, "big") < chance * 2**64

    def left_out(self, members: Collection[PeerId], now: float) -> frozenset[PeerId]:
        """Return with which of the members this node makes no round of many: a quarter at the most.

        By its own evidence alone. One member that leaves another out keeps it from the rounds that
        it takes part in itself, so hearsay, which liars make, must not do that.
        """
        weights = sorted((self.own_weight(peer, now), peer) for peer in members)
        worst = weights[: len(members) // 4]
        return frozenset(peer for weight, peer in worst if weight < _LEFT_OUT_BELOW)

    def counts(self, peer: PeerId) -> Counts:
        """Return how often each was seen of a peer."""
        return Counts(*self._peers[peer].counts) if peer in self._peers else Counts()

    def below_neutral(self, now: float) -> int:
        """Return of how many peers it has measured so ill that there is something to say."""
        return sum(self.own_weight(peer, now) < _SAY_BELOW for peer in self._peers)

    def verdicts(self, now: float) -> dict[PeerId, int]:
        """Return what there is to say to others: the worst peers, in tenths below neutral.

        Own evidence alone: what a node heard would come back to it as the word of others.
        """
        worst = self.worst(now, limits.STATE_VERDICTS_PER_AUTHOR_MAX)
        return {peer: round(10 * weight) for peer, weight in worst.items()}

    def worst(self, now: float, most: int) -> dict[PeerId, float]:
        """Return the weights of peers of which there is something to say, the worst first.

        By own evidence alone; ``most``: how many at the most.
        """
        found = {peer: self.own_weight(peer, now) for peer in self._peers}
        low = sorted((weight, peer) for peer, weight in found.items() if weight < _SAY_BELOW)
        return {peer: weight for weight, peer in low[:most]}

    # --- what survives a restart ---------------------------------------------------------

    def take_changed(self, now: float, unix_s: float) -> list[bytes]:
        """Return a RECORD of each peer that was changed since the last call."""
        changed, self._changed = self._changed, {}
        return [self._record(peer, now, unix_s) for peer in changed]

    def records(self, now: float, unix_s: float) -> list[bytes]:
        """Return all that is kept, a RECORD for each peer, what was changed last at the end."""
        return [self._record(peer, now, unix_s) for peer in self._peers]

    def restore(self, records: Iterable[bytes], now: float, unix_s: float) -> int:
        """Take in records of an earlier life, in their order; return how many were none.

        What a wrong clock has dated into the future counts as of now.
        """
        n_bad = 0
        for record in records:
            found = _parse(record, now, unix_s)
            if found is None:
                n_bad += 1
            else:
                peer, evidence = found
                self._peers.pop(peer, None)
                self._put(peer, evidence)
        return n_bad

    # --- inside --------------------------------------------------------------------------

    def _own(self, peer: PeerId, now: float) -> tuple[float, float]:
        evidence = self._peers.get(peer)
        return (0.0, 0.0) if evidence is None else evidence.faded(now)

    def _put(self, peer: PeerId, evidence: _Evidence) -> None:
        while len(self._peers) >= self._peers_max:
            gone, _ = self._peers.popitem(last=False)
            self._voters.discard(gone)
            self._changed.pop(gone, None)
        self._peers[peer] = evidence
        # Both fade alike, so that this stays as it is until something else is seen of it.
        if evidence.good > evidence.bad:
            self._voters.add(peer)
        else:
            self._voters.discard(peer)

    def _record(self, peer: PeerId, now: float, unix_s: float) -> bytes:
        evidence = self._peers[peer]
        return RECORD.pack(peer, unix_s, *evidence.faded(now), *evidence.counts)


def _weight(good: float, bad: float, said: float) -> float:
    return (good + _PRIOR) / (good + bad + 2 * _PRIOR + said)


def _units(mass: float) -> float:
    """Return what ``mass`` contacts leave, each of which fades those before it."""
    left: float = _FADED**mass
    return (1 - left) * _EVIDENCE_MAX


def _parse(record: bytes, now: float, unix_s: float) -> tuple[PeerId, _Evidence] | None:
    """Return what a record of a file says; None: it is none."""
    if len(record) != RECORD.size:
        return None
    peer, at_unix_s, good, bad, *counts = RECORD.unpack(record)
    if not (math.isfinite(at_unix_s) and math.isfinite(good + bad)):
        return None
    if min(good, bad) < 0 or good + bad > _EVIDENCE_MAX * 1.001:  # float32 rounds
        return None
    age_s = min(max(0.0, unix_s - at_unix_s), _AGE_S_MAX)
    return PeerId(peer), _Evidence(good, bad, now - age_s, counts)
