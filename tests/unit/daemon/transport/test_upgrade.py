"""From a relay to a better way: once, on both sides, again and again until it works."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.transport.upgrade import Upgrader
from swarmnode.errors import DeadlineExceeded, DialFailed, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.relays.address import RelayAddress
from swarmnode.net.relays.legs import RelayedChannel
from tests.kits.party_kit import parties
from tests.unit.daemon.transport.upgrade_kit import (
    RELAY,
    SECOND_LISTENER,
    Described,
    Pair,
    pair,
)

# --- moving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_a_session_moves_once_on_both_sides_whichever_has_the_greater_id(
    autojump_clock: MockClock, names: str
) -> None:
    async with pair(names) as p:
        session = await p.meet()
        theirs = p.theirs
        assert p.paths() == {"relay"}
        await trio.sleep(5)
        assert p.paths() == {"other"}
        assert p.a.session(p.b) is session
        assert p.b.session(p.a) is theirs
        assert (session.resumed, theirs.resumed) == (1, 1)
        assert theirs.channel is p.first.far[0]
        assert p.a.network.resumed_total == p.b.network.resumed_total == 1
        assert len(p.first.began_at) == 1, "only the node that has dialled asks"
        assert p.second.began_at == [], "the best one works"
        assert p.a.network.ways.tried["punched-tcp", "ok"] == 1
        assert await p.a.is_heard_by(p.b)
        assert await p.b.is_heard_by(p.a)
        await trio.sleep(3600)
        assert session.resumed == 1, "and then it stays"
        assert p.a.ended == p.b.ended == []


def has_no_circuits(p: Pair) -> None:
    """The relay carries signals, and no session."""

    async def dial(address: str) -> Channel:
        raise DialFailed("the relay says full", address=address, cause="busy")

    for each in (p.a, p.b):
        each.network.ways.dial_relayed = dial
        each.network.ways.meet = p.upgraders[each.peer].meet


@pytest.mark.parametrize("kind", ["punched-tcp", "rtc"])
@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_a_relay_that_is_full_still_carries_the_signals_for_another_way(
    autojump_clock: MockClock, names: str, kind: str
) -> None:
    async with pair(names) as p:
        has_no_circuits(p)
        p.first.works = kind == "punched-tcp"
        session = await p.meet()
        assert session is p.a.session(p.b)
        await trio.sleep(1)
        assert p.paths() == {"other"}
        assert await p.a.is_heard_by(p.b)
        assert await p.b.is_heard_by(p.a)
        assert p.a.network.ways.tried[kind, "ok"] == 1
        assert len(p.first.began_at) == 1
        await trio.sleep(600)
        assert p.a.session(p.b) is session
        assert p.a.ended == p.b.ended == []


async def test_why_there_is_neither_a_circuit_nor_a_way_is_told(autojump_clock: MockClock) -> None:
    async with pair() as p:
        has_no_circuits(p)
        p.first.works = p.second.works = False
        with pytest.raises(DialFailed, match="says full; without a circuit: no answer"):
            await p.meet()


async def test_a_session_whose_circuit_is_given_to_others_is_over_soon(
    autojump_clock: MockClock,
) -> None:
    """Else both would wait a minute for a circuit that is not theirs, and exchange with none."""
    async with pair() as p:
        p.first.works = p.second.works = False
        session = await p.meet()
        has_no_circuits(p)
        assert p.a.links.cut("a", f"b{SECOND_LISTENER}") == 1
        await trio.sleep(5)
        assert session.is_closed
        assert "its circuit is another's" in str(session.close_cause)


async def test_a_direct_way_comes_before_all_others(autojump_clock: MockClock) -> None:
    async with pair() as p:
        p.may_be_at(p.a, p.b, is_direct=True)
        session = await p.meet()
        await trio.sleep(limits.RELAY_HEAD_START_S)
        assert p.paths() == {"other"}
        assert p.first.began_at == []
        assert session.resumed == 1
        assert p.a.network.ways.tried == {("relay", "ok"): 1, ("direct", "ok"): 1}


async def test_the_side_that_was_dialled_may_find_a_direct_way_too(
    autojump_clock: MockClock,
) -> None:
    async with pair() as p:
        p.first.works = p.second.works = False
        p.may_be_at(p.b, p.a, is_direct=True)
        session = await p.meet()
        await trio.sleep(5)
        assert p.paths() == {"other"}
        assert session.resumed == 1


async def test_the_next_kind_is_tried_when_one_fails_or_takes_too_long(
    autojump_clock: MockClock,
) -> None:
    async with pair() as p:
        p.first.lasts_s = 1e9
        session = await p.meet()
        await trio.sleep(limits.UPGRADE_TRY_S["punched-tcp"] + 2)
        assert p.paths() == {"other"}
        assert session.resumed == 1
        tried = p.a.network.ways.tried
        assert tried["punched-tcp", "failed"] == tried["rtc", "ok"] == 1


async def test_what_runs_on_the_session_goes_on(autojump_clock: MockClock) -> None:
    async with pair() as p:
        answers = []

        async def slow(_peer: PeerId, payload: bytes) -> bytes:
            await trio.sleep(3)
            return payload

        p.b.services.add_request("slow/1", slow)
        session = await p.meet()
        answers.append(await session.request("slow/1", b"x", deadline_s=10))
        assert answers == [b"x"]
        assert session.resumed == 1


# --- trying again -------------------------------------------------------------------------------


async def test_failed_tries_are_repeated_with_growing_pauses_and_explained(
    autojump_clock: MockClock,
) -> None:
    async with pair() as p:
        p.first.works = p.second.works = False
        session = await p.meet()
        await trio.sleep(3)
        whys = p.whys[p.a.peer]
        assert whys == {p.b.peer: ("punched-tcp: no answer", "rtc: no answer")}
        assert p.whys[p.b.peer] == {p.a.peer: ()}
        await trio.sleep(4 * 3600)
        assert p.paths() == {"relay"}
        pauses = [later - earlier for earlier, later in pairwise(p.first.began_at)]
        expected = limits.UPGRADE_PAUSE_S_MIN
        for pause in pauses:
            assert pause == pytest.approx(expected, rel=0.3, abs=3), pauses
            expected = min(2 * expected, limits.UPGRADE_PAUSE_S_MAX)
        assert 10 < len(pauses) < 24
        assert p.a.network.ways.tried["rtc", "failed"] == len(p.second.began_at)
        p.first.works = True
        await trio.sleep(2 * limits.UPGRADE_PAUSE_S_MAX)
        assert p.paths() == {"other"}
        assert session.resumed == 1
        assert whys == {}


async def test_webrtc_is_bettered_while_messages_pass(autojump_clock: MockClock) -> None:
    """It works, and costs thirty times what TCP does; a relay of the peer helps to punch."""
    async with pair() as p:
        heard: list[int] = []

        async def hear(_peer: PeerId, payload: bytes) -> bytes:
            heard.append(int(payload))
            return payload

        p.b.services.add_request("count/1", hear)
        p.first.works, p.second.word = False, "rtc"
        session = await p.meet()
        await trio.sleep(5)
        assert p.paths() == {"rtc"}
        p.first.works, p.first.via = True, p.b.peer  # any neighbour of ours and of the peer
        p.a.network.addresses_of = lambda peer: (str(RelayAddress(peer, p.b.address, peer)),)
        for number in range(2 * int(limits.UPGRADE_PAUSE_S_MIN) * 10):
            answer = await session.request("count/1", str(number).encode(), deadline_s=10)
            assert int(answer) == number
            await trio.sleep(0.1)
        assert p.paths() == {"other"}
        assert session.resumed == p.theirs.resumed == 2
        assert heard == list(range(len(heard)))
        assert len(p.first.began_at) == 2
        assert len(p.second.began_at) == 1, "no better than what there is"
        assert p.a.ended == p.b.ended == []


async def test_no_relayed_channel_takes_the_place_of_webrtc(autojump_clock: MockClock) -> None:
    async with pair() as p:
        p.first.works, p.second.word = False, "rtc"
        session = await p.meet()
        await trio.sleep(5)
        for word in ("rtc", "relay:sn1r@mem:r"):
            near, _ = p.a.links.link("a", "b")
            await p.upgraders[p.a.peer].take(p.b.peer, Described(near, word))
            assert near._is_closed
        assert p.paths() == {"rtc"}
        assert session.resumed == 1


async def test_a_session_that_falls_back_to_a_relay_is_tried_again_soon(
    autojump_clock: MockClock,
) -> None:
    async with pair() as p:
        session = await p.meet()
        await trio.sleep(5)
        for round_ in range(1, 4):
            assert session.resumed == 2 * round_ - 1
            p.a.links.cut(p.a.name, p.b.name)
            await trio.sleep(10)
            assert p.paths() == {"other"}
        assert len(p.first.began_at) == 4
        assert p.a.session(p.b) is session
        assert p.a.ended == p.b.ended == []


async def test_another_relay_is_another_chance(autojump_clock: MockClock) -> None:
    async with pair() as p:
        p.first.works = p.second.works = False
        session = await p.meet()
        await trio.sleep(10 * limits.UPGRADE_PAUSE_S_MIN)
        tries = len(p.first.began_at)
        for name in (p.a.name, p.b.name):
            p.a.links.cut(p.a.name, name + SECOND_LISTENER)
        p.a.links.cut(p.b.name, p.a.name + SECOND_LISTENER)
        await trio.sleep(10)
        assert p.paths() == {"relay"}
        assert session.resumed == 1
        assert len(p.first.began_at) == tries + 1


async def test_a_session_that_was_made_anew_is_tried_as_well(autojump_clock: MockClock) -> None:
    """The old one was being tried: its end must not be the end of that."""
    async with pair() as p:
        p.first.works = p.second.works = False
        old = await p.meet()
        await trio.sleep(5)
        old.close_nowait("started again")
        new = await p.meet()
        assert new is not old
        p.first.works = True
        await trio.sleep(5)
        assert new.resumed == 1
        assert p.paths() == {"other"}


# Of a channel in memory, and how much later the smaller id dials: its session is the second one
# at both, at itself only, and after the other side has begun to try.
@pytest.mark.parametrize(("delay_s", "late_s"), [(0.01, 0.02), (0.01, 0.0), (0.2, 0.5)])
async def test_of_two_nodes_that_dial_each_other_one_tries_at_once(
    autojump_clock: MockClock, delay_s: float, late_s: float
) -> None:
    """Else nodes that start together are relayed for half a minute."""
    async with pair(delay_s=delay_s) as p:
        smaller, greater = sorted((p.a, p.b), key=lambda each: each.peer)
        p.first.works = False
        p.first.lasts_s = limits.PUNCH_S  # longer than a session that was replaced lives on
        smaller.transport.dial_s = late_s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(p.meet, smaller, greater)
            nursery.start_soon(p.meet, greater, smaller)
        await trio.sleep(10)
        assert p.paths() == {"other"}
        session = smaller.session(greater)
        assert session is not None
        assert session.outbound
        assert session.resumed == 1
        assert [each.is_closed for each in smaller.opened] == [True, False], "they have crossed"
        assert len(p.second.began_at) == 1, "one side asks"
        tried = [each.network.ways.tried for each in (p.a, p.b)]
        assert sum(each["punched-tcp", "failed"] for each in tried) == len(p.first.began_at)
        assert sum(each["rtc", "ok"] for each in tried) == 1
        await trio.sleep(60)
        assert p.whys == {p.a.peer: {}, p.b.peer: {}}


async def test_a_session_that_ends_is_tried_no_more(autojump_clock: MockClock) -> None:
    async with pair() as p:
        p.first.works = p.second.works = False
        session = await p.meet()
        await trio.sleep(3)
        await session.aclose("enough")
        await trio.sleep(3600)
        assert len(p.first.began_at) == 1
        assert p.whys[p.a.peer] == {}
        assert all(not upgrader._trying for upgrader in p.upgraders.values())


async def test_few_are_tried_at_once(autojump_clock: MockClock) -> None:
    n = limits.UPGRADES_CONCURRENT_MAX + 3
    names = "abcdefghijklmnop"[: n + 1]
    async with parties(*names) as (a, *others), trio.open_nursery() as nursery:
        now = most = 0

        class Slow:
            async def invite(self, peer: PeerId, via: PeerId) -> Channel:
                nonlocal now, most
                now += 1
                most = max(most, now)
                await trio.sleep(5)
                now -= 1
                raise DialFailed("no answer")

        async def dial(address: str) -> Channel:
            leg = await a.transport.dial(RelayAddress.parse(address).address)
            return RelayedChannel(leg, "relay:sn1r@mem:r", RELAY)

        a.network.ways.dial_relayed = dial
        ways = (("rtc", Slow()),)
        upgrader = Upgrader(a.network, own_id=a.peer, ways=lambda: ways, whys={}, env=a.env)
        await nursery.start(upgrader.run)
        for other in others:
            await a.network.connect(
                other.peer, (str(RelayAddress(RELAY, other.address, other.peer)),)
            )
        await trio.sleep(20)
        assert most == limits.UPGRADES_CONCURRENT_MAX
        assert a.network.ways.tried["rtc", "failed"] == n
        nursery.cancel_scope.cancel()


# --- channels that lead nowhere -----------------------------------------------------------------


async def test_a_channel_for_a_session_that_has_moved_already_is_closed(
    autojump_clock: MockClock,
) -> None:
    async with pair() as p:
        session = await p.meet()
        await trio.sleep(5)
        near, far = p.a.links.link("a", "b")
        await p.upgraders[p.a.peer].take(p.b.peer, near)
        assert near._is_closed
        assert await far.receive_into(memoryview(bytearray(1))) == 0
        near, _ = p.a.links.link("a", "b")
        await p.upgraders[p.a.peer].take(PeerId(b"e" * 32), near)
        await trio.sleep(2 * limits.HANDSHAKE_S)
        assert near._is_closed, "nothing comes on it of a peer without a session"
        assert session.resumed == 1


async def test_a_channel_on_which_nothing_comes_is_given_up_and_the_session_stays(
    autojump_clock: MockClock,
) -> None:
    """The smaller id waits for the other side to ask, the greater for its answer."""
    async with pair() as p:
        p.first.works = p.second.works = False
        session = await p.meet()
        await trio.sleep(5)
        for own, other in ((p.a, p.b), (p.b, p.a)):
            near, _ = own.links.link(own.name, other.name)
            began = trio.current_time()
            with pytest.raises(DeadlineExceeded):
                await p.upgraders[own.peer].take(other.peer, near)
            assert trio.current_time() - began <= limits.RESUME_HANDSHAKE_S + 0.1
            assert await own.is_heard_by(other)
        assert p.paths() == {"relay"}
        assert session.resumed == 0


async def test_hostile_a_channel_of_another_peer_moves_nothing(autojump_clock: MockClock) -> None:
    """Whoever sits at a punched address cannot show the session's keys."""
    async with pair() as p:
        p.first.works = p.second.works = False
        session = await p.meet()
        await trio.sleep(5)
        for own, other in ((p.a, p.b), (p.b, p.a)):
            near, far = own.links.link(own.name, "eve")
            await far.send_all(memoryview(bytes(10_000)))
            with pytest.raises(SwarmNodeError):
                await p.upgraders[own.peer].take(other.peer, near)
            assert await own.is_heard_by(other)
        assert p.paths() == {"relay"}
        assert session.resumed == 0
        assert p.a.ended == p.b.ended == []
