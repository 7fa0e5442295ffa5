"""A process that answers one offer, then reads nothing until it is killed."""

from __future__ import annotations

import sys

import trio

from swarmnode.net.rtc.engine import open_rtc
from tests.process.net.rtc_kit import loopback


async def main() -> None:
    """Read the offer from stdin, write the answer to stdout: a line of hex each."""
    offer = bytes.fromhex(sys.stdin.readline())
    async with open_rtc(loopback) as engine, await engine.answer(offer) as answer:
        sys.stdout.write(answer.description.hex() + "\n")
        sys.stdout.flush()
        await answer.connect()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
