"""Messages of a gathering: ``proto/gather.md`` says when each is sent.

A member signs what it brings to a run, as the body of a :class:`~swarmnode.wire.swarm.Signed`; the
bytes themselves are asked for by their SHA-256, of any member that has them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.exchange.group import GroupId
from swarmnode.wire.records import Digest
from swarmnode.wire.swarm import Signed

MessageBytes = Annotated[int, Meta(ge=1, le=limits.GATHER_MESSAGE_BYTES_MAX)]


class Announcement(msgspec.Struct, frozen=True):
    """What a member signs: to the run ``gid`` it brings the bytes with this SHA-256."""

    gid: GroupId
    digest: Digest
    size_bytes: MessageBytes


class GatherShare(msgspec.Struct, frozen=True):
    """What one member gives to the maker of the set of a run."""

    announcement: Signed


class GatherSet(msgspec.Struct, frozen=True):
    """The messages that count in the run ``gid``, in ascending order of their authors."""

    gid: GroupId
    entries: Annotated[tuple[Signed, ...], Meta(max_length=limits.GATHER_MEMBERS_MAX)]


class GatherMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of what members say to each other beside the run."""


class Have(GatherMessage, frozen=True, tag="have"):
    """I hold these messages of the run whole: ask me for them.

    ``announcement``: of my own one, the first time that I say so.
    """

    gid: GroupId
    digests: Annotated[tuple[Digest, ...], Meta(max_length=2 * limits.GATHER_MEMBERS_MAX)]
    announcement: Signed | None = None


class Fetch(GatherMessage, frozen=True, tag="fetch"):
    """Give me this message of the run."""

    gid: GroupId
    digest: Digest


class GatherGiven(GatherMessage, frozen=True, tag="given"):
    """The message follows, ``size_bytes`` of it."""

    size_bytes: MessageBytes


class NotGiven(GatherMessage, frozen=True, tag="not-given"):
    """It is not here, or not for you, or not now. ``is_busy``: ask again."""

    is_busy: bool


Message = Have | Fetch | GatherGiven | NotGiven
