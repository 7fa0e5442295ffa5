"""A member that says of others that they are gone is believed until it was wrong."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.group_events import Begin, Named, Received
from swarmnode.protocol.gossip.hearsay import Hearsay
from swarmnode.protocol.gossip.round_patience import RoundPatience
from swarmnode.wire.exchange.group import Enlist, Flush

ALL = tuple(PeerId(bytes([n]) * 32) for n in range(1, 6))
SELF, OTHER, THIRD, LIAR, VICTIM = ALL
GID = bytes(16)


def named(peer: PeerId, *others: PeerId, is_excused: bool = False) -> Named:
    """Return that a member has said of others that they are gone."""
    return Named(GID, peer, frozenset(others), is_excused)


def said(*, runs_later: int = 1) -> Hearsay:
    """Return what is known so many runs after the liar said that the victim is gone."""
    hearsay = Hearsay()
    hearsay.note_named(named(LIAR, VICTIM))
    for _ in range(runs_later):
        hearsay.note_begun()
    return hearsay


def test_who_says_so_of_one_that_is_heard_in_a_later_run_was_mistaken() -> None:
    hearsay = said(runs_later=3)
    assert not hearsay.doubted(9)
    hearsay.note_heard(OTHER)
    assert not hearsay.doubted(9)
    hearsay.note_heard(VICTIM)
    assert hearsay.doubted(9) == {LIAR}
    for _ in range(limits.GROUP_MISTAKEN_RUNS - 1):
        hearsay.note_begun()
    assert hearsay.doubted(9) == {LIAR}
    hearsay.note_begun()
    assert not hearsay.doubted(9)


def test_what_was_said_once_is_held_against_it_once() -> None:
    hearsay = said()
    for _ in range(limits.GROUP_MISTAKEN_RUNS):
        hearsay.note_heard(VICTIM)
        hearsay.note_begun()
    assert not hearsay.doubted(9)


def test_what_was_on_its_way_when_a_member_died_proves_nothing() -> None:
    hearsay = said(runs_later=0)
    hearsay.note_heard(VICTIM)
    hearsay.note_gone(VICTIM)
    hearsay.note_begun()
    hearsay.note_heard(VICTIM)  # it is back
    assert not hearsay.doubted(9)


def test_one_whose_session_ended_later_may_have_been_gone() -> None:
    hearsay = said()
    hearsay.note_gone(VICTIM)
    hearsay.note_heard(VICTIM)
    assert not hearsay.doubted(9)


def test_all_who_said_so_were_mistaken_be_it_in_several_runs() -> None:
    hearsay = said()
    hearsay.note_named(named(OTHER, VICTIM, THIRD))
    hearsay.note_begun()
    hearsay.note_heard(VICTIM)
    assert hearsay.doubted(9) == {LIAR, OTHER}


def test_what_is_remembered_is_bounded() -> None:
    hearsay, strangers = Hearsay(), [PeerId(n.to_bytes(32, "big")) for n in range(1, 1000)]
    for stranger in strangers:
        hearsay.note_named(named(stranger, stranger))
        hearsay.note_begun()
        if stranger < strangers[500]:
            hearsay.note_heard(stranger)
    most = 2 * limits.GROUP_MEMBERS_MAX
    assert sorted(hearsay.doubted(999)) == strangers[500 - most : 500]
    for stranger in strangers:
        hearsay.note_heard(stranger)
    assert sorted(hearsay.doubted(999))[-most:] == strangers[-most:]


def test_a_mistaken_member_is_doubted_in_rounds() -> None:
    patience = RoundPatience()
    patience.note_said(named(LIAR, VICTIM), 0.0)
    patience.hearsay.note_begun()
    assert patience.doubted(ALL, 1.0) == frozenset(), "it costs nothing, and may be true"
    patience.note_heard(VICTIM)
    assert patience.doubted(ALL, 1e6) == {LIAR}


@pytest.mark.parametrize("is_excused", [False, True])
def test_who_leaves_out_one_that_was_late_may_have_left_it_out_of_its_roll(
    is_excused: bool,
) -> None:
    patience = RoundPatience()
    patience.note_held(VICTIM, 1.0, 0.0)
    for run in range(limits.GROUP_APART_MIN):
        patience.note_said(named(LIAR, VICTIM, THIRD, is_excused=is_excused), float(run))
        patience.hearsay.note_begun()
        patience.note_heard(VICTIM)
    assert patience.doubted(ALL, 1e6) == ({LIAR, VICTIM} if is_excused else frozenset())
    patience.note_heard(THIRD)
    assert LIAR in patience.doubted(ALL, 1e6) or is_excused


def test_one_that_does_not_answer_was_gone() -> None:
    patience = RoundPatience()
    patience.note_said(named(LIAR, VICTIM), 0.0)
    patience.hearsay.note_begun()
    assert patience.note_silent(VICTIM, patience.answer_s(VICTIM), 1.0)
    patience.note_heard(VICTIM)
    assert patience.doubted(ALL, 1.0) == frozenset()


def apart(*who: tuple[PeerId, PeerId], runs: int = limits.GROUP_APART_MIN) -> Hearsay:
    """Return what is known when members (who, of whom) said so in some runs, with an excuse."""
    hearsay = Hearsay()
    for _ in range(runs):
        for peer, other in who:
            hearsay.note_named(named(peer, other, is_excused=True))
        hearsay.note_begun()
        for _, other in who:
            hearsay.note_heard(other)
    return hearsay


def test_of_two_of_which_one_or_the_other_is_the_reason_both_are_doubted_if_it_comes_again() -> (
    None
):
    assert apart((LIAR, VICTIM)).doubted(9) == {LIAR, VICTIM}
    assert apart((LIAR, VICTIM), runs=limits.GROUP_APART_MIN - 1).doubted(9) == set()
    assert apart((LIAR, VICTIM), (LIAR, OTHER)).doubted(9) == {LIAR, VICTIM, OTHER}


def test_it_is_the_same_two_whichever_of_them_says_so() -> None:
    hearsay = apart((LIAR, VICTIM), runs=limits.GROUP_APART_MIN - 1)
    hearsay.note_named(named(VICTIM, LIAR, is_excused=True))
    hearsay.note_begun()
    hearsay.note_heard(LIAR)
    assert hearsay.doubted(9) == {LIAR, VICTIM}


@pytest.mark.parametrize("runs_apart", [False, True])
def test_one_of_two_that_is_wrong_often_enough_without_an_excuse_was_the_reason(
    runs_apart: bool,
) -> None:
    hearsay = apart((LIAR, VICTIM), (OTHER, THIRD))
    for _ in range(limits.GROUP_APART_MIN):
        assert hearsay.doubted(9) == {LIAR, VICTIM, OTHER, THIRD}
        for is_excused in (True, False, True):
            hearsay.note_named(named(LIAR, SELF, is_excused=is_excused))
            if runs_apart:
                hearsay.note_begun()
        hearsay.note_begun()
        hearsay.note_heard(SELF)
    assert hearsay.doubted(9) == {LIAR, OTHER, THIRD}


def test_no_more_are_doubted_than_may_be_and_those_that_were_wrong_most_often() -> None:
    hearsay = apart((OTHER, LIAR))
    for wrong in ((THIRD,), (LIAR, THIRD), (LIAR,), (LIAR, VICTIM)):
        for peer in wrong:
            hearsay.note_named(named(peer, SELF))
        hearsay.note_begun()
        hearsay.note_heard(SELF)
    assert hearsay.doubted(1) == {LIAR}
    assert hearsay.doubted(2) == {LIAR, THIRD}
    assert hearsay.doubted(3) == {LIAR, THIRD, VICTIM}, "the two are not one another's reason"


def test_a_quarter_of_the_members_is_doubted_at_the_most_or_two() -> None:
    for n_members, n_doubted in ((5, 2), (11, 2), (12, 3), (40, 10)):
        members = [PeerId(n.to_bytes(32, "big")) for n in range(1, n_members + 1)]
        patience = RoundPatience()
        for peer in members[1:]:
            patience.note_said(named(peer, members[0]), 0.0)
        patience.hearsay.note_begun()
        patience.note_heard(members[0])
        assert len(patience.doubted(members, 1e6)) == n_doubted


def test_two_are_doubted_for_as_many_runs_from_the_last_time_on() -> None:
    hearsay = apart((LIAR, VICTIM))
    for _ in range(limits.GROUP_MISTAKEN_RUNS - 1):
        hearsay.note_begun()
    assert hearsay.doubted(9) == {LIAR, VICTIM}
    hearsay.note_begun()
    assert hearsay.doubted(9) == set()


def test_twos_that_are_remembered_are_bounded() -> None:
    strangers = [PeerId(n.to_bytes(32, "big")) for n in range(1, 500)]
    hearsay = apart(*((LIAR, stranger) for stranger in strangers))
    hearsay.note_begun()
    most = 2 * limits.GROUP_MEMBERS_MAX
    assert hearsay.doubted(999) == {LIAR, *strangers[-most:]}


# --- what a run notes -----------------------------------------------------------------------------


def cuts(
    *flushes: tuple[PeerId, PeerId, float], came: tuple[PeerId, ...] = ALL[1:], calls: bool = False
) -> list[Named]:
    """Return what a run notes when members (who, of whom, when) say that others are gone."""
    core = GroupCore(SELF)
    begin = Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, patience_s=6.0, calls=calls)
    core.handle(begin, 0.0)
    for peer in came:
        core.handle(Received(peer, Enlist(GID, False)), 0.1)
    for teller, missing, at in flushes:  # itself: none is
        view = tuple(bytes(peer) for peer in ALL if peer != missing or peer == teller)
        core.handle(Received(teller, Flush(GID, view, ())), at)
    return [each for each in core.poll_effects() if isinstance(each, Named)]


def test_it_is_noted_who_said_so_first_of_one_that_was_there() -> None:
    expected = [named(LIAR, VICTIM)]
    assert cuts((LIAR, VICTIM, 0.2)) == expected
    assert cuts((LIAR, VICTIM, 0.2), (OTHER, VICTIM, 0.3)) == expected


def test_of_one_that_has_not_come_nothing_is_known() -> None:
    assert cuts((LIAR, VICTIM, 0.2), came=(LIAR, OTHER)) == []


@pytest.mark.parametrize("first", [LIAR, VICTIM])
def test_of_two_that_say_it_of_each_other_only_the_first_is_noted(first: PeerId) -> None:
    """The other one goes on without it as it was left out."""
    second = VICTIM if first is LIAR else LIAR
    assert cuts((first, second, 0.2), (second, first, 0.3)) == [named(first, second)]


def test_what_a_doubted_member_has_said_of_another_is_no_reason_against_that_one() -> None:
    core = GroupCore(SELF)
    begin = Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, doubted=frozenset({LIAR}))
    core.handle(begin, 0.0)
    for peer in ALL[1:]:
        core.handle(Received(peer, Enlist(GID, False)), 0.1)
    for teller, missing in ((LIAR, VICTIM), (VICTIM, LIAR)):
        view = tuple(bytes(peer) for peer in ALL if peer != missing)
        core.handle(Received(teller, Flush(GID, view, ())), 0.2)
    assert not [each for each in core.poll_effects() if isinstance(each, Named)]


def test_who_is_waited_for_says_nothing_new_of_another_that_is_as_well() -> None:
    assert cuts((OTHER, VICTIM, 4.0)) == []


def test_one_that_others_wait_for_may_have_waited_itself() -> None:
    """For a share that only it lacks: of that the others know nothing."""
    told = (VICTIM, VICTIM, 0.2)
    assert cuts(told, (OTHER, VICTIM, 4.0)) == [named(OTHER, VICTIM, is_excused=True)]
    assert cuts(told, (OTHER, VICTIM, 1.7)) == [named(OTHER, VICTIM)], "not yet"
    assert cuts(told, (OTHER, VICTIM, 4.0), calls=True) == [], "in the log it alone can know"


def test_one_that_has_told_its_view_is_waited_for_by_none_however_late_it_is() -> None:
    told = ((LIAR, LIAR, 0.2), (VICTIM, VICTIM, 0.2))
    assert cuts(*told, (LIAR, VICTIM, 4.0)) == [named(LIAR, VICTIM)]
