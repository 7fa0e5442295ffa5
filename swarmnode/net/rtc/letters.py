"""What the Trio side and the asyncio side of WebRTC write to each other.

Plain data with the number of a connection: no object of one side is ever touched by the
other, so the asyncio side could be another process.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.wire.connect.nat import RtcDescription


@dataclass(frozen=True, slots=True)
class Gather:
    """Find our own candidates. ``servers`` are (IPv4 address, UDP port) of peers with STUN."""

    link: int
    hosts: tuple[str, ...]
    servers: tuple[tuple[str, int], ...]
    is_offerer: bool


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the channel with the author of this description; its candidates were chosen."""

    link: int
    remote: RtcDescription


@dataclass(frozen=True, slots=True)
class Send:
    """Send a binary message."""

    link: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """Send a credit."""

    link: int
    total: int


@dataclass(frozen=True, slots=True)
class Close:
    """Send what is queued, then let go of it."""

    link: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Close every connection and end."""


Command = Gather | Connect | Send | Grant | Close | Stop


@dataclass(frozen=True, slots=True)
class Gathered:
    """Our side of the description."""

    link: int
    local: RtcDescription


@dataclass(frozen=True, slots=True)
class Opened:
    """The channel is open with this address (host, port) of the other side."""

    link: int
    remote: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Received:
    """A binary message came."""

    link: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Credited:
    """The other side read so much of what we sent; it was checked."""

    link: int
    total: int


@dataclass(frozen=True, slots=True)
class Drained:
    """Of all bytes that we were told to send, so many have left the queue."""

    link: int
    total: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The other side closed the channel; nothing comes after what came."""

    link: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The connection is broken, or never came about."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Its sockets are closed."""

    link: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The asyncio side is over; ``reason`` is empty if it was told to stop."""

    reason: str


Event = Gathered | Opened | Received | Credited | Drained | Ended | Failed | Gone | Stopped
