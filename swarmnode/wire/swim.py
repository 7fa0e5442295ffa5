"""Messages of failure detection: ``proto/swim.md`` says when each is sent.

The sender of a message is the peer of its session, never a field. News about
members rides on every message as a few claims.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, PeerIdBytes, PublicKeyBytes, SignatureBytes

Doubt = Literal["none", "suspect", "dead"]
LeaveReason = Annotated[str, Meta(min_length=1, max_length=64)]
ViewDigest = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member at one version, signed by itself, and what others hold against it.

    ``signature`` covers network, epoch, incarnation and ``left``: only its owner raises a
    version. ``doubt`` and ``by`` (members that could not reach it) are hearsay.
    """

    key: PublicKeyBytes
    epoch: Count
    incarnation: Count
    signature: SignatureBytes
    left: LeaveReason | None = None  # why it left in this epoch; then nothing follows but an epoch
    doubt: Doubt = "none"
    by: Annotated[tuple[PeerIdBytes, ...], Meta(max_length=limits.SWIM_ACCUSERS_MAX)] = ()


News = Annotated[tuple[Claim, ...], Meta(max_length=limits.SWIM_NEWS_MAX)]


class SwimMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of failure detection."""


class Ping(SwimMessage, frozen=True, tag="ping"):
    """Are you there? The first claim is the sender's own."""

    seq: Count
    news: News


class Ack(SwimMessage, frozen=True, tag="ack"):
    """Yes; or, to a ping request: it is."""

    seq: Count
    news: News


class PingRequest(SwimMessage, frozen=True, tag="ping-request"):
    """Ping ``target`` for me: answer with an ack if it does, with a nack if not in time."""

    seq: Count
    target: PeerIdBytes
    news: News


class Nack(SwimMessage, frozen=True, tag="nack"):
    """I am here, but the target of your request did not answer me so far."""

    seq: Count


class Sync(SwimMessage, frozen=True, tag="sync", omit_defaults=True):
    """What the sender knows: a page of claims, or at first only a digest of who is live.

    ``wants_reply``: send a page in return. With a ``digest``: only if yours is another.
    """

    wants_reply: bool
    claims: Annotated[tuple[Claim, ...], Meta(max_length=limits.SWIM_SYNC_CLAIMS_MAX)]
    digest: ViewDigest | None = None


Message = Ping | Ack | PingRequest | Nack | Sync
