"""Invites, and the certificates that are made from them: which key signs what, and what is checked.

::

    swarm key --signs--> invite certificate --its key signs--> member certificate

The invite's private key travels in the link, so the joiner makes its own certificate and
no node has to be online to admit it. The holder of the swarm's key needs no invite: that key
signs the member certificate itself. Every node that knows the swarm's public key can verify.

Times are Unix seconds of the signer. A verifier lets a certificate begin up to
ADMISSION_CLOCK_SKEW_S in its own future; the end is taken as it is, because a certificate is
renewed long before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar, get_args

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    ConfigError,
    LimitExceeded,
    Refused,
    RemoteProtocolError,
)
from swarmnode.ids import PeerId, encode_base32
from swarmnode.protocol.identity import Identity, verify
from swarmnode.protocol.swarm import SwarmLink, swarm_id
from swarmnode.wire.admission import (
    INVITE_ID_BYTES,
    InviteCertificate,
    MemberCertificate,
    MemberChain,
    Revocations,
    Role,
)
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

_INVITE_DOMAIN = "invite/1"
_MEMBER_DOMAIN = "member/1"
_REVOCATIONS_DOMAIN = "revocations/1"
_SEED_BYTES = 32
_SIGNATURE_BYTES = 64
_SECONDS_PER_DAY = 86_400
_RENEW_AFTER_SHARE = 2 / 3
_ROLES: tuple[Role, ...] = get_args(Role)
_RecordT = TypeVar("_RecordT")


class Reason(StrEnum):
    """Why a peer is not admitted: few and fixed, so that they can be counted."""

    MISSING = "missing"
    MALFORMED = "malformed"
    FORGED = "forged"
    WRONG_NETWORK = "wrong-network"
    WRONG_PEER = "wrong-peer"
    NOT_YET_VALID = "not-yet-valid"
    EXPIRED = "expired"
    BEYOND_INVITE = "beyond-invite"
    ROLE = "role"
    REVOKED = "revoked"
    USED_UP = "used-up"
    NO_ROOM = "no-room"


class NotAdmitted(Refused):
    """A peer may not take part; the message says why and what would help."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def invite_id(invite_key: bytes) -> bytes:
    """The ten bytes that name an invite: they start the SHA-256 of its public key."""
    return hashlib.sha256(invite_key).digest()[:INVITE_ID_BYTES]


def ends_at(invite: InviteCertificate) -> int:
    """Return the Unix time after which no certificate made from an invite can be valid."""
    return invite.not_after + invite.cert_days * _SECONDS_PER_DAY


# --- invites ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Invite:
    """An invite and its secret key: what a link with ``i=`` carries."""

    certificate: InviteCertificate
    signed: Signed
    identity: Identity = field(repr=False)

    @property
    def id(self) -> bytes:
        """The ten bytes by which it is counted and revoked."""
        return invite_id(self.identity.public_key)

    def encode(self) -> bytes:
        """Return the token for a link: secret seed, signature, signed body."""
        return self.identity.seed() + self.signed.signature + self.signed.body

    @classmethod
    def decode(cls, token: bytes, swarm_key: bytes) -> Invite:
        """Read a token and verify it.

        Raises:
            ConfigError: it is damaged, or belongs to another swarm than the link.
        """
        seed, rest = token[:_SEED_BYTES], token[_SEED_BYTES:]
        signed = Signed(rest[_SIGNATURE_BYTES:], swarm_key, rest[:_SIGNATURE_BYTES])
        try:
            certificate = _read(signed, InviteCertificate)
            _verify(signed, swarm_key, _INVITE_DOMAIN, what="invite")
        except RemoteProtocolError:
            raise ConfigError(
                "the invite (i=) in the link does not belong to its swarm key (k=), or is damaged:"
                " copy the link whole, as `swarmnode invite create` printed it"
            ) from None
        identity = Identity.from_seed(seed)
        if certificate.invite_key != identity.public_key or certificate.swarm_id != swarm_id(
            swarm_key
        ):
            raise ConfigError(
                "the invite (i=) in the link was put together from two: ask for a new one"
            )
        return cls(certificate, signed, identity)


def invite_in(link: SwarmLink) -> Invite | None:
    """Return the invite that a link carries, None if it has none. Raises ConfigError."""
    return Invite.decode(link.invite, link.swarm_key) if link.invite else None


def make_invite(
    swarm_identity: Identity,
    *,
    role: Role,
    uses: int,
    expires_at: int,
    now_unix_s: float,
    cert_days: int = limits.MEMBER_CERTIFICATE_DAYS_MAX,
) -> Invite:
    """Make an invite with a new key. The caller keeps ``uses`` and times within limits."""
    identity = Identity.generate()
    certificate = InviteCertificate(
        swarm_id=swarm_id(swarm_identity.public_key),
        invite_key=identity.public_key,
        role=role,
        uses=uses,
        not_before=int(now_unix_s),
        not_after=expires_at,
        cert_days=cert_days,
    )
    signed = _sign(certificate, swarm_identity, _INVITE_DOMAIN)
    return Invite(certificate, signed, identity)


# --- certificates of members ----------------------------------------------------------------------


def make_member_chain(
    invite: Invite,
    peer: PeerId,
    now_unix_s: float,
    *,
    role: Role | None = None,
    previous: MemberChain | None = None,
) -> MemberChain:
    """Make a certificate for ``peer``: its first, or the renewal of ``previous``.

    Args:
        role: what the peer will do; None is all that the invite grants.
        previous: the peer's chain so far, whatever invite it is from.

    Raises:
        NotAdmitted: the invite has ended, or does not grant the role.
    """
    terms = invite.certificate
    name = encode_base32(invite.id)
    if now_unix_s > terms.not_after:
        raise NotAdmitted(
            Reason.EXPIRED,
            f"invite {name} expired {_days(now_unix_s - terms.not_after)} ago:"
            " ask its sender for a new one",
        )
    wanted = role or terms.role
    check_role(terms.role, wanted, what=f"invite {name}")
    # A clock that is behind the creator's must not make what no node accepts.
    start = max(int(now_unix_s), terms.not_before)
    joined_at = start
    if previous is not None and previous.invite == invite.signed:
        joined_at = certificate_of(previous).joined_at
    certificate = MemberCertificate(
        swarm_id=terms.swarm_id,
        peer=peer,
        role=wanted,
        joined_at=joined_at,
        not_before=start,
        not_after=start + terms.cert_days * _SECONDS_PER_DAY,
    )
    return MemberChain(_sign(certificate, invite.identity, _MEMBER_DOMAIN), invite.signed)


def make_creator_chain(
    swarm_identity: Identity, peer: PeerId, now_unix_s: float, *, role: Role = "trainer"
) -> MemberChain:
    """Make a certificate with the swarm's own key: it uses no invite and can't be revoked."""
    now = int(now_unix_s)
    certificate = MemberCertificate(
        swarm_id=swarm_id(swarm_identity.public_key),
        peer=peer,
        role=role,
        joined_at=now,
        not_before=now,
        not_after=now + limits.MEMBER_CERTIFICATE_DAYS_MAX * _SECONDS_PER_DAY,
    )
    return MemberChain(_sign(certificate, swarm_identity, _MEMBER_DOMAIN))


def certificate_of(chain: MemberChain) -> MemberCertificate:
    """Read, without verifying, what a chain says of its member. Raises MalformedMessage."""
    return decode_record(chain.member.body, MemberCertificate)


def renewal_due_at(chain: MemberChain) -> float:
    """Return the Unix time from which the owner of a chain should make its next one."""
    certificate = certificate_of(chain)
    life_s = certificate.not_after - certificate.not_before
    return certificate.not_before + _RENEW_AFTER_SHARE * life_s


def is_due_for_renewal(chain: MemberChain, now_unix_s: float) -> bool:
    """Whether two thirds of a certificate's life are over."""
    return now_unix_s >= renewal_due_at(chain)


@dataclass(frozen=True)
class VerifiedChain:
    """A chain whose signatures and terms hold at any time within its dates."""

    chain: MemberChain
    certificate: MemberCertificate
    invite: InviteCertificate | None

    @property
    def peer(self) -> PeerId:
        """The member."""
        return PeerId(self.certificate.peer)

    @property
    def invite_id(self) -> bytes:
        """The invite that it was made from; b"" if the swarm's key signed it."""
        return invite_id(self.invite.invite_key) if self.invite else b""

    @property
    def ends_at(self) -> int:
        """The Unix time after which nothing made from its invite counts."""
        return ends_at(self.invite) if self.invite else self.certificate.not_after


def verify_chain(chain: MemberChain, *, network: bytes, swarm_key: bytes) -> VerifiedChain:
    """Check signatures, network and terms: all but which peer shows it, when, and revocation.

    Raises:
        NotAdmitted: MALFORMED, FORGED, WRONG_NETWORK or BEYOND_INVITE.
    """
    try:
        member = _read(chain.member, MemberCertificate)
        invite = _read(chain.invite, InviteCertificate) if chain.invite else None
    except RemoteProtocolError as error:
        raise NotAdmitted(Reason.MALFORMED, f"not the certificate of a member: {error}") from error
    if member.swarm_id != network or (invite and invite.swarm_id != network):
        raise NotAdmitted(
            Reason.WRONG_NETWORK,
            "the certificate is for another swarm: join with an invite link of this one",
        )
    try:
        if chain.invite is not None:
            _verify(chain.invite, swarm_key, _INVITE_DOMAIN, what="invite")
        signer = invite.invite_key if invite else swarm_key
        _verify(chain.member, signer, _MEMBER_DOMAIN, what="certificate")
    except AuthenticationFailed as error:
        raise NotAdmitted(
            Reason.FORGED, f"{error}: join with a link as `swarmnode invite create` gave it"
        ) from error
    _check_terms(member, invite)
    return VerifiedChain(chain, member, invite)


def check_begun(certificate: MemberCertificate, now_unix_s: float) -> None:
    """Raise NotAdmitted, NOT_YET_VALID, if a certificate begins later than clocks are wrong."""
    ahead_s = certificate.not_before - now_unix_s
    if ahead_s > limits.ADMISSION_CLOCK_SKEW_S:
        raise NotAdmitted(
            Reason.NOT_YET_VALID,
            f"the certificate of {PeerId(certificate.peer).short} begins in {_days(ahead_s)}:"
            " check the clocks of both machines",
        )


def check_not_ended(certificate: MemberCertificate, now_unix_s: float) -> None:
    """Raise NotAdmitted, EXPIRED, if the time of a certificate is over."""
    over_s = now_unix_s - certificate.not_after
    if over_s >= 0:
        raise NotAdmitted(
            Reason.EXPIRED,
            f"the certificate of {PeerId(certificate.peer).short} expired {_days(over_s)} ago:"
            " join again with a valid invite link, or check the clocks",
        )


def check_role(granted: Role, wanted: Role, *, what: str) -> None:
    """Raise NotAdmitted, ROLE, unless one role allows the other.

    A trainer may do anything, a keeper may relay and watch, a relay watch.
    """
    if _ROLES.index(granted) > _ROLES.index(wanted):
        raise NotAdmitted(
            Reason.ROLE,
            f"the {what} grants the role {granted}, not {wanted}:"
            f" ask for an invite with --role {wanted}",
        )


def _check_terms(member: MemberCertificate, invite: InviteCertificate | None) -> None:
    """Check that a certificate claims no more than its signer may give."""
    days_max = invite.cert_days if invite else limits.MEMBER_CERTIFICATE_DAYS_MAX
    life_s = member.not_after - member.not_before
    wrong = ""
    if not 0 < life_s <= days_max * _SECONDS_PER_DAY:
        wrong = f"its life is {_days(life_s)}, at most {days_max} are allowed"
    elif member.joined_at > member.not_before:
        wrong = "it says that the member joined after its certificate began"
    elif invite and member.joined_at < invite.not_before:
        wrong = "it says that the member joined before the invite was made"
    elif invite and member.not_before > invite.not_after:
        wrong = "it was made after the invite had expired"
    if wrong:
        raise NotAdmitted(
            Reason.BEYOND_INVITE,
            f"the certificate of {PeerId(member.peer).short} is not what its invite allows:"
            f" {wrong}; join again with a valid invite link",
        )
    if invite:
        check_role(invite.role, member.role, what="invite")


# --- revocation -----------------------------------------------------------------------------------


def sign_revocations(revocations: Revocations, swarm_identity: Identity) -> Signed:
    """Sign the list of revoked invites with the swarm's key."""
    return _sign(revocations, swarm_identity, _REVOCATIONS_DOMAIN)


def open_revocations(signed: Signed, *, network: bytes, swarm_key: bytes) -> Revocations:
    """Verify and read a list of revoked invites.

    Raises:
        AuthenticationFailed: the swarm's key did not sign it, or it is for another swarm.
        MalformedMessage, LimitExceeded: it is no such list.
    """
    revocations = _read(signed, Revocations, bytes_max=limits.REVOCATIONS_BYTES_MAX)
    _verify(signed, swarm_key, _REVOCATIONS_DOMAIN, what="revocations")
    if revocations.swarm_id != network:
        raise AuthenticationFailed("revocations: they are for another swarm")
    return revocations


# --- signing and reading --------------------------------------------------------------------------


def _sign(
    record: InviteCertificate | MemberCertificate | Revocations, signer: Identity, domain: str
) -> Signed:
    body = encode_record(record)
    return Signed(body, signer.public_key, signer.sign(domain, body))


def _verify(signed: Signed, key: bytes, domain: str, *, what: str) -> None:
    """Raise AuthenticationFailed unless this very key has signed."""
    if signed.public_key != key:
        raise AuthenticationFailed(f"{what}: another key has signed it than the one that may")
    verify(key, domain, signed.body, signed.signature, what=what)


def _read(
    signed: Signed,
    record_type: type[_RecordT],
    *,
    bytes_max: int = limits.CERTIFICATE_BYTES_MAX,
) -> _RecordT:
    """Read a body that need not be verified yet. Raises LimitExceeded, MalformedMessage."""
    if len(signed.body) > bytes_max:
        raise LimitExceeded(f"{len(signed.body)} bytes are signed, at most {bytes_max} may be")
    return decode_record(signed.body, record_type)


def _days(seconds: float) -> str:
    return f"{seconds / _SECONDS_PER_DAY:.1f} days"
