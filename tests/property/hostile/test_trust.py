"""Whatever is seen and said, in any order: bounds hold, time heals, and liars do little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.trust import HALF_LIFE_S, NEUTRAL, Seen, Trust

UNDONE_BY = 4  # useful contacts: the module says so
seen_kinds = st.sampled_from(list(Seen))
contacts = st.lists(
    st.tuples(st.integers(0, 7), seen_kinds, st.floats(0.0, HALF_LIFE_S)), max_size=60
)
weights = st.floats(0.0, 1.0)


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def book_of(seen: list[tuple[int, Seen, float]]) -> tuple[Trust, float]:
    """Return a book in which all of it was noted, one after the other, and the time then."""
    book, now = Trust(b"\x07" * 16, peers_max=6), 0.0
    for number, kind, later_s in seen:
        now += later_s
        book.note(peer(number), kind, now)
    return book, now


@given(contacts, st.dictionaries(st.integers(0, 9), weights, max_size=9))
def test_weights_and_chances_have_bounds_and_no_more_is_kept_than_may_be(
    seen: list[tuple[int, Seen, float]], said: dict[int, float]
) -> None:
    book, now = book_of(seen)
    for number in range(8):
        book.told(peer(number), {peer(about): weight for about, weight in said.items()})
    assert len(book) <= 6
    for number in range(10):
        weight, own = book.weight(peer(number), now), book.own_weight(peer(number), now)
        assert 2 / 15 <= weight <= own <= 10 / 12, "what others say only lowers"
        assert 0 < book.chance(peer(number), now) <= 1
    assert len(book.verdicts(now)) <= limits.STATE_VERDICTS_PER_AUTHOR_MAX


@given(contacts, st.floats(0.0, 5 * HALF_LIFE_S))
def test_time_leads_to_neutral_from_both_sides(
    seen: list[tuple[int, Seen, float]], later_s: float
) -> None:
    book, now = book_of(seen)
    for number in range(8):
        before, after = (book.own_weight(peer(number), t) for t in (now, now + later_s))
        assert min(before, NEUTRAL) - 1e-9 <= after <= max(before, NEUTRAL) + 1e-9
    assert all(
        abs(book.own_weight(peer(number), now + 12 * HALF_LIFE_S) - NEUTRAL) < 0.001
        for number in range(8)
    )


@given(contacts)
def test_a_restart_changes_nothing(seen: list[tuple[int, Seen, float]]) -> None:
    book, now = book_of(seen)
    again = Trust(b"\x01" * 16, peers_max=6)
    assert again.restore(book.records(now, 500.0), now, 500.0) == 0
    for number in range(8):
        assert abs(again.weight(peer(number), now) - book.weight(peer(number), now)) < 1e-6


@given(st.integers(1, 40), st.data())
def test_liars_that_are_less_than_half_of_the_voters_move_no_honest_peer(
    n_honest: int, data: st.DataObject
) -> None:
    n_liars = data.draw(st.integers(0, n_honest - 1))
    book, victim = Trust(b"\x07" * 16), peer(1000)
    for number in range(n_honest + n_liars):
        book.note(peer(number), Seen.USEFUL, 0.0)
    for number in range(n_honest, n_honest + n_liars):
        book.told(peer(number), {victim: data.draw(weights)})
    assert book.weight(victim, 0.0) == NEUTRAL


@given(st.integers(1, 40), weights)
def test_all_voters_together_do_no_more_than_few_own_contacts_undo(
    n_liars: int, said: float
) -> None:
    book, victim = Trust(b"\x07" * 16), peer(1000)
    for number in range(n_liars):
        book.note(peer(number), Seen.USEFUL, 0.0)
        book.told(peer(number), {victim: said})
    for _ in range(UNDONE_BY):
        book.note(victim, Seen.USEFUL, 0.0)
    assert book.weight(victim, 0.0) >= NEUTRAL
    assert book.admits(victim, 0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), weights), max_size=80))
def test_what_is_heard_is_bounded_and_the_last_word_counts(
    words: list[tuple[int, int, float]],
) -> None:
    book, last = Trust(b"\x07" * 16), {}
    for author in range(4):
        book.note(peer(author), Seen.USEFUL, 0.0)
    for author, subject, weight in words:
        book.told(peer(author), {peer(subject): weight})
        last[author] = (subject, min(weight, NEUTRAL))
    for subject in range(6):
        voters = [author for author in range(4) if author != subject]
        about = [last[a][1] for a in voters if a in last and last[a][0] == subject]
        votes = sorted([*about, *[NEUTRAL] * (len(voters) - len(about))])
        middle = len(votes) // 2
        expected = (votes[middle] + votes[~middle]) / 2
        assert abs(book.heard_of(peer(subject)) - expected) < 1e-12
