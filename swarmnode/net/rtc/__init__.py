"""WebRTC data channels over ICE, by aiortc, as channels: ``engine`` has them to offer.

Nothing outside this package imports asyncio, aiortc or aioice; within it only ``link`` and
``guards`` import the latter two, and nothing does before the first offer.
"""
