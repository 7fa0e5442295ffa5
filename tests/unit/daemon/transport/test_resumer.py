"""Sessions that look for another channel: which side asks, when it ends, and what it may cost."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    DialFailed,
    Overloaded,
    SwarmNodeError,
)
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.session import Session
from swarmnode.protocol.session.opening import MAGIC
from swarmnode.testing.memory_network import MemoryChannel
from swarmnode.wire.session import Priority
from tests.kits.party_kit import Party, parties
from tests.kits.session_kit import echo_messages


@asynccontextmanager
async def connected(*, delay_s: float = 0.01) -> AsyncIterator[tuple[Party, Party, Session]]:
    """Give two nodes that know where the other is, and the session that the first has dialled."""
    async with parties("a", "b", delay_s=delay_s) as (a, b):
        for one, other in ((a, b), (b, a)):
            one.services.add_stream("echo/1", echo_messages)
            one.network.addresses_of = {other.peer: (other.address,)}.get  # type: ignore[assignment]
        session = await a.connect(b)
        await trio.sleep(0.1)
        yield a, b, session


def theirs(a: Party, b: Party) -> Session:
    session = b.session(a)
    assert session is not None
    return session


# --- going on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(16))
async def test_whichever_side_asks_whenever_every_message_arrives_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Both sides ask at the same moments, over channels that break, also while they agree."""
    monkeypatch.setattr(limits, "RESUME_SERVER_WAIT_S", 0.0)
    monkeypatch.setattr(limits, "RESUME_RETRY_S", 0.05)
    rng = random.Random(seed)
    async with connected(delay_s=0.01) as (a, b, session), trio.open_nursery() as tasks:
        other = theirs(a, b)

        async def cut() -> None:
            while True:
                await trio.sleep(rng.expovariate(1 / 0.06))
                a.links.cut("a", "b")

        async def migrate() -> None:
            while True:
                await trio.sleep(rng.expovariate(1 / 0.3))
                one, its, to = rng.choice([(a, session, b), (b, other, a)])
                try:
                    await one.network.migrate(its, await one.transport.dial(to.address))
                except SwarmNodeError:
                    assert not its.is_closed

        tasks.start_soon(cut)
        tasks.start_soon(migrate)
        for one in (session, other):
            async with await one.open_stream("echo/1") as stream:
                for number in range(15):
                    payload = rng.randbytes(rng.choice([10, 5_000, 300_000]))
                    await stream.send_message(bytes([number]), payload)
                    header, received = await stream.receive_message(limits.MIB)
                    assert (header, bytes(received)) == (bytes([number]), payload)
        tasks.cancel_scope.cancel()
        assert a.session(b) is session
        assert b.session(a) is other
        assert session.resumed > 1
        assert a.opened == [session]


async def test_both_ask_at_once_and_what_the_client_asks_counts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESUME_SERVER_WAIT_S", 0.0)
    async with connected(delay_s=0.2) as (a, b, session):
        assert a.links.cut("a", "b") == 1
        await trio.sleep(5)
        assert (session.resumed, theirs(a, b).resumed) == (1, 1)
        assert "mem:b" in session.channel_description, "it has dialled"
        assert await a.is_heard_by(b)
        assert a.ended == b.ended == []


async def test_the_side_that_was_dialled_finds_the_way_that_the_other_cannot(
    autojump_clock: MockClock,
) -> None:
    async with connected() as (a, b, session):
        a.links.refusing.add(b.name)
        a.network.addresses_of = lambda _peer: ()
        a.links.cut("a", "b")
        await trio.sleep(2.5)
        assert session.resumed == 1
        assert await a.is_heard_by(b)


async def test_a_peer_that_has_moved_asks(autojump_clock: MockClock) -> None:
    """Where it was, the machine says that no node is there."""
    async with connected() as (a, b, session), trio.open_nursery() as nursery:
        a.links.refusing.add(b.name)
        await nursery.start(b.transport.serve, "mem:elsewhere", b.network.listener.accept)
        a.links.cut("a", "b")
        await trio.sleep(2)
        assert (session.resumed, theirs(a, b).resumed) == (1, 1)
        assert a.ended == b.ended == []
        nursery.cancel_scope.cancel()


async def test_a_silent_way_is_left_before_the_peer_is_called_dead(
    autojump_clock: MockClock,
) -> None:
    """A NAT forgot the connection: no byte passes, no node says so, and another way works."""
    async with connected() as (a, b, session):
        (_, _, old), *_ = a.links._links
        deaf = [old._incoming, old._outgoing]
        for pipe in deaf:
            pipe._pieces = NoPieces()  # type: ignore[assignment]
        began = trio.current_time()
        while session.resumed == 0:  # noqa: ASYNC110 -- of virtual time
            await trio.sleep(0.1)
        assert trio.current_time() - began < limits.SUSPECT_S + 1
        assert await a.is_heard_by(b)
        assert a.ended == b.ended == []


class NoPieces(list):  # type: ignore[type-arg]
    """What is put in is gone."""

    def append(self, _piece: object) -> None:
        pass


async def test_a_better_way_is_taken_while_the_old_one_works(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session), trio.open_nursery() as nursery:
        stream = await session.open_stream("echo/1")
        for dialler, listener, its in ((a, b, session), (b, a, theirs(a, b))) * 3:
            before = its.resumed
            near, far = a.links.link(dialler.name, listener.name)
            nursery.start_soon(listener.network.listener.accept, far)
            await dialler.network.migrate(its, near)
            await stream.send_message(b"x", bytes(500_000))
            assert (await stream.receive_message(limits.MIB))[0] == b"x"
            assert its.resumed == before + 1
            assert its.channel is near
            assert sum(not end.is_over for _, _, end in a.links._links) == 1
        await stream.aclose()
        assert a.ended == b.ended == []


async def test_a_better_way_that_leads_nowhere_changes_nothing(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session):
        near, far = a.links.link("a", "nobody")
        await aclose_forcefully(far)
        with pytest.raises(SwarmNodeError):
            await a.network.migrate(session, near)
        assert near._is_closed
        assert session.resumed == 0
        assert await a.is_heard_by(b)


async def test_a_better_way_that_breaks_half_way_is_looked_for_again(
    autojump_clock: MockClock,
) -> None:
    """The session has left the old channel when the new one breaks."""
    async with connected(delay_s=0.1) as (a, b, session), trio.open_nursery() as nursery:
        near, far = a.links.link("a", "b")
        nursery.start_soon(b.network.listener.accept, far)
        failed: list[SwarmNodeError] = []

        async def migrate() -> None:
            try:
                await a.network.migrate(session, near)
            except SwarmNodeError as error:
                failed.append(error)

        nursery.start_soon(migrate)
        while not session.is_suspended:  # noqa: ASYNC110 -- of virtual time
            await trio.sleep(0.01)
        near.cut()
        await trio.sleep(3)
        assert len(failed) == 1
        assert session.resumed >= 1
        assert await a.is_heard_by(b)


async def test_two_ways_at_once_are_one_too_many(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session), trio.open_nursery() as nursery:
        first, far = a.links.link("a", "b")
        second, _ = a.links.link("a", "b")
        nursery.start_soon(b.network.listener.accept, far)
        nursery.start_soon(a.network.migrate, session, first)
        await trio.sleep(0.001)
        with pytest.raises(Overloaded, match="already"):
            await a.network.migrate(session, second)
        await trio.sleep(0.1)
        assert session.channel is first


# --- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialled_by_us", [True, False])
async def test_a_killed_peer_is_gone_within_two_seconds(
    autojump_clock: MockClock, dialled_by_us: bool
) -> None:
    """Also when at its other addresses no node answers, or another one does."""
    async with connected() as (a, b, _), trio.open_nursery() as nursery:
        left, killed = (a, b) if dialled_by_us else (b, a)
        stranger = Party(a.links, "stranger")
        await stranger.start(nursery)
        everywhere = (stranger.address, killed.address, "mem:black-hole")
        left.network.addresses_of = lambda _peer: everywhere
        a.links.partition([left.name], ["black-hole"])
        session = left.session(killed)
        assert session is not None
        a.links.cut("a", "b")
        killed.stop()
        lost_at = trio.current_time()
        await session.wait_closed()
        await trio.sleep(0.01)
        assert trio.current_time() - lost_at < 2
        assert "is not running any more" in str(session.close_cause)
        assert left.closed == [session]
        nursery.cancel_scope.cancel()


async def test_a_peer_that_has_started_again_says_so_at_once(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session), trio.open_nursery() as nursery:
        a.links.cut("a", "b")
        b.stop()
        await trio.sleep(0.01)
        again = Party(a.links, "b")
        await again.start(nursery)
        lost_at = trio.current_time()
        await session.wait_closed()
        assert trio.current_time() - lost_at < 1.5
        assert "does not know the session" in str(session.close_cause)
        await a.connect(again)
        assert await a.is_heard_by(again)
        nursery.cancel_scope.cancel()


async def test_who_answers_elsewhere_is_not_believed(autojump_clock: MockClock) -> None:
    """A private address of the peer is another node's in our LAN: it knows no session of ours."""
    async with connected() as (a, b, session), trio.open_nursery() as nursery:
        stranger = Party(a.links, "stranger")
        await stranger.start(nursery)
        for party in (a, b):
            party.network.addresses_of = lambda _peer: (stranger.address, "mem:nobody")
        a.links.partition(["a"], ["b"])
        a.links.cut("a", "b")
        await trio.sleep(20)
        assert session.is_suspended
        a.links.heal()
        await trio.sleep(limits.DIAL_DEADLINE_S + 2)
        assert session.resumed == 1
        nursery.cancel_scope.cancel()


async def test_no_caller_waits_for_ever(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session):
        a.links.partition(["a"], ["b"])
        a.links.cut("a", "b")
        lost_at = trio.current_time()
        await session.wait_closed()
        passed_s = trio.current_time() - lost_at
        assert passed_s == pytest.approx(limits.RESUME_S, abs=limits.PING_QUIET_S + 1)
        await trio.sleep(limits.DIAL_DEADLINE_S + limits.PING_QUIET_S)
        dials = a.transport.dials, b.transport.dials
        await trio.sleep(60)
        assert (a.transport.dials, b.transport.dials) == dials


async def test_leaving_does_not_wait_for_absent_peers(autojump_clock: MockClock) -> None:
    async with connected() as (a, _, session):
        a.links.partition(["a"], ["b"])
        a.links.cut("a", "b")
        await trio.sleep(1)
        assert session.is_suspended
        with trio.fail_after(0.5):
            await a.network.close("Ctrl-C")
        assert a.network.sessions == {}


async def test_others_may_know_that_it_is_gone(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session):
        a.network.give_up(b.peer, "it has left")
        a.network.give_up(a.peer, "nobody knows it")
        await trio.sleep(1)
        assert a.session(b) is session, "it has a channel, so it is there"
        assert await a.is_heard_by(b)
        a.links.partition(["a"], ["b"])
        a.links.cut("a", "b")
        await trio.sleep(1)
        a.network.give_up(b.peer, "it has left")
        await session.wait_closed()
        assert "it has left" in str(session.close_cause)


# --- callers that want the peer meanwhile -------------------------------------------------------


async def test_who_wants_a_peer_waits_for_its_session(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session):
        a.links.partition(["a"], ["b"])
        a.links.cut("a", "b")
        await trio.sleep(1)
        assert a.network.connected(b.peer) is None
        with trio.move_on_after(3):
            await a.connect(b)
        a.links.heal()
        assert await a.connect(b) is session
        assert session.resumed == 1


async def test_who_wants_a_peer_may_know_better_where_it_is(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, session), trio.open_nursery() as nursery:
        await nursery.start(b.transport.serve, "mem:elsewhere", b.network.listener.accept)
        a.links.refusing.add(b.name)
        for party in (a, b):
            party.network.addresses_of = lambda _peer: ()
        a.links.cut("a", "b")
        await trio.sleep(0.01)
        assert await a.network.connect(b.peer, ("mem:elsewhere",)) is session
        assert session.resumed == 1
        nursery.cancel_scope.cancel()


async def test_who_wants_a_peer_that_is_not_running_learns_it(autojump_clock: MockClock) -> None:
    async with connected() as (a, b, _):
        a.links.cut("a", "b")
        b.stop()
        await trio.sleep(0.01)
        asked_at = trio.current_time()
        with pytest.raises(DialFailed, match="no node listens"):
            await a.connect(b)
        assert trio.current_time() - asked_at < 2


async def test_a_session_without_a_way_does_not_protect_its_key(autojump_clock: MockClock) -> None:
    """No node can answer on it, so the one that comes with the key is the peer, started again."""
    async with parties("a", "c", "again=a") as (a, c, again):
        await a.connect(c)
        await trio.sleep(1)
        old = c.session(a)
        c.links.partition(["a"], ["c"])
        c.links.cut("a", "c")
        await trio.sleep(1)
        came_at = trio.current_time()
        await again.connect(c)
        assert await again.is_heard_by(c)
        assert trio.current_time() - came_at < 1
        assert c.session(a) is not old


# --- strangers ----------------------------------------------------------------------------------


async def test_strangers_that_ask_and_stall_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRANGERS_PER_BLOCK_MAX", 4)
    async with connected() as (a, b, session):
        crowd: list[Channel] = []
        for _ in range(6):
            channel: MemoryChannel = await a.links.connect("x", a.address)
            await channel.send_all(memoryview(MAGIC))
            crowd.append(channel)
        await trio.sleep(0.1)
        assert a.network.listener.refused == {"TooManyStrangers": 2}
        await b.network.shake_hands_only(a.peer, a.address)
        await trio.sleep(limits.HANDSHAKE_S)
        assert a.network.listener.strangers == 0
        assert a.network.listener.refused["DeadlineExceeded"] == 4
        for each in crowd:
            await aclose_forcefully(each)
        assert not session.is_closed


async def test_who_is_full_still_takes_back_its_own(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSIONS_MAX", 1)
    async with connected() as (a, b, session):
        b.network.keepers.append(lambda _peer: True)
        a.links.cut("a", "b")
        await trio.sleep(1)
        assert session.resumed == 1
        assert b.network.listener.refused == {}


async def test_a_probe_ends_with_its_channel(autojump_clock: MockClock) -> None:
    async with parties("a", "b") as (a, b):
        await b.connect(a)
        await a.connect(b, dial_anew=True)
        assert len(a.opened) == len(b.opened) == 1


async def test_streams_wait_and_requests_lose_patience(autojump_clock: MockClock) -> None:
    async with connected() as (a, _, session):
        stream = await session.open_stream("echo/1", priority=Priority.BULK)
        a.links.partition(["a"], ["b"])
        a.links.cut("a", "b")
        began = trio.current_time()
        with pytest.raises(SwarmNodeError):
            await session.request("alive/1", b"", deadline_s=2.0)
        assert trio.current_time() - began == pytest.approx(2.0, abs=0.01)
        await stream.send_message(b"held back", b"")
        await trio.sleep(20)
        a.links.heal()
        assert (await stream.receive_message(limits.MIB))[0] == b"held back"
        await stream.aclose()
        session.give_up(ChannelBroken("over"))
        with pytest.raises(ChannelBroken):
            await session.request("alive/1", b"", deadline_s=2.0)
