"""Messages of a pull: one node reads what another gives to its callers. See ``proto/pull.md``.

What is given follows the header GIVEN as raw codec bytes; both sides know how long it is.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode.wire.exchange.gossip import BaseVersion
from swarmnode.wire.records import Count, Digest, Name, ShortText, Weight

NumelCount = Annotated[int, Meta(ge=1, le=2**40)]


class PullMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of a pull."""


class Pull(PullMessage, frozen=True, tag="pull"):
    """Give me what you have of this; the rest is what I say of myself, now.

    ``key`` as in ``wire.gossip.Offer``; ``numel``: elements of all views together.
    """

    key: Digest
    tag: Name
    fragment: Count
    round: Count
    numel: NumelCount
    step: Count
    tokens: Count
    weight: Weight = 1.0
    base_version: BaseVersion = b""


class Given(PullMessage, frozen=True, tag="given"):
    """Here it is, as of this step of mine; the payload follows."""

    step: Count
    tokens: Count
    weight: Weight = 1.0
    base_version: BaseVersion = b""


class Declined(PullMessage, frozen=True, tag="declined"):
    """No; ``reason`` begins with a code of ``wire.gossip``."""

    reason: ShortText


Message = Pull | Given | Declined
