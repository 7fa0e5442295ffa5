"""Messages of a group mean: ``proto/group.md`` says when each is sent.

Every message names its run by 16 bytes that follow from what is averaged (the round, the
compatibility key). The payloads of shares and sums follow their headers as raw codec bytes; both
sides know how long they are.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, Digest, PeerIdBytes, ShortText, Weight

GroupId = Annotated[bytes, Meta(min_length=16, max_length=16)]
PlanId = Annotated[bytes, Meta(min_length=16, max_length=16)]
# A plan has no more pieces than contributors.
Piece = Annotated[int, Meta(ge=0, lt=limits.GROUP_MEMBERS_MAX)]
Pieces = Annotated[tuple[Piece, ...], Meta(max_length=limits.GROUP_MEMBERS_MAX)]
Members = Annotated[tuple[PeerIdBytes, ...], Meta(max_length=limits.GROUP_MEMBERS_MAX)]
_CANDIDATES_MAX = 2  # of a merge rule: the clipped mean, the trimmed mean of neighbourhoods
# The largest ratio of two tokens counts that makes sense, well inside float32.


class GroupMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of a group mean."""

    gid: GroupId


class Enlist(GroupMessage, frozen=True, tag="enlist", omit_defaults=True):
    """I take part. ``wants_answer``: and do not know whether you do.

    ``lineage``: the means behind what is averaged; None: it has no lineage. ``attempt``: the number
    in the run's name, then.
    """

    wants_answer: bool
    lineage: Count | None = None
    attempt: Count = 0


class Flush(GroupMessage, frozen=True, tag="flush"):
    """From now on my view is ``view``; I take in nothing until all of it have said the same.

    ``prepared``: the contributors whose mean I hold whole; empty: none. ``wants_answer``: I
    have not had yours for this view.
    """

    view: Members
    prepared: Members
    wants_answer: bool = False


class Want(GroupMessage, frozen=True, tag="want"):
    """Send me your shares of these pieces, and the sums of those that you have under ``plan``."""

    plan: PlanId
    shares: Pieces
    sums: Pieces


class Share(GroupMessage, frozen=True, tag="share", omit_defaults=True):
    """Header of what the sender contributes to one piece of ``plan``; the payload follows."""

    piece: Piece
    weight: Weight
    plan: Annotated[bytes, Meta(max_length=16)] = b""


class Sum(GroupMessage, frozen=True, tag="sum"):
    """Header of the mean of one piece over the contributors of ``plan``; the payload follows."""

    plan: PlanId
    piece: Piece


class Prepared(GroupMessage, frozen=True, tag="prepared", omit_defaults=True):
    """I hold the whole mean of ``plan``; ``result`` is its SHA-256.

    ``witness``: by which hashes the piece may go whose witness I am; empty: of none.
    """

    plan: PlanId
    result: Digest
    witness: Annotated[tuple[Digest, ...], Meta(max_length=_CANDIDATES_MAX)] = ()


class Finished(GroupMessage, frozen=True, tag="finished"):
    """It counts here: all who were in the view had prepared this."""

    plan: PlanId
    result: Digest


class Leave(GroupMessage, frozen=True, tag="leave"):
    """I work with you on this no longer, because I gave it up or took you for lost."""

    reason: ShortText


Message = Enlist | Flush | Want | Share | Sum | Prepared | Finished | Leave
