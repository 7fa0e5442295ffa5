"""Invitations to hole punches: which are answered, and what no letter of others can bring about."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.transport import ways
from swarmnode.errors import DeadlineExceeded, DialFailed, Overloaded, Refused
from swarmnode.ids import PeerId
from swarmnode.protocol.nat.punch import SIGNAL_KIND, offer_name
from swarmnode.wire.connect.punch import Message, PunchAnswer, PunchGo, PunchOffer
from swarmnode.wire.packing import decode_record, encode_record
from tests.unit.daemon.transport.nat_kit import (
    RELAY,
    RELAY_AT,
    Lookouts,
    Neighbour,
    PostOffice,
    addresses,
    running,
)

ALICE, BOB, EVE = PeerId(b"a" * 32), PeerId(b"b" * 32), PeerId(b"e" * 32)
ALICE_AT, BOB_AT = ("11.11.11.200", 7097), ("11.11.11.201", 7098)  # 7000 and the first byte
VICTIM = "12.12.12.12"
OFFER = PunchOffer(bytes(16), addresses("11.11.11.200"))


@pytest.fixture
def lookouts(monkeypatch: pytest.MonkeyPatch) -> Lookouts:
    made = Lookouts()
    made.hosts |= {ALICE_AT[1]: ALICE_AT[0], BOB_AT[1]: BOB_AT[0]}
    monkeypatch.setattr(ways, "dial_from", made.dial_from)
    monkeypatch.setattr(ways, "ask_where", made.ask_where)
    return made


@pytest.fixture
def office() -> PostOffice:
    return PostOffice(observed={ALICE: "11.11.11.200:50000", BOB: "11.11.11.201:50000"})


def node(office: PostOffice, peer: PeerId, *friends: PeerId, ipv6: str = "") -> Neighbour:
    made = Neighbour(office.signals_of(peer), peer, port=7000 + peer[0], ipv6=ipv6)
    made.friends.update(friends)
    return made


def kinds(office: PostOffice) -> list[str]:
    """Return what was sent, in order."""
    union: Any = Message
    tags: dict[Any, str] = {PunchOffer: "offer", PunchAnswer: "answer", PunchGo: "go"}
    return [tags[type(decode_record(payload, union))] for *_, payload in office.sent]


# --- as it should be ----------------------------------------------------------------------------


async def test_both_dial_where_the_relay_sees_the_other_and_keep_their_port_open(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    alice, bob = node(office, ALICE), node(office, BOB, ALICE)
    async with running(alice, bob):
        await alice.punching.invite(BOB, RELAY)
        await trio.sleep(1)
        assert kinds(office) == ["offer", "answer", "go"]
        assert lookouts.dialled == [(7097, RELAY_AT), (7098, RELAY_AT)]
        assert lookouts.open_now == 0
        assert [peer for peer, _ in bob.taken] == [ALICE]
        assert alice.taken == [], "the inviter gets it as the answer of its call"
        ours, theirs = alice.puncher.plans[0], bob.puncher.plans[0]
        assert (ours.targets, theirs.targets) == ((BOB_AT,), (ALICE_AT,))
        assert (ours.we_choose, theirs.we_choose) == (False, True)


async def test_both_families_are_dialled_though_the_relay_sees_one(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    """Behind two symmetric NATs nothing but IPv6 comes through, and hints are mostly IPv4."""
    alice = node(office, ALICE, ipv6="2a00:f00d::a")
    bob = node(office, BOB, ALICE, ipv6="2a00:f00d::b")
    async with running(alice, bob):
        await alice.punching.invite(BOB, RELAY)
        ours, theirs = alice.puncher.plans[0], bob.puncher.plans[0]
        assert ours.targets == (BOB_AT, ("2a00:f00d::b", 7098))
        assert theirs.targets == (ALICE_AT, ("2a00:f00d::a", 7097))


async def test_punches_through_one_relay_share_the_connection_to_it(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    """From one port to one address there cannot be two."""
    alice, bob, eve = node(office, ALICE), node(office, BOB, ALICE), node(office, EVE, ALICE)
    alice.puncher.lasts_s = 3.0
    async with running(alice, bob, eve):
        for _ in range(2):
            async with trio.open_nursery() as both:
                both.start_soon(alice.punching.invite, BOB, RELAY)
                await trio.sleep(0.03)  # the first has dialled, and not asked yet
                both.start_soon(alice.punching.invite, EVE, RELAY)
            assert lookouts.open_now == 0
        assert lookouts.dialled.count((7097, RELAY_AT)) == 2, "and is made anew the next time"
        assert [peer for peer, _ in (*bob.taken, *eve.taken)] == [ALICE] * 4


async def test_a_relay_that_cannot_be_dialled_from_the_port_ends_it_and_is_asked_anew(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    alice, bob = node(office, ALICE), node(office, BOB, ALICE)
    async with running(alice, bob):
        lookouts.is_down = True
        for _ in range(2):
            with pytest.raises(DialFailed, match="from port 7097"):
                await alice.punching.invite(BOB, RELAY)
        assert office.sent == []
        lookouts.is_down = False
        office.is_lost = lambda _target, _payload: True
        with pytest.raises(DeadlineExceeded, match="PunchAnswer of the other side"):
            await alice.punching.invite(BOB, RELAY)
        assert lookouts.open_now == 0


async def test_a_relay_that_does_not_say_where_the_port_is_is_left(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    alice = node(office, ALICE)
    lookouts.is_silent = True
    with pytest.raises(DeadlineExceeded, match="asking where a port is"):
        await alice.punching.invite(BOB, RELAY)
    assert len(lookouts.dialled) == 1
    assert lookouts.open_now == 0


async def test_without_a_relay_that_was_dialled_there_is_no_punch(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    alice = Neighbour(office.signals_of(ALICE), ALICE, relay_at="")
    with pytest.raises(Refused, match="was not dialled"):
        await alice.punching.invite(BOB, RELAY)
    assert lookouts.dialled == []


async def test_one_punch_with_a_peer_at_a_time_and_few_in_all(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    alice = node(office, ALICE)
    office.is_lost = lambda _target, _payload: True
    many = [PeerId(bytes([number]) * 32) for number in range(limits.PUNCHES_CONCURRENT_MAX)]

    async def in_vain(peer: PeerId) -> None:
        with pytest.raises(DeadlineExceeded):
            await alice.punching.invite(peer, RELAY)

    async with trio.open_nursery() as nursery:
        for peer in many:
            nursery.start_soon(in_vain, peer)
        await trio.sleep(1)
        with pytest.raises(Refused, match="under way already"):
            await alice.punching.invite(many[0], RELAY)
        with pytest.raises(Overloaded, match="agreements are under way"):
            await alice.punching.invite(BOB, RELAY)
        assert len(lookouts.dialled) == 1
    assert lookouts.open_now == 0


# --- hostile ------------------------------------------------------------------------------------


async def test_hostile_an_offer_of_a_peer_without_a_relayed_session_leads_to_nothing(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    bob = node(office, BOB, ALICE)
    async with running(bob):
        for number in range(100):
            offer = PunchOffer(bytes([number] * 16), addresses(VICTIM))
            office.deliver(EVE, BOB, SIGNAL_KIND, encode_record(offer))
        await trio.sleep(30)
        assert bob.is_untouched
        assert lookouts.dialled == []
        assert office.sent == []


async def test_hostile_answers_and_words_to_begin_that_were_not_asked_for_lead_to_nothing(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    bob = node(office, BOB, ALICE)
    async with running(bob):
        name = offer_name(OFFER)
        for message in (PunchAnswer(name, addresses(VICTIM)), PunchGo(name, 100)):
            for author in (ALICE, EVE):
                office.deliver(author, BOB, SIGNAL_KIND, encode_record(message))
        for garbage in (b"", b"\x80", b"\xc1", bytes(4096)):
            office.deliver(ALICE, BOB, SIGNAL_KIND, garbage)
        await trio.sleep(30)
        assert bob.is_untouched
        assert (lookouts.dialled, office.sent) == ([], [])


async def test_hostile_an_answer_to_another_offer_ends_the_punch_before_anything_is_dialled(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    """A replayed answer, in other words; the same holds for the word to begin."""
    alice, bob = node(office, ALICE), node(office, BOB, ALICE)
    async with running(alice, bob), trio.open_nursery() as nursery:
        office.is_lost = lambda target, _payload: target == BOB

        async def invite() -> None:
            with pytest.raises(Exception, match="a word about another offer"):
                await alice.punching.invite(BOB, RELAY)

        nursery.start_soon(invite)
        await trio.sleep(0.5)
        old = PunchAnswer(offer_name(OFFER), addresses(VICTIM))
        office.deliver(BOB, ALICE, SIGNAL_KIND, encode_record(old))
        await trio.sleep(5)
        assert alice.is_untouched
        office.deliver(ALICE, BOB, SIGNAL_KIND, encode_record(OFFER))
        await trio.sleep(0.5)
        office.deliver(
            ALICE, BOB, SIGNAL_KIND, encode_record(PunchGo(offer_name(old_offer()), 100))
        )
        await trio.sleep(5)
        assert bob.puncher.kept == []


def old_offer() -> PunchOffer:
    return PunchOffer(b"\1" * 16, OFFER.addresses)


async def test_hostile_addresses_of_third_parties_are_not_dialled(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    """Only the host at which the relay sees the author; without it one public host at the most."""
    bob = node(office, BOB, ALICE)
    async with running(bob):
        many = addresses(VICTIM, "13.13.13.13", "14.14.14.14", "192.168.1.1")
        office.deliver(ALICE, BOB, SIGNAL_KIND, encode_record(PunchOffer(bytes(16), many)))
        await trio.sleep(30)
        assert bob.is_untouched
        assert office.sent == []
        mixed = addresses(VICTIM, "11.11.11.200", "13.13.13.13")
        office.deliver(ALICE, BOB, SIGNAL_KIND, encode_record(PunchOffer(bytes(16), mixed)))
        await trio.sleep(30)
        (plan,) = bob.puncher.plans
        assert plan.targets == (("11.11.11.200", 7337),)
        office.observed[ALICE] = ""
        office.deliver(ALICE, BOB, SIGNAL_KIND, encode_record(PunchOffer(bytes(16), many)))
        await trio.sleep(30)
        assert bob.puncher.plans[1].targets == ((VICTIM, 7337),)
        assert bob.puncher.kept == [], "and without a word to begin nothing is dialled at all"


async def test_hostile_a_flood_of_offers_costs_a_few_punches(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    authors = [PeerId(bytes([number]) * 32) for number in range(50)]
    bob = node(office, BOB, *authors)
    office.is_lost = lambda _target, _payload: True
    async with running(bob):
        for author in authors:
            for number in range(5):
                offer = PunchOffer(bytes([number] * 16), addresses("11.11.11.200"))
                office.deliver(author, BOB, SIGNAL_KIND, encode_record(offer))
        await trio.sleep(1)
        assert kinds(office) == ["answer"] * limits.PUNCHES_CONCURRENT_MAX
        assert len(bob.puncher.plans) == limits.PUNCHES_CONCURRENT_MAX
        assert len(lookouts.dialled) == 1
        await trio.sleep(30)
        assert lookouts.open_now == 0
        assert bob.taken == []


async def test_hostile_a_flood_of_letters_during_a_punch_fills_no_memory(
    autojump_clock: MockClock, lookouts: Lookouts, office: PostOffice
) -> None:
    alice, bob = node(office, ALICE), node(office, BOB)
    async with running(alice, bob), trio.open_nursery() as nursery:
        office.is_lost = lambda _target, _payload: True

        async def invite() -> None:
            with pytest.raises(DeadlineExceeded):
                await alice.punching.invite(BOB, RELAY)

        nursery.start_soon(invite)
        await trio.sleep(0.5)
        go = encode_record(PunchGo(offer_name(OFFER), 100))
        for _ in range(1000):
            office.deliver(BOB, ALICE, SIGNAL_KIND, go)
        waiting = alice.punching._letters[BOB].statistics()
        assert waiting.current_buffer_used <= 2
        offer = PunchOffer(bytes(16), addresses(VICTIM))
        office.deliver(BOB, ALICE, SIGNAL_KIND, encode_record(offer))  # while ours is under way
        await trio.sleep(30)
        assert alice.is_untouched
