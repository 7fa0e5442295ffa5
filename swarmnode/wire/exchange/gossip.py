"""Messages of one pair exchange: ``proto/gossip.md`` says when each is sent.

Every message names its exchange by a 16-byte id that the initiator drew. The
payload of a chunk follows its header as raw codec bytes, outside msgpack: both
sides know the layout, so its length is known without being sent.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, Digest, ExchangeId, Name, ShortText, Weight

ChunkCount = Annotated[int, Meta(ge=1, le=limits.EXCHANGE_CHUNKS_MAX)]
ChunkIndex = Annotated[int, Meta(ge=0, lt=limits.EXCHANGE_CHUNKS_MAX)]
BaseVersion = Annotated[bytes, Meta(max_length=32)]
# 0: of a node of an older version, which knows no such limit.
DecisionSeconds = Annotated[float, Meta(ge=0.0, le=limits.EXCHANGE_DECISION_S_MAX)]
StatusOutcome = Literal["committed", "aborted", "pending", "unknown"]

# A reason is "code" or "code: what exactly"; statistics count by code, so the set is closed.
REASON_CODES = frozenset(
    {
        "busy",  # in another exchange
        "no-wish",  # no such intent here now
        "incompatible",  # other strategy, version, settings, layout, codec or chunk count
        "base",  # differences to another base version
        "round",  # too many rounds apart
        "timeout",  # an answer or a transfer took too long
        "unreachable",  # the session is gone or could not be opened
        "yielded",  # offers crossed and the smaller peer id's won
        "local",  # bad payload, non-finite values, the worker went away
        "in-doubt",  # the initiator's decision could not be learned
        "other",
    }
)


class GossipMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of an exchange."""

    xid: ExchangeId


class Offer(GossipMessage, frozen=True, tag="offer"):
    """I to R: exchange this snapshot with me.

    ``key`` digests everything that must be equal for the two payloads to be merged:
    strategy name, version and settings, layout hash and codec.
    """

    key: Digest
    tag: Name
    fragment: Count
    round: Count
    n_chunks: ChunkCount
    step: Count  # local steps and tokens behind what is offered, when the intent was posted
    tokens: Count
    weight: Weight = 1.0  # of I in a weighted mean
    base_version: BaseVersion = b""  # what the payload is a difference to; equal on both sides


class Accept(GossipMessage, frozen=True, tag="accept"):
    """R to I: yes; both start to stream. The rest is as in the offer, of R."""

    round: Count
    step: Count
    tokens: Count
    weight: Weight = 1.0


class Busy(GossipMessage, frozen=True, tag="busy"):
    """R to I: no, ask the next one."""

    reason: ShortText


class Chunk(GossipMessage, frozen=True, tag="chunk"):
    """Header of one chunk; its payload follows on the stream."""

    index: ChunkIndex


class Ready(GossipMessage, frozen=True, tag="ready", omit_defaults=True):
    """R to I: all ``n_chunks`` of yours are merged and all of mine are sent.

    Decide within ``decide_s``.
    """

    n_chunks: ChunkCount
    decide_s: DecisionSeconds = 0.0


class Commit(GossipMessage, frozen=True, tag="commit"):
    """I to R: it counts. Apply it."""


class Abort(GossipMessage, frozen=True, tag="abort"):
    """Either way: it does not count. R never sends this between READY and the in-doubt bound."""

    reason: ShortText


class StatusQuery(GossipMessage, frozen=True, tag="status-query", omit_defaults=True):
    """R to I: I am ready; what did you decide? The question has a ``number``, from 1 on."""

    number: Count = 0
    decide_s: DecisionSeconds = 0.0  # as in READY, which may have been lost


class StatusReply(GossipMessage, frozen=True, tag="status-reply", omit_defaults=True):
    """I to R: what became of it; ``unknown`` means that I kept no trace."""

    outcome: StatusOutcome
    number: Count = 0  # of the question; 0: of none


Message = Offer | Accept | Busy | Chunk | Ready | Commit | Abort | StatusQuery | StatusReply


def reason_code(reason: str) -> str:
    """Return the part before the colon if it is one of REASON_CODES, else ``other``."""
    code = reason.partition(":")[0].strip()
    return code if code in REASON_CODES else "other"
