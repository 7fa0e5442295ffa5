"""WebRTC for a node that may never need it: the engine is loaded with the first offer or answer.

Most nodes reach every peer by TCP. They are spared asyncio, the engine and its channels, as
``engine`` itself spares aiortc to a node that has made no offer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarmnode.net.rtc.engine import PendingAnswer, PendingOffer, RtcEngine


class RtcOnDemand:
    """The offers and answers of a node. Made by :func:`open_rtc_on_demand` only."""

    def __init__(self) -> None:
        self._engine: RtcEngine | None = None

    async def offer(self, stun_servers: Sequence[str] = ()) -> PendingOffer:
        """Make an offer; arguments and errors are those of :meth:`RtcEngine.offer`."""
        return await self._loaded().offer(stun_servers)

    async def answer(self, offer: bytes, stun_servers: Sequence[str] = ()) -> PendingAnswer:
        """Take in an offer; arguments and errors are those of :meth:`RtcEngine.answer`."""
        return await self._loaded().answer(offer, stun_servers)

    async def stop(self) -> None:
        """Close every connection; nothing is to be done where none was begun."""
        if self._engine is not None:
            await self._engine.stop()

    def _loaded(self) -> RtcEngine:
        if self._engine is None:
            from swarmnode.net.rtc.engine import RtcEngine, local_hosts  # asyncio, see the module

            self._engine = RtcEngine(local_hosts)
        return self._engine


@asynccontextmanager
async def open_rtc_on_demand() -> AsyncIterator[RtcOnDemand]:
    """Give what makes offers and answers; on leaving, every connection of it is closed."""
    rtc = RtcOnDemand()
    try:
        yield rtc
    finally:
        await rtc.stop()
