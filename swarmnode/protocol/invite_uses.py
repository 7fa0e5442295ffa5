"""Who has used which invite, and who may when more claim it than it allows.

Nobody hands out the uses of an invite, so every member counts the distinct peers that it has
seen claim one. If they are too many, those with the smallest (date, peer id) have it. What is
kept is the ``uses`` smallest: joining such lists gives the same result in any order, so members
that have heard the same certificates agree. A use stays one when its certificate has ended.

**The date.** A certificate says when its peer joined, and whoever holds the link can write
any date. So a claim counts as no older than ADMISSION_BACKDATE_S before it was first seen
here, unless this node has not watched for that long itself: then it cannot know better.
Members that heard of every claim in time still agree; ``proto/admission.md`` says when not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.invites import VerifiedChain


@dataclass
class Claim:
    """That a peer has used an invite, and the chain that says so for longest."""

    verified: VerifiedChain
    joined_at: int  # Unix seconds; the earliest that any of its certificates said
    earliest: int  # Unix seconds; an older date is not believed

    @property
    def date(self) -> int:
        """When it was made, as far as that is believed here."""
        return max(self.joined_at, self.earliest)

    def join(self, other: Claim) -> None:
        """Take in another claim of the same peer and invite."""
        self.joined_at = min(self.joined_at, other.joined_at)
        if other.verified.certificate.not_after > self.verified.certificate.not_after:
            self.verified = other.verified


@dataclass
class InviteUses:
    """The claims of one invite that count: at most ``uses_max`` of them."""

    uses_max: int
    claims: dict[PeerId, Claim] = field(default_factory=dict)

    def add(self, peer: PeerId, claim: Claim) -> bool:
        """Take in a claim; return whether it is among those that count now."""
        known = self.claims.get(peer)
        if known is not None:
            known.join(claim)
            return True
        if len(self.claims) >= self.uses_max:
            last = max(self.claims, key=lambda other: (self.claims[other].date, other))
            if (claim.date, peer) > (self.claims[last].date, last):
                return False
            del self.claims[last]
        self.claims[peer] = claim
        return True


class UseLedger:
    """The uses of all invites of a swarm, as one node has seen them.

    Certificates that the swarm's own key signed are kept as if they used an invite without
    a name that has room for all.
    """

    def __init__(self, since_unix_s: float = 0.0, watched_until_unix_s: float = 0.0) -> None:
        """Begin empty; the times are those of a former run, whose claims are restored."""
        self.since_unix_s = since_unix_s
        self.watched_until_unix_s = watched_until_unix_s
        self._invites: dict[bytes, InviteUses] = {}

    def watch(self, now_unix_s: float) -> None:
        """Note that this node is awake; after a long absence it begins to watch anew."""
        if abs(now_unix_s - self.watched_until_unix_s) > limits.ADMISSION_BACKDATE_S:
            self.since_unix_s = now_unix_s
        self.watched_until_unix_s = now_unix_s

    def claim(self, verified: VerifiedChain, now_unix_s: float) -> bool:
        """Count a chain as a use of its invite; return whether its peer may use it."""
        self.watch(now_unix_s)
        is_newcomer = now_unix_s < self.since_unix_s + limits.ADMISSION_BACKDATE_S
        earliest = 0 if is_newcomer else int(now_unix_s) - limits.ADMISSION_BACKDATE_S
        return self.restore(Claim(verified, verified.certificate.joined_at, earliest))

    def restore(self, claim: Claim) -> bool:
        """Take in a claim with the dates that it has; return whether it counts."""
        verified = claim.verified
        uses_max = verified.invite.uses if verified.invite else limits.ADMISSION_MEMBERS_MAX
        uses = self._invites.setdefault(verified.invite_id, InviteUses(uses_max))
        return uses.add(verified.peer, claim)

    def has_room(self, now_unix_s: float) -> bool:
        """Whether one more claim can be kept; forgets those of ended invites if that helps."""
        if len(self) >= limits.ADMISSION_MEMBERS_MAX:
            self._forget_ended(now_unix_s)
        return len(self) < limits.ADMISSION_MEMBERS_MAX

    def find(self, verified: VerifiedChain) -> Claim | None:
        """Return the claim of this peer to this invite, None if it has none that counts."""
        uses = self._invites.get(verified.invite_id)
        return uses.claims.get(verified.peer) if uses else None

    def claims_of(self, peer: PeerId) -> Iterator[Claim]:
        """Yield what a peer has, of every invite. Cost: one look-up for each invite."""
        for uses in self._invites.values():
            if peer in uses.claims:
                yield uses.claims[peer]

    def __iter__(self) -> Iterator[Claim]:
        for uses in self._invites.values():
            yield from uses.claims.values()

    def __len__(self) -> int:
        return sum(len(uses.claims) for uses in self._invites.values())

    def _forget_ended(self, now_unix_s: float) -> None:
        for name, uses in list(self._invites.items()):
            uses.claims = {
                peer: claim
                for peer, claim in uses.claims.items()
                if now_unix_s <= claim.verified.ends_at
            }
            if not uses.claims:
                del self._invites[name]
