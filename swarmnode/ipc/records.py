"""What the control messages of ``ipc/control.py`` are made of."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Count, PeerIdBytes, ShortText

BaseVersion = Annotated[bytes, Meta(max_length=32)]
LogDigest = Annotated[bytes, Meta(max_length=32)]  # of a round of the log; empty: not known
NotNegative = Annotated[float, Meta(ge=0)]


class Message(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every control message."""


class ViewShape(msgspec.Struct, frozen=True):
    """One vector of a payload: [numel] numbers, written by ``codec``; empty: the swarm's.

    ``is_scaled``: values are of the size of weights, and a payload is refused where they are not.
    """

    name: ShortText
    codec: Annotated[str, Meta(max_length=16)]
    numel: Count
    is_scaled: bool = True
    value_bytes: Literal[4, 8] = 4  # of each number


class Partner(msgspec.Struct, frozen=True):
    """What the other node of a pair said of itself when it offered or accepted."""

    peer: PeerIdBytes
    step: Count
    tokens: Count
    weight: float = 1.0
    base_version: BaseVersion = b""


class LogRecord(msgspec.Struct, frozen=True):
    """What ``author`` published; ``round`` is that of its intent."""

    author: PeerIdBytes
    payload: Annotated[bytes, Meta(max_length=limits.LOG_RECORD_BYTES_MAX)]
    round: Count


class Records(Message, frozen=True, tag="records"):
    """A round of the log has closed with these records; rounds come in order."""

    round: Count
    records: tuple[LogRecord, ...]
    digest: LogDigest = b""
