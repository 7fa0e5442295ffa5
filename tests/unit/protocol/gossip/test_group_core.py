"""Several runs of one node: which may begin, what is kept of those that are over, who is silent."""

from __future__ import annotations

import math
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import (
    GROUP_OUTCOMES_MAX,
    GROUP_RUNS_MAX,
    GroupCore,
    GroupStatistics,
)
from swarmnode.protocol.gossip.group_events import (
    Abort,
    AskAlive,
    Effect,
    Failed,
    Loaded,
    PeerLost,
    PeerSilent,
    Send,
    SendShare,
    TakePayload,
    has_majority,
)
from swarmnode.wire.exchange import group as wire
from tests.kits.group_kit import (
    ENLIST_S,
    GID,
    IDS,
    OTHER_GID,
    RESULT,
    WEIGHT,
    OneMember,
    outcomes,
    raw,
    said,
)

A, B, C, D, E = IDS[:5]
DONE: list[Effect] = []
MOST_S, LONGEST_S = limits.GROUP_ENLIST_S_MAX, limits.GROUP_TRANSFER_S_MAX
MANY = tuple(PeerId(bytes([n]) * 32) for n in range(1, limits.GROUP_MEMBERS_MAX + 2))


def begin(**other: Any) -> events.Begin:
    terms: dict[str, Any] = {"members": (A, B), "pieces_max": 1, "weight": 1.0}
    terms |= {"enlist_s": 1.0, "transfer_s": 1.0}
    return events.Begin(GID, **(terms | other))


# --- which may begin --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms",
    [
        {"members": MANY[: limits.GROUP_MEMBERS_MAX]},
        {"weights": (1.0, 2.0)},
        {"enlist_s": MOST_S, "quorum_s": MOST_S},
        {"transfer_s": LONGEST_S, "patience_s": LONGEST_S, "silence_s": LONGEST_S},
        {"patience_s": 1.0, "silence_s": 0.0},
        {"behind_s": limits.ROUND_BEHIND_S_MAX},
    ],
    ids=lambda each: " ".join(each),
)
def test_a_run_at_the_edge_of_its_limits_begins(terms: dict[str, Any]) -> None:
    core = GroupCore(A)
    core.handle(begin(**terms), 0.0)
    assert core.statistics().running == 1


@pytest.mark.parametrize(
    "terms",
    [
        {"members": MANY},
        {"members": MANY[1:]},  # and this node
        {"pieces_max": 0},
        {"weight": 0.0},
        {"weight": math.inf},
        {"weights": (1.0,)},
        {"weights": (1.0, 2.0, 3.0)},
        {"enlist_s": 0.0},
        {"enlist_s": MOST_S + 0.1},
        {"quorum_s": -0.1},
        {"quorum_s": MOST_S + 0.1},
        {"transfer_s": 0.0},
        {"transfer_s": LONGEST_S + 0.1},
        {"silence_s": -0.1},
        {"silence_s": 0.2, "patience_s": 0.1},
        {"patience_s": 1.1},
        {"behind_s": -0.1},
        {"behind_s": limits.ROUND_BEHIND_S_MAX + 0.1},
    ],
    ids=lambda each: " ".join(each),
)
def test_a_run_out_of_its_limits_is_a_fault_of_this_node(terms: dict[str, Any]) -> None:
    core = GroupCore(A)
    with pytest.raises(LocalProtocolError, match="a group mean out of its limits"):
        core.handle(begin(**terms), 0.0)
    assert core.statistics().running == 0


def test_of_what_is_not_said_there_is_nothing() -> None:
    for at in (OneMember(4, enlist_s=0.25), OneMember(4, enlist_s=0.25, behind=frozenset({D}))):
        at.enlist(B, C, now=0.2)
        assert at.core.next_deadline() == 0.25, "no majority is waited for, and none is behind"
    assert not events.MeanEnded(GID, (), b"", "why", False, 1.0).is_lost


def test_so_many_runs_may_be_under_way_at_once_and_each_begins_once() -> None:
    core = GroupCore(A)
    for number in range(GROUP_RUNS_MAX):
        gid = bytes([number]) * 16
        assert core.may_begin(gid)
        core.handle(events.Begin(gid, (A, B), 4, 1.0, 5.0, 5.0), 0.0)
        assert not core.may_begin(gid)
    assert not core.may_begin(b"x" * 16)
    with pytest.raises(LocalProtocolError, match="begins once"):
        core.handle(begin(), 0.0)
    core.handle(PeerLost(B, GID), 0.1)
    assert core.may_begin(b"x" * 16)
    assert core.may_begin(GID), "it had no view yet"


@pytest.mark.parametrize("weight", [-0.1, math.inf, math.nan])
def test_a_payload_of_no_weight_that_makes_sense_is_a_fault_of_this_node(weight: float) -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.want(B, (1,), (), 0.1)
    with pytest.raises(LocalProtocolError, match="expected a weight above 0, or 0"):
        at.load(0.2, weight=weight)
    assert at.load(0.3) == [SendShare(GID, B, at.plan, 1, WEIGHT)]


def test_what_concerns_a_run_that_is_not_known_changes_nothing() -> None:
    at = OneMember(2)
    for event in (
        Loaded(OTHER_GID),
        events.Reduced(OTHER_GID, bytes(16), 0),
        events.Witnessed(OTHER_GID, bytes(16), ()),
        events.Assembled(OTHER_GID, bytes(16), RESULT),
        Failed(OTHER_GID, "why"),
        PeerLost(B, OTHER_GID),
        events.Arriving(OTHER_GID, B),
    ):
        assert at.feed(event, 0.1) == DONE
    assert at.hear(B, wire.Enlist(OTHER_GID, True), 0.1) == DONE
    assert not at.core.expects(B, wire.Share(OTHER_GID, 0, 1.0, at.plan))
    assert at.core.statistics().running == 1


# --- several at a time ------------------------------------------------------------------------


def test_the_next_deadline_is_that_of_the_run_that_is_due_first_and_only_that_one_acts() -> None:
    at = OneMember(3, now=10.0)
    at.begin(OTHER_GID, now=10.25)
    first = 10.0 + limits.GROUP_RESEND_S
    assert at.core.next_deadline() == first
    assert at.wait(first) == at.tell(wire.Enlist(GID, True))
    assert at.core.next_deadline() == 10.25 + limits.GROUP_RESEND_S
    assert at.wait(10.25 + limits.GROUP_RESEND_S) == at.tell(wire.Enlist(OTHER_GID, True))


def test_a_peer_that_is_lost_is_lost_to_all_runs_or_to_that_of_which_a_payload_broke_off() -> None:
    for lost, views in ((PeerLost(C), 4), (PeerLost(C, GID), 3)):
        at = OneMember(3)
        at.begin(OTHER_GID)
        for gid in (GID, OTHER_GID):
            for peer in (B, C):
                at.hear(peer, wire.Enlist(gid, False), 0.1)
        assert at.core.statistics().views_total == 2
        told = said(at.feed(lost, 0.2), wire.Flush)
        assert told[0].message == wire.Flush(GID, raw((A, B)), ())
        assert at.core.statistics().views_total == views


def test_what_became_of_runs_is_counted_by_the_reason() -> None:
    at = OneMember(2)
    assert at.core.statistics() == GroupStatistics(1, 0, {}, 0, 0, 0)
    at.agree(0.1)
    at.feed(PeerLost(B), 0.2)
    lost = {"no other member is left": 1}
    assert at.core.statistics() == GroupStatistics(0, 0, lost, 0, 2, 1)
    at.begin(OTHER_GID, now=1.0)
    at.feed(Failed(OTHER_GID, "no memory"), 1.0)
    aborted = {"no other member is left": 1, "local": 1}
    assert at.core.statistics() == GroupStatistics(0, 0, aborted, 0, 2, 1)
    at.begin(b"3" * 16, now=2.0)
    assert at.feed(Failed(b"3" * 16, "not finite"), 2.0)[-1:] == [
        Abort(b"3" * 16, "local: not finite", False)
    ]
    assert at.core.statistics().aborted_total["local"] == 2
    at.begin(b"4" * 16, now=3.0)
    assert at.core.statistics().running == 1


def test_a_run_that_counts_and_one_that_ends_in_doubt_are_counted() -> None:
    at = OneMember(3)
    at.prepare(0.1)
    at.feed(Failed(GID, "why"), 0.2)
    assert at.core.statistics() == GroupStatistics(0, 0, {"local": 1}, 1, 1, 1)
    at = OneMember(3)
    at.prepare(0.1)
    for peer in (B, C):
        at.prepared(peer, 0.2)
    assert at.core.statistics() == GroupStatistics(0, 1, {}, 0, 1, 1)


# --- what is kept of those that are over --------------------------------------------------------


def test_who_still_asks_of_a_run_that_counts_is_told_so_if_it_was_part_of_it() -> None:
    at = OneMember(3)
    at.prepare(0.1)
    for peer in (B, C):
        at.prepared(peer, 0.2)
    finished = wire.Finished(GID, at.plan, RESULT)
    over = wire.Leave(GID, "it is over here")
    asking: tuple[wire.Message, ...] = (
        wire.Enlist(GID, True),
        wire.Flush(GID, raw((A, B)), ()),
        wire.Want(GID, at.plan, (0,), ()),
        wire.Prepared(GID, at.plan, RESULT),
    )
    for message in asking:
        assert at.hear(B, message, 0.3) == [Send(B, finished)]
        assert at.hear(D, message, 0.3) == [Send(D, over)]
    telling: tuple[wire.Message, ...] = (
        wire.Leave(GID, "why"),
        finished,
        wire.Share(GID, 0, 1.0, at.plan),
        wire.Sum(GID, at.plan, 0),
    )
    for message in telling:
        assert at.hear(B, message, 0.4) == DONE


def test_who_still_asks_of_a_run_that_came_to_nothing_is_told_to_go_on_without() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.feed(Failed(GID, "why"), 0.2)
    over = [Send(B, wire.Leave(GID, "it is over here"))]
    assert at.hear(B, wire.Prepared(GID, at.plan, RESULT), 0.3) == over


def test_what_is_over_is_kept_for_a_while_and_then_forgotten_with_the_next() -> None:
    at = OneMember(2, now=10.0)
    at.agree(10.0)
    at.feed(PeerLost(B), 10.0)
    kept_s = limits.GROUP_OUTCOME_KEEP_S
    for gid, now, n_kept in ((OTHER_GID, 10.0 + kept_s, 2), (b"3" * 16, 10.1 + kept_s, 2)):
        at.begin(gid, now=now)
        at.hear(B, wire.Enlist(gid, False), now)
        at.feed(PeerLost(B), now)
        assert at.core.statistics().outcomes_kept == n_kept
        assert at.core.may_begin(GID) == (now > 10.0 + kept_s)
    assert not at.core.may_begin(OTHER_GID)


def test_of_many_that_are_over_the_last_are_kept() -> None:
    at = OneMember(2)
    at.feed(PeerLost(B), 0.0)
    gids = [bytes([1 + number]) * 16 for number in range(GROUP_OUTCOMES_MAX + 1)]
    for number, gid in enumerate(gids):
        at.begin(gid, now=1.0)
        at.hear(B, wire.Enlist(gid, False), 1.0)
        at.feed(PeerLost(B), 1.0)
        n_kept = min(number + 1, GROUP_OUTCOMES_MAX)
        assert at.core.statistics().outcomes_kept == n_kept
    assert [at.core.may_begin(gid) for gid in gids] == [True] + [False] * GROUP_OUTCOMES_MAX


# --- who is silent ----------------------------------------------------------------------------


def asked(effects: list[Effect]) -> list[PeerId]:
    return [each.peer for each in effects if isinstance(each, AskAlive)]


def test_where_rounds_are_usual_those_that_can_be_spared_are_asked_whether_they_are_there() -> None:
    at = OneMember(4, patience_s=3.0)
    at.enlist(now=0.1)
    at.flush(B, now=0.2)
    assert asked(at.wait(limits.GROUP_RESEND_S)) == [C, D]
    assert asked(at.wait(limits.GROUP_RESEND_S)) == [], "when it is due"
    at = OneMember(4)
    at.enlist(now=0.1)
    at.flush(B, now=0.2)
    assert asked(at.wait(limits.GROUP_RESEND_S)) == []


def test_one_that_cannot_be_spared_is_asked_only_where_silence_ends_its_place() -> None:
    for silence_s, peers in ((0.0, []), (1.0, [B, C])):
        at = OneMember(3, patience_s=3.0, silence_s=silence_s)
        at.enlist(now=0.1)
        assert asked(at.wait(limits.GROUP_RESEND_S)) == peers


def test_who_is_silent_is_gone_on_without_once_the_others_can_do_so() -> None:
    at = OneMember(3)
    at.enlist(now=0.1)
    assert at.feed(PeerSilent(C), 0.2) == DONE, "alone this node has no mean"
    told = at.flush(B, now=0.3)
    assert told == [
        Send(C, wire.Leave(GID, "left out of the view")),
        Send(B, wire.Flush(GID, raw((A, B)), ())),
    ]


@pytest.mark.parametrize("heard", [wire.Enlist(GID, False), None])
def test_one_that_says_or_sends_something_is_silent_no_more(heard: wire.Message | None) -> None:
    at = OneMember(4)
    at.enlist(now=0.1)
    at.feed(PeerSilent(C), 0.2)
    if heard is None:
        at.feed(events.Arriving(OTHER_GID, C), 0.25)
    else:
        at.hear(C, heard, 0.25)
    assert at.flush(B, now=0.3) == DONE
    assert at.feed(PeerSilent(C), 0.4)[0] == Send(C, wire.Leave(GID, "left out of the view"))


def test_who_was_silent_in_a_run_is_waited_for_in_the_next_until_it_is_so_again() -> None:
    at = OneMember(4)
    at.feed(PeerSilent(C), 0.1)
    at.begin(OTHER_GID, now=0.2)
    for peer in (B, D):
        assert at.hear(peer, wire.Enlist(OTHER_GID, False), 0.3) == DONE
    told = said(at.feed(PeerSilent(C), 0.4), wire.Flush)
    assert told == at.tell(wire.Flush(OTHER_GID, raw((A, B, D)), ()), B, D)


def test_a_roll_stays_open_for_one_that_is_silent_while_others_may_come() -> None:
    at = OneMember(4)
    at.enlist(B, now=0.1)
    assert at.feed(PeerSilent(C), 0.2) == DONE
    told = at.enlist(D, now=0.3)
    assert told == [
        Send(C, wire.Leave(GID, "left out of the view")),
        TakePayload(GID),
        *at.tell(wire.Flush(GID, raw((A, B, D)), ()), B, D),
    ]


def test_one_that_a_majority_needs_is_waited_for_though_it_is_silent() -> None:
    at = OneMember(3, electorate=IDS[:5])
    at.enlist(now=0.1)
    at.flush(B, now=0.2)
    assert at.feed(PeerSilent(C), 0.3) == DONE
    at = OneMember(3, electorate=IDS[:4])
    at.enlist(now=0.1)
    at.flush(B, now=0.2)
    assert said(at.feed(PeerSilent(C), 0.3), wire.Flush) != [], "half of them, and the smallest id"


# --- what a run is called, and which views may finish -------------------------------------------


def test_the_name_of_a_run_follows_from_all_that_is_averaged() -> None:
    key = b"k" * 32
    names = {
        events.group_id(key, "mean", 0, 1, b"v"),
        events.group_id(b"l" * 32, "mean", 0, 1, b"v"),
        events.group_id(key, "log", 0, 1, b"v"),
        events.group_id(key, "mean", 1, 1, b"v"),
        events.group_id(key, "mean", 0, 2, b"v"),
        events.group_id(key, "mean", 0, 1, b"w"),
        events.group_id(key, "mean", 1, 0, b"v"),
    }
    assert len(names) == 7
    # Nodes of all versions find the same.
    assert events.group_id(key, "mean", 0, 1, b"v").hex() == "259ed482dc204cce9d43a28a04a91ba0"
    assert events.plan_id(GID, (A, B)) == events.plan_id(GID, (B, A)) != events.plan_id(GID, (A,))
    assert events.plan_id(GID, (A, B)).hex() == "255d6cbbec97a8620e8303cbedfdae2d"


@pytest.mark.parametrize(
    ("electorate", "view", "may"),
    [
        ((), (), True),
        ((A, B, C), (A, B), True),
        ((A, B, C), (A,), False),
        ((A, B), (A,), True),
        ((A, B), (B,), False),
        ((C, B, A, D), (D, A), True),
        ((C, B, A, D), (D, B, E), False),
        ((A, B, C), (D, E, B), False),
    ],
)
def test_one_of_two_parts_of_an_electorate_at_most_has_a_majority(
    electorate: tuple[PeerId, ...], view: tuple[PeerId, ...], may: bool
) -> None:
    assert has_majority(electorate, view) is may
    assert begin(electorate=electorate).may_finish(view) is may
    assert begin(members=(A, E), electorate=electorate, needs_all=True).may_finish(
        (*view, A, E)
    ) is has_majority(electorate, (*view, A, E))
    assert not begin(members=IDS, electorate=electorate, needs_all=True).may_finish(view)


def test_a_roll_that_no_other_member_joins_ends_when_it_is_closed() -> None:
    at = OneMember(3, now=10.0)
    now, told = at.wait_until(lambda each: isinstance(each, Abort))
    assert now == 10.0 + ENLIST_S
    assert outcomes(told) == [Abort(GID, "no other member came", False)]
    assert at.core.next_deadline() is None
