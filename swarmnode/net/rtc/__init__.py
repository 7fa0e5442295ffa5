"""WebRTC data channels over ICE, by aiortc: ``engine`` has them.

Nothing outside this package imports asyncio, aiortc or aioice; within it only ``link`` and
``guards`` import the latter two, and nothing does before the first offer.
"""
