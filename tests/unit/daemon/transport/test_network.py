"""Sessions with other nodes: one for each peer, whoever dialled, however slowly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import trio

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    ChannelBroken,
    DeadlineExceeded,
    DialFailed,
    KeyInUse,
    SwarmNodeError,
)
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.testing.memory_network import MemoryChannel, MemoryNetwork
from tests.kits.party_kit import Party, parties


async def until(condition: Callable[[], object], limit_s: float = 5.0) -> None:
    with trio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110 -- of virtual time
            await trio.sleep(0.01)


# --- which of two sessions stays ------------------------------------------------------------


@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_a_slow_dial_does_not_replace_a_session_that_came_first(
    autojump_clock, names: str
) -> None:
    async with parties(*names) as (slow, quick), trio.open_nursery() as nursery:
        slow.transport.dial_s = 7.0  # past SESSION_CROSSING_S, where the newer session wins
        nursery.start_soon(slow.connect, quick)
        await quick.connect(slow)
        session = slow.session(quick)
        assert session is not None
        assert not session.outbound
        await trio.sleep(20)
        assert slow.session(quick) is session
        assert slow.ended == quick.ended == []
        assert slow.opened == [session]
        assert slow.transport.dials == 1


async def test_who_waits_for_a_slow_dial_gets_the_session_that_the_peer_opened_meanwhile(
    autojump_clock,
) -> None:
    async with parties("a", "b") as (a, b), trio.open_nursery() as nursery:
        a.transport.dial_s = 7.0
        nursery.start_soon(b.connect, a)
        with trio.fail_after(1):
            assert not (await a.connect(b)).outbound


async def test_the_newer_session_wins_because_its_peer_has_lost_the_old_one(
    autojump_clock,
) -> None:
    async with parties("a", "b") as (a, b):
        old = await a.connect(b)
        await trio.sleep(10)
        del b.network.sessions[a.peer]  # as if its end had been noticed there only
        await b.connect(a)
        await trio.sleep(1)
        assert a.session(b) is not old
        assert a.ended == [old]
        assert a.closed == [], "there was a session all the time"
        assert await a.is_heard_by(b)


async def test_of_crossing_dials_both_keep_the_one_of_the_smaller_id(autojump_clock) -> None:
    async with parties("a", "b") as (a, b):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.connect, b)
            nursery.start_soon(b.connect, a)
        await trio.sleep(1)
        small, large = sorted((a, b), key=lambda party: party.peer)
        ours, theirs = small.session(large), large.session(small)
        assert ours is not None
        assert ours.outbound
        assert theirs is not None
        assert not theirs.outbound
        assert a.transport.dials == b.transport.dials == 1
        assert await a.is_heard_by(b)
        assert await b.is_heard_by(a)
        assert a.closed == b.closed == []


async def test_a_node_has_no_session_with_itself(autojump_clock) -> None:
    async with parties("a") as (a,):
        with pytest.raises(SwarmNodeError):
            await a.connect(a)
        await trio.sleep(1)
        assert a.network.sessions == {}
        assert a.opened == []


# --- dialling ---------------------------------------------------------------------------------


async def test_all_callers_that_want_a_peer_share_one_dial_and_survive_each_other(
    autojump_clock,
) -> None:
    async with parties("a", "b") as (a, b):
        a.transport.dial_s = 3.0
        got = []

        async def want(patience_s: float) -> None:
            with trio.move_on_after(patience_s):
                got.append(await a.connect(b))

        async with trio.open_nursery() as nursery:
            for patience_s in (1.0, 10.0, 10.0):  # the first began the dial, and gives up
                nursery.start_soon(want, patience_s)
                await trio.sleep(0.1)
        assert got == [a.session(b)] * 2
        assert a.transport.dials == 1


async def test_addresses_are_tried_in_turn(autojump_clock) -> None:
    async with parties("a", "b", "c") as (a, b, c):
        session = await a.network.connect(b.peer, ("mem:nobody", c.address, b.address))
        assert session.peer == b.peer
        assert a.network.dial_errors == {}
        assert a.session(c) is None


async def test_why_a_peer_was_not_reached_is_said_to_each_caller(autojump_clock) -> None:
    async with parties("a", "b", "c") as (a, b, c):
        with pytest.raises(AuthenticationFailed, match="expected peer"):
            await a.network.connect(b.peer, ("mem:nobody", c.address))
        with pytest.raises(DialFailed, match="no address"):
            await a.network.connect(b.peer, ())
        errors: list[SwarmNodeError] = []

        async def fail() -> None:
            try:
                await a.network.connect(b.peer, ("mem:nobody",))
            except DialFailed as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)
        assert len({id(error) for error in errors}) == 2
        assert "no node listens" in str(a.network.dial_errors[b.peer])


async def test_a_dial_has_a_deadline(autojump_clock) -> None:
    async with parties("a", "b") as (a, b):
        a.links.partition(["a"], ["b"])
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="connecting to mem:b"):
            await a.connect(b)
        assert trio.current_time() - began == pytest.approx(limits.DIAL_DEADLINE_S)


async def test_few_dials_run_at_once_and_few_errors_are_kept(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(limits, "DIALS_CONCURRENT_MAX", 2)
    monkeypatch.setattr(limits, "DIAL_ERRORS_KEPT_MAX", 3)
    async with parties("a") as (a,):
        a.transport.dial_s = 1.0
        strangers = [Party(a.links, name) for name in "bcdefg"]

        async def fail(other: Party) -> None:
            with pytest.raises(DialFailed):
                await a.connect(other)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for other in strangers:
                nursery.start_soon(fail, other)
        assert trio.current_time() - began >= 3.0
        assert len(a.network.dial_errors) == 3


async def test_whether_a_peer_can_be_dialled_is_asked_beside_its_session(autojump_clock) -> None:
    async with parties("a", "b") as (a, b):
        await b.connect(a)
        session = a.session(b)
        assert await a.connect(b, dial_anew=True) is session
        assert a.transport.dials == 1
        with pytest.raises(DialFailed, match="no node listens"):
            await a.network.connect(b.peer, ("mem:nobody",), dial_anew=True)
        with pytest.raises(DialFailed, match="no address"):
            await a.network.connect(b.peer, (), dial_anew=True)
        await trio.sleep(1)
        assert a.session(b) is session
        assert (a.opened, a.ended, b.ended) == ([session], [], [])
        assert len(b.opened) == 1, "what only looks is no session"


async def test_who_was_dialled_need_not_be_dialled_anew(autojump_clock) -> None:
    async with parties("a", "b") as (a, b):
        session = await a.connect(b)
        assert await a.connect(b, dial_anew=True) is session
        assert a.transport.dials == 1


# --- one key on two nodes ---------------------------------------------------------------------


async def test_the_younger_of_two_nodes_with_one_key_is_refused(autojump_clock) -> None:
    async with parties("a", "c", "twin=a") as (a, c, twin):
        session = await a.connect(c)
        await trio.sleep(10)
        await twin.connect(c)
        await until(lambda: twin.network.key_refusals)
        assert "another node with the key" in str(twin.key_conflicts[0])
        assert isinstance(twin.network.dial_errors[c.peer], KeyInUse)
        assert twin.network.sessions == {}
        assert a.session(c) is session
        assert await a.is_heard_by(c)
        assert a.key_conflicts == []


async def test_a_node_that_died_unnoticed_is_replaced_by_its_next_start(autojump_clock) -> None:
    async with parties("a", "c", "twin=a") as (a, c, again):
        await a.connect(c)
        await trio.sleep(1)
        dead = c.session(a)
        c.links.partition(["a"], ["c"])  # its machine lost power: no byte says so
        await again.connect(c)
        await trio.sleep(limits.KEY_CHECK_S + 1)
        assert c.session(a) is not dead
        assert c.ended == [dead]
        assert again.network.key_refusals == 0
        assert await again.is_heard_by(c)


async def test_our_own_key_elsewhere_is_noticed_at_the_addresses_of_the_link(
    autojump_clock,
) -> None:
    async with parties("a", "c", "twin=a") as (a, c, twin):
        await a.network.check_own_key(())
        await a.network.check_own_key((a.address, c.address, "mem:nobody"))
        with pytest.raises(KeyInUse, match="at mem:twin"):
            await a.network.check_own_key((a.address, twin.address))
        assert a.opened == twin.opened == c.opened == []


# --- strangers, and letting go ----------------------------------------------------------------


async def test_silent_strangers_are_bounded_and_do_not_stay(autojump_clock) -> None:
    most = limits.SILENT_STRANGERS_PER_BLOCK_MAX
    async with parties("a") as (a,):
        crowd: list[Channel] = [await a.links.connect("x", a.address) for _ in range(most + 2)]
        await trio.sleep(0.1)
        assert a.network.listener.refused == {"TooManyStrangers": 2}, "the oldest have gone"
        assert a.network.listener.strangers == most
        await trio.sleep(limits.HANDSHAKE_S)
        assert a.network.listener.refused["DeadlineExceeded"] == most
        assert a.network.listener.strangers == 0
        for channel in crowd:
            await aclose_forcefully(channel)


async def test_silent_strangers_of_one_host_leave_the_listener_to_newcomers(autojump_clock) -> None:
    """As many as there are places, and more, kept up: each newcomer gets in at once."""
    async with parties("a", "b") as (a, b), trio.open_nursery() as nursery:

        async def hold() -> None:
            while True:
                channel = await a.links.connect("x", a.address)
                with suppress(SwarmNodeError):
                    await channel.receive_into(memoryview(bytearray(1)))
                await aclose_forcefully(channel)
                await trio.sleep(5)

        for _ in range(limits.SILENT_STRANGERS_MAX + 20):
            nursery.start_soon(hold)
        for _ in range(20):
            await trio.sleep(1)
            with trio.fail_after(1):
                session = await b.connect(a)
            await session.aclose()
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


async def test_strangers_that_begin_and_stall_crowd_out_their_own_hosts_only(
    autojump_clock,
) -> None:
    async with parties("a", "b") as (a, b):
        crowd: list[MemoryChannel] = []
        for number in range(limits.STRANGERS_MAX):
            crowd.append(await a.links.connect(f"x{number % 2}", a.address))
            await crowd[-1].send_all(memoryview(b"\x16\x03\x01\x02\x00"))  # a client hello begins
        await trio.sleep(0.1)
        assert a.network.listener.strangers == limits.STRANGERS_MAX
        await b.connect(a)
        assert a.network.listener.refused == {"TooManyStrangers": 1}
        for channel in crowd:
            await aclose_forcefully(channel)


async def test_what_was_opened_for_one_question_is_closed_when_none_follows(
    autojump_clock,
) -> None:
    async with parties("a", "b", "c", "d") as (a, b, c, d):
        a.network.keepers.append({c.peer}.__contains__)
        for other in (b, c, d):
            await a.connect(other)
        await trio.sleep(limits.SESSION_IDLE_S - 1)
        await a.connect(d)
        await trio.sleep(limits.SESSION_SWEEP_S + 2)
        assert a.network.sessions.keys() == {c.peer, d.peer}
        assert b.network.sessions == {}
        assert [session.peer for session in a.closed] == [b.peer]
        await trio.sleep(2 * limits.SESSION_IDLE_S)
        assert a.network.sessions.keys() == {c.peer}


async def test_a_session_in_use_is_not_idle(autojump_clock) -> None:
    async with parties("a", "b") as (a, b):

        async def keep(session: Session, stream: Stream) -> None:
            await trio.sleep_forever()

        b.services.add_stream("long/1", keep)
        session = await a.connect(b)
        stream = await session.open_stream("long/1")
        await trio.sleep(3 * limits.SESSION_IDLE_S)
        assert a.session(b) is session
        await stream.reset()
        await trio.sleep(2 * limits.SESSION_SWEEP_S)
        assert a.session(b) is None


async def test_who_was_dialled_does_not_close(autojump_clock) -> None:
    """Whoever dialled knows what for."""
    async with parties("a", "b") as (a, b):
        b.network.keepers.append({a.peer}.__contains__)
        await b.connect(a)
        await trio.sleep(3 * limits.SESSION_IDLE_S)
        assert a.session(b) is not None


@pytest.mark.parametrize("dialled_by_us", [False, True])
async def test_the_least_used_session_makes_room(
    autojump_clock, monkeypatch, dialled_by_us: bool
) -> None:
    monkeypatch.setattr(limits, "SESSIONS_MAX", 3)
    async with parties("a", "b", "c", "d", "e") as (a, b, c, d, e):
        a.network.keepers.append({b.peer}.__contains__)
        for other in (b, c, d):
            await other.connect(a)
            await trio.sleep(1)
        await a.connect(c)  # now the session with d is the longest unused
        if dialled_by_us:
            await a.connect(e)
        else:
            await e.connect(a)
        await trio.sleep(1)
        assert a.network.sessions.keys() == {b.peer, c.peer, e.peer}
        assert d.network.sessions == {}


async def test_no_room_is_made_for_newcomers_where_all_are_wanted(
    autojump_clock, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "SESSIONS_MAX", 2)
    async with parties("a", "b", "c", "d") as (a, b, c, d):
        a.network.keepers.append(lambda _peer: True)
        await b.connect(a)
        await c.connect(a)
        await trio.sleep(1)
        with pytest.raises(SwarmNodeError):
            await d.connect(a)
        assert a.network.listener.refused == {"TooManyPeers": 1}
        assert a.network.sessions.keys() == {b.peer, c.peer}


async def test_each_session_that_makes_room_makes_it_once(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(limits, "SESSIONS_MAX", 3)
    async with parties("a", "b", "c", "d", "e", "f") as (a, *others):
        for other in others[:3]:
            await other.connect(a)
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            for other in others[3:]:
                nursery.start_soon(other.connect, a)
        await trio.sleep(1)
        assert len(a.network.sessions) == 3


async def test_close_ends_every_session_and_each_is_counted_once(autojump_clock) -> None:
    async with parties("a", "b", "c") as (a, b, c):
        await b.connect(a)
        await a.connect(c)
        await trio.sleep(1)
        with trio.fail_after(1):
            await a.network.close("enough")
        await trio.sleep(0.1)
        assert len(a.ended) == len(a.closed) == 2
        assert a.network.sessions == {}
        for other in (b, c):
            assert [session.peer for session in other.ended] == [a.peer]
            assert isinstance(other.ended[0].close_cause, ChannelBroken)
            assert "enough" in str(other.ended[0].close_cause)


async def test_without_an_address_to_listen_on_one_still_dials(autojump_clock) -> None:
    async with parties("b") as (b,), trio.open_nursery() as nursery:
        links: MemoryNetwork = b.links
        a = Party(links, "a")
        await a.start(nursery, listen=False)
        await a.connect(b)
        assert await b.is_heard_by(a)
        assert a.network.address == ""
        nursery.cancel_scope.cancel()
