"""Records of the log: what members agree on in each round, and how one catches up.

``proto/log.md`` says what they mean. A round's bytes are what all members hold, and what is hashed:
they are passed on as they are, never encoded again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, Digest, PeerIdBytes

RecordPayload = Annotated[bytes, Meta(max_length=limits.LOG_RECORD_BYTES_MAX)]
RoundBytes = Annotated[bytes, Meta(max_length=limits.LOG_ROUND_BYTES_MAX)]
KnownDigest = Annotated[bytes, Meta(max_length=32)]  # empty: not known


class LogEntry(msgspec.Struct, frozen=True):
    """What ``author`` published; ``round`` is the one that its intent named."""

    author: PeerIdBytes
    round: Count
    payload: RecordPayload


class LogRound(msgspec.Struct, frozen=True):
    """Round ``number``: who took part, and what they published, both in ascending order of ids.

    ``before``: the digest of the round before; zeros in the first of all.
    """

    number: Count
    before: Digest
    members: Annotated[tuple[PeerIdBytes, ...], Meta(max_length=limits.LOG_MEMBERS_MAX)]
    entries: Annotated[tuple[LogEntry, ...], Meta(max_length=limits.LOG_MEMBERS_MAX)]


class LogShare(msgspec.Struct, frozen=True):
    """What one member brings to a run: at most one record, and what it is bound to.

    ``bound``: the bytes of the round as this member had prepared them in an earlier run, number
    ``bound_attempt``, without learning whether they counted; empty: none.
    """

    record: RecordPayload | None
    round: Count
    bound_attempt: Count = 0
    bound: RoundBytes = b""


class LogAsk(msgspec.Struct, frozen=True):
    """Where are you in the log? And give me up to ``rounds_max`` rounds from ``first`` on."""

    first: Count
    rounds_max: Annotated[int, Meta(ge=0, le=limits.LOG_ROUNDS_GIVEN_MAX)]


class LogGive(msgspec.Struct, frozen=True):
    """The answer: the next round here is ``next``, at run ``attempt`` of it.

    ``before``: the digest of the round before the ``first`` that was asked for; ``head``: of the
    last one closed here; empty: not known, as in a node that has just started.
    """

    next: Count
    attempt: Count
    before: KnownDigest
    head: KnownDigest
    rounds: Annotated[tuple[RoundBytes, ...], Meta(max_length=limits.LOG_ROUNDS_GIVEN_MAX)] = ()
