"""Opening channels: few at once, not in step, and counted by the kind of way."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.transport.channels import Ways
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, DialFailed, SwarmNodeError
from swarmnode.net.channel import Channel, Transport
from swarmnode.testing.memory_network import MemoryChannel, MemoryNetwork

RELAYED = "relay:sn1r@mem:r/sn1t"


class Dialled:
    """A transport that takes so long, and notes when it was asked and how many were at once."""

    def __init__(self, lasts_s: float = 1.0) -> None:
        self.lasts_s = lasts_s
        self.began_at: list[float] = []
        self.now = self.most = 0
        self.links = MemoryNetwork()

    async def dial(self, address: str) -> MemoryChannel:
        self.began_at.append(trio.current_time())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await trio.sleep(self.lasts_s)
        finally:
            self.now -= 1
        if address == "mem:nobody":
            raise DialFailed(f"{address}: nobody", address=address)
        return self.links.link("a", "b")[0]


def ways_over(dialled: Dialled) -> Ways:
    env = Env(trio.current_time, trio.current_time, random.Random(1))
    return Ways(cast("Transport", dialled), env)


async def test_so_many_are_dialled_at_once_and_not_in_step(autojump_clock: MockClock) -> None:
    dialled = Dialled(lasts_s=1.0)
    ways = ways_over(dialled)
    async with trio.open_nursery() as nursery:
        for _ in range(3 * limits.DIALS_CONCURRENT_MAX):
            nursery.start_soon(ways.open, "mem:b")
    assert dialled.most == limits.DIALS_CONCURRENT_MAX
    first = dialled.began_at[: limits.DIALS_CONCURRENT_MAX]
    assert len(set(first)) == len(first), "no two packets leave at the same moment"
    assert max(first) - min(first) <= limits.DIAL_JITTER_S
    assert ways.tried == {("direct", "ok"): 3 * limits.DIALS_CONCURRENT_MAX}


async def test_who_dials_alone_does_not_wait(autojump_clock: MockClock) -> None:
    dialled = Dialled(lasts_s=0.5)
    ways = ways_over(dialled)
    for _ in range(3):
        await ways.open("mem:b")
    assert dialled.began_at == [0.0, 0.5, 1.0]


async def test_a_peer_that_has_lost_a_channel_does_not_wait_for_those_that_want_more(
    autojump_clock: MockClock,
) -> None:
    dialled = Dialled(lasts_s=5.0)
    ways = ways_over(dialled)
    async with trio.open_nursery() as nursery:
        for _ in range(2 * limits.DIALS_CONCURRENT_MAX):
            nursery.start_soon(ways.open, "mem:b")
        await trio.sleep(limits.DIAL_JITTER_S)
        n_before = len(dialled.began_at)
        for _ in range(limits.SEARCH_DIALS_CONCURRENT_MAX):
            nursery.start_soon(ways.open_again, "mem:b")
        await trio.sleep(2 * limits.DIAL_JITTER_S)
        assert len(dialled.began_at) - n_before == limits.SEARCH_DIALS_CONCURRENT_MAX


async def test_silence_ends_and_gives_its_place_to_the_next(autojump_clock: MockClock) -> None:
    dialled = Dialled(lasts_s=1e9)
    ways = ways_over(dialled)
    ended: list[SwarmNodeError] = []

    async def fail() -> None:
        with pytest.raises(DeadlineExceeded, match="connecting to mem:b") as caught:
            await ways.open("mem:b")
        ended.append(caught.value)

    async with trio.open_nursery() as nursery:
        for _ in range(2 * limits.DIALS_CONCURRENT_MAX):
            nursery.start_soon(fail)
    assert len(ended) == 2 * limits.DIALS_CONCURRENT_MAX
    assert trio.current_time() <= 2 * (limits.DIAL_DEADLINE_S + limits.DIAL_JITTER_S)
    assert ways.tried == {("direct", "failed"): len(ended)}


async def test_a_third_host_is_dialled_less_than_once_a_second_by_all_callers(
    autojump_clock: MockClock,
) -> None:
    """Lookups, lost sessions and the failure detector dial as well as the contact book."""
    dialled = Dialled(lasts_s=0.1)
    ways = ways_over(dialled)

    async def dial(number: int) -> None:
        while True:
            with suppress(SwarmNodeError):
                address = f"203.0.113.9:{7000 + number}"
                await (
                    ways.open_again(address, is_home=False) if number % 2 else ways.open(address)
                )
            await trio.sleep(0.2)

    with trio.move_on_after(120):
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(dial, number)
    assert 60 < len(dialled.began_at) <= 120


async def test_a_host_whose_nodes_answer_is_dialled_as_often_as_is_wanted(
    autojump_clock: MockClock,
) -> None:
    dialled = Dialled(lasts_s=0.1)
    ways = ways_over(dialled)
    for number in range(30):
        address = f"203.0.113.9:{7000 + number}"
        await ways.open(address)
        ways.proven(address)
    assert trio.current_time() == pytest.approx(3.0)
    for _ in range(10):
        await ways.open_again("203.0.113.9:7000")
    assert trio.current_time() == pytest.approx(4.0), "there was a session: it is sought at once"


async def test_a_relayed_way_takes_no_place_of_its_own(autojump_clock: MockClock) -> None:
    """It is built of connections that each take one: one more could wait for itself."""
    dialled = Dialled(lasts_s=1.0)
    ways = ways_over(dialled)

    async def through_relay(address: str) -> Channel:
        assert address == RELAYED
        return await ways.open("mem:r")

    ways.dial_relayed = through_relay
    async with trio.open_nursery() as nursery:
        for _ in range(2 * limits.DIALS_CONCURRENT_MAX):
            nursery.start_soon(ways.open, RELAYED)
    n = 2 * limits.DIALS_CONCURRENT_MAX
    assert ways.tried == {("relay", "ok"): n, ("direct", "ok"): n}


async def test_without_relays_a_relayed_address_is_refused_at_once(
    autojump_clock: MockClock,
) -> None:
    dialled = Dialled()
    ways = ways_over(dialled)
    with pytest.raises(DialFailed, match="this node uses no relays") as caught:
        await ways.open(RELAYED)
    assert caught.value.address == RELAYED
    assert dialled.began_at == []
    assert ways.tried == {("relay", "failed"): 1}


async def test_failures_are_counted_as_such(autojump_clock: MockClock) -> None:
    ways = ways_over(Dialled())
    with pytest.raises(DialFailed, match="nobody"):
        await ways.open("mem:nobody")
    assert ways.tried == {("direct", "failed"): 1}
