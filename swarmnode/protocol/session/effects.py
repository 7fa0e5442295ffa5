"""What a session core tells its shell."""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.errors import SwarmNodeError
from swarmnode.protocol.session.stream import StreamState
from swarmnode.wire.session import GoodbyeCode


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream."""

    stream: StreamState


@dataclass(frozen=True, slots=True)
class Changed:
    """Something that a task may wait for happened to this stream: look again."""

    stream: StreamState


@dataclass(frozen=True, slots=True)
class Removed:
    """Both directions of this stream are over; its id is never used again."""

    stream: StreamState


@dataclass(frozen=True, slots=True)
class Ended:
    """The session is over; ``goodbye`` is what to tell the peer, if it may still listen."""

    cause: SwarmNodeError
    goodbye: tuple[GoodbyeCode, str] | None


Effect = Opened | Changed | Removed | Ended
