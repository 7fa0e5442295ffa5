"""What a node holds of members: suspicions, rounds of probes, pages, hearsay and local health."""

from __future__ import annotations

import math
import random
from collections.abc import Container

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.membership.health import LivedClock, LocalHealth, Probe, SuspicionTimes
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.protocol.membership.table import (
    Hearsay,
    Member,
    MemberTable,
    Rumours,
    Suspicion,
    claim_of,
    retransmissions_max,
    without_hearsay,
)
from swarmnode.wire.swim import Claim
from tests.unit.protocol.membership.swim_kit import IDS, PEERS, claim, stranger

K = limits.SWIM_CONFIRMATIONS
TIMES = SuspicionTimes.for_swarm(100)


def table_of(*numbers: int, now: float = 0.0, is_met: bool = True) -> MemberTable:
    table = MemberTable(random.Random(1))
    for number in numbers:
        assert table.add(IDS[number], claim(number), now, is_met=is_met) is not None
    return table


def member_of(table: MemberTable, number: int) -> Member:
    member = table.get(IDS[number])
    assert member is not None
    return member


# --- suspicions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_live", "periods", "confirmations"),
    [
        (0, 3, 0),
        (1, 3, 0),
        (K + 1, 3, 0),
        (K + 2, 3, K),
        (10, 3, K),
        (100, 6, K),
        (1000, 9, K),
    ],
)
def test_a_suspicion_is_longer_in_a_larger_swarm(
    n_live: int, periods: int, confirmations: int
) -> None:
    times = SuspicionTimes.for_swarm(n_live)
    assert times.shortest_s == pytest.approx(periods * limits.SWIM_PERIOD_S)
    assert times.longest_s == pytest.approx(limits.SWIM_SUSPICION_SPREAD * times.shortest_s)
    assert times.confirmations_wanted == confirmations


def test_the_first_confirmation_shortens_a_suspicion_most() -> None:
    times = SuspicionTimes(shortest_s=10.0, longest_s=60.0, confirmations_wanted=3)
    assert times.timeout_s(0) == 60.0
    assert times.timeout_s(1) == pytest.approx(35.0)
    assert times.timeout_s(2) == pytest.approx(60 - 50 * math.log(3) / math.log(4))
    assert times.timeout_s(3) == times.timeout_s(9) == 10.0


def test_each_accuser_counts_once_and_only_so_many() -> None:
    suspicion = Suspicion(100.0, TIMES)
    assert suspicion.deadline == math.inf
    assert suspicion.accuse((IDS[1],), 100.0, is_certain=False)
    assert suspicion.deadline == 100.0 + TIMES.longest_s
    assert not suspicion.accuse((IDS[1],), 101.0, is_certain=False)
    assert suspicion.accuse((IDS[1], IDS[2]), 101.0, is_certain=False)
    assert suspicion.deadline == 100.0 + TIMES.timeout_s(1)
    assert suspicion.accuse(IDS[3:9], 101.0, is_certain=False)
    assert list(suspicion.accusers) == IDS[1 : 1 + limits.SWIM_ACCUSERS_MAX]
    assert suspicion.deadline == 100.0 + TIMES.shortest_s
    assert not suspicion.accuse((IDS[8],), 102.0, is_certain=False)


def test_who_has_waited_it_out_makes_a_suspicion_certain_for_good() -> None:
    suspicion = Suspicion(100.0, TIMES)
    suspicion.accuse((IDS[1],), 100.0, is_certain=True)
    assert suspicion.deadline == 100.0 + TIMES.shortest_s
    suspicion.accuse((IDS[2],), 101.0, is_certain=False)
    assert suspicion.deadline == 100.0 + TIMES.shortest_s
    suspicion.accuse((), 500.0, is_certain=False)
    assert suspicion.deadline == 500.0, "no deadline is in the past"


def suspect(table: MemberTable, number: int, now: float, *, is_certain: bool) -> float:
    """Return its deadline."""
    member = member_of(table, number)
    if member.suspicion is None:
        table.set_state(member, MemberState.SUSPECT, now)
        member.suspicion = Suspicion(now, TIMES)
    table.accuse(member, (IDS[8],), now, is_certain=is_certain)
    return member.suspicion.deadline


def test_suspects_are_overdue_each_at_its_own_deadline() -> None:
    table = table_of(1, 2, 3)
    assert table.next_suspicion_end == math.inf
    assert table.overdue(1e9) == []
    late = suspect(table, 1, 0.0, is_certain=False)
    assert table.next_suspicion_end == late
    soon = suspect(table, 2, 5.0, is_certain=True)
    assert table.next_suspicion_end == soon
    suspect(table, 3, 6.0, is_certain=True)
    assert table.next_suspicion_end == soon
    assert table.overdue(soon - 0.1) == []
    assert table.overdue(soon) == [member_of(table, 2)]
    table.set_state(member_of(table, 2), MemberState.DEAD, soon)
    assert table.next_suspicion_end == soon + 1.0
    assert table.overdue(late) == [member_of(table, 1), member_of(table, 3)]
    for number in (1, 3):
        table.set_state(member_of(table, number), MemberState.ALIVE, late)
    assert table.next_suspicion_end == math.inf
    again = suspect(table, 1, 1000.0, is_certain=False)
    assert table.next_suspicion_end == again, "what there was before is long over"


def test_a_suspect_that_refutes_has_no_suspicion_and_its_claim_no_accusers() -> None:
    table = table_of(1)
    member = member_of(table, 1)
    suspect(table, 1, 0.0, is_certain=False)
    assert claim_of(member) == claim(1, doubt="suspect", by=(8,))
    assert table.doubt_about(IDS[1]) == (claim(1, doubt="suspect", by=(8,)),)
    table.set_state(member, MemberState.DEAD, 1.0)
    assert claim_of(member) == claim(1, doubt="dead")
    assert table.doubt_about(IDS[1]) == (claim(1, doubt="dead"),)
    table.set_state(member, MemberState.LEFT, 2.0)
    assert table.doubt_about(IDS[1]) == ()
    table.renew(member, claim(1, 2), MemberState.ALIVE, 3.0)
    assert (member.suspicion, member.since, claim_of(member)) == (None, 3.0, claim(1, 2))
    assert table.doubt_about(IDS[1]) == table.doubt_about(IDS[2]) == ()


def test_what_others_say_of_a_member_is_no_part_of_its_own_word() -> None:
    word = claim(1)
    assert without_hearsay(word) is word
    assert without_hearsay(claim(1, doubt="suspect", by=(2,))) == word
    assert without_hearsay(claim(1, doubt="dead")) == word
    assert without_hearsay(claim(1, left="bye")) == claim(1, left="bye")


@pytest.mark.parametrize(
    ("told", "is_news"),
    [
        (claim(1, 2, 3), False),
        (claim(1, 2, 2), False),
        (claim(1, 1, 9, doubt="dead"), False),
        (claim(1, 2, 4), True),
        (claim(1, 3, 0), True),
        (claim(1, 2, 0, left="bye"), True),
        (claim(1, 2, 3, doubt="suspect"), True),
        (claim(1, 2, 2, doubt="dead"), False),
    ],
)
def test_a_newer_word_is_news_and_a_doubt_about_this_one(told: Claim, is_news: bool) -> None:
    member = Member(IDS[1], claim(1, 2, 3), MemberState.ALIVE, 0.0, has_answered=True)
    assert member.is_news(told) is is_news
    assert not member.is_news(member.claim)
    member.state = MemberState.DEAD
    assert member.is_news(told) is (is_news and told.doubt == "none"), "a doubt of the dead is none"


# --- who is there -----------------------------------------------------------------------------


def test_as_many_live_on_the_word_of_others_as_have_answered() -> None:
    table = table_of(1, 2)
    assert (table.n_live, table.n_met, table.has_room_for_unmet) == (2, 2, True)
    table.add(IDS[3], claim(3), 0.0)
    assert (table.n_live, table.n_met, table.has_room_for_unmet) == (3, 2, True)
    table.add(IDS[4], claim(4), 0.0)
    assert (table.n_live, table.n_met, table.has_room_for_unmet) == (4, 2, False)
    table.meet(member_of(table, 4))
    assert (table.n_live, table.n_met, table.has_room_for_unmet) == (4, 3, True)
    table.set_state(member_of(table, 3), MemberState.DEAD, 1.0)
    assert (table.n_live, table.n_met) == (3, 3)
    assert IDS[3] in table
    assert table.live_ids() == tuple(sorted(IDS[number] for number in (1, 2, 4)))
    table.forget(member_of(table, 4))
    assert table.live_ids() == tuple(sorted(IDS[number] for number in (1, 2)))
    assert (len(table), table.get(IDS[4]), table.by_key(claim(4).key)) == (3, None, None)
    assert table.claim_of(IDS[4]) is None


def test_the_gone_are_forgotten_that_are_so_for_longer() -> None:
    table = table_of(1, 2, 3)
    table.set_state(member_of(table, 1), MemberState.DEAD, 10.0)
    table.set_state(member_of(table, 2), MemberState.LEFT, 11.0)
    table.forget_gone(10.0)
    assert len(table) == 3
    table.forget_gone(10.5)
    assert {member.peer for member in table} == {IDS[2], IDS[3]}
    assert table.dead_to_call() is None
    table.forget_gone(1e9)
    assert {member.peer for member in table} == {IDS[3]}


def test_a_member_is_found_by_its_key_as_by_its_id() -> None:
    table = table_of(1, 2)
    assert table.by_key(claim(1).key) is table.get(IDS[1])
    assert table.by_key(claim(2).key) is table.get(IDS[2])
    assert table.by_key(claim(3).key) is None
    assert table.claim_of(IDS[2]) == claim(2)


def full_table(*numbers: int, silent: Container[int] = ()) -> MemberTable:
    """Return one in which these, which are the oldest, and many others have all places."""
    table = MemberTable(random.Random(1))
    for number in numbers:
        table.add(IDS[number], claim(number), float(number), is_met=number not in silent)
    for number in range(limits.SWIM_MEMBERS_MAX - len(numbers)):
        peer, word = stranger(number)
        assert table.add(peer, word, 100.0, is_met=True) is not None
    assert len(table) == limits.SWIM_MEMBERS_MAX
    return table


def test_of_a_suspect_that_made_room_for_another_no_suspicion_is_left() -> None:
    table = full_table(2, silent={2})
    suspect(table, 2, 110.0, is_certain=True)
    assert table.add(IDS[3], claim(3), 120.0) is not None
    assert IDS[2] not in table
    assert IDS[3] in table
    assert table.next_suspicion_end == math.inf
    assert table.overdue(1e9) == []


@pytest.mark.parametrize(
    ("gone", "silent", "forgotten"),
    [((1, 2), (), 1), ((2,), (1,), 2), ((), (2, 3), 2), ((), (3, 1), 1)],
)
def test_a_full_table_forgets_the_longest_gone_or_else_the_longest_silent(
    gone: tuple[int, ...], silent: tuple[int, ...], forgotten: int
) -> None:
    table = full_table(1, 2, 3, silent=silent)
    for number in gone:
        table.set_state(member_of(table, number), MemberState.LEFT, 110.0 + number)
    assert table.add(IDS[5], claim(5), 120.0, is_met=True) is not None
    assert IDS[forgotten] not in table
    assert len(table) == limits.SWIM_MEMBERS_MAX


def test_a_full_table_of_members_that_were_met_takes_no_other() -> None:
    table = full_table()
    assert table.add(IDS[3], claim(3), 120.0, is_met=True) is None
    assert IDS[3] not in table
    assert len(table) == limits.SWIM_MEMBERS_MAX


def test_only_those_dead_are_called_that_were_met() -> None:
    table = table_of(1, 2)
    table.add(IDS[3], claim(3), 0.0)
    table.set_state(member_of(table, 3), MemberState.DEAD, 1.0)
    assert table.dead_to_call() is None
    assert table.periods_until_call() == math.inf
    table.set_state(member_of(table, 1), MemberState.DEAD, 1.0)
    assert {table.dead_to_call() for _ in range(9)} == {IDS[1]}
    table.set_state(member_of(table, 2), MemberState.DEAD, 1.0)
    assert {table.dead_to_call() for _ in range(40)} == {IDS[1], IDS[2]}
    table.set_state(member_of(table, 1), MemberState.ALIVE, 1.0)
    assert {table.dead_to_call() for _ in range(9)} == {IDS[2]}


def test_all_members_warn_a_suspect_where_they_are_few_and_some_where_they_are_many() -> None:
    table = table_of(*range(1, 1 + limits.SWIM_WARNINGS))
    member = member_of(table, 1)
    assert all(table.is_to_warn(member) for _ in range(50))
    table = table_of(*range(1, 9))
    warned = sum(table.is_to_warn(member_of(table, 1)) for _ in range(2000))
    assert warned / 2000 == pytest.approx(limits.SWIM_WARNINGS / 8, abs=0.04)
    table.add(IDS[0], claim(0), 0.0)
    assert not any(table.is_to_warn(member_of(table, 0)) for _ in range(50)), "it never answered"


def test_a_digest_has_sixteen_bytes_and_follows_the_versions_of_the_live() -> None:
    own = claim(0)
    table = table_of(1, 2)
    digest = table.digest_with(own)
    assert len(digest) == 16
    assert digest == table_of(2, 1).digest_with(own)
    assert digest == table_of(2, 0).digest_with(claim(1)), "all have the same sum"
    suspect(table, 1, 0.0, is_certain=False)
    assert table.digest_with(own) == digest
    table.set_state(member_of(table, 1), MemberState.DEAD, 1.0)
    assert table.digest_with(own) == table_of(2).digest_with(own)
    table.renew(member_of(table, 1), claim(1, 1, 1), MemberState.ALIVE, 2.0)
    assert table.digest_with(own) not in (digest, table_of(2).digest_with(own))
    table.renew(member_of(table, 1), claim(1, 2), MemberState.ALIVE, 2.0)
    other = table_of(2)
    other.add(IDS[1], claim(1, 2), 0.0)
    assert table.digest_with(own) == other.digest_with(own)


# --- rounds -----------------------------------------------------------------------------------


def test_a_round_has_each_member_once_and_every_round_another_order() -> None:
    table = table_of(*range(1, 9))
    rounds = []
    for _ in range(20):
        probed = [table.next_to_probe() for _ in range(8)]
        rounds.append([member.peer for member in probed if member is not None])
        assert sorted(rounds[-1]) == sorted(IDS[1:9])
    assert len({tuple(order) for order in rounds}) > 10


@pytest.mark.parametrize("n_before", range(7))
def test_who_comes_or_goes_during_a_round_makes_no_other_be_probed_twice(n_before: int) -> None:
    for leaving in range(1, 7):
        table = table_of(*range(1, 7))
        probed: list[PeerId] = []

        def probe(n: int, table: MemberTable = table, probed: list[PeerId] = probed) -> None:
            for _ in range(n):
                member = table.next_to_probe()
                assert member is not None
                probed.append(member.peer)

        probe(6)  # one round, as those that were added in turn are in no order
        probed.clear()
        probe(n_before)
        table.set_state(member_of(table, leaving), MemberState.DEAD, 1.0)
        n_left = 6 - n_before - (IDS[leaving] not in probed)
        probe(n_left)
        assert {*probed, IDS[leaving]} == set(IDS[1:7])
        assert len(set(probed)) == len(probed)


def test_one_that_comes_during_a_round_may_have_its_turn_in_it() -> None:
    n_in_round = 0
    claims = [claim(number) for number in range(9)]
    for seed in range(200):
        table = MemberTable(random.Random(seed))
        for number in range(1, 8):
            table.add(IDS[number], claims[number], 0.0, is_met=True)
        for _ in range(7):
            table.next_to_probe()
        probed = [table.next_to_probe() for _ in range(3)]
        table.add(IDS[8], claims[8], 0.0, is_met=True)
        probed += [table.next_to_probe() for _ in range(4)]
        peers = [member.peer for member in probed if member is not None]
        assert len(set(peers)) == len(peers) == 7
        n_in_round += IDS[8] in peers
    # At each of eight places alike: three are before those that were probed, one is the last.
    assert n_in_round == pytest.approx(200 * 4 / 8, abs=15)


def test_without_members_none_is_probed() -> None:
    table = table_of(1)
    table.set_state(member_of(table, 1), MemberState.LEFT, 1.0)
    assert table.next_to_probe() is None
    assert table.some_live(3) == []


def test_some_live_members_are_different_and_without_the_one_that_is_meant() -> None:
    table = table_of(*range(1, 6))
    assert sorted(table.some_live(9)) == sorted(IDS[1:6])
    assert sorted(table.some_live(4, besides=IDS[1])) == sorted(IDS[2:6])
    for _ in range(30):
        some = table.some_live(2, besides=IDS[3])
        assert len(set(some)) == 2
        assert IDS[3] not in some


def test_a_page_has_those_that_answered_and_goes_on_where_the_last_one_ended() -> None:
    table = table_of(*range(1, 6))
    table.add(IDS[7], claim(7), 0.0)
    ids = sorted(IDS[1:6])
    assert sorted(member.peer for member in table.page(5)) == ids
    pages = [[member.peer for member in table.page(4)] for _ in range(3)]
    assert pages == [ids[:4], [ids[4], *ids[:3]], [*ids[3:], *ids[:2]]]


# --- hearsay ----------------------------------------------------------------------------------


def test_one_that_others_tell_of_is_pinged_a_few_times_and_then_forgotten() -> None:
    hearsay = Hearsay()
    for number in (1, 2, 3):
        hearsay.note(IDS[number], claim(number), IDS[8])
    asked = [peer for _ in range(12) for peer in hearsay.next_to_ping(2)]
    assert asked[:3] == IDS[1:4], "in turn"
    assert [asked.count(peer) for peer in IDS[1:4]] == [limits.SWIM_HEARSAY_PINGS] * 3
    assert len(hearsay) == 0


def test_the_newest_word_of_one_that_others_tell_of_is_kept() -> None:
    hearsay = Hearsay()
    for incarnation in (1, 3, 2):
        hearsay.note(IDS[1], claim(1, 1, incarnation), IDS[8 - incarnation])
    assert len(hearsay) == 1
    assert hearsay.take(IDS[1]) == claim(1, 1, 3)
    assert hearsay.take(IDS[1]) is None
    assert len(hearsay) == 0


def test_who_told_of_most_gives_up_its_oldest() -> None:
    hearsay = Hearsay()
    many = [stranger(number) for number in range(limits.SWIM_HEARSAY_MAX)]
    hearsay.note(IDS[1], claim(1), IDS[7])
    for peer, word in many[:-1]:
        hearsay.note(peer, word, IDS[8])
    assert len(hearsay) == limits.SWIM_HEARSAY_MAX
    hearsay.note(IDS[5], claim(5), IDS[7])
    assert len(hearsay) == limits.SWIM_HEARSAY_MAX
    assert hearsay.take(many[0][0]) is None
    assert hearsay.take(many[1][0]) == many[1][1]
    assert hearsay.take(IDS[1]) == claim(1)
    assert hearsay.take(IDS[5]) == claim(5)
    assert len(hearsay) == limits.SWIM_HEARSAY_MAX - 3
    for peer, _ in many:
        hearsay.take(peer)
    assert len(hearsay) == 0


# --- rumours ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_live", "times"), [(1, 1), (3, 2), (4, 3), (7, 3), (8, 4), (1023, 10)])
def test_news_is_sent_as_often_as_the_swarm_is_large(n_live: int, times: int) -> None:
    assert retransmissions_max(n_live) == limits.SWIM_RETRANSMIT * times
    rumours = Rumours()
    rumours.push(IDS[1])
    n_sent = 0
    while rumours.take(1, n_live):
        n_sent += 1
        assert len(rumours) == (n_sent < retransmissions_max(n_live))
    assert n_sent == retransmissions_max(n_live)


def test_news_that_is_dropped_or_told_anew_is_counted_anew() -> None:
    rumours = Rumours()
    rumours.drop(IDS[1])
    rumours.push(IDS[1])
    rumours.push(IDS[2])
    assert rumours.take(9, 100) == [IDS[1], IDS[2]]
    rumours.push(IDS[2])
    assert len(rumours) == 2
    assert rumours.take(9, 100) == [IDS[2], IDS[1]], "the least sent first"
    rumours.drop(IDS[2])
    assert rumours.take(9, 100) == [IDS[1]]
    assert rumours.take(0, 100) == []
    assert len(rumours) == 1


# --- health and time --------------------------------------------------------------------------


def test_health_is_bounded_on_both_sides() -> None:
    health = LocalHealth()
    health.improve()
    assert (health.score, health.multiplier) == (0, 1)
    health.worsen()
    health.worsen(2)
    assert (health.score, health.multiplier) == (3, 4)
    health.improve()
    assert health.score == 2
    health.worsen(limits.SWIM_HEALTH_MAX - 2)
    health.worsen()
    assert health.multiplier == limits.SWIM_HEALTH_MAX + 1
    health.worsen(0)
    assert health.score == limits.SWIM_HEALTH_MAX


def test_time_is_lost_if_a_deadline_was_missed_by_more_than_a_stall() -> None:
    clock = LivedClock()
    assert clock.lived(5.0, None) == (5.0, False)
    assert clock.lived(5.0, 6.0) == (5.0, False)
    assert clock.lived(6.0, 6.0) == (6.0, False)
    assert clock.lived(6.0 + limits.SWIM_STALL_S, 6.0) == (6.0 + limits.SWIM_STALL_S, False)
    assert clock.stalls == 0
    lived = 6.0 - limits.SWIM_STALL_GRACE_S
    assert clock.lived(20.0, 6.0) == (lived, True)
    assert (clock.stalls, clock.lost_s) == (1, 20.0 - lived)
    assert clock.monotonic(6.0) == 20.0 + limits.SWIM_STALL_GRACE_S
    assert clock.lived(20.5, 6.0) == (lived + 0.5, False)
    assert clock.lived(40.0, 6.0) == (lived, True)
    assert (clock.stalls, clock.lost_s) == (2, 40.0 - lived)
    assert clock.monotonic(6.0) == 40.0 + limits.SWIM_STALL_GRACE_S


def test_a_probe_is_answered_by_its_target_or_a_helper_and_by_no_other() -> None:
    probe = Probe(7, IDS[1], 0.0, helpers={IDS[2], IDS[3]})
    assert [probe.may_ack(IDS[number]) for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert probe.n_silent_helpers == 2
    probe.take_nack(IDS[4])
    probe.take_nack(IDS[1])
    assert probe.n_silent_helpers == 2
    probe.take_nack(IDS[2])
    probe.take_nack(IDS[2])
    assert probe.n_silent_helpers == 1


def test_claims_are_signed_for_the_very_version() -> None:
    assert PEERS[1].sign(1, 2, None) == PEERS[1].sign(1, 2, None)
    signatures = {
        PEERS[1].sign(*version)
        for version in ((1, 2, None), (2, 1, None), (1, 2, ""), (1, 2, "bye"), (2, 2, None))
    }
    assert len(signatures) == 5
