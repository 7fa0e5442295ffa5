"""Pairs of data channels on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarmnode.net.rtc.channel import RtcChannel
from swarmnode.net.rtc.engine import RtcEngine, open_rtc


def loopback() -> tuple[str, ...]:
    """Give the only address that a test needs."""
    return ("127.0.0.1",)


async def connect(offerer: RtcEngine, answerer: RtcEngine) -> tuple[RtcChannel, RtcChannel]:
    """Return both ends of a new channel."""
    ends: dict[str, RtcChannel] = {}
    async with await offerer.offer() as offer, await answerer.answer(offer.description) as answer:

        async def finish_offer() -> None:
            ends["near"] = await offer.connect(answer.description)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish_offer)
            ends["far"] = await answer.connect()
    return ends["near"], ends["far"]


@asynccontextmanager
async def rtc_pair() -> AsyncIterator[tuple[RtcChannel, RtcChannel]]:
    """Give both ends of a channel between two engines; close all afterwards."""
    async with open_rtc(loopback) as one, open_rtc(loopback) as other:
        yield await connect(one, other)
