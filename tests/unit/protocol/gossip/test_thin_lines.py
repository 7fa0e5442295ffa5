"""Rounds that wait for members on thin lines: for whom, how long, and how often."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.group_events import Arriving, Begin, Effect, Received, Send
from swarmnode.protocol.gossip.round_patience import RoundPatience, Waits, line_words
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
    assert waits(RoundPatience(), 0.0, {THIN: 1.3}) == Waits(PEERS, USUAL_S)


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
    for now, patience in enumerate(patiences):
        patience.note_over(waits(patience, 0.0), WITHOUT, 1.0, float(5 * now))
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
