"""Records of admission: invites, the certificates made from them, and their revocation.

The body of a :class:`~swarmnode.wire.swarm.Signed` each, except what carries those:
:class:`MemberChain` and :class:`Credentials`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, Digest, PeerIdBytes, PublicKeyBytes
from swarmnode.wire.swarm import Signed

INVITE_ID_BYTES = 10

# What a member does, from the one that is trusted most to the one that only looks.
Role = Literal["trainer", "keeper", "relay", "monitor"]
InviteId = Annotated[bytes, Meta(min_length=INVITE_ID_BYTES, max_length=INVITE_ID_BYTES)]


class InviteCertificate(msgspec.Struct, frozen=True):
    """What the holder of an invite's key may do; signed by the swarm's key."""

    swarm_id: Digest
    invite_key: PublicKeyBytes
    role: Role
    uses: Annotated[int, Meta(ge=1, le=limits.INVITE_USES_MAX)]
    not_before: Count  # Unix seconds
    not_after: Count  # Unix seconds; certificates made until then count
    cert_days: Annotated[int, Meta(ge=1, le=limits.MEMBER_CERTIFICATE_DAYS_MAX)]


class MemberCertificate(msgspec.Struct, frozen=True):
    """That a peer is a member; signed by the key of an invite, or of the swarm."""

    swarm_id: Digest
    peer: PeerIdBytes
    role: Role
    joined_at: Count  # Unix seconds of the first certificate; a renewal keeps it
    not_before: Count  # Unix seconds
    not_after: Count  # Unix seconds


class MemberChain(msgspec.Struct, frozen=True):
    """All that is needed to verify a member offline, given the swarm's public key."""

    member: Signed
    invite: Signed | None = None  # None: the swarm's key itself signed the member


class Revocations(msgspec.Struct, frozen=True):
    """The invites that count no more; signed by the swarm's key, the newest list replaces all."""

    swarm_id: Digest
    sequence: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    revoked: Annotated[tuple[InviteId, ...], Meta(max_length=limits.REVOCATIONS_MAX)]


class Credentials(msgspec.Struct, frozen=True):
    """What one side shows the other: itself, the newest revocations, members it knows."""

    chain: MemberChain | None
    revocations: Signed | None = None
    heard: Annotated[tuple[MemberChain, ...], Meta(max_length=limits.CREDENTIALS_HEARD_MAX)] = ()
