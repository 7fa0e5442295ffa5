"""When a table wants what: to the second, and to the last of those that are counted."""

from __future__ import annotations

import random

import pytest

from swarmnode import limits
from swarmnode.protocol.dht.keys import KEY_BITS, AddressGroups, number_of
from swarmnode.protocol.dht.table import Added, RoutingTable
from swarmnode.protocol.dht.upkeep import (
    DHT_BUCKETS_REFRESHED_MAX,
    DHT_SWEEP_S,
    Check,
    LookUp,
    Meet,
    Sweep,
    Task,
    Upkeep,
)
from swarmnode.wire.dht import Contact
from tests.unit.protocol.dht.dht_kit import contact_at, identity

OWN = identity(0).peer_id
OWN_NUMBER = number_of(OWN)
FAR = 1 << 255
PAUSE_S = limits.DHT_SELF_LOOKUP_PAUSE_S


class Draws(random.Random):
    """Draws the share of each range that it is told, and the last of each choice."""

    share = 0.5

    def uniform(self, a: float, b: float) -> float:
        return a + self.share * (b - a)

    def randrange(self, stop: int) -> int:  # type: ignore[override]
        return stop - 1


class Node:
    """A table and what keeps it up; lookups are carried out by the test."""

    def __init__(self, now: float = 0.0, share: float = 0.5) -> None:
        self.table = RoutingTable(OWN, AddressGroups())
        self.draws = Draws(1)
        self.draws.share = share
        self.upkeep = Upkeep(self.table, self.draws, now)

    def insert(self, *contacts: Contact, now: float = 0.0) -> None:
        for contact in contacts:
            assert self.table.answered(contact, now) is Added.NEW
            self.upkeep.inserted(number_of(contact.peer), now)

    def look_up(self, now: float) -> list[int]:
        """End each lookup that is to be started, at once; return their targets."""
        targets = []
        while tasks := self.upkeep.next_lookup(now):
            (task,) = tasks
            assert isinstance(task, LookUp)
            targets.append(task.target)
            self.upkeep.ended(task.target, now)
        return targets


def somebody(distance: int) -> Contact:
    return contact_at(distance, OWN, f"100.{64 + distance % 63}.{distance % 251}.1:7337")


def settled(n_contacts: int, *, share: float = 0.5) -> Node:
    """Return a node that has ended its bootstrap at time 0 with so many in its farthest bucket."""
    node = Node(share=share)
    node.insert(*(somebody(FAR + place) for place in range(n_contacts)))
    node.look_up(0.0)
    assert node.upkeep.is_bootstrapped
    return node


def kinds(tasks: list[Task]) -> list[type]:
    return [type(task) for task in tasks]


# --- deadlines ---------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "times"), [(0.0, 0.75), (1.0, 1.25)])
def test_deadlines_are_spread_a_quarter_around_their_intervals(share: float, times: float) -> None:
    node = Node(100.0, share)
    upkeep = node.upkeep
    contact = somebody(FAR)
    assert node.table.answered(contact, 100.0 - limits.DHT_CHECK_SILENCE_S) is Added.NEW
    rejoin_at = 100.0 + times * limits.DHT_REJOIN_S
    assert upkeep.next_deadline() == rejoin_at
    assert upkeep.due(rejoin_at - 0.001) == []
    assert upkeep.due(rejoin_at) == []
    check_at = 100.0 + times * limits.DHT_CHECK_INTERVAL_S
    assert upkeep.next_deadline() == check_at
    assert upkeep.due(check_at) == [Check(contact)]
    assert upkeep.next_deadline() == rejoin_at + times * limits.DHT_REJOIN_S


def test_what_has_expired_is_forgotten_every_minute() -> None:
    node = settled(1)
    swept = []
    now = 0.0
    while now < 3 * DHT_SWEEP_S + 1:
        now = node.upkeep.next_deadline()
        if Sweep in kinds(node.upkeep.due(now)):
            swept.append(now)
        node.upkeep.ended(OWN_NUMBER, now)
    assert swept == [DHT_SWEEP_S, 2 * DHT_SWEEP_S, 3 * DHT_SWEEP_S]


@pytest.mark.parametrize("short_s", [0.0, 0.001])
def test_the_contact_that_was_silent_longest_is_checked(short_s: float) -> None:
    node = Node()
    check_at = limits.DHT_CHECK_INTERVAL_S
    silent_since = check_at - limits.DHT_CHECK_SILENCE_S + short_s
    silent, other = somebody(FAR), somebody(FAR + 1)
    node.table.answered(silent, silent_since)
    node.table.answered(other, silent_since + 1)
    node.upkeep.due(limits.DHT_REJOIN_S)
    assert node.upkeep.due(check_at) == ([] if short_s else [Check(silent)])
    assert node.upkeep.due(check_at + 1.0) == [], "the next turn is an interval later"


def test_with_an_empty_table_there_is_none_to_check() -> None:
    node = Node()
    for now in (limits.DHT_REJOIN_S, limits.DHT_CHECK_INTERVAL_S):
        assert node.upkeep.due(now) == []


@pytest.mark.parametrize(("share", "times"), [(0.0, 0.75), (1.0, 1.25)])
def test_who_owes_an_answer_is_asked_again_before_long(share: float, times: float) -> None:
    node = settled(1, share=share)
    contact = somebody(FAR)
    number = number_of(contact.peer)
    node.table.unanswered(number)
    node.upkeep.unanswered(number, 1.0)
    due = 1.0 + times * limits.DHT_RECHECK_S
    assert node.upkeep.next_deadline() == due
    assert node.upkeep.due(due - 0.001) == []
    assert node.upkeep.due(due) == [Check(contact)]
    assert node.upkeep.due(due) == [], "once"


def test_who_has_answered_since_or_is_gone_is_not_asked_again() -> None:
    node = settled(3)
    numbers = [number_of(somebody(FAR + place).peer) for place in range(3)]
    for number in numbers:
        node.table.unanswered(number)
        node.upkeep.unanswered(number, 1.0)
    node.table.answered(somebody(FAR), 2.0)
    for _ in range(limits.DHT_UNANSWERED_MAX):
        node.table.unanswered(numbers[1])
    assert node.upkeep.due(1.0 + limits.DHT_RECHECK_S) == [Check(somebody(FAR + 2))]


# --- bootstrap ---------------------------------------------------------------------------


def test_a_node_without_any_other_looks_for_none() -> None:
    node = Node()
    assert node.look_up(0.0) == []
    assert node.upkeep.discovered([Contact(bytes(OWN), ("100.64.1.1:1",))], 1.0) == []
    assert node.look_up(1.0) == []


def test_before_the_bootstrap_a_stranger_is_a_reason_to_look_ourselves_up() -> None:
    node = Node()
    stranger = somebody(FAR)
    assert node.upkeep.discovered([stranger], 3.0) == []
    assert node.upkeep.hints.outside(node.table) == [stranger]
    assert node.upkeep.next_deadline() == 3.0
    assert node.upkeep.next_lookup(2.999) == []
    assert node.upkeep.due(3.0) == [LookUp(OWN_NUMBER)]
    assert node.upkeep.due(3.0) == [], "one at a time"
    assert node.upkeep.next_deadline() == limits.DHT_REJOIN_S, "a lookup that runs is not due"


def test_a_reason_to_look_ourselves_up_while_we_do_is_one_to_do_it_again() -> None:
    node = Node()
    node.insert(somebody(FAR), now=3.0)
    assert node.upkeep.next_lookup(3.0) == [LookUp(OWN_NUMBER)]
    node.upkeep.discovered([somebody(FAR + 1)], 3.5)
    assert node.upkeep.next_lookup(3.5) == []
    assert node.upkeep.next_deadline() == limits.DHT_REJOIN_S
    node.upkeep.ended(OWN_NUMBER, 4.0)
    assert node.upkeep.next_lookup(4.0) == [LookUp(OWN_NUMBER)]


def test_a_self_lookup_that_found_none_is_tried_again_when_we_rejoin() -> None:
    node = Node()
    node.upkeep.discovered([somebody(FAR)], 0.0)
    node.upkeep.next_lookup(0.0)
    assert not node.upkeep.ended(OWN_NUMBER, 1.0)
    assert node.upkeep.next_lookup(1e6) == []
    assert node.upkeep.next_deadline() == limits.DHT_REJOIN_S
    assert node.upkeep.due(limits.DHT_REJOIN_S) == [LookUp(OWN_NUMBER)]


def test_the_bootstrap_ends_with_the_last_bucket_and_is_told_once() -> None:
    node = Node()
    node.insert(somebody(1 << 252), somebody(1 << 254))
    ended = []
    targets = []
    for _ in range(10):
        for task in node.upkeep.next_lookup(5.0):
            assert isinstance(task, LookUp)
            targets.append(task.target)
            assert node.upkeep.next_lookup(5.0) == [], "one at a time"
            ended.append(node.upkeep.ended(task.target, 5.0))
    assert targets[:2] == [OWN_NUMBER] * 2, "the second finds no other"
    buckets = [node.table.bucket_index(target) for target in targets[2:]]
    assert buckets == [255, 254, 253, 252], "those farther away than our closest neighbour"
    assert ended == [False] * 5 + [True]
    assert node.table.buckets()[252].refreshed_at == 5.0
    assert node.upkeep.next_lookup(5.0 + PAUSE_S) == [LookUp(OWN_NUMBER)]
    assert not node.upkeep.ended(OWN_NUMBER, 5.0 + PAUSE_S)


@pytest.mark.parametrize("n_in_vain", [0, 1, limits.DHT_BOOTSTRAP_LOOKUPS_MAX])
def test_self_lookups_follow_each_other_while_they_find_others_but_not_for_ever(
    n_in_vain: int,
) -> None:
    node = Node()
    for _ in range(n_in_vain):  # those that found nobody do not count
        node.upkeep.discovered([somebody(FAR)], 0.0)
        node.upkeep.next_lookup(0.0)
        node.upkeep.ended(OWN_NUMBER, 0.0)
    node.insert(somebody(FAR))
    n_lookups = 0
    while node.upkeep.next_lookup(0.0) == [LookUp(OWN_NUMBER)]:
        n_lookups += 1
        node.insert(somebody(FAR + n_lookups))
        node.upkeep.ended(OWN_NUMBER, 0.0)
    assert n_lookups == limits.DHT_BOOTSTRAP_LOOKUPS_MAX


def test_a_neighbour_that_left_does_not_make_a_neighbourhood_new() -> None:
    node = Node()
    contacts = [somebody(FAR + place) for place in range(2)]
    node.insert(*contacts)
    node.upkeep.next_lookup(0.0)
    node.upkeep.ended(OWN_NUMBER, 0.0)
    for _ in range(limits.DHT_UNANSWERED_MAX):
        node.table.unanswered(number_of(contacts[0].peer))
    assert node.look_up(0.0)[:2] != [OWN_NUMBER] * 2, "the second found no new one"
    assert node.upkeep.is_bootstrapped


def test_of_very_near_neighbours_no_more_buckets_are_looked_into_for_it() -> None:
    node = Node()
    node.insert(somebody(1))
    targets = node.look_up(0.0)[2:]
    buckets = [node.table.bucket_index(target) for target in targets]
    assert buckets == list(range(KEY_BITS - 1, KEY_BITS - 1 - DHT_BUCKETS_REFRESHED_MAX, -1))


def test_a_key_that_is_looked_up_for_a_bucket_may_be_any_of_it() -> None:
    node = settled(1)
    looked_up = set()
    for turn in range(1, 5):
        node.table.buckets()[255].refreshed_at = -limits.DHT_REFRESH_S
        tasks = node.upkeep.due(turn * DHT_SWEEP_S)
        looked_up |= {task.target for task in tasks if isinstance(task, LookUp)}
        node.upkeep.ended(OWN_NUMBER, turn * DHT_SWEEP_S)
        looked_up |= {*node.look_up(turn * DHT_SWEEP_S)}
    looked_up -= {OWN_NUMBER}
    assert len(looked_up) == 4
    assert all(node.table.bucket_index(target) == 255 for target in looked_up)


def test_in_the_nearest_bucket_there_is_one_key() -> None:
    node = Node()
    node.insert(somebody(1))
    node.look_up(0.0)
    node.table.buckets()[0].refreshed_at = -limits.DHT_REFRESH_S
    assert node.upkeep.due(DHT_SWEEP_S) == [Sweep(), LookUp(OWN_NUMBER)]
    node.upkeep.ended(OWN_NUMBER, DHT_SWEEP_S)
    assert node.look_up(DHT_SWEEP_S) == [OWN_NUMBER ^ 1]


# --- later -------------------------------------------------------------------------------


def test_we_look_ourselves_up_every_so_often() -> None:
    node = settled(limits.DHT_BUCKET_CONTACTS)
    for now in (limits.DHT_SELF_LOOKUP_S, 2 * limits.DHT_SELF_LOOKUP_S):
        assert node.look_up(now - 0.001) == []
        assert node.look_up(now) == [OWN_NUMBER]


def test_who_knows_few_looks_again_soon_and_then_ever_later() -> None:
    node = settled(limits.DHT_BUCKET_CONTACTS - 1)
    now, pause_s = 0.0, PAUSE_S
    while pause_s < limits.DHT_SELF_LOOKUP_S:
        now += pause_s
        assert node.look_up(now - 0.001) == []
        assert node.look_up(now) == [OWN_NUMBER]
        pause_s *= 2
    for _ in range(2):
        now += limits.DHT_SELF_LOOKUP_S
        assert node.look_up(now - 0.001) == []
        assert node.look_up(now) == [OWN_NUMBER]


def test_a_stale_bucket_is_looked_into_with_the_next_sweep() -> None:
    node = settled(limits.DHT_BUCKET_CONTACTS)
    near = somebody(1 << 200)
    node.insert(near)
    fresh_at = 100.0
    node.table.buckets()[200].refreshed_at = fresh_at
    sweeps = int(limits.DHT_REFRESH_S // DHT_SWEEP_S)
    looked_into: dict[int, float] = {}
    for turn in range(1, sweeps + 4):
        now = turn * DHT_SWEEP_S
        for task in node.upkeep.due(now):
            if isinstance(task, LookUp):
                if task.target != OWN_NUMBER:
                    looked_into[node.table.bucket_index(task.target)] = now
                node.upkeep.ended(task.target, now)
    assert looked_into == {
        255: limits.DHT_REFRESH_S + DHT_SWEEP_S,
        200: limits.DHT_REFRESH_S + 2 * DHT_SWEEP_S,
    }
    assert node.table.buckets()[200].refreshed_at == limits.DHT_REFRESH_S + 2 * DHT_SWEEP_S


def test_before_the_bootstrap_no_bucket_is_stale() -> None:
    node = Node()
    node.table.answered(somebody(FAR), 0.0)
    assert kinds(node.upkeep.due(2 * limits.DHT_REFRESH_S)) == [Sweep, Check]


def test_an_empty_bucket_is_not_looked_into() -> None:
    node = settled(1)
    number = number_of(somebody(FAR).peer)
    for _ in range(limits.DHT_UNANSWERED_MAX):
        node.table.unanswered(number)
    node.upkeep.due(2 * limits.DHT_REFRESH_S)
    assert {*node.look_up(2 * limits.DHT_REFRESH_S)} <= {OWN_NUMBER}


# --- strangers ---------------------------------------------------------------------------


def test_a_stranger_is_met_and_who_is_known_or_ourselves_is_not() -> None:
    node = settled(2)
    strangers = [somebody(FAR + place) for place in (7, 8)]
    known, ourselves = somebody(FAR), somebody(0)
    tasks = node.upkeep.discovered([known, strangers[0], ourselves, strangers[1]], 5.0)
    assert tasks == [Meet(each) for each in strangers]
    assert node.upkeep.hints.outside(node.table) == strangers
    assert node.upkeep.discovered([known, ourselves], 5.0) == []


def test_now_and_then_one_that_we_heard_of_or_lost_is_met_again() -> None:
    node = settled(1)
    hint, lost = somebody(FAR + 7), somebody(FAR + 8)
    rejoin_s = limits.DHT_REJOIN_S
    assert node.upkeep.due(rejoin_s - 0.001) == [LookUp(OWN_NUMBER)]
    assert node.upkeep.due(rejoin_s) == [], "there is none"
    node.upkeep.hints.add(hint)
    assert node.upkeep.due(2 * rejoin_s - 0.001) == []
    assert node.upkeep.due(2 * rejoin_s) == [Meet(hint)]
    node.upkeep.lost.add(lost)
    assert node.upkeep.due(3 * rejoin_s)[-1:] == [Meet(lost)]
    for contact in (hint, lost):
        node.table.answered(contact, 0.0)
    assert Meet not in kinds(node.upkeep.due(4 * rejoin_s)), "both are here"


def test_with_an_empty_table_a_lookup_asks_those_that_we_heard_of() -> None:
    node = Node()
    node.upkeep.hints.add(somebody(FAR))
    assert node.upkeep.due(limits.DHT_REJOIN_S) == [LookUp(OWN_NUMBER)]


@pytest.mark.parametrize("is_hinted", [False, True])
def test_who_lost_all_its_contacts_meets_one_of_them_again(is_hinted: bool) -> None:
    node = Node()
    lost = [somebody(FAR + place) for place in range(2)]
    for contact in lost:
        node.upkeep.lost.add(contact)
    if is_hinted:
        node.upkeep.hints.add(somebody(FAR + 2))
    tasks = node.upkeep.due(limits.DHT_REJOIN_S)
    assert tasks == [Meet(lost[-1])] + [LookUp(OWN_NUMBER)] * is_hinted
    assert Meet in kinds(node.upkeep.due(2 * limits.DHT_REJOIN_S)), "and goes on with it"


@pytest.mark.parametrize(("n_known", "many"), [(3, 1), (4, 2), (7, 2), (8, 3), (16, 5), (20, 5)])
def test_several_new_neighbours_of_a_small_network_are_fewer(n_known: int, many: int) -> None:
    node = settled(n_known)
    now = 5 * limits.DHT_SELF_LOOKUP_S
    node.look_up(now)
    at = now + PAUSE_S + 1.0
    for distance in range(1, many + 1):
        node.insert(somebody(distance), now=at)
        is_enough = distance == many
        assert (node.upkeep.next_lookup(at) == [LookUp(OWN_NUMBER)]) is is_enough


def test_new_ones_that_are_no_neighbours_are_no_news() -> None:
    node = settled(1)
    node.insert(*(somebody(distance) for distance in range(1, limits.DHT_BUCKET_CONTACTS + 1)))
    now = 5 * limits.DHT_SELF_LOOKUP_S
    node.look_up(now)
    later = now + PAUSE_S + 1.0
    node.insert(*(somebody(FAR + place) for place in range(1, 10)), now=later)
    assert node.look_up(later) == []


def test_neighbours_of_a_stranger_that_we_miss_are_looked_for_after_a_pause() -> None:
    node = settled(limits.DHT_BUCKET_CONTACTS)
    due = node.upkeep.next_deadline()
    node.upkeep.met([somebody(0), somebody(FAR)], 3.0)
    assert node.upkeep.next_deadline() == due, "ourselves, and one that is here"
    node.upkeep.met([somebody(FAR + (1 << 254))], 3.0)
    assert node.upkeep.next_deadline() == due, "farther than all our neighbours"
    node.upkeep.met([somebody(FAR), somebody(5)], 3.0)
    assert node.upkeep.next_deadline() == PAUSE_S, "counted from the last self-lookup"
    assert node.upkeep.due(PAUSE_S - 0.001) == []
    assert node.upkeep.due(PAUSE_S) == [LookUp(OWN_NUMBER)]


def test_to_look_around_late_is_to_look_at_once_and_puts_nothing_off() -> None:
    node = settled(limits.DHT_BUCKET_CONTACTS)
    now = PAUSE_S + 5.0
    node.upkeep.look_around(now)
    assert node.upkeep.next_deadline() == now
    node.upkeep.look_around(now + 1.0)
    assert node.upkeep.next_deadline() == now


def test_news_that_come_while_we_look_ourselves_up_are_looked_for_after_the_same_pause() -> None:
    node = settled(3)
    assert node.look_up(PAUSE_S) == [OWN_NUMBER]
    now = 3 * PAUSE_S
    assert node.upkeep.next_lookup(now) == [LookUp(OWN_NUMBER)]
    node.upkeep.look_around(now)
    node.upkeep.ended(OWN_NUMBER, now)
    assert node.upkeep.next_lookup(now + PAUSE_S - 0.001) == []
    assert node.upkeep.next_lookup(now + PAUSE_S) == [LookUp(OWN_NUMBER)]
