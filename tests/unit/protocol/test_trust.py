"""What follows from what a node has seen of its peers: how often it meets them, how long."""

from __future__ import annotations

import math

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.trust import (
    HALF_LIFE_S,
    NEUTRAL,
    PEERS_MAX,
    RECORD,
    Counts,
    Seen,
    Trust,
)

PEER = PeerId(b"\x11" * 32)
ALWAYS_REFUSED = 1 / 27  # of the rounds, in the end


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def trust(peers_max: int = PEERS_MAX) -> Trust:
    return Trust(b"\x07" * 16, peers_max=peers_max)


def seen(what: Trust, whom: PeerId, *kinds: Seen, now: float = 0.0) -> Trust:
    for kind in kinds:
        what.note(whom, kind, now)
    return what


def test_a_peer_of_which_nothing_is_known_is_neutral_and_met_in_every_round() -> None:
    book = trust()
    assert book.weight(PEER, 0.0) == NEUTRAL
    assert book.chance(PEER, 0.0) == 1.0
    assert all(book.admits(PEER, number, 0.0) for number in range(100))
    assert (len(book), book.counts(PEER), book.verdicts(0.0)) == (0, Counts(0, 0, 0, 0), {})


def test_a_peer_that_is_always_refused_is_met_in_a_few_rounds_of_a_hundred() -> None:
    book = seen(trust(), PEER, *[Seen.REFUSED] * 40)
    assert book.chance(PEER, 0.0) == pytest.approx(ALWAYS_REFUSED, rel=0.1)
    met = sum(book.admits(PEER, number, 0.0) for number in range(10_000))
    assert met / 10_000 == pytest.approx(ALWAYS_REFUSED, rel=0.3)


def test_the_answer_for_a_round_does_not_change_by_asking_again() -> None:
    book = seen(trust(), PEER, *[Seen.REFUSED] * 5)
    first = [book.admits(PEER, number, 0.0) for number in range(200)]
    assert first == [book.admits(PEER, number, 0.0) for number in range(200)]
    assert any(first)
    assert not all(first)


def test_in_which_rounds_it_is_met_is_no_other_nodes_to_know() -> None:
    one, other = trust(), Trust(b"\x08" * 16)
    for book in (one, other):
        seen(book, PEER, *[Seen.REFUSED] * 5)
    assert [one.admits(PEER, n, 0.0) for n in range(200)] != [
        other.admits(PEER, n, 0.0) for n in range(200)
    ]


def test_a_member_that_was_misjudged_comes_back_with_three_useful_contacts() -> None:
    book = seen(trust(), PEER, *[Seen.REFUSED] * 5)
    assert book.chance(PEER, 0.0) < 0.15
    seen(book, PEER, *[Seen.USEFUL] * 2)
    assert book.chance(PEER, 0.0) < 1.0
    seen(book, PEER, Seen.USEFUL)
    assert book.weight(PEER, 0.0) >= NEUTRAL
    assert book.admits(PEER, 0, 0.0)


def test_a_member_that_was_misjudged_comes_back_by_time_alone() -> None:
    book = seen(trust(), PEER, *[Seen.REFUSED] * 5)
    chances = [book.chance(PEER, half_lives * HALF_LIFE_S) for half_lives in range(6)]
    assert chances == sorted(chances)
    assert chances[3] > 0.65
    assert chances[5] > 0.9


def test_an_honest_member_that_is_refused_in_one_contact_of_four_stays_above_neutral() -> None:
    book = trust()
    below = 0
    for number in range(400):
        seen(book, PEER, Seen.REFUSED if number % 4 == 3 else Seen.USEFUL)
        below += book.weight(PEER, 0.0) < NEUTRAL
    assert below == 0


def test_a_long_good_record_buys_no_long_betrayal() -> None:
    book = seen(trust(), PEER, *[Seen.USEFUL] * 10_000)
    seen(book, PEER, *[Seen.REFUSED] * 6)
    assert book.weight(PEER, 0.0) < NEUTRAL


@pytest.mark.parametrize(
    ("kind", "contacts"), [(Seen.FAULTY, 1), (Seen.COPY, 1), (Seen.REFUSED, 1), (Seen.SLOW, 2)]
)
def test_each_kind_of_harm_costs_what_it_is_worth(kind: Seen, contacts: int) -> None:
    book = seen(trust(), PEER, *[kind] * contacts)
    same = seen(trust(), PEER, *[Seen.REFUSED] * (3 if kind in (Seen.FAULTY, Seen.COPY) else 1))
    assert book.weight(PEER, 0.0) == pytest.approx(same.weight(PEER, 0.0))


def known(good: float, bad: float, whom: PeerId = PEER, at_unix_s: float = 0.0) -> bytes:
    """A record of an earlier life."""
    return RECORD.pack(whom, at_unix_s, good, bad, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kinds", "good", "bad"),
    [
        ([Seen.USEFUL], 1.0, 0.0),
        ([Seen.REFUSED], 0.0, 1.0),
        ([Seen.REFUSED] * 2, 0.0, 1.875),
        ([Seen.USEFUL, Seen.REFUSED], 0.875, 1.0),
        ([Seen.REFUSED, Seen.USEFUL, Seen.USEFUL], 1.875, 0.765625),
        ([Seen.FAULTY], 0.0, 2.640625),
        ([Seen.USEFUL, Seen.COPY], 0.669921875, 2.640625),
    ],
)
def test_each_contact_leaves_seven_eighths_of_what_was_known(
    kinds: list[Seen], good: float, bad: float
) -> None:
    book = seen(trust(), PEER, *kinds)
    for n_half_lives in (-1, 0, 1, 2):
        left = 0.5 ** max(0, n_half_lives)
        weight = (left * good + 2) / (left * (good + bad) + 4)
        now = n_half_lives * HALF_LIFE_S
        assert book.own_weight(PEER, now) == pytest.approx(weight)
        assert book.weight(PEER, now) == pytest.approx(weight)
        assert book.chance(PEER, now) == pytest.approx(min(1.0, (2 * weight) ** 3))


def test_what_is_seen_later_is_added_to_what_is_left() -> None:
    book = seen(trust(), PEER, Seen.REFUSED)
    seen(book, PEER, Seen.REFUSED, now=HALF_LIFE_S)
    assert book.own_weight(PEER, HALF_LIFE_S) == pytest.approx(2 / (4 + 0.5 * 0.875 + 1))


def test_a_peer_is_left_out_below_a_quarter_and_spoken_of_below_what_rounds_to_neutral() -> None:
    book, others = trust(), [peer(number) for number in range(1, 8)]
    book.restore([known(0.0, 4.0), known(0.0, 4.25, others[0])], 0.0, 0.0)
    assert book.left_out([PEER, *others], 0.0) == {others[0]}
    assert book.left_out([PEER, others[0]], 0.0) == frozenset(), "of two none"
    book = trust()
    book.restore([known(2.5, 3.5)], 0.0, 0.0)
    assert (book.below_neutral(0.0), book.worst(0.0, 9), book.verdicts(0.0)) == (0, {}, {})
    book.restore([known(2.5, 3.75)], 0.0, 0.0)
    assert book.worst(0.0, 9) == {PEER: 4.5 / 10.25}
    assert (book.below_neutral(0.0), book.verdicts(0.0)) == (1, {PEER: 4})


def test_all_contacts_are_counted_together_and_none_beyond_what_a_record_holds() -> None:
    book = trust()
    assert Counts() == Counts(useful=0, refused=0, slow=0, copied=0)
    seen(book, PEER, *Seen)
    seen(book, peer(1), Seen.USEFUL, Seen.USEFUL)
    assert book.seen_total == {"useful": 3, "refused": 1, "faulty": 1, "slow": 1, "copy": 1}
    most = 2**32 - 1
    book.restore([RECORD.pack(PEER, 0.0, 0.0, 0.0, most, most - 2, 7, most)], 0.0, 0.0)
    seen(book, PEER, *Seen)
    assert book.counts(PEER) == Counts(most, most, 8, most)
    assert len(book.records(0.0, 0.0)) == 2


def test_what_was_seen_is_counted() -> None:
    book = seen(trust(), PEER, Seen.USEFUL, Seen.REFUSED, Seen.FAULTY, Seen.COPY, Seen.SLOW)
    assert book.counts(PEER) == Counts(useful=1, refused=2, slow=1, copied=1)


def test_of_a_round_of_many_the_worst_are_left_out_but_never_more_than_a_quarter() -> None:
    book, members = trust(), [peer(number) for number in range(1, 13)]
    assert book.left_out(members, 0.0) == frozenset()
    for liar in members[:5]:
        seen(book, liar, Seen.FAULTY)
    assert book.left_out(members, 0.0) == frozenset(), "one fault may be a broken line"
    for liar in members[:5]:
        seen(book, liar, Seen.FAULTY)
    assert len(book.left_out(members, 0.0)) == 3
    assert book.left_out(members, 0.0) <= set(members[:5])
    assert book.left_out(members[:3], 0.0) == frozenset()
    assert book.left_out(members, 4 * HALF_LIFE_S) == frozenset()


def test_no_member_is_left_out_for_what_others_say() -> None:
    book = trust()
    for voter in met(book, range(1, 10)):
        book.told(voter, {PEER: 0.0})
    assert book.left_out([PEER, *met(book, range(1, 10))], 0.0) == frozenset()


# --- what others say -------------------------------------------------------------------------


def met(book: Trust, numbers: range) -> list[PeerId]:
    """Let so many peers be useful: they are voters from now on."""
    for number in numbers:
        seen(book, peer(number), Seen.USEFUL)
    return [peer(number) for number in numbers]


def test_what_most_voters_say_lowers_a_peer_that_this_node_has_never_met() -> None:
    book = trust()
    voters = met(book, range(1, 6))
    for voter in voters[:2]:
        book.told(voter, {PEER: 0.2})
    assert book.chance(PEER, 0.0) == 1.0, "two of five may lie"
    book.told(voters[2], {PEER: 0.2})
    assert book.weight(PEER, 0.0) < 0.4
    assert book.chance(PEER, 0.0) < 0.4


def test_the_word_of_members_that_this_node_never_met_is_no_vote() -> None:
    book = trust()
    met(book, range(1, 4))
    for number in range(100, 200):
        book.told(peer(number), {PEER: 0.0})
    assert book.weight(PEER, 0.0) == NEUTRAL


def test_who_did_this_node_more_harm_than_good_has_no_vote() -> None:
    book = trust()
    for number in range(1, 6):
        seen(book, peer(number), Seen.USEFUL, Seen.REFUSED, Seen.REFUSED)
        book.told(peer(number), {PEER: 0.0})
    assert book.weight(PEER, 0.0) == NEUTRAL


def test_praise_is_no_more_than_silence() -> None:
    book = trust()
    for voter in met(book, range(1, 10)):
        book.told(voter, {PEER: 1.0})
    assert book.weight(PEER, 0.0) == NEUTRAL
    seen(book, PEER, *[Seen.REFUSED] * 3)
    assert book.weight(PEER, 0.0) == book.own_weight(PEER, 0.0)


def test_a_new_word_takes_the_place_of_the_one_before_and_one_on_oneself_is_none() -> None:
    book = trust()
    voters = met(book, range(1, 4))
    for voter in voters:
        book.told(voter, {PEER: 0.0})
    assert book.heard_of(PEER) == 0.0
    for voter in voters:
        book.told(voter, {voter: 0.0})
    assert book.heard_of(PEER) == NEUTRAL
    assert all(book.heard_of(voter) == NEUTRAL for voter in voters)


def test_a_node_says_what_it_measured_and_not_what_it_heard() -> None:
    book = trust()
    for voter in met(book, range(1, 6)):
        book.told(voter, {PEER: 0.1})
    assert book.verdicts(0.0) == {}
    seen(book, PEER, *[Seen.REFUSED] * 40)
    assert book.verdicts(0.0) == {PEER: 2}


def test_what_is_said_is_a_weight_in_tenths() -> None:
    book = seen(trust(), PEER, Seen.REFUSED, Seen.REFUSED)
    assert book.verdicts(0.0) == {PEER: round(book.own_weight(PEER, 0.0) * 10)}
    assert 0.3 < book.own_weight(PEER, 0.0) < 0.4


def test_no_more_is_said_than_a_record_holds_and_the_worst_first() -> None:
    book = trust()
    for number in range(1, 40):
        seen(book, peer(number), *[Seen.REFUSED] * number)
    said = book.verdicts(0.0)
    assert set(said) == {
        peer(number) for number in range(40 - limits.STATE_VERDICTS_PER_AUTHOR_MAX, 40)
    }
    assert all(0 < tenths <= 4 for tenths in said.values())
    assert book.below_neutral(0.0) > limits.STATE_VERDICTS_PER_AUTHOR_MAX
    assert [*book.worst(0.0, 3)] == [peer(39), peer(38), peer(37)]
    assert book.worst(0.0, 1)[peer(39)] == book.own_weight(peer(39), 0.0)


@pytest.mark.parametrize(
    ("said", "n_silent", "heard"),
    [
        ([], 3, NEUTRAL),
        ([0.1], 0, 0.1),
        ([0.0], 1, 0.25),
        ([0.0], 2, NEUTRAL),
        ([0.0], 3, NEUTRAL),
        ([0.0, 0.2, 0.3], 2, 0.3),
        ([0.0, 0.1, 0.2], 1, 0.15),
        ([-9.0, -8.0, 9.0], 0, 0.0),
        ([-9.0, 8.0, 9.0], 0, NEUTRAL),
    ],
)
def test_what_is_heard_is_the_median_of_all_voters_and_silence_is_neutral(
    said: list[float], n_silent: int, heard: float
) -> None:
    book = trust()
    voters = met(book, range(1, 1 + len(said) + n_silent))
    for voter, weight in zip(voters, said, strict=False):
        book.told(voter, {PEER: weight})
    assert book.heard_of(PEER) == pytest.approx(heard)
    assert book.weight(PEER, 0.0) == pytest.approx(2 / (4 + 3 * (1 - heard / NEUTRAL)))


def test_a_voter_has_no_say_on_itself_and_is_not_counted_as_silent_there() -> None:
    book = trust()
    one, *others = met(book, range(1, 5))
    for voter in others[:2]:
        book.told(voter, {one: 0.0})
    assert book.heard_of(one) == 0.0, "two of three"
    book.told(one, {one: 0.0, PEER: 0.0})
    assert (book.heard_of(one), book.heard_of(PEER)) == (0.0, NEUTRAL)


def test_what_one_says_no_more_leaves_what_others_say() -> None:
    book = trust()
    first, second = met(book, range(1, 3))
    for voter in (first, second):
        book.told(voter, {PEER: 0.0})
    book.told(first, {})
    assert book.heard_of(PEER) == 0.25
    book.told(second, {})
    assert book.heard_of(PEER) == NEUTRAL


def test_of_one_word_so_many_verdicts_count() -> None:
    book, most = trust(), limits.STATE_VERDICTS_PER_AUTHOR_MAX
    (voter,) = met(book, range(1, 2))
    book.told(voter, {peer(100 + number): 0.0 for number in range(most + 1)})
    heard = [book.heard_of(peer(100 + number)) for number in range(most + 1)]
    assert heard == [0.0] * most + [NEUTRAL]


def test_words_of_strangers_are_kept_as_long_as_there_is_room() -> None:
    book = trust(peers_max=3)
    met(book, range(1, 2))
    for number in (7, 8, 9):
        book.told(peer(number), {PEER: 0.0})
    book.told(peer(10), {PEER: 0.0})
    book.told(peer(1), {PEER: 0.0})
    assert book.heard_of(PEER) == 0.0, "a peer that is known is always heard"
    met(book, range(10, 11))
    assert book.heard_of(PEER) == 0.25, "this one came too late"
    met(book, range(7, 8))
    assert book.heard_of(PEER) == 0.0


def test_who_is_forgotten_has_no_vote() -> None:
    book = trust(peers_max=2)
    voters = met(book, range(1, 3))
    book.told(voters[0], {PEER: 0.0})
    assert book.heard_of(PEER) == 0.25
    seen(book, peer(3), Seen.REFUSED)
    assert book.heard_of(PEER) == NEUTRAL


def test_as_much_good_as_bad_is_no_vote() -> None:
    book = trust()
    book.restore([RECORD.pack(peer(1), 0.0, 1.5, 1.5, 2, 2, 0, 0)], 0.0, 0.0)
    book.told(peer(1), {PEER: 0.0})
    assert book.heard_of(PEER) == NEUTRAL
    seen(book, peer(1), Seen.USEFUL)
    assert book.heard_of(PEER) == 0.0
    seen(book, peer(1), Seen.FAULTY)
    assert book.heard_of(PEER) == NEUTRAL


# --- what is kept ----------------------------------------------------------------------------


def test_a_restart_forgets_nothing_and_time_goes_on_meanwhile() -> None:
    before = seen(trust(), PEER, *[Seen.REFUSED] * 5)
    seen(before, peer(1), Seen.USEFUL, Seen.SLOW)
    records = before.records(0.0, 1000.0)
    assert all(len(record) == 64 for record in records)
    after = trust()
    assert after.restore(records, 50.0, 1000.0 + HALF_LIFE_S) == 0
    for whom in (PEER, peer(1)):
        assert after.weight(whom, 50.0) == pytest.approx(before.weight(whom, HALF_LIFE_S))
        assert after.counts(whom) == before.counts(whom)


def test_only_what_has_changed_is_written_down_again() -> None:
    book = seen(trust(), PEER, Seen.REFUSED)
    seen(book, peer(1), Seen.USEFUL)
    assert len(book.take_changed(0.0, 0.0)) == 2
    assert book.take_changed(0.0, 0.0) == []
    seen(book, PEER, Seen.USEFUL)
    (record,) = book.take_changed(0.0, 0.0)
    assert record.startswith(PEER)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x00" * 63,
        RECORD.pack(PEER, math.nan, 1.0, 1.0, 0, 0, 0, 0),
        RECORD.pack(PEER, 0.0, math.inf, 1.0, 0, 0, 0, 0),
        RECORD.pack(PEER, 0.0, -1.0, 1.0, 0, 0, 0, 0),
        RECORD.pack(PEER, 0.0, 8.0, 8.0, 0, 0, 0, 0),
    ],
)
def test_a_record_that_no_node_writes_is_left_out(record: bytes) -> None:
    book = trust()
    good = seen(trust(), peer(1), Seen.USEFUL).records(0.0, 0.0)
    assert book.restore([record, *good], 0.0, 0.0) == 1
    assert len(book) == 1


@pytest.mark.parametrize(
    ("good", "bad", "is_one"),
    [
        (0.0, 0.0, True),
        (4.0, 4.0, True),
        (4.0, 4.25, False),
        (-0.5, 1.0, False),
        (1.0, -0.5, False),
    ],
)
def test_a_record_says_no_more_than_can_be_seen(good: float, bad: float, is_one: bool) -> None:
    book = trust()
    assert book.restore([known(good, bad)] * 2, 0.0, 0.0) == (0 if is_one else 2)
    assert len(book) == is_one


def test_a_record_is_as_old_as_it_says_and_ten_half_lives_at_the_most() -> None:
    for age_s, left in ((0.0, 1.0), (HALF_LIFE_S, 0.5), (1e9, 2**-10)):
        book = trust()
        book.restore([known(0.0, 4.0, at_unix_s=2e9 - age_s)], 70.0, 2e9)
        assert book.own_weight(PEER, 70.0) == pytest.approx(2 / (4 + 4 * left), rel=1e-12)


def test_of_records_of_one_peer_the_last_counts_and_it_was_changed_last() -> None:
    book = trust(peers_max=2)
    assert book.restore([known(1.0, 0.0), known(1.0, 0.0, peer(1))], 0.0, 0.0) == 0
    book.restore([known(0.0, 1.0, peer(1))], 0.0, 0.0)
    assert (len(book), book.own_weight(peer(1), 0.0)) == (2, 0.4)
    book.restore([known(0.0, 1.0)], 0.0, 0.0)
    assert [record[:32] for record in book.records(0.0, 0.0)] == [peer(1), PEER]
    seen(book, peer(2), Seen.USEFUL)
    assert [record[:32] for record in book.records(0.0, 0.0)] == [PEER, peer(2)]
    assert [record[:32] for record in book.take_changed(0.0, 0.0)] == [peer(2)], "none was read"


def test_a_clock_that_went_back_makes_nothing_older_or_younger_than_now() -> None:
    records = seen(trust(), PEER, *[Seen.REFUSED] * 5).records(0.0, 1e9)
    book = trust()
    book.restore(records, 0.0, 0.0)
    assert book.weight(PEER, 0.0) == pytest.approx(
        seen(trust(), PEER, *[Seen.REFUSED] * 5).weight(PEER, 0.0)
    )


def test_who_was_changed_longest_ago_makes_room() -> None:
    book = trust(peers_max=8)
    seen(book, PEER, *[Seen.REFUSED] * 5)
    for number in range(1, 8):
        seen(book, peer(number), Seen.USEFUL)
    assert book.counts(PEER).refused == 5
    seen(book, peer(8), Seen.USEFUL)
    assert (len(book), book.counts(PEER)) == (8, Counts())
    book.told(peer(1), {PEER: 0.0})
    assert len(book.take_changed(0.0, 0.0)) == 8
