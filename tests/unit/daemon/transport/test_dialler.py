"""The race of a peer's addresses: when each is dialled, which wins, what becomes of the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, DialFailed, SwarmNodeError
from swarmnode.net.channel import Channel
from swarmnode.net.relays.address import RelayAddress
from swarmnode.testing.memory_network import MemoryChannel
from tests.kits.party_kit import Party, parties

Act = Callable[[], Awaitable[MemoryChannel]]
JITTER = limits.DIAL_JITTER_S


class Race:
    """Dials of one node, scripted by address.

    Attributes:
        dialled: (address, when), in order.
        open: channels that came about.
    """

    def __init__(self, own: Party, peer: Party, other: Party) -> None:
        self.own, self.peer, self.other = own, peer, other
        self.dialled: list[tuple[str, float]] = []
        self.open: list[MemoryChannel] = []
        self._acts: dict[str, Act] = {}
        self._dial = own.transport.dial
        own.transport.dial = self.dial  # type: ignore[method-assign]
        own.network.ways.dial_relayed = self.dial_relayed

    async def dial(self, address: str) -> MemoryChannel:
        self.dialled.append((address, trio.current_time()))
        channel = await self._acts[address]()
        self.open.append(channel)
        return channel

    async def dial_relayed(self, address: str) -> Channel:
        return await self.dial(address)

    def leads(self, address: str, to: Party, *, after_s: float = 0.0) -> str:
        async def act() -> MemoryChannel:
            await trio.sleep(after_s)
            return await self._dial(to.address)

        self._acts[address] = act
        return address

    def is_dead(self, address: str, *, after_s: float = 0.0) -> str:
        async def act() -> MemoryChannel:
            await trio.sleep(after_s)
            raise DialFailed(f"{address}: refused", address=address)

        self._acts[address] = act
        return address

    def is_silent(self, address: str) -> str:
        async def act() -> MemoryChannel:
            await trio.sleep_forever()
            raise AssertionError

        self._acts[address] = act
        return address

    def relayed(self, number: int) -> str:
        return str(RelayAddress(self.other.peer, f"mem:relay{number}", self.peer.peer))

    async def run(self, *addresses: str) -> None:
        session = await self.own.network.connect(self.peer.peer, addresses)
        assert session.peer == self.peer.peer
        assert self.own.session(self.peer) is session

    def times(self, *addresses: str) -> list[float]:
        """Return when each was dialled; every one of them was, in this order."""
        assert [address for address, _ in self.dialled] == list(addresses)
        return [at for _, at in self.dialled]


@asynccontextmanager
async def race() -> AsyncIterator[Race]:
    async with parties("a", "b", "c") as (a, b, c):
        yield Race(a, b, c)


def about(*times: float) -> list[object]:
    """Match times to which the jitter of dials that run beside others was added."""
    return [pytest.approx(each + JITTER / 2, abs=JITTER / 2 + 0.001) for each in times]


# --- head starts --------------------------------------------------------------------------------


async def test_each_address_has_a_head_start_and_relays_come_last(
    autojump_clock: MockClock,
) -> None:
    async with race() as r:
        direct = [r.is_silent(f"mem:{name}") for name in ("x", "y", "z")]
        relays = [r.relayed(0), r.relayed(1)]
        for relay in relays:
            r.is_silent(relay)
        with trio.move_on_after(3):
            await r.run(relays[0], *direct, relays[1])
        head, step = limits.RELAY_HEAD_START_S, limits.DIAL_STAGGER_S
        # What comes first is what comes first in the list of its kind.
        assert dict(r.dialled).keys() == {*direct, *relays}
        at = dict(r.dialled)
        assert [at[each] for each in direct] == about(0, step, 2 * step)
        assert [at[each] for each in relays] == [head, head + step]


async def test_a_quick_direct_way_leaves_relays_alone(autojump_clock: MockClock) -> None:
    async with race() as r:
        direct = r.leads("mem:x", r.peer, after_s=limits.RELAY_HEAD_START_S / 2)
        relay = r.leads(r.relayed(0), r.peer)
        await r.run(relay, direct)
        await trio.sleep(5)
        assert r.times("mem:x") == [0.0]
        assert r.own.network.ways.tried == {("direct", "ok"): 1}


async def test_without_direct_addresses_no_relay_waits(autojump_clock: MockClock) -> None:
    async with race() as r:
        relay = r.leads(r.relayed(0), r.peer)
        await r.run(relay)
        assert r.times(relay) == [0.0]


async def test_who_fails_lets_the_next_begin_at_once(autojump_clock: MockClock) -> None:
    async with race() as r:
        first = r.is_dead("mem:x", after_s=0.01)
        second = r.is_dead("mem:y", after_s=0.01)
        relay = r.leads(r.relayed(0), r.peer)
        await r.run(first, second, relay)
        assert r.times(first, second, relay) == pytest.approx([0.0, 0.01, 0.02])


async def test_a_relay_does_not_begin_early_while_a_direct_way_may_still_come(
    autojump_clock: MockClock,
) -> None:
    """The second has failed, the first has not: it keeps its head start."""
    async with race() as r:
        first = r.is_silent("mem:x")
        second = r.is_dead("mem:y")
        relay = r.leads(r.relayed(0), r.peer)
        await r.run(first, second, relay)
        assert dict(r.dialled)[relay] == pytest.approx(limits.RELAY_HEAD_START_S)


# --- which dial wins ----------------------------------------------------------------------------


async def test_the_first_that_proves_its_key_wins_and_the_rest_is_let_go(
    autojump_clock: MockClock,
) -> None:
    async with race() as r:
        slow = r.leads("mem:x", r.peer, after_s=1.0)
        quick = r.leads("mem:y", r.peer, after_s=0.1)
        relay = r.leads(r.relayed(0), r.peer, after_s=0.3)
        await r.run(slow, quick, relay)
        assert 0.3 < trio.current_time() < 0.6
        await trio.sleep(5)
        assert len(r.open) == 1, "dials under way are given up"
        assert len(r.peer.opened) == 1
        assert r.own.ended == []


async def test_a_relay_that_is_quicker_than_a_direct_way_wins(autojump_clock: MockClock) -> None:
    async with race() as r:
        direct = r.leads("mem:x", r.peer, after_s=4.0)
        relay = r.leads(r.relayed(0), r.peer)
        await r.run(direct, relay)
        assert trio.current_time() < 1.0
        assert r.own.network.ways.tried == {("relay", "ok"): 1}


async def test_of_two_that_connect_at_one_moment_one_stays(autojump_clock: MockClock) -> None:
    async with race() as r:
        first = r.leads("mem:x", r.peer, after_s=0.5)
        second = r.leads("mem:y", r.peer, after_s=0.25)  # begins 0.25 s later
        await r.run(first, second)
        await trio.sleep(5)
        assert len(r.peer.opened) == 1
        assert len([each for each in r.open if not each._is_closed]) == 1
        assert await r.own.is_heard_by(r.peer)


async def test_a_stranger_at_one_address_does_not_keep_the_peer_from_winning_at_another(
    autojump_clock: MockClock,
) -> None:
    """Whoever answers first with another key proves nothing, and is no reason to give up."""
    async with race() as r:
        wrong = r.leads("mem:x", r.other)
        right = r.leads("mem:y", r.peer, after_s=2.0)
        await r.run(wrong, right)
        assert r.own.network.dial_errors == {}
        assert r.own.session(r.other) is None


async def test_a_silent_stranger_does_not_keep_others_waiting_for_ever(
    autojump_clock: MockClock,
) -> None:
    async with race() as r, trio.open_nursery() as nursery:

        async def take_and_be_silent(_channel: Channel) -> None:
            await trio.sleep_forever()

        silent = r.own.links.transport("silent")
        await nursery.start(silent.serve, "mem:silent", take_and_be_silent)
        mute = Party(r.own.links, "silent")
        first, second = r.leads("mem:x", mute), r.leads("mem:y", r.peer, after_s=0.1)
        await r.run(first, second)
        assert trio.current_time() < 2 * limits.HANDSHAKE_S
        nursery.cancel_scope.cancel()


async def test_when_all_fail_the_last_word_is_said(autojump_clock: MockClock) -> None:
    async with race() as r:
        dead = r.is_dead("mem:x", after_s=0.2)
        wrong = r.leads("mem:y", r.other)
        relay = r.is_dead(r.relayed(0), after_s=1.0)
        with pytest.raises(DialFailed, match=r"relay0.*: refused"):
            await r.run(dead, wrong, relay)
        assert len(r.dialled) == 3
        assert r.own.session(r.peer) is None
        with pytest.raises(AuthenticationFailed, match="expected peer"):
            await r.run(dead, wrong)


async def test_after_a_race_is_lost_the_next_begins_anew(autojump_clock: MockClock) -> None:
    async with race() as r:
        address = r.is_dead("mem:x")
        for _ in range(2):
            with pytest.raises(SwarmNodeError):
                await r.run(address)
        r.leads(address, r.peer)
        await r.run(address)
        assert len(r.dialled) == 3
        assert r.own.network.dial_errors == {}


async def test_looking_whether_a_peer_answers_never_goes_through_a_relay(
    autojump_clock: MockClock,
) -> None:
    async with race() as r:
        await r.peer.connect(r.own)
        relay = r.leads(r.relayed(0), r.peer)
        with pytest.raises(DialFailed, match="no address"):
            await r.own.network.connect(r.peer.peer, (relay,), dial_anew=True)
        assert r.dialled == []


# --- news while it runs -------------------------------------------------------------------------


async def test_an_address_that_is_heard_of_meanwhile_takes_part(autojump_clock: MockClock) -> None:
    async with race() as r, trio.open_nursery() as nursery:
        silent = r.is_silent("mem:x")
        relay = r.leads(r.relayed(0), r.peer)
        nursery.start_soon(r.run, silent)
        await trio.sleep(2)
        r.own.network.may_be_at(r.peer.peer, (silent, relay))
        await trio.sleep(1)
        assert r.times(silent, relay)[1] == pytest.approx(2, abs=0.01)
        assert r.own.session(r.peer) is not None


async def test_news_of_a_peer_that_is_not_dialled_any_more_dials_none(
    autojump_clock: MockClock,
) -> None:
    async with race() as r:
        slow = r.is_silent("mem:x")
        await r.run(slow, r.leads("mem:y", r.peer))
        r.own.network.may_be_at(r.peer.peer, (r.is_dead("mem:z"),))
        with pytest.raises(SwarmNodeError):
            await r.own.network.connect(r.other.peer, (r.is_dead("mem:w"),))
        r.own.network.may_be_at(r.other.peer, (r.is_dead("mem:v"),))
        await trio.sleep(1)
        assert [address for address, _ in r.dialled] == [slow, "mem:y", "mem:w"]


# --- a peer that says nothing -------------------------------------------------------------------


async def test_who_accepts_and_says_nothing_does_not_keep_the_peer_waiting(
    autojump_clock: MockClock,
) -> None:
    async def say_nothing(channel: Channel) -> None:
        await trio.sleep_forever()

    async with race() as r, trio.open_nursery() as nursery:
        await nursery.start(r.other.transport.serve, "mem:mute", say_nothing)
        r._acts["mem:x"] = lambda: r._dial("mem:mute")
        began_at = trio.current_time()
        await r.run("mem:x", r.leads("mem:y", r.peer))
        took_s = trio.current_time() - began_at
        assert took_s < limits.DIAL_STAGGER_S + JITTER + limits.RACE_TURN_S + 0.1
        nursery.cancel_scope.cancel()


class Swallowing:
    """A channel that takes everything, and on which nothing comes."""

    description = "tcp 11.11.11.10:443"

    def __init__(self) -> None:
        self.stalls = 0

    def give_up(self) -> None: ...

    def stalled(self) -> None:
        self.stalls += 1

    async def send_all(self, data: memoryview) -> None:
        await trio.lowlevel.checkpoint()

    def send_nowait(self, data: memoryview) -> int:
        return len(data)

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.sleep_forever()
        return 0

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_what_opens_and_is_silent_is_dialled_again_at_once(
    autojump_clock: MockClock,
) -> None:
    """Large packets may get lost: its transport is told, and sends small ones the second time."""
    async with race() as r:
        address = r.leads("mem:narrow", r.peer)
        swallowing = Swallowing()
        dial = r.own.transport.dial

        async def dial_narrow(address: str) -> Channel:
            if swallowing.stalls:
                return await dial(address)
            return swallowing

        r.own.transport.dial = dial_narrow  # type: ignore[assignment,method-assign]
        await r.run(address)
        assert swallowing.stalls == 1
        assert trio.current_time() < limits.RACE_TURN_S + 1  # long before either side gives up
