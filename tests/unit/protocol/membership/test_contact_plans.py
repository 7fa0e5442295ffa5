"""When exactly a contact is dialled again, in which order, and where each bound lies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.membership.contacts import (
    CONTACTS_MAX,
    AddressesFound,
    ContactBook,
    ContactStatistics,
    Dial,
    DialEnded,
    Entry,
    Event,
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

BACKOFF_S, BACKOFF_S_MAX = limits.REDIAL_BACKOFF_S_MIN, limits.REDIAL_BACKOFF_S_MAX
FIRST, LAST = 0.0, 1.0


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


SELF, ONE, TWO, THREE = (peer(number) for number in range(4))
A, B = ("mem:a",), ("mem:b",)


class Drawn(random.Random):
    """Draws always the same place of a range: its beginning, its end, or between."""

    def __init__(self, place: float) -> None:
        super().__init__(1)
        self._place = place

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self._place


class Bench:
    """A contact book and its clock."""

    def __init__(self, place: float = 0.5) -> None:
        self.book = ContactBook(SELF, Drawn(place))
        self.now = 0.0

    def says(self, who: PeerId, addresses: tuple[str, ...] = A, *, own: bool = True) -> None:
        self.book.handle(AddressesFound(who, addresses, own), self.now)

    def hint(self, who: PeerId, *addresses: str) -> None:
        hints = tuple(Hint(who, address) for address in addresses)
        self.book.handle(HintsGiven(hints), self.now)

    def feed(self, event: Event) -> list[PeerId]:
        """Return those to part with."""
        self.book.handle(event, self.now)
        return self.parted()

    def parted(self) -> list[PeerId]:
        return [effect.peer for effect in self.book.poll_effects() if isinstance(effect, Part)]

    def dialled(self) -> list[PeerId]:
        self.book.handle_deadline(self.now)
        return [effect.peer for effect in self.book.poll_effects() if isinstance(effect, Dial)]

    def fail(self, who: PeerId) -> float:
        """Let a dial fail; return in how many seconds the next one is due."""
        assert self.dialled() == [who]
        self.book.handle(DialEnded(who), self.now)
        return self.due_in_s()

    def due_in_s(self) -> float:
        due = self.book.next_deadline()
        assert due is not None
        return due - self.now

    def connect(self, *peers: PeerId, is_relayed: bool = False) -> None:
        for who in peers:
            self.book.handle(SessionOpened(who, is_relayed=is_relayed), self.now)
            self.book.handle(DialEnded(who), self.now)

    def befriend(self, n_peers: int) -> None:
        """Open sessions with others."""
        self.connect(*(peer(900 + number) for number in range(n_peers)))


# --- pauses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "pauses_s"),
    [
        (LAST, [1.0, 2.0, 4.0, 8.0, 16.0, BACKOFF_S_MAX, BACKOFF_S_MAX]),
        (FIRST, [BACKOFF_S / 2] * 7),
    ],
)
def test_the_pause_doubles_with_each_failure_and_is_drawn_from_all_of_it(
    place: float, pauses_s: Sequence[float]
) -> None:
    bench = Bench(place)
    bench.says(ONE)
    for n_dials, pause_s in enumerate(pauses_s, start=1):
        assert bench.fail(ONE) == pytest.approx(pause_s)
        assert bench.book.statistics().dial_failures == n_dials
        bench.now += pause_s
    assert bench.book.statistics().dials == len(pauses_s)


def test_it_is_dialled_when_the_pause_is_over_and_not_before() -> None:
    bench = Bench(LAST)
    bench.says(ONE)
    pause_s = bench.fail(ONE)
    bench.now += pause_s - 0.01
    assert bench.dialled() == []
    bench.now += 0.01
    assert bench.dialled() == [ONE]
    assert bench.book.next_deadline() is None


@pytest.mark.parametrize(("place", "pause_s"), [(FIRST, 0.0), (LAST, BACKOFF_S)])
def test_a_session_that_is_lost_is_opened_again_within_the_least_pause(
    place: float, pause_s: float
) -> None:
    bench = Bench(place)
    bench.says(ONE)
    bench.connect(ONE)
    bench.now = 10.0
    bench.book.handle(SessionClosed(ONE), bench.now)
    assert bench.due_in_s() == pytest.approx(pause_s)


@pytest.mark.parametrize("is_hinted", [True, False])
@pytest.mark.parametrize(("place", "share"), [(FIRST, 0.75), (LAST, 1.25)])
def test_who_is_gone_is_dialled_slowly_whatever_happens(
    place: float, share: float, is_hinted: bool
) -> None:
    bench = Bench(place)
    if is_hinted:
        bench.hint(ONE, *A)
    else:
        bench.says(ONE)
    pause_s = share * (limits.HINT_REDIAL_S if is_hinted else limits.LOST_REDIAL_S)
    bench.connect(ONE)
    bench.book.handle(MemberGone(ONE), 0.0)
    bench.now = 1.0
    bench.book.handle(SessionClosed(ONE), 1.0)
    assert bench.due_in_s() == pytest.approx(pause_s)
    bench.book.handle(MemberGone(ONE), 50.0)
    assert bench.due_in_s() == pytest.approx(pause_s), "told twice"
    bench.now += pause_s
    assert bench.fail(ONE) == pytest.approx(pause_s)


def test_who_dies_without_a_session_is_dialled_slowly_from_then_on() -> None:
    bench = Bench(FIRST)
    bench.says(ONE)
    bench.now = 5.0
    bench.book.handle(MemberGone(ONE), bench.now)
    assert bench.due_in_s() == pytest.approx(0.75 * limits.LOST_REDIAL_S)


def test_news_of_a_member_that_is_there_changes_no_plan() -> None:
    bench = Bench(LAST)
    bench.says(ONE)
    bench.fail(ONE)
    due = bench.book.next_deadline()
    bench.now = 0.1
    bench.book.handle(MemberLives(ONE), bench.now)
    assert bench.book.next_deadline() == due
    bench.book.handle(MemberGone(ONE), bench.now)
    bench.now = 2.0
    bench.book.handle(MemberLives(ONE), bench.now)
    assert bench.due_in_s() == 0.0
    assert bench.fail(ONE) == 2 * BACKOFF_S, "its failures were of before"


def test_one_that_comes_back_while_it_is_dialled_is_not_dialled_twice() -> None:
    bench = Bench(LAST)
    bench.says(ONE)
    bench.book.handle(MemberGone(ONE), 0.0)
    bench.now = 2 * limits.LOST_REDIAL_S
    assert bench.dialled() == [ONE]
    bench.book.handle(MemberLives(ONE), bench.now)
    bench.book.handle(DialEnded(ONE), bench.now)
    assert bench.due_in_s() == 2 * BACKOFF_S, "it is there, and this dial failed"


class Counted(dict[PeerId, Entry]):
    """Contacts that count how often all of them are looked through."""

    n_looks = 0

    def values(self) -> Any:
        self.n_looks += 1
        return super().values()


def test_all_contacts_are_looked_through_only_after_a_change() -> None:
    entries = Counted({ONE: Entry(ONE, 0.0, 7.0, A)})
    book = ContactBook(SELF, Drawn(FIRST), entries)
    for _ in range(5):
        assert book.next_deadline() == 7.0
        book.handle(MemberLives(ONE), 1.0)
    assert entries.n_looks == 1
    book.handle(SessionOpened(ONE), 2.0)
    n_looks = entries.n_looks
    assert book.next_deadline() is None
    assert book.next_deadline() is None
    assert entries.n_looks == n_looks + 1


# --- who has moved ----------------------------------------------------------------------------


@pytest.mark.parametrize(("early_s", "wait_s"), [(0.5, 5.5), (0.0, 0.0)])
def test_a_peer_that_fails_is_dialled_at_once_for_new_addresses_only_now_and_then(
    early_s: float, wait_s: float
) -> None:
    bench = Bench(LAST)
    bench.says(ONE)
    while (pause_s := bench.fail(ONE)) < BACKOFF_S_MAX:
        bench.now += pause_s
    moved_at = bench.now
    bench.says(ONE, B)
    assert bench.dialled() == [ONE]
    bench.now += 5.0
    bench.book.handle(DialEnded(ONE), bench.now)
    assert bench.due_in_s() == BACKOFF_S_MAX
    bench.now = moved_at + limits.REDIAL_MOVED_S - early_s
    bench.says(ONE, A)
    assert bench.due_in_s() == pytest.approx(wait_s)


def test_a_peer_that_never_failed_is_dialled_at_once_however_often_it_moves() -> None:
    bench = Bench(LAST)
    for number in range(5):
        bench.now += 1.0
        bench.says(ONE, (f"mem:{number}",))
        assert bench.due_in_s() == 0.0
        assert bench.dialled() == [ONE]
        bench.connect(ONE)
        bench.book.handle(SessionClosed(ONE), bench.now)


def test_new_addresses_hasten_no_dial_that_is_under_way() -> None:
    bench = Bench(LAST)
    bench.says(ONE)
    assert bench.dialled() == [ONE]
    bench.says(ONE, B)
    assert bench.book.next_deadline() is None
    bench.now = 1.0
    bench.book.handle(DialEnded(ONE), 1.0)
    assert bench.due_in_s() == 2 * BACKOFF_S
    assert bench.book.addresses_of(ONE) == B


def test_what_is_heard_takes_the_place_of_what_was_heard_and_not_of_its_own_word() -> None:
    bench = Bench()
    bench.says(ONE, A)
    bench.says(ONE, ("mem:lan", "mem:lan2"), own=False)
    bench.says(ONE, ("mem:lan3",), own=False)
    bench.hint(ONE, "mem:link", "mem:link", "mem:link2")
    assert bench.book.addresses_of(ONE) == ("mem:a", "mem:lan3", "mem:link", "mem:link2")


def test_of_all_that_is_said_only_so_many_addresses_count() -> None:
    bench = Bench()
    many = tuple(f"mem:{number}" for number in range(limits.CONTACT_ADDRESSES_MAX + 1))
    bench.says(ONE, many, own=False)
    bench.hint(ONE, "mem:link")
    assert bench.book.addresses_of(ONE) == many[: limits.CONTACT_ADDRESSES_MAX]
    bench.says(TWO, many[1:])
    assert bench.book.addresses_of(TWO) == many[1:]


# --- whose turn it is -------------------------------------------------------------------------


def test_fewest_failures_first_and_of_equal_ones_the_newest() -> None:
    bench = Bench(FIRST)
    for now, who in enumerate((ONE, TWO, THREE)):
        bench.now = float(now)
        bench.says(who, (f"mem:{now}",))
    assert bench.dialled() == [THREE, TWO, ONE]
    for who in (ONE, TWO, THREE):
        bench.book.handle(DialEnded(who), bench.now)
    bench.now = 9.0
    assert bench.dialled() == [THREE, TWO, ONE]
    for who in (ONE, TWO, THREE):
        bench.book.handle(DialEnded(who), bench.now)
    bench.now = 20.0
    bench.says(peer(4), B)
    assert bench.dialled() == [peer(4), THREE, TWO, ONE]


def test_those_that_find_no_place_wait_for_the_least_pause() -> None:
    bench = Bench()
    for number in range(limits.DIALS_CONCURRENT_MAX + 2):
        bench.says(peer(10 + number))
    bench.now = 1.0
    assert len(bench.dialled()) == limits.DIALS_CONCURRENT_MAX
    assert bench.due_in_s() == BACKOFF_S
    bench.now += BACKOFF_S
    assert bench.dialled() == []
    assert bench.due_in_s() == BACKOFF_S
    bench.connect(peer(10))
    bench.now += BACKOFF_S
    assert len(bench.dialled()) == 1, "one has ended"


@pytest.mark.parametrize(("n_connected", "is_dialled"), [(-1, True), (0, False)])
def test_one_is_dialled_while_there_are_fewer_sessions_than_a_node_has(
    n_connected: int, is_dialled: bool
) -> None:
    bench = Bench()
    bench.befriend(limits.PEERS_CONNECTED_MAX + n_connected)
    bench.now = 3.0
    bench.says(ONE)
    assert bench.dialled() == ([ONE] if is_dialled else [])
    assert is_dialled or bench.due_in_s() == BACKOFF_S


def test_a_host_that_was_dialled_enough_is_dialled_when_it_may_be() -> None:
    bench = Bench(LAST)
    ports = tuple(f"192.0.2.1:{port}" for port in range(1, limits.DIAL_HOST_BURST + 1))
    bench.says(ONE, ports)
    bench.says(TWO, ("192.0.2.1:99",))
    bench.book.handle_deadline(0.0)
    dials = [effect for effect in bench.book.poll_effects() if isinstance(effect, Dial)]
    assert dials == [Dial(ONE, ports)]
    assert bench.due_in_s() == limits.DIAL_HOST_INTERVAL_S
    assert bench.book.statistics().dials == 1
    bench.now = limits.DIAL_HOST_INTERVAL_S
    assert bench.dialled() == [TWO]


def test_a_dial_that_was_answered_takes_nothing_of_what_its_host_may_be_dialled() -> None:
    bench = Bench()
    for number in range(limits.DIAL_HOST_BURST + 1):
        address = f"192.0.2.1:{number + 1}"
        bench.says(peer(10 + number), (address,))
        assert bench.dialled() == [peer(10 + number)]
        bench.book.handle(SessionOpened(peer(10 + number), address), 0.0)
        bench.book.handle(DialEnded(peer(10 + number)), 0.0)


def test_of_several_ports_of_a_host_another_one_is_tried_each_time() -> None:
    bench = Bench(FIRST)
    ports = tuple(f"192.0.2.1:{port}" for port in range(1, limits.DIAL_HOST_BURST + 3))
    bench.says(ONE, ports)
    bench.book.handle_deadline(0.0)
    assert bench.book.poll_effects() == [Dial(ONE, ports[: limits.DIAL_HOST_BURST])]
    bench.book.handle(DialEnded(ONE), 0.0)
    for n_failed in (1, 2, 3):
        bench.now += limits.DIAL_HOST_INTERVAL_S
        bench.book.handle_deadline(bench.now)
        assert bench.book.poll_effects() == [Dial(ONE, ports[n_failed : n_failed + 1])]
        bench.book.handle(DialEnded(ONE), bench.now)


# --- what is known ----------------------------------------------------------------------------


def test_contacts_are_counted_by_what_they_are() -> None:
    bench = Bench()
    for who in (ONE, TWO, THREE):
        bench.says(who, (f"mem:{who}",))
    bench.dialled()
    bench.connect(ONE)
    bench.book.handle(DialEnded(TWO), 0.0)
    bench.book.handle(MemberGone(THREE), 0.0)
    bench.book.handle(MemberGone(peer(9)), 0.0)
    bench.book.handle(MemberLives(SELF), 0.0)
    assert bench.book.statistics() == ContactStatistics(
        known=3, connected=1, gone=1, dials=3, dial_failures=1
    )


@pytest.mark.parametrize("safe", ["connected", "dialling", "hinted", "no failure"])
def test_only_who_failed_or_is_gone_makes_room_and_none_that_is_of_use(safe: str) -> None:
    bench = Bench()
    for number in range(CONTACTS_MAX - 2):
        bench.book.handle(MemberLives(peer(1000 + number)), 0.0)
    bench.says(ONE)
    if safe == "connected":
        bench.connect(ONE)
        bench.book.handle(MemberGone(ONE), 0.0)
    elif safe == "dialling":
        bench.book.handle(MemberGone(ONE), 0.0)
        bench.now = 2 * limits.LOST_REDIAL_S
        assert bench.dialled() == [ONE]
    elif safe == "hinted":
        bench.hint(ONE, *B)
        bench.fail(ONE)
    bench.now += 1.0
    bench.says(TWO)
    bench.now += 1.0
    bench.says(THREE)
    assert {ONE, TWO, THREE} & set(bench.book.entries) == {ONE, TWO}
    bench.book.handle(MemberGone(TWO), bench.now)
    bench.says(THREE)
    assert {ONE, TWO, THREE} & set(bench.book.entries) == {ONE, THREE}
    assert bench.book.statistics().known == CONTACTS_MAX


# --- circuits ---------------------------------------------------------------------------------


def behind_relay(who: PeerId) -> tuple[str, ...]:
    return (f"relay:{peer(999)}@192.0.2.1:1/{who}",)


def crowd(n_peers: int = 8, place: float = 0.5) -> tuple[Bench, list[PeerId]]:
    """Return a book that is not lonely, and members behind relays of which it knows."""
    bench = Bench(place)
    bench.befriend(limits.SWARM_LONELY_NEIGHBOURS)
    members = [peer(10 + number) for number in range(n_peers)]
    for each in members:
        bench.says(each, behind_relay(each))
    return bench, members


@pytest.mark.parametrize(
    ("addresses", "needs"),
    [
        (("relay:x@192.0.2.1:1/y",), True),
        (("relay:x@192.0.2.1:1/y", "relay:z@192.0.2.2:1/y"), True),
        (("relay:x@192.0.2.1:1/y", "mem:a"), False),
        (("mem:a",), False),
        ((), False),
    ],
)
def test_a_peer_needs_a_relay_if_all_its_addresses_are_relays(
    addresses: tuple[str, ...], needs: bool
) -> None:
    bench = Bench()
    bench.says(ONE, addresses)
    assert bench.book.needs_relay(ONE) is needs
    assert not bench.book.needs_relay(TWO)
    bench.connect(ONE)
    assert not bench.book.needs_relay(ONE), "it has a session"


def test_a_peer_whose_session_went_through_a_relay_needs_one_until_it_says_otherwise() -> None:
    bench = Bench()
    bench.says(ONE, A)
    bench.connect(ONE, is_relayed=True)
    bench.book.handle(SessionClosed(ONE), 0.0)
    assert bench.book.needs_relay(ONE)
    bench.says(ONE, A)
    assert bench.book.needs_relay(ONE), "said again, not new"
    bench.says(ONE, B)
    assert not bench.book.needs_relay(ONE)


@pytest.mark.parametrize("fewer", [0, 1])
def test_with_few_neighbours_one_is_dialled_through_a_relay_whatever_it_takes(fewer: int) -> None:
    bench = Bench()
    bench.book.handle(RelayShare(1), 0.0)
    bench.befriend(limits.SWARM_LONELY_NEIGHBOURS - fewer)
    bench.connect(TWO, is_relayed=True)
    bench.book.handle(SessionClosed(peer(900)), 0.0)
    bench.now = 1.0
    bench.says(ONE, behind_relay(ONE))
    assert bench.dialled() == ([ONE] if fewer else [])
    assert fewer or bench.due_in_s() == limits.RELAYED_LOOK_S


def test_a_peer_of_the_link_is_dialled_through_a_relay_whatever_it_takes() -> None:
    bench, _members = crowd()
    bench.book.handle(RelayShare(1), 0.0)
    assert len(bench.dialled()) == 1
    bench.hint(ONE, *behind_relay(ONE))
    assert bench.dialled() == [ONE]


def test_unmet_members_are_dialled_while_few_sessions_go_through_relays() -> None:
    bench, _members = crowd()
    first = bench.dialled()
    assert len(first) == limits.RELAYED_MEETINGS_MAX
    assert bench.due_in_s() == limits.RELAYED_LOOK_S
    bench.connect(*first, is_relayed=True)
    bench.now = limits.RELAYED_LOOK_S
    assert bench.dialled() == []
    bench.book.handle(SessionMoved(first[0], is_relayed=False), bench.now)
    bench.now += limits.RELAYED_LOOK_S
    (second,) = bench.dialled()
    assert second not in first
    bench.book.handle(DialEnded(second), bench.now)
    bench.book.handle(SessionClosed(first[1]), bench.now)
    bench.book.handle(SessionClosed(first[2]), bench.now)
    bench.now += limits.RELAYED_LOOK_S
    assert set(first).isdisjoint(bench.dialled()), "those that were met are not sought"


def test_dials_through_relays_that_are_under_way_take_circuits_and_each_only_one() -> None:
    bench, _members = crowd()
    first = bench.dialled()
    assert len(first) == limits.RELAYED_MEETINGS_MAX
    bench.now += limits.RELAYED_LOOK_S
    assert bench.dialled() == []
    for each in first[1:]:  # these dials have not ended yet
        bench.book.handle(SessionOpened(each, is_relayed=True), bench.now)
    bench.book.handle(DialEnded(first[0]), bench.now)
    bench.now += 2 * limits.RELAYED_LOOK_S
    assert len(bench.dialled()) == 1


def test_who_is_sought_is_dialled_at_once_up_to_all_circuits_that_there_are() -> None:
    n_circuits = limits.RELAYED_MEETINGS_MAX + 1
    bench, members = crowd(n_circuits + 2)
    bench.book.handle(RelayShare(n_circuits), 0.0)
    met = bench.dialled()
    bench.connect(*met, is_relayed=True)
    one, other, *_ = [each for each in members if each not in met]
    bench.now = 1.0
    bench.book.handle(Sought((one, other, peer(99))), bench.now)
    assert bench.due_in_s() == 0.0
    assert len(bench.dialled()) == 1, "the other finds no room"


def test_one_is_sought_for_as_long_as_a_round_may_wait() -> None:
    bench, members = crowd()
    bench.now = 10.0
    bench.book.handle(Sought((members[0],)), bench.now)
    assert bench.book.is_sought(members[0], 10.0 + limits.SOUGHT_S - 0.1)
    assert not bench.book.is_sought(members[0], 10.0 + limits.SOUGHT_S)
    assert not bench.book.is_sought(members[1], 10.0)
    assert not bench.book.is_sought(peer(99), 10.0)


@pytest.mark.parametrize("state", ["failed", "connected", "gone"])
def test_that_one_is_sought_hastens_no_dial_of_who_failed_or_is_gone(state: str) -> None:
    bench = Bench(LAST)
    bench.says(ONE)
    if state == "failed":
        bench.fail(ONE)
    else:
        bench.connect(ONE)
    if state == "gone":
        bench.book.handle(MemberGone(ONE), 0.0)
        bench.book.handle(SessionClosed(ONE), 0.0)
    due = bench.book.next_deadline()
    bench.book.handle(Sought((ONE,)), 0.5)
    assert bench.book.next_deadline() == due
    if state == "connected":
        bench.now = 1.0
        bench.book.handle(SessionClosed(ONE), 1.0)
        assert bench.due_in_s() == BACKOFF_S


def test_one_that_is_sought_already_due_is_not_put_off() -> None:
    bench = Bench()
    bench.says(ONE)
    bench.book.handle(Sought((ONE,)), 5.0)
    assert bench.book.next_deadline() == 0.0


def taken(n_circuits: int) -> tuple[Bench, list[PeerId], list[PeerId]]:
    """Return a book whose circuits are all taken at 0, 1, 2 s; the sessions, and other members."""
    bench, members = crowd(n_circuits + 3)
    bench.book.handle(RelayShare(n_circuits), 0.0)
    held = members[:n_circuits]
    for each in held:
        bench.connect(each, is_relayed=True)
        bench.now += 1.0
    assert bench.parted() == []
    return bench, held, members[n_circuits:]


def test_the_session_that_was_held_for_longest_gives_way_when_it_has_had_its_turn() -> None:
    bench, held, others = taken(3)
    for late_s, parted in ((-0.1, []), (0.0, [held[0]])):
        bench.now = limits.RELAYED_TURN_S + late_s
        bench.book.handle(Sought((others[0], others[1])), bench.now)
        bench.book.handle_deadline(bench.now)
        assert bench.parted() == parted, "one at a time, for two that are sought"
    bench.now += 0.5
    bench.book.handle(Sought((others[0], others[1])), bench.now)
    bench.book.handle_deadline(bench.now)
    assert bench.parted() == [], "it was used just now, and the next one has its turn still"
    bench.now += limits.RELAYED_LOOK_S
    bench.book.handle_deadline(bench.now)
    assert bench.parted() == [held[1]]


def test_none_gives_way_for_a_member_that_no_exchange_seeks_any_more() -> None:
    bench, _held, others = taken(2)
    bench.book.handle(Sought((others[0],)), bench.now)
    bench.now += limits.SOUGHT_S
    bench.book.handle_deadline(bench.now)
    assert bench.parted() == []


@pytest.mark.parametrize(("early_s", "is_dialled"), [(0.1, True), (0.0, False)])
def test_a_circuit_more_than_to_meet_members_is_taken_only_while_one_is_sought(
    early_s: float, is_dialled: bool
) -> None:
    bench, members = crowd()
    met = bench.dialled()
    bench.connect(*met, is_relayed=True)
    sought = next(each for each in members if each not in met)
    bench.book.handle(Sought((sought,)), bench.now)
    bench.now += limits.SOUGHT_S - early_s
    assert bench.dialled() == ([sought] if is_dialled else [])


def test_one_gives_way_from_the_moment_on_that_it_is_not_sought_any_more() -> None:
    bench, held, others = taken(2)
    bench.now = 100.0
    bench.book.handle(Sought((held[0],)), 100.0)
    bench.now += limits.SOUGHT_S
    bench.book.handle(Sought((others[0],)), bench.now)
    bench.book.handle_deadline(bench.now)
    assert bench.parted() == [held[0]]


def test_one_that_is_sought_gives_way_to_none() -> None:
    bench, held, others = taken(2)
    bench.now = 100.0
    bench.book.handle(Sought((held[0], others[0])), bench.now)
    bench.book.handle_deadline(bench.now)
    assert bench.parted() == [held[1]]


@pytest.mark.parametrize(("late_s", "parts"), [(-0.1, False), (0.0, True)])
def test_one_session_too_many_ends_the_one_that_was_held_for_longest(
    late_s: float, parts: bool
) -> None:
    bench, held, others = taken(2)
    bench.now = limits.RELAY_HOLD_S + late_s
    assert bench.feed(SessionOpened(others[0], is_relayed=True)) == held[:1] * parts
    assert bench.feed(SessionMoved(held[1], is_relayed=True)) == [], "nothing has changed for it"


def test_a_session_has_its_turn_from_when_it_goes_through_a_relay() -> None:
    bench, held, others = taken(2)
    bench.now = 50.0
    bench.book.handle(SessionMoved(held[0], is_relayed=False), 50.0)
    bench.book.handle(SessionMoved(held[1], is_relayed=True), 50.0)
    bench.book.handle(SessionMoved(held[0], is_relayed=True), 50.0)
    bench.now = 50.0 + limits.RELAY_HOLD_S - 1.0
    assert bench.feed(SessionOpened(others[0], is_relayed=True)) == [held[1]]
    bench.now = 50.0 + limits.RELAY_HOLD_S
    assert bench.feed(SessionOpened(others[1], is_relayed=True)) == [held[0]]


@pytest.mark.parametrize(
    ("share", "n_circuits"),
    [
        (0, limits.RELAYED_SESSIONS_MAX),
        (limits.RELAYED_SESSIONS_MAX + 1, limits.RELAYED_SESSIONS_MAX),
        (3, 3),
        (1, 1),
    ],
)
def test_a_node_has_the_circuits_that_relays_leave_it_but_never_too_many(
    share: int, n_circuits: int
) -> None:
    bench = Bench()
    bench.book.handle(RelayShare(2), 0.0)
    bench.book.handle(RelayShare(share), 0.0)
    for number in range(n_circuits):
        bench.now = 100.0 * number
        assert bench.feed(SessionOpened(peer(10 + number), is_relayed=True)) == []
    bench.now = 100.0 * n_circuits
    assert bench.feed(SessionOpened(peer(99), is_relayed=True)) == [peer(10)]
