"""Rounds that wait for members on thin lines: for whom, how long, and how often."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.daemon.collective.groups import line_words
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.group_events import Arriving, Begin, Effect, Received, Send
from swarmnode.protocol.gossip.round_patience import RoundPatience, Waits
from swarmnode.wire.exchange.group import Enlist, Flush

SELF, FAST, OTHER, THIN, LAST = PEERS = tuple(PeerId(bytes([n]) * 32) for n in range(1, 6))
GID = bytes(16)
USUAL_S, MOST_S = 2.0, 198.0
NEED_S = {SELF: 0.1, FAST: 0.2, OTHER: 0.2, THIN: 26.0}
STAGE_S = limits.ROUND_THIN_SLACK * 26.0
WITHOUT = (SELF, FAST, OTHER, LAST)


def waits(
    patience: RoundPatience,
    now: float,
    needs_s: dict[PeerId, float] | None = None,
    number: int = 1,
) -> Waits:
    return patience.waits(PEERS, SELF, now, (USUAL_S, MOST_S), needs_s or NEED_S, number)


def test_where_no_line_is_thin_nothing_changes() -> None:
    found = waits(RoundPatience(), 0.0, {THIN: 1.3})
    assert found == Waits(PEERS, USUAL_S, 0.0, frozenset(), frozenset(), 0.0)


def test_a_round_that_waited_is_followed_by_seven_times_as_long_without() -> None:
    patience = RoundPatience()
    first = waits(patience, 0.0)
    assert (first.members, first.stage_s, first.thin) == (PEERS, STAGE_S, frozenset({THIN}))
    assert first.silence_s == STAGE_S / 2
    patience.note_over(first, PEERS, 50.0, 50.0)
    assert waits(patience, 51.0) == Waits(WITHOUT, USUAL_S)
    assert waits(patience, 399.0) == Waits(WITHOUT, USUAL_S)
    assert waits(patience, 401.0) == first


def test_one_that_was_waited_for_in_vain_is_not_for_ten_minutes() -> None:
    patience = RoundPatience()
    patience.note_over(waits(patience, 0.0), WITHOUT, 40.0, 40.0)
    assert waits(patience, 639.0).members == WITHOUT
    assert waits(patience, 641.0, number=limits.ROUND_THIN_EVERY).members == PEERS


def test_one_for_whom_the_usual_wait_is_too_short_is_thin_to_all_who_might_end_it() -> None:
    """Else those to whom it is just not thin would end each round that others stretch for it."""
    need_s = 1.01 * USUAL_S / limits.ROUND_THIN_SLACK
    found = waits(RoundPatience(), 0.0, {THIN: need_s})
    assert found.thin == {THIN}
    assert found.stage_s >= limits.ROUND_THIN_SLACK * need_s


def test_members_that_differ_in_whose_turn_it_is_meet_in_a_round_by_its_number() -> None:
    """Each begins with another one; a mean has the thin one if all of them wait for it."""
    patiences = [RoundPatience() for _ in range(3)]
    for turn, patience in enumerate(patiences):
        patience.note_over(waits(patience, 0.0), WITHOUT, 1.0, 5.0 * turn)
    met = []
    for number in range(1, 3 * limits.ROUND_THIN_EVERY):
        now = 5.0 * number
        found = [waits(patience, now, number=number) for patience in patiences]
        is_met = all(each.thin for each in found)
        for each, patience in zip(found, patiences, strict=True):
            patience.note_over(each, PEERS if is_met else WITHOUT, 1.0, now + 1.0)
        if is_met:
            met.append(number)
    assert met[0] == limits.ROUND_THIN_EVERY


def test_one_that_did_not_even_come_has_cost_nothing_and_is_asked_again() -> None:
    patience = RoundPatience()
    patience.note_over(waits(patience, 0.0), WITHOUT, 3.0, 3.0)
    assert waits(patience, 25.0).members == WITHOUT
    assert waits(patience, 25.0, number=limits.ROUND_THIN_EVERY).members == PEERS


def test_a_line_that_no_round_can_wait_for_does_not_keep_the_others_of_their_turn() -> None:
    lie = {**NEED_S, LAST: 1e9}
    found = waits(RoundPatience(), 0.0, lie)
    assert found.thin == {THIN}
    assert found.stage_s == STAGE_S


def test_where_the_others_are_no_majority_every_round_waits() -> None:
    needs_s = {**NEED_S, OTHER: 20.0, LAST: 26.0}
    patience = RoundPatience()
    for now in (0.0, 60.0):
        found = waits(patience, now, needs_s)
        assert (found.members, found.stage_s) == (PEERS, STAGE_S)
        patience.note_over(found, PEERS, 50.0, now + 50.0)


def test_a_thin_member_itself_leaves_none_out() -> None:
    found = RoundPatience().waits(PEERS, THIN, 0.0, (USUAL_S, MOST_S), NEED_S, 1)
    assert (found.members, found.stage_s) == (PEERS, STAGE_S)


def test_people_are_told() -> None:
    patience = RoundPatience()
    now = waits(patience, 0.0)
    assert "up to" not in line_words(Waits(PEERS, USUAL_S), PEERS, SELF, {THIN: 1.0})
    assert line_words(now, PEERS, SELF, NEED_S).endswith("39 s, for 1 member on a thin line")
    patience.note_over(now, PEERS, 50.0, 50.0)
    said = line_words(waits(patience, 60.0), PEERS, SELF, NEED_S)
    assert said.startswith("1 member on a thin line waited for in at most 12.5% of the time")
    own = line_words(Waits(PEERS, MOST_S), PEERS, THIN, NEED_S)
    assert own.startswith("the line of this node needs 26 s")


def test_a_line_is_thin_where_it_needs_more_than_is_usual_with_the_slack() -> None:
    need_s = USUAL_S / limits.ROUND_THIN_SLACK
    assert waits(RoundPatience(), 0.0, {THIN: need_s}) == Waits(PEERS, USUAL_S)
    assert waits(RoundPatience(), 0.0, {THIN: need_s + 0.01}).thin == {THIN}


def test_a_thin_member_that_is_silent_is_not_waited_for_as_one() -> None:
    patience = RoundPatience()
    patience.note_silent(THIN, patience.answer_s(THIN), 0.0)
    assert waits(patience, 0.0) == Waits(WITHOUT, USUAL_S)


def test_a_stage_is_stretched_to_the_thinnest_line_and_no_further_than_any_may_be() -> None:
    most_s = limits.ROUND_THIN_STAGE_S_MAX
    fits_s = most_s / limits.ROUND_THIN_SLACK
    found = waits(RoundPatience(), 0.0, {THIN: fits_s, LAST: 10.0})
    assert found == Waits(PEERS, most_s, most_s / 2, frozenset({THIN, LAST}))
    assert waits(RoundPatience(), 0.0, {THIN: fits_s + 0.1}) == Waits(WITHOUT, USUAL_S)
    short = RoundPatience().waits(PEERS, SELF, 0.0, (USUAL_S, 15.0), {THIN: 10.0}, 1)
    assert short == Waits(PEERS, 15.0, 7.5, frozenset({THIN}))
    long = RoundPatience().waits(PEERS, SELF, 0.0, (100.0, 500.0), {THIN: 80.0}, 1)
    assert long == Waits(WITHOUT, 100.0), "beyond what is usual there is no time for it"
    less = RoundPatience().waits(PEERS, SELF, 0.0, (2.0, 500.0), {THIN: 2.0}, 1)
    assert less == Waits(PEERS, 3.0, 2.0, frozenset({THIN})), "silence is what is usual or more"


def test_one_that_held_rounds_before_its_line_was_known_is_waited_for_all_the_same() -> None:
    patience = RoundPatience()
    patience.note_held(THIN, limits.EXCHANGE_BUDGET_S, 0.0)
    assert waits(patience, 0.0).members == PEERS
    patience = RoundPatience()
    patience.note_held(LAST, limits.EXCHANGE_BUDGET_S, 0.0)
    assert waits(patience, 0.0).members == PEERS[:4], "another one is not"


@pytest.mark.parametrize(("took_s", "is_again"), [(STAGE_S / 2, True), (STAGE_S / 2 + 0.5, False)])
def test_a_round_in_vain_is_one_that_lasted_longer_than_silence_may(
    took_s: float, is_again: bool
) -> None:
    patience = RoundPatience()
    patience.note_over(waits(patience, 0.0), WITHOUT, took_s, took_s)
    later, number = took_s * 8 + 0.1, limits.ROUND_THIN_EVERY
    assert (waits(patience, later, number=number).members == PEERS) is is_again
    until = took_s + limits.ROUND_THIN_AGAIN_S
    assert (waits(patience, until - 0.1, number=number).members == PEERS) is is_again
    assert waits(patience, until, number=number).members == PEERS


def test_a_round_that_came_to_nothing_says_nothing_against_a_thin_member() -> None:
    patience = RoundPatience()
    patience.note_over(waits(patience, 0.0), (), 30.0, 30.0)
    assert waits(patience, 240.0 - 0.1, number=limits.ROUND_THIN_EVERY).members == WITHOUT
    assert waits(patience, 240.0, number=limits.ROUND_THIN_EVERY).members == PEERS
    assert waits(patience, 240.0, number=limits.ROUND_THIN_EVERY + 1).members == WITHOUT


def test_of_two_thin_members_the_one_that_came_keeps_its_turn() -> None:
    patience, needs_s = RoundPatience(), {**NEED_S, LAST: 26.0}
    found = waits(patience, 0.0, needs_s)
    assert found.thin == {THIN, LAST}
    patience.note_over(found, PEERS[:4], 50.0, 50.0)
    found = waits(patience, 400.0, needs_s, number=1)
    assert found.thin == {THIN}
    assert found.members == PEERS[:4]


def test_a_round_that_waits_for_none_leaves_the_turn_as_it_is() -> None:
    patience = RoundPatience()
    patience.note_over(Waits(PEERS, USUAL_S), WITHOUT, 50.0, 50.0)
    assert waits(patience, 51.0).members == PEERS


def test_where_two_of_three_are_left_they_go_on_without_the_thin_one_and_one_does_not() -> None:
    three = (SELF, FAST, THIN)
    patience = RoundPatience()
    found = patience.waits(three, SELF, 0.0, (USUAL_S, MOST_S), NEED_S, 1)
    patience.note_over(found, three, 50.0, 50.0)
    assert patience.waits(three, SELF, 60.0, (USUAL_S, MOST_S), NEED_S, 2).members == three[:2]
    two = (SELF, THIN)
    found = patience.waits(two, SELF, 60.0, (USUAL_S, MOST_S), NEED_S, 2)
    assert (found.members, found.stage_s) == (two, STAGE_S)


def test_people_are_told_of_how_many_members_and_by_what() -> None:
    both = {SELF: 0.1, FAST: 0.2, OTHER: 0.3, THIN: 26.0, LAST: 26.0}
    stretched = Waits(PEERS, 39.0, 19.5, frozenset({THIN, LAST}))
    assert line_words(stretched, PEERS, SELF, both) == (
        "a stage of this round may last 39 s, for 2 members on a thin line"
    )
    assert line_words(Waits(PEERS[:3], 2.0), PEERS, SELF, both) == (
        "2 members on a thin line waited for in at most 12.5% of the time, not in this round"
    )
    assert line_words(Waits(PEERS, 2.0), PEERS, SELF, both) == ""
    assert line_words(Waits(WITHOUT, 2.0), WITHOUT, SELF, both) == "", "it is no member"
    assert line_words(Waits(WITHOUT, 2.0), PEERS, SELF, {SELF: 0.1}) == "", "its line is not known"
    told = line_words(Waits(PEERS, 2.0), PEERS, THIN, {SELF: 0.1, FAST: 0.25, OTHER: 3.0, THIN: 26})
    assert told == (
        "the line of this node needs 26 s to send its part of a round, most others 0.25 s: they"
        " wait for it in some rounds"
    )


def test_a_node_whose_line_needs_a_few_times_what_others_do_is_told_so() -> None:
    for others_s, usual_s in (
        ((2.0, 0.1), 2.0),  # of an even number the larger one in the middle
        ((0.1, 2.0, 9.0), 2.0),
        ((0.01, 0.01), limits.EXCHANGE_ANSWER_S_MIN),
    ):
        needs_s = dict(zip((FAST, OTHER, LAST), others_s, strict=False))
        own_s = limits.EXCHANGE_PATIENCE * usual_s
        none = Waits(PEERS, USUAL_S)
        assert line_words(none, PEERS, SELF, {**needs_s, SELF: own_s}) == ""
        assert "this node" in line_words(none, PEERS, SELF, {**needs_s, SELF: own_s + 0.1})
    assert line_words(none, PEERS, SELF, {SELF: 100.0}) == "", "of no other it is known"


# --- in a run: bytes keep a place ---------------------------------------------------------------

STAGE, SILENCE = 40.0, 10.0


def run_of_three() -> GroupCore:
    """Return a core that waits for the shares of two others; both have agreed at 0."""
    core = GroupCore(SELF)
    members = (SELF, FAST, THIN)
    begin = Begin(GID, members, 3, 1.0, 5.0, MOST_S, members, patience_s=STAGE, silence_s=SILENCE)
    core.handle(begin, 0.0)
    for peer in (FAST, THIN):
        core.handle(Received(peer, Enlist(GID, False)), 0.0)
    for peer in (FAST, THIN):
        core.handle(Received(peer, Flush(GID, tuple(map(bytes, members)), ())), 0.0)
    core.poll_effects()
    return core


def views(effects: list[Effect]) -> set[tuple[bytes, ...]]:
    return {
        effect.message.view
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Flush)
    }


def wait(core: GroupCore, until: float, *, tells: dict[PeerId, float]) -> list[Effect]:
    """Let time pass; bytes come of these each second, up to then."""
    for second in range(int(until) + 1):
        for peer, last in tells.items():
            if second <= last:
                core.handle(Arriving(GID, peer), float(second))
        core.handle_deadline(float(second))
    return core.poll_effects()


def test_a_share_of_which_bytes_come_keeps_its_place_to_the_end_of_the_stage() -> None:
    both = {FAST: 99.0, THIN: 99.0}
    assert views(wait(run_of_three(), STAGE - 1, tells=both)) == set()
    assert wait(run_of_three(), STAGE, tells=both), "no longer than that"


@pytest.mark.parametrize("last", [0.0, 17.0])
def test_only_the_member_that_is_silent_loses_its_place(last: float) -> None:
    tells = {FAST: 99.0, THIN: last}
    assert views(wait(run_of_three(), last + SILENCE - 1, tells=tells)) == set()
    told = views(wait(run_of_three(), last + SILENCE, tells=tells))
    assert told == {(bytes(SELF), bytes(FAST))}
