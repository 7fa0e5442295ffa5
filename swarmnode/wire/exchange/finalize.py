"""Messages of a merge of all members' models: ``proto/finalize.md`` says when each is sent.

All but the answers are requests to ``finalize/1``; the means in between are runs of ``group.md``.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, Digest, PeerIdBytes, Weight

FinalizeId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Rule = Literal["mean", "tokens", "variance-corrected", "rda"]
Attempt = Annotated[int, Meta(ge=0, lt=limits.FINALIZE_ATTEMPTS_MAX)]


class FinalizeRequest(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every request; ``fid`` was drawn by the caller."""

    fid: FinalizeId


class Prepare(FinalizeRequest, frozen=True, tag="prepare"):
    """Take your model as it is now, for a merge by this rule. Answer: :class:`Prepared`."""

    rule: Rule


class Participant(msgspec.Struct, frozen=True):
    """Who takes part, and its weight in the mean."""

    peer: PeerIdBytes
    weight: Weight


class Merge(FinalizeRequest, frozen=True, tag="merge"):
    """Average with these, in ascending order of their ids. Answer: :class:`Merged`."""

    attempt: Attempt
    participants: Annotated[
        tuple[Participant, ...], Meta(min_length=1, max_length=limits.FINALIZE_MEMBERS_MAX)
    ]


class Done(FinalizeRequest, frozen=True, tag="done"):
    """It is over: forget it. The answer is empty."""


class Prepared(msgspec.Struct, frozen=True):
    """It is taken: ``numel`` numbers, of the model at ``step``."""

    numel: Count
    step: Count
    tokens: Count


class Merged(msgspec.Struct, frozen=True):
    """What came of it here.

    Attributes:
        digest: SHA-256 of the merged parameters, little-endian float32.
        contributors: whose models are in it, as far as this member knows.
        loss, own_loss: of the merged model and of the member's own on the task's probe.
    """

    digest: Digest
    contributors: Count
    loss: float
    own_loss: float


Message = Prepare | Merge | Done
