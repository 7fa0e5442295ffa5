"""WebRTC data channels over ICE, by aiortc, as channels.

Nothing outside this package imports asyncio, aiortc or aioice; within it only ``hub``,
``link`` and ``guards`` import the latter two, and nothing does before the first offer.
"""

from __future__ import annotations

from swarmnode.net.rtc.channel import RtcChannel
from swarmnode.net.rtc.engine import (
    PendingAnswer,
    PendingOffer,
    RtcEngine,
    RtcStatistics,
    local_hosts,
    open_rtc,
)

__all__ = [
    "PendingAnswer",
    "PendingOffer",
    "RtcChannel",
    "RtcEngine",
    "RtcStatistics",
    "local_hosts",
    "open_rtc",
]
