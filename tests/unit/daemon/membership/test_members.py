"""Members of a swarm: each says hello, a stranger gets nothing, one that is gone is known."""

from __future__ import annotations

import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.membership.members import HELLO_SERVICE, SWIM_SERVICE
from swarmnode.errors import ChannelBroken, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.paths import path_of
from swarmnode.net.relays.address import RelayAddress
from swarmnode.net.relays.legs import RelayedChannel
from swarmnode.net.session import Session
from swarmnode.protocol.hosts import is_worked
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.wire import swim as wire
from swarmnode.wire.membership import SwarmHello
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority, ResetCode
from tests.kits.party_kit import Party
from tests.unit.daemon.membership.members_kit import HELLO, LINK, Member, members

HELLO_NAME = f"{HELLO_SERVICE}@{LINK.tag}"
SWIM_NAME = f"{SWIM_SERVICE}@{LINK.tag}"
PING = encode_record(wire.Ping(1, ()))


def are_neighbours(one: Member, other: Member) -> bool:
    return one.neighbour(other) is not None and other.neighbour(one) is not None


def failed_handlers(*nodes: Party) -> int:
    sessions = {session for node in nodes for session in node.opened}
    return sum(session.statistics().handlers_failed for session in sessions)


# --- hello ------------------------------------------------------------------------------------


async def test_who_is_hinted_at_is_greeted_and_both_know_each_other(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(1)
        assert are_neighbours(a, b)
        assert [session.peer for session in a.up] == [b.peer]
        assert [session.peer for session in b.up] == [a.peer]
        for node in (a, b):
            assert node.members.live() == tuple(sorted((a.peer, b.peer)))
            assert node.members.is_member((b if node is a else a).peer)
        assert failed_handlers(a, b) == 0, "no message overtook a hello"


async def test_a_session_for_something_else_makes_no_peer_a_member(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        session = await a.connect(b)
        assert a.members.sessions == b.members.sessions == {}
        with pytest.raises(Refused, match="say hello first"):
            await session.request(SWIM_NAME, PING, deadline_s=1)
        for name in (f"{SWIM_SERVICE}@other", SWIM_SERVICE):
            with pytest.raises(Refused, match="no service"):
                await session.request(name, PING, deadline_s=1)
        a.knows(b)
        await trio.sleep(1)
        assert a.neighbour(b) is session, "the session that was there is used"
        await session.request(SWIM_NAME, PING, deadline_s=1)


async def test_both_greet_at_once_and_are_neighbours_once(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        b.knows(a)
        await trio.sleep(3)
        assert are_neighbours(a, b)
        assert len(a.up) == len(b.up) == 1
        assert a.down == b.down == []


@pytest.mark.parametrize("payload", [b"", b"\xc1", PING])
async def test_a_hello_that_is_none_is_refused_and_the_session_stays(
    autojump_clock, payload: bytes
) -> None:
    async with members("a", "b") as (a, b):
        session = await a.connect(b)
        with pytest.raises(SwarmNodeError):
            await session.request(HELLO_NAME, payload, deadline_s=1)
        assert b.members.sessions == {}
        answer = await session.request(HELLO_NAME, encode_record(HELLO), deadline_s=1)
        assert decode_record(answer, SwarmHello) == HELLO
        assert b.neighbour(a) is not None


async def test_what_a_peer_sends_before_its_answer_to_our_hello_waits_for_that(
    autojump_clock,
) -> None:
    """It has admitted us, so it speaks; its own hello is still on its way."""
    async with members("a") as (a,), trio.open_nursery() as nursery:
        stranger = Party(a.links, "b")
        told: list[float] = []

        async def speak() -> None:
            session = stranger.session(a)
            assert session is not None
            await session.request(SWIM_NAME, PING, deadline_s=2)
            told.append(trio.current_time())

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            nursery.start_soon(speak)
            await trio.sleep(0.5)
            return encode_record(HELLO)

        async def forget(peer: PeerId, payload: bytes) -> bytes:
            return b""

        stranger.services.add_request(HELLO_NAME, answer)
        stranger.services.add_request(SWIM_NAME, forget)
        await stranger.start(nursery)
        a.knows(stranger)
        await trio.sleep(2)
        assert len(told) == 1
        assert told[0] >= 0.5
        nursery.cancel_scope.cancel()


async def test_a_hello_on_a_connection_that_only_looks_is_refused(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        probe: Session = await b.network._start(
            await b.transport.dial(a.address), a.peer, is_probe=True
        )
        with pytest.raises(Refused, match="the session that stays"):
            await probe.request(HELLO_NAME, encode_record(HELLO), deadline_s=1)
        await probe.aclose()
        assert a.members.sessions == {}


# --- peers that may not -----------------------------------------------------------------------


async def test_who_is_refused_is_told_why_and_tries_again(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        b.gate.banned.add(a.peer)
        a.knows(b)
        await trio.sleep(10)
        assert a.members.sessions == b.members.sessions == {}
        assert "not on the list" in a.members.refusals[b.peer]
        assert a.members.book.statistics().dial_failures > 1
        assert len(a.opened) == 1, "the session itself stays"
        b.gate.banned.clear()
        await trio.sleep(limits.REDIAL_BACKOFF_S_MAX)
        assert are_neighbours(a, b)
        assert a.members.refusals == {}


async def test_who_is_asked_for_a_proof_of_work_says_hello_again_with_one(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        b.gate.asks_work = True
        a.knows(b)
        await trio.sleep(5)
        assert are_neighbours(a, b)
        assert [bool(work) for work in b.gate.shown] == [False, True]
        assert is_worked(LINK.swarm_id, a.peer, b.gate.shown[1])
        assert a.members.book.statistics().dial_failures == 0


async def test_whom_we_would_not_have_is_no_neighbour_either(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.gate.banned.add(b.peer)
        a.knows(b)
        await trio.sleep(1)
        assert a.members.sessions == {}
        assert "not on the list" in a.members.refusals[b.peer]
        assert not a.members.is_member(b.peer)


async def test_few_refusals_are_kept(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(limits, "DIAL_ERRORS_KEPT_MAX", 2)
    async with members("a") as (a,):
        for name in "bcd":
            a.knows(Party(a.links, name))
        await trio.sleep(1)
        assert len(a.members.refusals) == 2
        assert all("no node listens" in why for why in a.members.refusals.values())


async def test_who_is_a_member_no_more_is_no_neighbour_any_more(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(1)
        b.gate.banned.add(a.peer)
        await trio.sleep(limits.ADMISSION_REFRESH_S)
        assert b.neighbour(a) is None
        assert b.down == [a.peer]
        session = b.session(a)
        assert session is not None, "other swarms and the DHT may use it"
        with pytest.raises(Refused):
            await a.opened[0].request(SWIM_NAME, PING, deadline_s=1)


async def test_who_finds_itself_no_member_is_told_once(autojump_clock) -> None:
    async with members("a") as (a,):
        await trio.sleep(3.5 * limits.ADMISSION_REFRESH_S)
        assert (a.gate.refreshes, a.expelled) == (3, [])
        a.gate.expelled = "your invite was revoked"
        await trio.sleep(3 * limits.ADMISSION_REFRESH_S)
        assert [str(why) for why in a.expelled] == ["your invite was revoked"]
        assert a.gate.refreshes == 4


async def test_in_a_closed_swarm_news_travels_with_hellos(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        greeted: list[float] = []
        real = b.gate.admit

        def admit(peer: PeerId, hello: SwarmHello) -> None:
            greeted.append(trio.current_time())
            real(peer, hello)

        b.gate.admit = admit  # type: ignore[method-assign]
        a.gate.is_open = False
        a.knows(b)
        await trio.sleep(3.5 * limits.ADMISSION_REFRESH_S)
        assert len(greeted) == 4
        assert (len(a.up), a.down) == (1, [])


# --- sessions come and go ---------------------------------------------------------------------


async def test_a_session_that_is_replaced_is_greeted_anew(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(limits.SESSION_CROSSING_S + 1)
        old = a.neighbour(b)
        assert old is not None
        del a.network.sessions[b.peer]  # as if its end had been noticed there only
        await a.connect(b)
        await trio.sleep(1)
        new = b.neighbour(a)
        assert new is b.session(a)
        assert len(b.up) == 2
        assert b.down == [a.peer], "the old session is no way to it any more"
        assert old.is_closed


async def test_a_lost_session_is_opened_again(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(1)
        session = a.neighbour(b)
        assert session is not None
        session.give_up(ChannelBroken("a test breaks it"))
        await trio.sleep(2)
        assert a.down == [b.peer]
        assert b.down == [a.peer]
        assert are_neighbours(a, b)
        assert a.members.detector.state_of(b.peer) is MemberState.ALIVE


async def test_a_cut_link_costs_no_neighbour(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(1)
        session = a.neighbour(b)
        assert session is not None
        assert a.links.cut("a", "b") == 1
        await trio.sleep(0.1)
        assert a.neighbour(b) is session
        assert session.statistics().resumed == 1
        assert not session.is_suspended
        assert a.down == b.down == []


async def test_no_caller_waits_for_a_session_with_a_dead_member(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(1)
        session = a.neighbour(b)
        assert session is not None
        a.links.partition(["a"], ["b"])
        a.links.cut("a", "b")
        lost_at = trio.current_time()
        await session.wait_closed()
        assert a.members.detector.state_of(b.peer) is MemberState.DEAD
        assert trio.current_time() - lost_at < limits.RESUME_S - 5
        assert "the swarm says that it is dead" in str(session.close_cause)


async def test_a_node_that_starts_again_is_the_same_member(autojump_clock) -> None:
    async with members("a", "b") as (a, b), trio.open_nursery() as nursery:
        b.knows(a)
        await trio.sleep(5)
        b.links.partition(["b"], ["a"])  # its machine lost power
        again = Member(a.links, "again", "b", epoch=2)
        await again.run_in(nursery)
        again.knows(a)
        await trio.sleep(5)
        assert are_neighbours(a, again)
        assert a.members.live() == tuple(sorted((a.peer, b.peer)))
        assert (b.peer, "dead", "") not in a.news
        nursery.cancel_scope.cancel()


# --- which members are alive ------------------------------------------------------------------


async def test_members_meet_through_one_whom_all_know(autojump_clock) -> None:
    async with members("a", "b", "c", "d") as nodes:
        a, *others = nodes
        for node in others:
            node.knows(a)
            for other in others:
                node.where[other.peer] = (other.address,)
        await trio.sleep(30)
        everybody = tuple(sorted(node.peer for node in nodes))
        for node in nodes:
            assert node.members.live() == everybody
            assert len(node.members.sessions) == 3
        asked = [node for node in others if node.resolved]
        assert len(asked) >= 2, "where the others are, no member had told them"
        assert failed_handlers(*nodes) == 0


async def test_told_addresses_are_used_before_a_peer_is_asked(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.members.found(b.peer, (b.address,))
        a.members.found(a.peer, (a.address,))
        a.members.found(PeerId(bytes(32)), ())
        await trio.sleep(1)
        assert are_neighbours(a, b)
        assert a.members.book.entries.keys() == {b.peer}
        assert await a.members.connect(b.peer) is a.neighbour(b)
        assert a.resolved == []


async def test_a_member_is_connected_to_when_it_is_needed(autojump_clock) -> None:
    async with members("a", "b") as (a, b):
        a.where[b.peer] = (b.address,)
        session = await a.members.connect(b.peer)
        assert a.neighbour(b) is session
        assert a.resolved == [b.peer]
        with pytest.raises(SwarmNodeError, match="no address"):
            await a.members.connect(PeerId(bytes(32)))


async def test_who_falls_silent_is_dead_for_all_and_sought_slowly(autojump_clock) -> None:
    async with members("a", "b", "c") as (a, b, c):
        for node in (a, b):
            node.knows(c)
        a.knows(b)
        await trio.sleep(10)
        a.links.partition(["c"], ["a", "b"])
        await trio.sleep(120)
        for node in (a, b):
            assert node.members.live() == tuple(sorted((a.peer, b.peer)))
            assert (c.peer, "dead", "") in node.news
            assert c.peer not in node.members.sessions
            assert node.members.book.entries[c.peer].is_gone
        a.links.heal()
        await trio.sleep(2 * limits.HINT_REDIAL_S)
        everybody = tuple(sorted((a.peer, b.peer, c.peer)))
        for node in (a, b, c):
            assert node.members.live() == everybody


async def test_a_member_that_leaves_is_gone_at_once_and_greets_none(autojump_clock) -> None:
    async with members("a", "b", "c", "d") as (a, b, c, d):
        for node in (b, c):
            node.knows(a)
        b.knows(c)
        await trio.sleep(10)
        began = trio.current_time()
        await a.members.leave("the evening is over")
        assert trio.current_time() - began < limits.GOODBYE_DEADLINE_S
        await trio.sleep(1)
        for node in (b, c):
            assert node.members.live() == tuple(sorted((b.peer, c.peer)))
            assert (a.peer, "left", "the evening is over") in node.news
            assert node.members.book.entries[a.peer].is_gone
        d.knows(a)
        await trio.sleep(2)
        assert d.members.sessions == {}
        assert "leaving" in d.members.refusals[a.peer]


async def test_a_copied_key_is_noticed(autojump_clock) -> None:
    async with members("a", "b") as (a, b), trio.open_nursery() as nursery:
        a.knows(b)
        await trio.sleep(2)
        twin = Member(a.links, "twin", "a", epoch=7)  # a copied home that was started more often
        c = Member(a.links, "c")
        for node in (twin, c):
            await node.run_in(nursery)
        c.knows(twin)
        await trio.sleep(2)
        b.knows(c)
        await trio.sleep(30)
        assert a.conflicts
        assert set(a.conflicts) == {7}
        nursery.cancel_scope.cancel()


async def test_in_a_large_swarm_few_sessions_are_kept_for_ever(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(limits, "PEERS_CONNECTED_MAX", 2)
    async with members("a", "b", "c", "d", "e") as (a, *others):
        for other in others:
            await a.connect(other)
            a.knows(other)
            await a.members.connect(other.peer)
        assert len(a.members.sessions) == 4
        assert [a.members.keeps(other.peer) for other in others] == [True, True, False, False]
        assert not a.members.keeps(a.peer)


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode_record(HELLO)])
async def test_a_swim_message_that_is_none_is_refused(autojump_clock, payload: bytes) -> None:
    async with members("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(1)
        session = a.neighbour(b)
        assert session is not None
        with pytest.raises(Refused):
            await session.request(SWIM_NAME, payload, deadline_s=1)
        assert a.neighbour(b) is session


# --- circuits ---------------------------------------------------------------------------------


async def reach_through(relay: Member, one: Member, other: Member, nursery: trio.Nursery) -> None:
    """Let one reach another through a relay only; a second listener is what that leads to."""
    way = f"relay:{relay.peer.short}@mem:r"
    second = f"{other.name}-relayed"

    async def dial(_address: str) -> Channel:
        return RelayedChannel(await one.transport.dial(f"mem:{second}"), way, relay.peer)

    async def take(channel: Channel) -> None:
        await other.network.listener.accept(RelayedChannel(channel, way, relay.peer))

    await nursery.start(other.links.transport(second).serve, f"mem:{second}", take)
    one.network.ways.dial_relayed = dial
    address = str(RelayAddress(relay.peer, "mem:r", other.peer))
    one.members.found(other.peer, (address,), is_own_word=True)


async def test_a_circuit_without_exchanges_is_given_back_and_no_probe_takes_another(
    autojump_clock,
) -> None:
    async with members(*"abrxy") as (a, b, r, x, y), trio.open_nursery() as nursery:
        await reach_through(r, a, b, nursery)
        await reach_through(r, b, a, nursery)
        await trio.sleep(1)
        assert path_of(a.members.sessions[b.peer].channel_description) == "relay"
        assert path_of(b.members.sessions[a.peer].channel_description) == "relay"
        for node in (a, b):  # and none of them is lonely
            for other in (r, x, y):
                node.knows(other)
        await trio.sleep(limits.RELAY_SPARE_S + 2 * limits.RELAYED_LOOK_S)
        assert not are_neighbours(a, b)
        n_opened = len(a.up)
        await trio.sleep(300)
        assert a.members.detector.state_of(b.peer) is MemberState.ALIVE
        assert b.members.detector.state_of(a.peer) is MemberState.ALIVE
        assert len(a.up) == n_opened, "the relay was asked for them"
        a.members.want((b.peer,))
        await trio.sleep(2)
        assert are_neighbours(a, b), "an exchange seeks it"
        for _ in range(12):
            await trio.sleep(10)
            stream = await a.members.sessions[b.peer].open_stream("sink", priority=Priority.BULK)
            stream.reset_nowait(ResetCode.CANCELLED, "enough")
        assert are_neighbours(a, b), "it is used"
        nursery.cancel_scope.cancel()
