"""The contact book: which peers to dial and when, for ever but never often, within bounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.contacts import (
    AddressesFound,
    ContactBook,
    DialEnded,
    HintsGiven,
    MemberGone,
    MemberLives,
    Part,
    RelayShare,
    SessionClosed,
    SessionMoved,
    SessionOpened,
    Sought,
)
from swarmnode.protocol.swarm import Hint


def peer(number: int) -> PeerId:
    return Identity.from_seed(number.to_bytes(32, "big")).peer_id


def says(who: PeerId, addresses: tuple[str, ...]) -> AddressesFound:
    """The peer's own word, in the shared state."""
    return AddressesFound(who, addresses, is_own_word=True)


def heard(who: PeerId, addresses: tuple[str, ...]) -> AddressesFound:
    """From the LAN or the DHT."""
    return AddressesFound(who, addresses, is_own_word=False)


SELF, ONE, TWO = peer(0), peer(1), peer(2)
A, B = ("mem:a",), ("mem:b",)


@pytest.fixture
def book() -> ContactBook:
    return ContactBook(SELF, random.Random(1))


def hinted(who: PeerId, address: str = "mem:link") -> HintsGiven:
    return HintsGiven((Hint(who, address),))


def dialled(book: ContactBook, now: float) -> dict[PeerId, tuple[str, ...]]:
    book.handle_deadline(now)
    return {effect.peer: effect.addresses for effect in book.poll_effects()}


def connect(book: ContactBook, who: PeerId, now: float) -> None:
    """A dial that succeeds."""
    book.handle(SessionOpened(who), now)
    book.handle(DialEnded(who), now)


def dials_until(book: ContactBook, now: float, end: float) -> list[float]:
    """Obey every deadline, let every dial fail; return when there were dials."""
    times: list[float] = []
    while (deadline := book.next_deadline()) is not None and deadline <= end:
        assert deadline > now or not times, "the clock must go on"
        now = max(now, deadline)
        for who in dialled(book, now):
            times.append(now)
            book.handle(DialEnded(who), now)
    return times


# --- which peers, and where -------------------------------------------------------------------


def test_a_hint_is_dialled_at_once_and_we_are_not(book: ContactBook) -> None:
    book.handle(HintsGiven((Hint(ONE, "mem:one"), Hint(SELF, "mem:me"))), 0.0)
    assert dialled(book, 0.0) == {ONE: ("mem:one",)}
    assert dialled(book, 1.0) == {}, "it is under way"
    connect(book, ONE, 1.0)
    assert book.next_deadline() is None
    assert book.statistics().connected == 1
    assert book.statistics().dial_failures == 0


def test_a_peers_own_word_comes_first_then_what_was_heard_then_the_link(book: ContactBook) -> None:
    book.handle(hinted(ONE), 0.0)
    book.handle(hinted(ONE, "mem:other"), 0.0)
    book.handle(heard(ONE, ("mem:lan", "mem:other")), 0.0)
    assert book.addresses_of(ONE) == ("mem:lan", "mem:other", "mem:link")
    book.handle(says(ONE, A), 0.0)
    assert book.addresses_of(ONE) == ("mem:a", "mem:lan", "mem:other", "mem:link")
    assert book.addresses_of(TWO) == ()
    book.handle(says(ONE, B), 1.0)
    assert dialled(book, 1.0) == {ONE: ("mem:b", "mem:lan", "mem:other", "mem:link")}


def test_a_peer_that_has_moved_is_dialled_at_once(book: ContactBook) -> None:
    book.handle(says(ONE, A), 0.0)
    for now in (0.0, 100.0, 200.0):
        assert dialled(book, now) == {ONE: A}
        book.handle(DialEnded(ONE), now)
    book.handle(says(ONE, A), 200.0)
    book.handle(heard(ONE, A), 200.0)
    assert dialled(book, 200.0) == {}, "said again, not new"
    book.handle(says(ONE, B), 200.0)
    assert dialled(book, 200.0) == {ONE: (*B, *A)}


def test_addresses_beyond_the_bound_do_not_make_a_peer_look_new(book: ContactBook) -> None:
    many = tuple(f"mem:{number}" for number in range(2 * limits.CONTACT_ADDRESSES_MAX))
    book.handle(says(ONE, many), 0.0)
    assert book.addresses_of(ONE) == many[: limits.CONTACT_ADDRESSES_MAX]
    dialled(book, 0.0)
    book.handle(DialEnded(ONE), 0.0)
    book.handle(says(ONE, many), 0.0)
    assert dialled(book, 0.0) == {}


def test_who_is_known_without_an_address_waits_for_one(book: ContactBook) -> None:
    book.handle(MemberLives(ONE), 0.0)
    assert book.next_deadline() is None
    book.handle(says(ONE, A), 5.0)
    assert dialled(book, 5.0) == {ONE: A}


def test_who_dials_us_need_not_be_dialled(book: ContactBook) -> None:
    book.handle(SessionOpened(ONE), 0.0)
    book.handle(says(ONE, A), 1.0)
    assert book.next_deadline() is None
    assert dialled(book, 1.0) == {}


def test_a_session_that_opens_during_a_dial_makes_it_no_failure(book: ContactBook) -> None:
    book.handle(says(ONE, A), 0.0)
    dialled(book, 0.0)
    book.handle(SessionOpened(ONE), 1.0)
    book.handle(DialEnded(ONE), 2.0)
    assert book.statistics().dial_failures == 0
    book.handle(DialEnded(TWO), 2.0)  # of which nothing is known any more
    assert book.statistics().known == 1


# --- when ---------------------------------------------------------------------------------------


def test_failed_dials_back_off_with_a_bound_and_jitter(book: ContactBook) -> None:
    book.handle(hinted(ONE), 0.0)
    times = dials_until(book, 0.0, 600.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(pauses) >= limits.REDIAL_BACKOFF_S_MIN / 2
    assert max(pauses) <= limits.REDIAL_BACKOFF_S_MAX
    assert max(pauses[:3]) < limits.REDIAL_BACKOFF_S_MAX / 4
    assert len(set(pauses)) == len(pauses)
    assert book.statistics().dial_failures == len(times)


def test_a_lost_session_is_sought_at_once_and_failures_count_anew(book: ContactBook) -> None:
    book.handle(says(ONE, A), 0.0)
    dials_until(book, 0.0, 300.0)
    connect(book, ONE, 300.0)
    book.handle(SessionClosed(ONE), 400.0)
    deadline = book.next_deadline()
    assert deadline is not None
    assert 400.0 <= deadline <= 400.0 + limits.REDIAL_BACKOFF_S_MIN
    book.handle(SessionClosed(ONE), 401.0)
    assert book.next_deadline() == deadline, "told twice"


def test_dials_at_once_are_bounded_and_those_that_never_failed_come_first(
    book: ContactBook,
) -> None:
    failing = [peer(number) for number in range(10, 13)]
    for who in failing:
        book.handle(says(who, A), 0.0)
    for who in dialled(book, 0.0):
        book.handle(DialEnded(who), 0.0)
    fresh = [peer(number) for number in range(20, 20 + limits.DIALS_CONCURRENT_MAX)]
    for who in fresh:
        book.handle(says(who, A), 1.0)
    assert dialled(book, 60.0).keys() == set(fresh)
    for who in fresh:
        connect(book, who, 60.0)
    deadline = book.next_deadline()
    assert deadline is not None
    assert deadline <= 60.0 + limits.REDIAL_BACKOFF_S_MIN
    assert dialled(book, deadline).keys() == set(failing)


def test_a_node_with_enough_neighbours_dials_none(book: ContactBook) -> None:
    for number in range(limits.PEERS_CONNECTED_MAX):
        book.handle(SessionOpened(peer(100 + number)), 0.0)
    book.handle(says(ONE, A), 0.0)
    assert dialled(book, 0.0) == {}
    book.handle(SessionClosed(peer(100)), 1.0)
    assert dialled(book, 2.0) == {ONE: A}


# --- a third party ------------------------------------------------------------------------------


def connections_in(book: ContactBook, peers: list[PeerId], every_s: float, seconds: int) -> int:
    """Let peers say that they are at ports of one host, and let each dial fail after 0.3 s."""
    made = told = 0
    now = next_told = 0.0
    pending: list[tuple[float, PeerId]] = []
    while now < seconds:
        if now >= next_told:
            next_told, told = next_told + every_s, told + 1
            addresses = tuple(f"203.0.113.9:{2000 + (n + told) % 40}" for n in range(8))
            for who in peers:
                book.handle(says(who, addresses), now)
        for _, who in [each for each in pending if each[0] <= now]:
            book.handle(DialEnded(who), now)
        pending = [each for each in pending if each[0] > now]
        for who, dialled_at in dialled(book, now).items():
            made += len(dialled_at)
            pending.append((now + 0.3, who))
        now += 0.1
    return made


@pytest.mark.parametrize("every_s", [1.0, 1e9])
@pytest.mark.parametrize("n_peers", [1, 16, 64])
def test_a_host_that_liars_name_is_dialled_less_than_once_a_second(
    book: ContactBook, n_peers: int, every_s: float
) -> None:
    peers = [peer(number) for number in range(1, 1 + n_peers)]
    assert 0 < connections_in(book, peers, every_s, 120) <= 120


def test_back_off_survives_addresses_that_change_again_and_again(book: ContactBook) -> None:
    dials, now = 0, 0.0
    for step in range(600):
        now = step / 2
        book.handle(says(ONE, (f"198.51.{step // 250}.{step % 250}:7337",)), now)  # another host
        for who in dialled(book, now):
            dials += 1
            book.handle(DialEnded(who), now)
    assert dials <= 2 * now / limits.REDIAL_MOVED_S + 20, "more often at first, as without news"
    assert book.entries[ONE].failures == dials


def test_nodes_of_one_machine_that_answer_are_all_met_at_once(book: ContactBook) -> None:
    """Eight behind one router, or a hundred of a laboratory on one machine."""
    for number in range(1, 9):
        book.handle(says(peer(number), (f"192.0.2.1:{7000 + number}",)), 0.0)
    met, now = set[PeerId](), 0.0
    while len(met) < 8 and now < 10:
        for who, addresses in dialled(book, now).items():
            book.handle(SessionOpened(who, addresses[0]), now + 0.1)
            book.handle(DialEnded(who), now + 0.1)
            met.add(who)
        now += 0.25
    assert now <= 1.5


def test_of_several_addresses_at_one_host_each_has_its_turn(book: ContactBook) -> None:
    ports = tuple(f"192.0.2.1:{port}" for port in range(1, 9))
    book.handle(says(ONE, ports), 0.0)
    seen: set[str] = set()
    for now in range(60):
        for addresses in dialled(book, float(now)).values():
            seen |= set(addresses)
            book.handle(DialEnded(ONE), float(now))
    assert seen == set(ports)


# --- peers that are gone ------------------------------------------------------------------------


def lose(book: ContactBook, who: PeerId) -> None:
    connect(book, who, 0.0)
    book.handle(SessionClosed(who), 1.0)
    book.handle(MemberGone(who), 1.0)


@pytest.mark.parametrize("is_hinted", [True, False])
def test_who_is_gone_is_sought_slowly_for_ever(book: ContactBook, is_hinted: bool) -> None:
    period_s = limits.HINT_REDIAL_S if is_hinted else limits.LOST_REDIAL_S
    book.handle(hinted(ONE) if is_hinted else says(ONE, A), 0.0)
    dialled(book, 0.0)
    lose(book, ONE)
    times = dials_until(book, 1.0, 1.0 + 20 * period_s)
    pauses = [later - earlier for earlier, later in itertools.pairwise((1.0, *times))]
    assert len(times) > 20 / 1.3
    assert all(0.74 < pause_s / period_s < 1.26 for pause_s in pauses)
    assert book.statistics().gone == 1


def test_a_session_that_ends_after_the_goodbye_is_not_sought_at_once(book: ContactBook) -> None:
    book.handle(says(ONE, A), 0.0)
    dialled(book, 0.0)
    connect(book, ONE, 0.0)
    book.handle(MemberGone(ONE), 1.0)
    book.handle(SessionClosed(ONE), 1.1)
    deadline = book.next_deadline()
    assert deadline is not None
    assert deadline > 1.1 + 0.7 * limits.LOST_REDIAL_S


def test_new_addresses_of_a_gone_member_do_not_hasten_anything(book: ContactBook) -> None:
    book.handle(says(ONE, A), 0.0)
    dialled(book, 0.0)
    lose(book, ONE)
    book.handle(says(ONE, B), 2.0)
    assert dialled(book, 2.0) == {}
    assert book.addresses_of(ONE) == B


@pytest.mark.parametrize("back", [MemberLives, SessionOpened])
def test_who_comes_back_is_gone_no_more(
    book: ContactBook, back: Callable[[PeerId], object]
) -> None:
    book.handle(says(ONE, A), 0.0)
    dialled(book, 0.0)
    lose(book, ONE)
    book.handle(back(ONE), 5.0)  # type: ignore[arg-type]
    assert book.statistics().gone == 0
    assert dialled(book, 5.0) == ({ONE: A} if back is MemberLives else {})


def test_strangers_that_are_gone_are_not_noted(book: ContactBook) -> None:
    book.handle(MemberGone(ONE), 0.0)
    assert book.statistics().known == 0


# --- bounds -------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, book: ContactBook) -> ContactBook:
    monkeypatch.setattr("swarmnode.protocol.membership.contacts.CONTACTS_MAX", 4)
    return book


def test_the_book_is_bounded_and_the_longest_silent_makes_room(
    small: ContactBook,
) -> None:
    for number, heard_at in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 4.0)):
        small.handle(says(peer(number), A), heard_at)
    newcomer = peer(9)
    small.handle(says(newcomer, A), 5.0)
    assert newcomer not in small.entries, "no peer is known to be gone"
    for number in (1, 2, 3):
        small.handle(MemberGone(peer(number)), 5.0)
    small.handle(says(newcomer, A), 6.0)
    assert small.entries.keys() == {peer(1), peer(3), peer(4), newcomer}


def test_who_cannot_be_reached_makes_room_too(small: ContactBook) -> None:
    for number in (1, 2, 3, 4):
        small.handle(says(peer(number), A), 0.0)
    dialled(small, 0.0)
    small.handle(DialEnded(peer(3)), 0.0)
    small.handle(says(peer(9), A), 1.0)
    assert small.entries.keys() == {peer(1), peer(2), peer(4), peer(9)}


def test_peers_of_the_link_and_neighbours_are_never_forgotten(small: ContactBook) -> None:
    small.handle(hinted(ONE), 0.0)
    dialled(small, 0.0)
    small.handle(DialEnded(ONE), 0.0)
    small.handle(MemberGone(ONE), 0.0)
    small.handle(SessionOpened(TWO), 0.0)
    for number in range(10, 30):
        small.handle(says(peer(number), A), 1.0)
        small.handle(MemberGone(peer(number)), 1.0)
    assert {ONE, TWO} <= small.entries.keys()
    assert len(small.entries) == 4


# --- circuits -------------------------------------------------------------------------------------


def relayed_at(who: PeerId) -> tuple[str, ...]:
    return (f"relay:{peer(999)}@192.0.2.1:1/{who}",)


@pytest.fixture
def crowd(book: ContactBook) -> list[PeerId]:
    """Thirty members behind relays, and as many others with a session that none is lonely."""
    for number in range(limits.SWARM_LONELY_NEIGHBOURS):
        book.handle(SessionOpened(peer(900 + number)), 0.0)
    members = [peer(number) for number in range(1, 31)]
    for member in members:
        book.handle(says(member, relayed_at(member)), 0.0)
    return members


def meet(book: ContactBook, now: float) -> list[PeerId]:
    """Let every dial succeed through a relay."""
    met = list(dialled(book, now))
    for each in met:
        book.handle(SessionOpened(each, is_relayed=True), now)
        book.handle(DialEnded(each), now)
    return met


def parted(book: ContactBook, now: float) -> list[PeerId]:
    book.handle_deadline(now)
    return [effect.peer for effect in book.poll_effects() if isinstance(effect, Part)]


def test_a_few_members_behind_relays_are_met_and_others_where_an_exchange_seeks_them(
    book: ContactBook, crowd: list[PeerId]
) -> None:
    assert len(meet(book, 0.0)) == limits.RELAYED_MEETINGS_MAX
    assert meet(book, 30.0) == []
    sought = next(each for each in crowd if not book.entries[each].connected)
    book.handle(Sought((sought,)), 30.0)
    assert meet(book, 30.0) == [sought]
    for number in range(30):
        book.handle(Sought(tuple(crowd)), 31.0 + number)
        book.handle_deadline(31.0 + number)
        meet(book, 31.0 + number)
    n_relayed = sum(each.is_relayed for each in book.entries.values())
    assert n_relayed == limits.RELAYED_SESSIONS_MAX


def test_a_session_that_is_bettered_makes_room_for_the_next(
    book: ContactBook, crowd: list[PeerId]
) -> None:
    met = meet(book, 0.0)
    for each in met:
        book.handle(SessionMoved(each, is_relayed=False), 1.0)
    again = meet(book, 10.0)
    assert len(again) == limits.RELAYED_MEETINGS_MAX
    assert not set(again) & set(met)


def test_one_that_had_its_turn_gives_way_to_one_that_is_sought(
    book: ContactBook, crowd: list[PeerId]
) -> None:
    book.handle(RelayShare(2), 0.0)
    first, second = meet(book, 0.0)
    third = next(each for each in crowd if each not in (first, second))
    book.handle(Sought((third, first)), 10.0)
    assert parted(book, 10.0) == [], "they had no turn yet"
    now = limits.RELAYED_TURN_S + 1.0
    book.handle(Sought((third, first)), now)
    assert parted(book, now) == [second], "the other one is sought"
    book.handle(SessionClosed(second), now + 1)
    assert meet(book, now + 1) == [third] or meet(book, now + 10) == [third]


def test_others_that_dial_us_take_no_more_than_our_share(
    book: ContactBook, crowd: list[PeerId]
) -> None:
    book.handle(RelayShare(2), 0.0)
    first, _second = meet(book, 0.0)
    stranger = next(each for each in crowd if not book.entries[each].connected)
    book.handle(SessionOpened(stranger, is_relayed=True), limits.RELAY_HOLD_S)
    (effect,) = book.poll_effects()
    assert effect == Part(first)


def test_a_session_that_is_moved_to_a_relay_has_its_turn_from_then_on(
    book: ContactBook, crowd: list[PeerId]
) -> None:
    moved, next_one = crowd[:2]
    book.handle(RelayShare(1), 0.0)
    book.handle(SessionOpened(moved), 0.0)
    now = 2 * limits.RELAY_HOLD_S
    book.handle(SessionMoved(moved, is_relayed=True), now)
    book.poll_effects()
    book.handle(SessionOpened(next_one, is_relayed=True), now + 1.0)
    assert book.poll_effects() == []


def test_a_lonely_node_takes_any_circuit(book: ContactBook) -> None:
    book.handle(RelayShare(1), 0.0)
    members = [peer(number) for number in range(1, 6)]
    for member in members:
        book.handle(says(member, relayed_at(member)), 0.0)
    met = meet(book, 0.0)
    assert len(met) == 5, "none of them was connected when they were dialled"
    assert not book.needs_relay(met[0])
    book.handle(SessionClosed(met[0]), 1.0)
    assert book.needs_relay(met[0])
    book.handle(says(met[0], ("192.0.2.9:1",)), 2.0)
    assert not book.needs_relay(met[0]), "it can be dialled now"
