"""Offers of WebRTC channels: which are answered, and what no letter of others can bring about."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.transport.ways import RTC_SIGNAL_KIND as SIGNAL_KIND
from swarmnode.errors import DeadlineExceeded, DialFailed, MalformedMessage, Overloaded, Refused
from swarmnode.ids import PeerId
from tests.unit.daemon.transport.nat_kit import (
    RELAY,
    Neighbour,
    PostOffice,
    rtc_answer,
    rtc_offer,
    running,
)

ALICE, BOB, EVE = PeerId(b"a" * 32), PeerId(b"b" * 32), PeerId(b"e" * 32)
VICTIM = "12.12.12.12"


def node(office: PostOffice, peer: PeerId, *friends: PeerId) -> Neighbour:
    made = Neighbour(office.signals_of(peer), peer)
    made.friends.update(friends)
    return made


async def test_an_offer_is_answered_and_both_have_a_channel(autojump_clock: MockClock) -> None:
    office = PostOffice()
    alice, bob = node(office, ALICE), node(office, BOB, ALICE)
    async with running(alice, bob):
        await alice.rtc.invite(BOB, RELAY)
        await trio.sleep(1)
        assert [(author, target) for author, target, _, _ in office.sent] == [
            (ALICE, BOB),
            (BOB, ALICE),
        ]
        assert [peer for peer, _ in bob.taken] == [ALICE]
        assert alice.engine.connected == [rtc_answer()]
        assert alice.engine.open_now == bob.engine.open_now == 0


async def test_an_offer_without_an_answer_ends_and_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    office = PostOffice(is_lost=lambda _target, _payload: True)
    alice = node(office, ALICE)
    began = trio.current_time()
    with pytest.raises(DeadlineExceeded, match="the answer to a WebRTC offer"):
        await alice.rtc.invite(BOB, RELAY)
    assert trio.current_time() - began < limits.RTC_ANSWER_S + 1
    assert alice.engine.open_now == 0


async def test_no_way_through_is_said_to_the_asker_and_the_other_tries_nothing_more(
    autojump_clock: MockClock,
) -> None:
    office = PostOffice()
    alice, bob = node(office, ALICE), node(office, BOB, ALICE)
    alice.engine.error = bob.engine.error = DialFailed("rtc: not open within 10 s")
    async with running(alice, bob):
        with pytest.raises(DialFailed, match="not open"):
            await alice.rtc.invite(BOB, RELAY)
        await trio.sleep(1)
        assert bob.taken == []
        alice.engine.error = bob.engine.error = None
        await alice.rtc.invite(BOB, RELAY)
        await trio.sleep(1)
        assert len(bob.taken) == 1


async def test_one_offer_to_a_peer_at_a_time_and_few_in_all(autojump_clock: MockClock) -> None:
    office = PostOffice(is_lost=lambda _target, _payload: True)
    alice = node(office, ALICE)
    many = [PeerId(bytes([number]) * 32) for number in range(limits.UPGRADES_CONCURRENT_MAX)]

    async def in_vain(peer: PeerId) -> None:
        with pytest.raises(DeadlineExceeded):
            await alice.rtc.invite(peer, RELAY)

    async with trio.open_nursery() as nursery:
        for peer in many:
            nursery.start_soon(in_vain, peer)
        await trio.sleep(1)
        with pytest.raises(Refused, match="under way already"):
            await alice.rtc.invite(many[0], RELAY)
        with pytest.raises(Overloaded, match="agreements are under way"):
            await alice.rtc.invite(BOB, RELAY)
    assert alice.engine.offers == limits.UPGRADES_CONCURRENT_MAX
    assert alice.engine.open_now == 0


# --- hostile ------------------------------------------------------------------------------------


async def test_hostile_an_offer_of_a_peer_without_a_relayed_session_leads_to_nothing(
    autojump_clock: MockClock,
) -> None:
    office = PostOffice()
    bob = node(office, BOB, ALICE)
    async with running(bob):
        for number in range(100):
            office.deliver(EVE, BOB, SIGNAL_KIND, rtc_offer(f"12.12.12.{number + 1}"))
        await trio.sleep(30)
        assert bob.is_untouched
        assert office.sent == []


async def test_hostile_an_answer_that_was_not_asked_for_leads_to_nothing(
    autojump_clock: MockClock,
) -> None:
    office = PostOffice()
    bob = node(office, BOB, ALICE)
    async with running(bob):
        for author in (ALICE, EVE):
            office.deliver(author, BOB, SIGNAL_KIND, rtc_answer(VICTIM))
        for garbage in (b"", b"\x80", b"\xc1", bytes(4096)):
            office.deliver(ALICE, BOB, SIGNAL_KIND, garbage)
        await trio.sleep(30)
        assert bob.is_untouched
        assert office.sent == []


async def test_hostile_an_answer_of_another_peer_is_not_waited_for(
    autojump_clock: MockClock,
) -> None:
    office = PostOffice(is_lost=lambda _target, _payload: True)
    alice = node(office, ALICE)
    async with running(alice), trio.open_nursery() as nursery:

        async def invite() -> None:
            with pytest.raises(DeadlineExceeded):
                await alice.rtc.invite(BOB, RELAY)

        nursery.start_soon(invite)
        await trio.sleep(0.5)
        office.deliver(EVE, ALICE, SIGNAL_KIND, rtc_answer(VICTIM))
        await trio.sleep(5)
        assert alice.engine.connected == []


async def test_hostile_a_replayed_answer_belongs_to_another_offer_and_ends_this_one(
    autojump_clock: MockClock,
) -> None:
    """Nothing is checked then: the engine compares the hash before it looks at candidates."""
    office = PostOffice(is_lost=lambda _target, _payload: True)
    alice = node(office, ALICE)
    async with running(alice), trio.open_nursery() as nursery:

        async def invite() -> None:
            with pytest.raises(MalformedMessage, match="got one to another"):
                await alice.rtc.invite(BOB, RELAY)

        nursery.start_soon(invite)
        await trio.sleep(0.5)
        office.deliver(BOB, ALICE, SIGNAL_KIND, rtc_answer(VICTIM, offer=b"\1" * 32))
        for _ in range(100):  # only the first counts, the rest is not even kept
            office.deliver(BOB, ALICE, SIGNAL_KIND, rtc_answer())
        await trio.sleep(5)
        assert len(alice.engine.connected) == 1
        assert alice.engine.open_now == 0


async def test_hostile_a_flood_of_offers_costs_a_few_answers(autojump_clock: MockClock) -> None:
    office = PostOffice(is_lost=lambda _target, _payload: True)
    authors = [PeerId(bytes([number]) * 32) for number in range(50)]
    bob = node(office, BOB, *authors)
    bob.engine.lasts_s = 5.0
    async with running(bob):
        for author in authors:
            for _ in range(5):
                office.deliver(author, BOB, SIGNAL_KIND, rtc_offer("11.11.11.200"))
        await trio.sleep(1)
        assert len(bob.engine.answered) == limits.UPGRADES_CONCURRENT_MAX
        await trio.sleep(30)
        assert bob.engine.open_now == 0
        office.deliver(authors[9], BOB, SIGNAL_KIND, rtc_offer("11.11.11.200"))
        await trio.sleep(1)
        assert len(bob.engine.answered) == limits.UPGRADES_CONCURRENT_MAX + 1, "then others"
