"""Which peers are members of a closed swarm: certificates seen, uses of invites, revocations.

One :class:`Admission` per swarm and node. It has no time of its own and asks no other part: what
shows a valid chain is a member until the chain ends, its invite is revoked, or its use of the
invite turns out to be one too many. So a yes may become a no: after :meth:`Admission.admit`,
:meth:`Admission.hear` or :meth:`Admission.take_revocations` took in something new, and as time
passes, a shell asks :meth:`Admission.is_member` again for the peers that it talks to;
:attr:`Admission.changes` tells when. Every call that says what time it is also says that this
node was awake then; without one for ADMISSION_BACKDATE_S it counts as a newcomer.

**Uses of an invite.** No node hands them out, so every member counts the distinct peers that it
has seen claim one. If they are too many, those with the smallest (date, peer id) have it. What is
kept is the ``uses`` smallest: joining such lists gives the same result in any order, so members
that have heard the same certificates agree. A use stays one when its certificate has ended.

**The date.** A certificate says when its peer joined, and a holder of the link can write
any date. So a claim counts as no older than ADMISSION_BACKDATE_S before it was first seen
here, unless this node has not watched for that long itself: then it cannot know better.
Members that heard of every claim in time still agree; ``proto/admission.md`` says when not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId, encode_base32
from swarmnode.protocol.invites import (
    NotAdmitted,
    Reason,
    VerifiedChain,
    certificate_of,
    check_begun,
    check_not_ended,
    check_role,
    open_revocations,
    verify_chain,
)
from swarmnode.wire.admission import Credentials, MemberChain, Role
from swarmnode.wire.swarm import Signed


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


class KeptClaim(msgspec.Struct, frozen=True):
    """A use of an invite as it is kept on disk."""

    chain: MemberChain
    joined_at: int  # Unix seconds
    earliest: int  # Unix seconds


class AdmissionState(msgspec.Struct, frozen=True):
    """What a node keeps on disk, so that a restart gives no peer a second chance."""

    since_unix_s: float = 0.0
    watched_until_unix_s: float = 0.0
    revocations: Signed | None = None
    claims: tuple[KeptClaim, ...] = ()


class Admission:
    """The members of one closed swarm, as far as this node knows them."""

    def __init__(
        self, swarm_id: bytes, swarm_key: bytes, state: AdmissionState | None = None
    ) -> None:
        """Begin with no member, or with what a former run has kept; that is verified again."""
        self.changes = 0  # grows when a membership may have begun or ended, but for its time
        self._swarm_id = swarm_id
        self._swarm_key = swarm_key
        state = state or AdmissionState()
        self._ledger = UseLedger(state.since_unix_s, state.watched_until_unix_s)
        self._unsaid: list[MemberChain] = []  # whose turn to be passed on is still to come
        self._revocations: Signed | None = None
        self._sequence = 0
        self._revoked: frozenset[bytes] = frozenset()
        if state.revocations is not None:
            with suppress(RemoteProtocolError):  # damaged: others have it too
                self.take_revocations(state.revocations)
        for kept in state.claims:
            self._restore(kept)

    def admit(
        self,
        peer: PeerId,
        chain: MemberChain | None,
        now_unix_s: float,
        *,
        role: Role | None = None,
    ) -> Role:
        """Take ``peer`` for a member on the strength of its chain; it must have proved its id.

        Args:
            chain: what it shows.
            role: what it says it does; None is whatever it may.

        Returns:
            The role that it takes: ``role``, or all that it is granted.

        Raises:
            NotAdmitted: why not, and what would help; a Refused.
        """
        if chain is None:
            raise NotAdmitted(
                Reason.MISSING,
                f"this swarm is closed and {peer.short} showed no certificate:"
                " it must join with an invite link",
            )
        certificate = self._take(peer, chain, now_unix_s).certificate
        check_role(certificate.role, role or certificate.role, what=f"certificate of {peer.short}")
        return role or certificate.role

    def hear(self, chains: Iterable[MemberChain], now_unix_s: float) -> None:
        """Take in what others pass on; nothing at all says that this node is awake.

        A chain that does not count is no offence of the peer that passed it on: clocks differ,
        and so does what each has heard.
        """
        self._ledger.watch(now_unix_s)
        for chain in islice(chains, limits.CREDENTIALS_HEARD_MAX):
            with suppress(NotAdmitted, RemoteProtocolError):
                self._take(PeerId(certificate_of(chain).peer), chain, now_unix_s)

    def is_member(self, peer: PeerId, now_unix_s: float) -> bool:
        """Whether a peer may take part now."""
        self._ledger.watch(now_unix_s)
        expires_at = self.expires_at(peer)
        return expires_at is not None and now_unix_s < expires_at

    def expires_at(self, peer: PeerId) -> float | None:
        """Return the Unix time at which a membership ends; None: never, or no member."""
        ends = [
            claim.verified.certificate.not_after
            for claim in self._ledger.claims_of(peer)
            if claim.verified.invite_id not in self._revoked
        ]
        return float(max(ends)) if ends else None

    def credentials(self, own: MemberChain | None) -> Credentials:
        """Return what to show a peer: our chain, the revocations, the next few other members.

        Members take turns, so that a few calls pass on all of them. Those whose certificate
        has ended are among them: they have used their invite.
        """
        if not self._unsaid:
            self._unsaid = [claim.verified.chain for claim in self._ledger]
        heard = tuple(self._unsaid[: limits.CREDENTIALS_HEARD_MAX])
        del self._unsaid[: limits.CREDENTIALS_HEARD_MAX]
        return Credentials(own, self._revocations, heard)

    @property
    def revocations(self) -> Signed | None:
        """The newest list of revoked invites, to be passed on as it was signed."""
        return self._revocations

    def take_revocations(self, signed: Signed) -> bool:
        """Take in a list of revoked invites; return whether it was newer than ours.

        Raises:
            AuthenticationFailed: the swarm's key did not sign it, or it is for another swarm.
            MalformedMessage, LimitExceeded: it is no such list.
        """
        if signed == self._revocations:
            return False
        found = open_revocations(signed, network=self._swarm_id, swarm_key=self._swarm_key)
        # Of two with one number, all nodes keep the same.
        ours = (self._sequence, self._revocations.body if self._revocations else b"")
        if (found.sequence, signed.body) <= ours:
            return False
        self._revocations = signed
        self._sequence = found.sequence
        self._revoked = frozenset(found.revoked)
        self.changes += 1
        return True

    def state(self) -> AdmissionState:
        """Return what is to be kept on disk. Cost: O(members)."""
        return AdmissionState(
            self._ledger.since_unix_s,
            self._ledger.watched_until_unix_s,
            self._revocations,
            tuple(
                KeptClaim(claim.verified.chain, claim.joined_at, claim.earliest)
                for claim in self._ledger
            ),
        )

    def _take(self, peer: PeerId, chain: MemberChain, now_unix_s: float) -> VerifiedChain:
        """Verify a chain and count it as a use of its invite. Raises NotAdmitted."""
        verified = self._verify(peer, chain)
        if verified.peer != peer:
            raise NotAdmitted(
                Reason.WRONG_PEER,
                f"{peer.short} shows the certificate of {verified.peer.short}:"
                " each node needs its own, join with the invite link",
            )
        if verified.invite_id in self._revoked:
            raise NotAdmitted(
                Reason.REVOKED,
                f"invite {encode_base32(verified.invite_id)} was revoked:"
                " ask the swarm's creator for another",
            )
        check_begun(verified.certificate, now_unix_s)
        # One that has ended is a use all the same, until its invite is dead.
        if now_unix_s <= verified.ends_at:
            self._count(verified, now_unix_s)
        check_not_ended(verified.certificate, now_unix_s)
        return verified

    def _verify(self, peer: PeerId, chain: MemberChain) -> VerifiedChain:
        for claim in self._ledger.claims_of(peer):
            if claim.verified.chain == chain:
                return claim.verified  # the same bytes: their signatures were checked
        return verify_chain(chain, network=self._swarm_id, swarm_key=self._swarm_key)

    def _count(self, verified: VerifiedChain, now_unix_s: float) -> None:
        is_new = self._ledger.find(verified) is None
        if is_new and not self._ledger.has_room(now_unix_s):
            raise NotAdmitted(
                Reason.NO_ROOM,
                f"this node remembers {limits.ADMISSION_MEMBERS_MAX} members already:"
                " try another one",
            )
        if not self._ledger.claim(verified, now_unix_s):
            n_uses = verified.invite.uses if verified.invite else 0
            raise NotAdmitted(
                Reason.USED_UP,
                f"invite {encode_base32(verified.invite_id)} is for {n_uses} peer(s), and as many"
                f" came before {verified.peer.short}: ask for a new invite",
            )
        self.changes += is_new

    def _restore(self, kept: KeptClaim) -> None:
        try:
            verified = verify_chain(kept.chain, network=self._swarm_id, swarm_key=self._swarm_key)
        except NotAdmitted:
            return  # kept under rules of another version: its owner will show a newer one
        self._ledger.restore(Claim(verified, kept.joined_at, kept.earliest))
