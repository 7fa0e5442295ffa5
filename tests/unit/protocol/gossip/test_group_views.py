"""Which members of a run take part: who is waited for, until when, and who is told what."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import (
    Abort,
    Behind,
    Effect,
    HeldRound,
    Named,
    PeerLost,
    Send,
    TakePayload,
    UsePlan,
    plan_id,
)
from swarmnode.wire.exchange import group as wire
from tests.kits.group_kit import (
    ENLIST_S,
    GID,
    IDS,
    TRANSFER_S,
    OneMember,
    charged,
    outcomes,
    raw,
    said,
)

A, B, C, D, E = IDS[:5]
RESEND_S = limits.GROUP_RESEND_S
LEFT_OUT, NOT_HERE = wire.Leave(GID, "left out of the view"), wire.Leave(GID, "not in this view")
DONE: list[Effect] = []


def flush(
    *view: PeerId, wants_answer: bool = False, prepared: tuple[PeerId, ...] = ()
) -> wire.Flush:
    return wire.Flush(GID, raw(view), raw(prepared), wants_answer)


# --- the roll ---------------------------------------------------------------------------------


def test_a_run_begins_with_a_word_to_each_other_member_and_what_it_is_called() -> None:
    at = OneMember(own=1, lineage=7, attempt=2)
    assert at.begun == at.tell(wire.Enlist(GID, True, 7, 2), A, C)
    at = OneMember(members=(B, C))  # this node is a member whether it is named or not
    assert at.begun == at.tell(wire.Enlist(GID, True), B, C)


def test_who_comes_is_told_that_this_one_is_there_if_it_asks_in_every_phase() -> None:
    at = OneMember(lineage=7, attempt=2)
    here = [Send(B, wire.Enlist(GID, False, 7, 2))]
    assert at.hear(B, wire.Enlist(GID, True), 0.1) == here
    assert at.hear(B, wire.Enlist(GID, False), 0.2) == DONE
    at.enlist(C, now=0.3)
    assert at.hear(B, wire.Enlist(GID, True), 0.3) == here
    at.flush(now=0.4)
    assert at.hear(B, wire.Enlist(GID, True), 0.5) == here
    assert at.core.statistics().views_total == 1


def test_those_that_have_not_come_are_called_again_every_so_often() -> None:
    at = OneMember(now=10.0)
    assert at.core.next_deadline() == 10.0 + RESEND_S
    assert at.wait(10.0 + RESEND_S - 0.01) == DONE
    assert at.wait(10.0 + RESEND_S) == at.tell(wire.Enlist(GID, True), B, C)
    at.enlist(B, now=10.6)
    assert at.core.next_deadline() == 10.0 + 2 * RESEND_S
    assert at.wait(10.0 + 2 * RESEND_S + 0.1) == at.tell(wire.Enlist(GID, True), C)
    assert at.core.next_deadline() == 10.0 + 3 * RESEND_S + 0.1


def test_when_all_have_come_the_payload_is_taken_and_the_view_is_told() -> None:
    at = OneMember()
    assert at.enlist(B, now=0.1) == DONE
    assert at.enlist(C, now=0.2) == [TakePayload(GID), *at.tell(flush(A, B, C))]


def test_the_roll_is_closed_without_those_that_did_not_come_in_time() -> None:
    at = OneMember(4, now=10.0)
    at.enlist(B, C, now=12.0)
    assert said(at.wait_before(10.0 + ENLIST_S), wire.Flush) == []
    assert at.core.next_deadline() == 10.0 + ENLIST_S
    assert at.wait(10.0 + ENLIST_S) == [
        *at.tell(wire.Enlist(GID, True), D),
        Send(D, LEFT_OUT),
        TakePayload(GID),
        *at.tell(flush(A, B, C), B, C),
    ]


def test_with_two_of_them_there_is_a_round_and_alone_there_is_none() -> None:
    at = OneMember(4)
    at.enlist(D, now=1.0)
    assert at.wait(ENLIST_S)[-1] == Send(D, flush(A, D))
    at = OneMember(4)
    told = at.wait(ENLIST_S)
    assert told[-1] == Abort(GID, "no other member came", False)
    assert said(told, wire.Leave) == at.tell(wire.Leave(GID, "no other member came"))
    assert at.core.may_begin(GID), "no view was told"


def test_those_that_miss_a_roll_that_was_called_share_what_it_waited_for_them() -> None:
    at = OneMember(5, electorate=IDS[:5], lineage=3, now=10.0)
    at.enlist(B, C, now=11.0)
    told = at.wait(10.0 + ENLIST_S)
    held_s = (ENLIST_S - 1.0) / 2
    assert [each for each in told if isinstance(each, HeldRound)] == [
        HeldRound(GID, D, held_s),
        HeldRound(GID, E, held_s),
    ]


def test_one_that_is_lost_before_the_first_view_is_waited_for_no_more() -> None:
    at = OneMember(4)
    at.enlist(B, C, now=0.1)
    told = at.feed(PeerLost(D), 0.2)
    assert told == [TakePayload(GID), *at.tell(flush(A, B, C), B, C)]
    at = OneMember(3)
    assert at.feed(PeerLost(A), 0.1) == at.feed(PeerLost(E), 0.1) == DONE, "no other member"
    assert at.feed(PeerLost(C), 0.1) == DONE
    assert at.wait(RESEND_S) == at.tell(wire.Enlist(GID, True), B)
    told = at.feed(PeerLost(B), 0.2)
    assert outcomes(told) == [Abort(GID, "no other member is there", False)]


def test_one_that_came_and_is_lost_has_not_come() -> None:
    at = OneMember(4)
    at.enlist(B, now=0.1)
    at.feed(PeerLost(B), 0.2)
    at.enlist(C, now=0.3)
    told = at.wait(ENLIST_S)
    assert said(told, wire.Flush) == at.tell(flush(A, C), C)
    assert said(told, wire.Leave) == [Send(D, LEFT_OUT)], "one that is gone is told nothing"


def test_one_that_came_and_is_lost_is_in_no_view_when_all_others_have_come() -> None:
    at = OneMember(4)
    at.enlist(B, C, now=0.1)
    at.feed(PeerLost(B), 0.2)
    assert at.enlist(D, now=0.3) == [TakePayload(GID), *at.tell(flush(A, C, D), C, D)]


def test_a_roll_that_is_held_for_one_that_is_lost_is_closed_as_any() -> None:
    at = OneMember(4, behind=frozenset({D}), behind_s=60.0)
    at.enlist(B, now=0.1)
    at.feed(PeerLost(D), 0.2)
    assert said(at.wait_before(ENLIST_S), wire.Flush) == []
    assert said(at.wait(ENLIST_S), wire.Flush) == at.tell(flush(A, B), B)


def test_a_roll_is_held_for_one_that_shows_meanwhile_that_it_is_behind() -> None:
    at = OneMember(4)
    at.enlist(B, now=0.1)
    at.feed(Behind(GID, D, 60.0), 0.2)
    at.feed(Behind(b"another", C, 90.0), 0.2)
    at.feed(Behind(GID, B, 90.0), 0.2)  # it has come
    assert said(at.wait_before(60.0), wire.Flush) == []
    assert said(at.wait(60.0), wire.Flush) == at.tell(flush(A, B), B)


def test_a_roll_is_not_held_for_one_that_is_in_no_view() -> None:
    at = OneMember(4)
    at.enlist(B, now=0.1)
    at.feed(PeerLost(D), 0.2)
    at.feed(Behind(GID, D, 60.0), 0.3)
    assert said(at.wait(ENLIST_S), wire.Flush) == at.tell(flush(A, B), B)


def test_a_round_that_needs_all_members_ends_when_one_is_missing() -> None:
    at = OneMember(4, needs_all=True)
    at.enlist(B, C, now=0.1)
    told = at.feed(PeerLost(D), 0.2)
    assert outcomes(told) == [Abort(GID, "too few are left", False)]
    assert said(told, wire.Leave) == at.tell(wire.Leave(GID, "too few are left"), B, C)
    assert not any(isinstance(each, TakePayload) for each in told)


# --- views ------------------------------------------------------------------------------------


def test_who_is_in_no_view_is_told_so_and_what_it_says_changes_nothing() -> None:
    at = OneMember(3)
    at.enlist(now=0.1)
    for message in (
        wire.Enlist(GID, True),
        flush(A, B),
        wire.Want(GID, at.plan, (0,), (0,)),
        wire.Prepared(GID, at.plan, bytes(32)),
    ):
        assert at.hear(D, message, 0.2) == [Send(D, NOT_HERE)]
    assert at.hear(D, wire.Leave(GID, "why"), 0.2) == DONE
    assert at.hear(D, wire.Finished(GID, at.plan, bytes(32)), 0.2) == DONE
    assert at.core.statistics().views_total == 1


def test_those_whose_view_is_not_known_are_asked_for_it_every_so_often() -> None:
    at = OneMember(4)
    at.enlist(now=0.1)
    at.flush(B, now=0.2)
    assert at.wait(RESEND_S) == at.tell(flush(*IDS[:4], wants_answer=True), C, D)


def test_who_asks_for_the_view_is_told_and_is_not_asked_back() -> None:
    at = OneMember(3)
    at.enlist(now=0.1)
    assert at.flush(B, now=0.2) == DONE
    assert at.flush(B, now=0.3, wants_answer=True) == [Send(B, flush(A, B, C))]
    assert said(at.flush(C, now=0.3), wire.Want) != []
    assert at.flush(C, now=0.4, wants_answer=True) == [Send(C, flush(A, B, C))], "later, too"


@pytest.mark.parametrize("patience_s", [0.0, 2.0])
def test_a_view_is_waited_for_as_long_as_a_stage_may_last_but_not_for_long(
    patience_s: float,
) -> None:
    at = OneMember(4, patience_s=patience_s, now=10.0)
    at.enlist(now=11.0)
    at.flush(B, now=12.0)
    wait_s = patience_s or limits.GROUP_FLUSH_S
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == 11.0 + wait_s
    assert charged(told) == {C: wait_s / 2, D: wait_s / 2}
    assert said(told, wire.Leave) == at.tell(LEFT_OUT, C, D)
    assert said(told, wire.Flush)[-1:] == at.tell(flush(A, B), B)


def test_one_that_goes_on_without_this_node_is_gone_on_without() -> None:
    at = OneMember(4)
    at.enlist(now=0.1)
    assert at.flush(B, view=(B, C, D), now=0.2) == at.tell(flush(A, C, D), C, D)


def test_one_that_takes_its_leave_is_gone_on_without() -> None:
    at = OneMember(4)
    at.enlist(now=0.1)
    assert at.hear(B, wire.Leave(GID, "local"), 0.2) == at.tell(flush(A, C, D), C, D)
    assert at.hear(B, wire.Leave(GID, "again"), 0.3) == DONE


def test_of_two_views_the_members_of_both_go_on() -> None:
    at = OneMember(5)
    at.enlist(now=0.1)
    at.feed(PeerLost(C), 0.2)
    told = at.flush(B, view=(A, B, C, D), now=0.3)
    noted = Named(GID, B, frozenset({E}))
    assert told == [noted, Send(E, LEFT_OUT), *at.tell(flush(A, B, D), B, D)]
    assert at.flush(B, view=(A, B, C, D), now=0.4) == DONE, "it has not heard of C yet"
    assert at.wait(RESEND_S) == at.tell(flush(A, B, D, wants_answer=True), B, D)
    assert at.flush(B, view=(A, B, D), now=0.5) == DONE
    assert at.core.next_deadline() == 2 * RESEND_S
    assert said(at.flush(D, view=(A, B, D), now=0.6), wire.Want) != []


def test_a_view_that_comes_before_the_roll_is_closed_closes_it() -> None:
    at = OneMember(4)
    at.enlist(B, now=0.1)
    told = at.flush(B, view=(A, B, D), now=0.2)
    assert told == [Send(C, LEFT_OUT), TakePayload(GID), *at.tell(flush(A, B, D), B, D)]
    assert said(at.flush(D, view=(A, B, D), now=0.3), wire.Want) != []


@pytest.mark.parametrize(("waited_s", "pays"), [(0.9, False), (1.0, True)])
def test_who_is_missing_pays_where_another_loses_patience_first_but_not_at_once(
    waited_s: float, pays: bool
) -> None:
    """A third of the wait has to be over: others have other clocks and another patience."""
    at = OneMember(4, patience_s=3.0, now=10.0)
    at.enlist(now=11.0)
    at.flush(B, now=11.5)
    told = at.flush(C, view=(A, B, C), now=11.0 + waited_s)
    assert charged(told) == pytest.approx({D: waited_s} if pays else {})
    assert said(told, wire.Flush) == at.tell(flush(A, B, C), B, C)


@pytest.mark.parametrize(("waited_s", "pays"), [(0.9, False), (1.0, True)])
def test_who_has_not_come_pays_where_another_closes_the_roll(waited_s: float, pays: bool) -> None:
    at = OneMember(4, electorate=IDS[:4], lineage=3, enlist_s=4.0, now=10.0)
    at.enlist(B, C, now=11.0)
    told = at.flush(B, view=(A, B, C), now=11.0 + waited_s)
    assert charged(told) == pytest.approx({D: waited_s} if pays else {})
    assert said(told, wire.Flush) == at.tell(flush(A, B, C), B, C)


def test_the_last_member_that_is_left_ends_the_run() -> None:
    at = OneMember(3)
    at.enlist(now=0.1)
    at.feed(PeerLost(B), 0.2)
    told = at.feed(PeerLost(C), 0.3)
    assert outcomes(told) == [Abort(GID, "no other member is left", False)]
    assert not at.core.may_begin(GID)
    assert at.core.next_deadline() is None


def test_shares_are_waited_for_as_long_as_a_stage_may_last_from_the_last_view_on() -> None:
    at = OneMember(3)
    at.enlist(now=0.1)
    at.flush(now=1.0)
    assert said(at.wait_before(1.0 + TRANSFER_S), wire.Flush) == []
    assert at.core.next_deadline() == 1.0 + TRANSFER_S


# --- what no honest member says ---------------------------------------------------------------

NOT_EARLIER = "expected a member to be prepared over an earlier view, or over none"
ALL, FOUR, THREE = IDS[:5], IDS[:4], IDS[:3]


def in_third_view() -> OneMember:
    """Return a member that has had views of five, of four and of three, and waits for two."""
    at = OneMember(5)
    at.agree(0.1)
    for peer in (E, D):
        at.feed(PeerLost(peer), 0.2)
    return at


def check_refused(
    at: OneMember, view: tuple[PeerId, ...], prepared: tuple[PeerId, ...], why: str
) -> None:
    """B says it, and nothing changes."""
    before = (at.core.statistics(), at.core.next_deadline())
    with pytest.raises(RemoteProtocolError, match=why):
        at.flush(B, view=view, prepared=prepared, now=0.3)
    assert at.core.poll_effects() == DONE
    assert (at.core.statistics(), at.core.next_deadline()) == before


def check_agrees(at: OneMember, *view: PeerId) -> None:
    """No member is lost: when all have said the same, the plan is over all of that view."""
    assert UsePlan(GID, plan_id(GID, view), len(view), view) in at.flush(
        *view[1:], view=view, now=0.4
    )


@pytest.mark.parametrize("prepared", [IDS[:4], IDS[:3], IDS[1:4]], ids=len)
def test_before_the_first_view_is_agreed_none_can_hold_a_mean(prepared: tuple[PeerId, ...]) -> None:
    """Else it would be asked for all of that mean, and could give anything."""
    at = OneMember(4)
    at.enlist(B, C, D, now=0.1)
    check_refused(at, FOUR, prepared, NOT_EARLIER)
    check_agrees(at, *FOUR)


def test_who_may_hold_a_mean_with_an_earlier_life_of_this_node_is_gone_on_without() -> None:
    """It is no lie: the node was started anew in the middle of a run."""
    at = OneMember(4)
    at.enlist(B, now=0.1)
    assert at.flush(B, view=IDS[:3], prepared=FOUR, now=0.2) == DONE
    at.enlist(C, D, now=0.3)
    check_agrees(at, A, C, D)


@pytest.mark.parametrize(
    ("view", "prepared"),
    [
        (THREE, THREE),  # it is no earlier view than this
        (FOUR, FOUR),
        (ALL, ALL),
        (FOUR, THREE),  # it is a later one
        (THREE, (A, B, C, E)),  # this node has never had it
        (THREE, (B, C, D)),
        (THREE, IDS[:6]),
    ],
)
def test_who_says_that_it_holds_a_mean_over_no_earlier_view_of_this_node_lies(
    view: tuple[PeerId, ...], prepared: tuple[PeerId, ...]
) -> None:
    at = in_third_view()
    check_refused(at, view, prepared, NOT_EARLIER)
    check_agrees(at, *THREE)


@pytest.mark.parametrize(("view", "prepared"), [(THREE, FOUR), (THREE, ALL), (FOUR, ALL)])
def test_one_may_hold_a_mean_over_any_earlier_view(
    view: tuple[PeerId, ...], prepared: tuple[PeerId, ...]
) -> None:
    at = in_third_view()
    assert at.flush(B, view=view, prepared=prepared, now=0.3) == DONE
    check_agrees(at, *THREE)


@pytest.mark.parametrize("prepared", [(), ALL], ids=len)
def test_a_view_without_its_sender_breaks_the_protocol(prepared: tuple[PeerId, ...]) -> None:
    at = in_third_view()
    check_refused(at, (A, C), prepared, "expected a view with its sender in it")
    check_agrees(at, *THREE)
