"""What one member asks of the others in a run, what it gives them, and when the mean counts."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import (
    Abort,
    Arriving,
    Assemble,
    Assembled,
    Commit,
    Effect,
    Failed,
    HeldRound,
    KeepShare,
    KeepSum,
    PeerLost,
    Reduce,
    Send,
    SendShare,
    SendSum,
    UsePlan,
    Witness,
    Witnessed,
    plan_id,
)
from swarmnode.protocol.gossip.witnesses import kept_mean, witnessed_by
from swarmnode.wire.exchange import group as wire
from tests.kits.group_kit import (
    GID,
    IDS,
    OTHER_RESULT,
    RESULT,
    TRANSFER_S,
    WEIGHT,
    OneMember,
    charged,
    outcomes,
    raw,
    said,
)

A, B, C, D, E = IDS[:5]
OTHER_PLAN = b"p" * 16
DONE: list[Effect] = []
RESEND_S = limits.GROUP_RESEND_S


def want(at: OneMember, shares: tuple[int, ...], sums: tuple[int, ...]) -> wire.Want:
    return wire.Want(GID, at.plan, shares, sums)


def begun_anew(view: tuple[PeerId, ...]) -> list[Effect]:
    """Return what the first of a view does when the plan is over that view: nothing is kept."""
    plan = plan_id(GID, view)
    asked = [Send(peer, wire.Want(GID, plan, (0,), (n,))) for n, peer in enumerate(view) if n]
    return [UsePlan(GID, plan, len(view), view), *asked]


# --- what is asked for ------------------------------------------------------------------------


def test_when_all_have_agreed_each_is_asked_for_its_share_of_the_own_piece_and_for_its_sum() -> (
    None
):
    at = OneMember(3, own=1)
    assert at.agree(0.1)[-3:] == [
        UsePlan(GID, at.plan, 3, (A, B, C)),
        Send(A, want(at, (1,), (0,))),
        Send(C, want(at, (1,), (2,))),
    ]


def test_there_are_no_more_pieces_than_the_vector_has_and_then_not_all_make_one() -> None:
    first, last = (OneMember(3, own, pieces_max=2) for own in (0, 2))
    assert first.agree(0.1)[-3:] == [
        UsePlan(GID, first.plan, 2, (A, B, C)),
        Send(B, want(first, (0,), (1,))),
        Send(C, want(first, (0,), ())),
    ]
    assert last.agree(0.1)[-3:] == [
        UsePlan(GID, last.plan, 2, (A, B, C)),
        Send(A, want(last, (), (0,))),
        Send(B, want(last, (), (1,))),
    ]
    last.load(0.2)
    assert last.sum(A, 0, 0.3) == [KeepSum(GID, last.plan, 0)]
    assert last.sum(B, 1, 0.4) == [KeepSum(GID, last.plan, 1), Assemble(GID, last.plan)]


def test_what_has_not_come_is_asked_for_again_every_so_often() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.share(B, 0, 0.2)
    at.sum(C, 2, 0.3)
    assert at.wait(RESEND_S) == [
        Send(B, want(at, (), (1,))),
        Send(C, want(at, (0,), ())),
    ]
    at.share(C, 0, 0.6)
    at.sum(B, 1, 0.6)
    assert at.wait(2 * RESEND_S) == DONE, "the own sum is not here, and all that it is made of is"


# --- what is given ----------------------------------------------------------------------------


def test_shares_are_given_once_the_payload_is_there_and_each_of_them_once() -> None:
    at = OneMember(3)
    at.agree(0.1)
    assert at.want(B, (1,), (0,), 0.2) == DONE, "nothing is here yet"
    assert at.load(0.3, weight=3.0) == [SendShare(GID, B, at.plan, 1, 3.0)]
    assert at.want(B, (1,), (0,), 0.4) == DONE, "it comes over a stream, so it is not lost"
    assert at.want(C, (2, 1), (), 0.5) == [
        SendShare(GID, C, at.plan, 2, 3.0),
        SendShare(GID, C, at.plan, 1, 3.0),
    ]


def test_a_payload_of_which_no_weight_is_said_has_that_of_the_beginning() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.load(0.2)
    assert at.want(B, (1,), (), 0.3) == [SendShare(GID, B, at.plan, 1, WEIGHT)]


def test_what_was_asked_for_before_all_agreed_is_given_when_they_have() -> None:
    at = OneMember(3)
    at.enlist(now=0.1)
    at.load(0.1)
    assert at.want(B, (1,), (), 0.2) == DONE
    at.flush(B, now=0.3)
    assert at.flush(C, now=0.4)[-1] == SendShare(GID, B, at.plan, 1, WEIGHT)


def test_pieces_that_the_plan_has_not_are_not_given_and_such_as_no_plan_can_have_are_a_fault() -> (
    None
):
    at = OneMember(3, pieces_max=4)
    at.agree(0.1)
    at.load(0.1)
    assert at.want(B, (2, 3), (3,), 0.2) == [SendShare(GID, B, at.plan, 2, WEIGHT)]
    for shares, sums in (((4,), ()), ((), (4,))):
        with pytest.raises(RemoteProtocolError, match="expected pieces below 4, got 4"):
            at.want(B, shares, sums, 0.3)
    for message in (wire.Share(GID, 4, 1.0, at.plan), wire.Sum(GID, at.plan, 4)):
        with pytest.raises(RemoteProtocolError, match="expected pieces below 4, got 4"):
            at.hear(B, message, 0.3)


def test_what_is_wanted_under_another_plan_is_not_given() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.load(0.1)
    assert at.want(B, (1,), (0,), 0.2, plan=OTHER_PLAN) == DONE
    at.feed(PeerLost(C), 0.3)
    assert at.want(B, (1,), (), 0.4) == [SendShare(GID, B, at.plan, 1, WEIGHT)], "it flushes"
    told = at.flush(B, view=(A, B), now=0.5)
    two = plan_id(GID, (A, B))
    assert told[0] == UsePlan(GID, two, 2, (A, B))
    assert not any(isinstance(each, SendShare) for each in told)
    assert at.want(B, (1,), (), 0.6, plan=two) == [SendShare(GID, B, two, 1, WEIGHT)]


def test_a_sum_is_given_once_it_is_made_or_has_come_and_once_to_each() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.load(0.1)
    assert at.want(B, (), (0, 2), 0.2) == DONE
    for peer in (B, C):
        at.share(peer, 0, 0.3)
    assert at.reduced(0, 0.4, plan=OTHER_PLAN) == DONE
    assert at.reduced(0, 0.4) == [SendSum(GID, B, at.plan, 0)]
    assert at.want(B, (), (0,), 0.5) == DONE
    assert at.want(C, (), (0,), 0.5) == [SendSum(GID, C, at.plan, 0)]
    assert at.sum(C, 2, 0.6) == [KeepSum(GID, at.plan, 2)]
    assert at.want(B, (), (0, 2), 0.7) == [SendSum(GID, B, at.plan, 2)]


def test_one_that_is_gone_is_given_nothing() -> None:
    at = OneMember(4)
    at.agree(0.1)
    at.want(B, (1,), (), 0.2)
    at.feed(PeerLost(B), 0.3)
    assert at.load(0.4) == DONE


# --- what is taken ----------------------------------------------------------------------------


def test_a_share_is_taken_if_it_was_asked_for_and_once() -> None:
    at = OneMember(3)
    asked, other = wire.Share(GID, 0, 1.0, at.plan), wire.Share(GID, 1, 1.0, at.plan)
    assert not at.core.expects(B, asked)
    at.agree(0.1)
    assert at.core.expects(B, asked)
    assert not at.core.expects(D, asked)
    assert not at.core.expects(A, asked)
    assert not at.core.expects(B, other)
    assert not at.core.expects(B, wire.Share(GID, 0, 1.0, OTHER_PLAN))
    assert at.share(B, 1, 0.2) == at.share(B, 0, 0.2, plan=OTHER_PLAN) == DONE
    assert at.share(B, 0, 0.3) == [KeepShare(GID, B, 0)]
    assert not at.core.expects(B, asked)
    assert at.share(B, 0, 0.4) == DONE
    assert at.core.expects(C, asked)


def test_a_sum_is_taken_of_the_member_that_makes_it_if_it_is_not_here() -> None:
    at = OneMember(3)
    message = wire.Sum(GID, at.plan, 1)
    assert not at.core.expects(B, message)
    at.agree(0.1)
    assert at.core.expects(B, message)
    assert not at.core.expects(C, message)
    assert not at.core.expects(D, message)
    assert not at.core.expects(B, wire.Sum(GID, OTHER_PLAN, 1))
    assert not at.core.expects(B, wire.Sum(GID, at.plan, 0)), "it is made here"
    assert at.sum(C, 1, 0.2) == at.sum(B, 0, 0.2) == DONE
    assert at.sum(B, 1, 0.2, plan=OTHER_PLAN) == DONE
    assert at.sum(B, 1, 0.2) == [KeepSum(GID, at.plan, 1)]
    assert not at.core.expects(B, message)
    assert at.sum(B, 1, 0.3) == DONE


# --- what is made of it -----------------------------------------------------------------------


def test_the_own_piece_is_made_when_all_shares_and_the_own_payload_are_here_and_once() -> None:
    at = OneMember(3)
    at.agree(0.1)
    assert at.share(B, 0, 0.2, weight=1.0) == [KeepShare(GID, B, 0)]
    assert at.share(C, 0, 0.3, weight=0.5) == [KeepShare(GID, C, 0)]
    # In parts of the median, which is 1, and none counts for more than it.
    assert at.load(0.4, weight=4.0) == [Reduce(GID, at.plan, 0, (A, B, C), (1.0, 1.0, 0.5))]
    assert at.load(0.5) == DONE
    assert at.reduced(0, 0.6) == DONE
    assert at.want(C, (2,), (), 0.7) == [SendShare(GID, C, at.plan, 2, WEIGHT)]


def test_weights_that_all_know_count_whatever_is_said() -> None:
    at = OneMember(3, members=(C, A, B), weights=(3.0, 1.0, 2.0))
    at.agree(0.1)
    at.load(0.1, weight=9.0)
    at.share(B, 0, 0.2, weight=7.0)
    told = at.share(C, 0, 0.3, weight=7.0)
    assert told == [KeepShare(GID, C, 0), Reduce(GID, at.plan, 0, (A, B, C), (1.0, 2.0, 3.0))]


def test_the_mean_is_put_together_when_all_sums_are_here_and_then_all_are_told() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.load(0.1)
    assert at.sum(B, 1, 0.2) == [KeepSum(GID, at.plan, 1)]
    for peer in (B, C):
        at.share(peer, 0, 0.2)
    assert at.sum(C, 2, 0.3) == [KeepSum(GID, at.plan, 2)]
    assert at.reduced(0, 0.4) == [Assemble(GID, at.plan)]
    assert at.load(0.4) == DONE, "once"
    assert at.assembled(0.5, plan=OTHER_PLAN) == DONE
    assert at.assembled(0.5) == at.tell(wire.Prepared(GID, at.plan, RESULT))
    assert at.assembled(0.6) == DONE
    assert at.wait(1.0) == at.tell(wire.Prepared(GID, at.plan, RESULT)), "nothing else is asked"
    at.prepared(B, 1.1)
    assert at.wait(1.5) == at.tell(wire.Prepared(GID, at.plan, RESULT), C)


def test_while_the_view_changes_nothing_is_prepared() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.load(0.1)
    for piece, peer in ((1, B), (2, C)):
        at.sum(peer, piece, 0.2)
        at.share(peer, 0, 0.2)
    assert at.reduced(0, 0.3) == [Assemble(GID, at.plan)]
    assert at.feed(PeerLost(C), 0.4) == at.tell(wire.Flush(GID, raw((A, B)), ()), B)
    assert at.assembled(0.5) == DONE
    told = at.flush(B, view=(A, B), now=0.6)
    assert told[0] == UsePlan(GID, plan_id(GID, (A, B)), 2, (A, B))
    assert said(told, wire.Prepared) == []


# --- the end ----------------------------------------------------------------------------------


def test_it_counts_when_all_of_the_view_hold_the_same_however_early_they_say_so() -> None:
    at = OneMember(3)
    at.agree(0.1)
    at.prepared(B, 0.2)
    at.load(0.2)
    for piece, peer in ((1, B), (2, C)):
        at.sum(peer, piece, 0.3)
        at.share(peer, 0, 0.3)
    at.reduced(0, 0.3)
    assert outcomes(at.assembled(0.4)) == []
    assert at.core.statistics().running == 1
    told = at.prepared(C, 0.5)
    assert [type(each) for each in told] == [Commit]
    assert at.core.statistics().committed_total == 1
    assert at.core.next_deadline() is None


def test_what_one_holds_of_another_plan_or_before_this_one_holds_it_makes_no_end() -> None:
    at = OneMember(3)
    at.prepare(0.1)
    assert at.prepared(B, 0.2, plan=OTHER_PLAN) == at.prepared(C, 0.2) == DONE
    assert len(outcomes(at.prepared(B, 0.3))) == 1
    at = OneMember(3)
    at.agree(0.1)
    assert at.prepared(B, 0.2) == at.prepared(C, 0.2) == DONE


def test_the_outcome_says_what_counts_and_what_it_took_without_the_slowest() -> None:
    at = OneMember(4, patience_s=2.0)
    at.agree(10.0)
    at.load(10.0)
    for peer, now in ((B, 10.25), (C, 10.5), (D, 13.0)):  # 2.5 s after the one before it
        at.share(peer, 0, now)
    at.reduced(0, 13.0)
    for piece, peer, now in ((1, B, 13.25), (2, C, 13.5), (3, D, 14.0)):
        at.sum(peer, piece, now)
    at.assembled(14.0)
    for peer, now in ((B, 14.125), (C, 14.25)):
        at.prepared(peer, now)
    told = at.prepared(D, 14.5)
    assert told == [
        HeldRound(GID, D, 2.5),
        Commit(GID, at.plan, (A, B, C, D), RESULT, 0.5 + 0.5 + 0.25),
    ]


def test_a_run_that_the_others_finished_counts_where_it_is_prepared() -> None:
    at = OneMember(3)
    at.prepare(0.1)
    told = at.hear(B, wire.Finished(GID, at.plan, RESULT), 0.2)
    assert [each.result for each in told if isinstance(each, Commit)] == [RESULT]


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_run_that_the_others_finished_otherwise_is_given_up(is_prepared: bool) -> None:
    at = OneMember(3)
    at.prepare(0.1) if is_prepared else at.agree(0.1)
    result = OTHER_RESULT if is_prepared else RESULT
    told = at.hear(B, wire.Finished(GID, at.plan, result), 0.2)
    why = "the others finished without this node"
    assert told == [*at.tell(wire.Leave(GID, why)), Abort(GID, why, is_prepared)]
    assert at.core.statistics().in_doubt_total == int(is_prepared)
    at = OneMember(3)
    at.prepare(0.1)
    assert len(outcomes(at.hear(B, wire.Finished(GID, OTHER_PLAN, RESULT), 0.2))) == 1


def hear_results(at: OneMember, n_others: int) -> list[Effect]:
    """So many, the last ones, say that the mean is another one; all others say what this does."""
    for n, peer in enumerate(reversed(at.others)):
        told = at.prepared(peer, 0.2, result=OTHER_RESULT if n < n_others else RESULT)
    return told


@pytest.mark.parametrize(("n", "n_others"), [(3, 1), (4, 1), (5, 2), (8, 3)])
def test_those_whose_result_more_than_half_have_go_on_without_the_others(
    n: int, n_others: int
) -> None:
    at = OneMember(n)
    at.prepare(0.1)
    told = hear_results(at, n_others)
    same, others = at.others[:-n_others], at.others[-n_others:]
    view = (A, *same)
    assert told == [
        *at.tell(wire.Leave(GID, "left out of the view"), *others),
        *at.tell(wire.Flush(GID, raw(view), raw(at.members)), *same),
    ]
    told = at.flush(*same, view=view, prepared=at.members, now=0.3)
    (commit,) = outcomes(told)
    assert isinstance(commit, Commit)
    assert (commit.contributors, commit.result) == (at.members, RESULT)


@pytest.mark.parametrize(("n", "n_others"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 4)])
def test_where_half_have_another_result_the_run_ends(n: int, n_others: int) -> None:
    at = OneMember(n)
    at.prepare(0.1)
    told = hear_results(at, n_others)
    why = "the hashes of the mean differ: one of the members is faulty"
    assert told == [*at.tell(wire.Leave(GID, why)), Abort(GID, why, True)]


def test_where_this_side_fails_the_others_are_told_as_much_of_it_as_a_word_may_hold() -> None:
    at = OneMember(3)
    at.agree(0.1)
    told = at.feed(Failed(GID, "x" * 300), 0.2)
    said_why = ("local: " + "x" * 300)[:256]
    assert told == [
        *at.tell(wire.Leave(GID, said_why)),
        Abort(GID, "local: " + "x" * 300, False),
    ]
    assert at.feed(Failed(GID, "again"), 0.3) == DONE


# --- what was prepared --------------------------------------------------------------------------


def hear_claims(at: OneMember, n_claims: int, now: float) -> list[Effect]:
    """The last is lost; so many others, the first ones, say that they hold the mean over all."""
    *rest, lost = at.others
    at.feed(PeerLost(lost), now)
    for n, peer in enumerate(rest):
        prepared = at.members if n < n_claims else ()
        told = at.flush(peer, view=at.members[:-1], prepared=prepared, now=now)
    return told


@pytest.mark.parametrize(
    ("n", "n_least"), [(1, 1), (2, 2), (3, 3), (4, 3), (7, 6), (8, 6), (11, 9), (12, 9)]
)
def test_of_a_view_all_but_a_quarter_have_to_claim_the_same_mean(n: int, n_least: int) -> None:
    for other in ((), (A, C)):
        fewer = [(A, B)] * (n_least - 1) + [other] * (n - n_least)
        assert kept_mean([(A, B), *fewer]) == kept_mean([*fewer, (A, B)]) == (A, B)
        assert kept_mean([(), *fewer]) == kept_mean([*fewer, ()]) == ()


@pytest.mark.parametrize(("n", "n_holders"), [(2, 2), (3, 3), (4, 3), (4, 4), (5, 4), (7, 6)])
def test_a_mean_that_all_but_a_quarter_of_the_view_have_prepared_is_kept_when_another_dies(
    n: int, n_holders: int
) -> None:
    at = OneMember(n + 1)
    at.prepare(0.1)
    assert hear_claims(at, n_holders - 1, 0.2) == [
        *at.tell(wire.Prepared(GID, at.plan, RESULT), *at.others[:-1])
    ]
    last, everything = at.others[-2], range(n + 1)
    told = at.want(last, (), everything, 0.3)
    assert told == [SendSum(GID, last, at.plan, piece) for piece in everything]
    for peer in at.others[:-1]:
        told = at.prepared(peer, 0.4)
    (commit,) = outcomes(told)
    assert isinstance(commit, Commit)
    assert commit.contributors == at.members


@pytest.mark.parametrize(("n", "n_holders"), [(2, 1), (3, 2), (4, 2), (5, 3), (7, 5)])
def test_a_mean_that_fewer_have_prepared_is_given_up_when_another_dies(
    n: int, n_holders: int
) -> None:
    at = OneMember(n + 1)
    at.prepare(0.1)
    assert hear_claims(at, n_holders - 1, 0.2) == begun_anew(at.members[:-1])
    assert at.want(B, (), (0,), 0.3) == DONE
    for peer in at.others[:-1]:
        assert at.prepared(peer, 0.3) == DONE
    (abort,) = outcomes(at.feed(Failed(GID, "x"), 0.4))
    assert abort == Abort(GID, "local: x", False), "nor is it in doubt"


def test_what_a_dead_member_had_prepared_does_not_count_for_the_living() -> None:
    at = OneMember(3)
    at.prepare(0.1)
    at.prepared(C, 0.2)
    at.feed(PeerLost(C), 0.3)
    assert outcomes(at.flush(B, view=(A, B), prepared=(A, B, C), now=0.4)) == []
    assert len(outcomes(at.prepared(B, 0.5))) == 1
    at = OneMember(5)
    at.prepare(0.1)
    at.feed(PeerLost(E), 0.2)
    at.flush(D, view=(A, B, C, D), prepared=at.members, now=0.3)
    at.feed(PeerLost(D), 0.4)
    at.flush(B, view=(A, B, C), prepared=at.members, now=0.5)
    assert at.flush(C, view=(A, B, C), now=0.5) == begun_anew((A, B, C))


def made_own_piece(n: int) -> OneMember:
    """Return a member that has made its piece of the mean over all, and has no other yet."""
    at = OneMember(n)
    at.agree(0.1)
    at.load(0.1)
    for peer in at.others:
        at.share(peer, 0, 0.1)
    at.reduced(0, 0.1)
    return at


def test_who_lacks_a_mean_that_others_have_prepared_asks_these_for_its_sums_in_turn() -> None:
    at = made_own_piece(5)
    at.sum(E, 4, 0.2)
    assert hear_claims(at, 3, 0.3) == [
        Send(B, want(at, (), (3,))),
        Send(C, want(at, (), (1,))),
        Send(D, want(at, (), (2,))),
    ], "what is here is kept, and no share is asked for"
    assert at.sum(B, 1, 0.4) == at.sum(D, 3, 0.4) == DONE, "who made it has no say now"
    assert at.sum(C, 1, 0.4) == [KeepSum(GID, at.plan, 1)]
    assert at.sum(D, 2, 0.4) == [KeepSum(GID, at.plan, 2)]
    assert at.sum(B, 3, 0.5) == [KeepSum(GID, at.plan, 3), Assemble(GID, at.plan)]
    assert at.assembled(0.6) == at.tell(wire.Prepared(GID, at.plan, RESULT), B, C, D)


@pytest.mark.parametrize(("n", "n_holders"), [(2, 1), (3, 2), (4, 2), (5, 3), (7, 5)])
def test_a_mean_that_too_few_others_have_prepared_is_made_anew_by_who_lacks_it(
    n: int, n_holders: int
) -> None:
    assert hear_claims(made_own_piece(n + 1), n_holders, 0.2) == begun_anew(IDS[:n])


def test_who_has_prepared_a_mean_that_is_kept_has_two_stages_to_give_its_sums() -> None:
    at = made_own_piece(5)
    hear_claims(at, 3, 0.3)
    for peer, piece in ((C, 1), (D, 2), (C, 4)):
        at.sum(peer, piece, 0.4)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    # Beyond shares, of which none is lacking, there is a stage for sums.
    assert now == 0.3 + 2 * TRANSFER_S
    assert charged(told) == {B: 2 * TRANSFER_S}


@pytest.mark.parametrize(("own", "sources"), [(1, (A, C)), (3, (A, B))], ids=["late", "no piece"])
def test_a_member_that_has_made_no_piece_takes_the_word_of_those_that_hold_its_mean(
    own: int, sources: tuple[PeerId, PeerId]
) -> None:
    at = OneMember(5, own=own, pieces_max=2)
    at.agree(0.1)
    first, second = sources
    assert hear_claims(at, 3, 0.2) == [
        Send(first, want(at, (), (0,))),
        Send(second, want(at, (), (1,))),
    ]
    assert at.load(0.3) == DONE, "no piece is made any more"


# --- deadlines of the stages --------------------------------------------------------------------


def test_who_gives_no_share_is_gone_on_without_after_a_stage_and_all_such_share_the_wait() -> None:
    at = OneMember(4, patience_s=2.0)
    at.agree(10.0)
    at.share(B, 0, 10.5)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == 12.0
    assert charged(told) == {C: 1.0, D: 1.0}
    assert said(told, wire.Flush) == at.tell(wire.Flush(GID, raw((A, B)), ()), B)


@pytest.mark.parametrize("silence_s", [1.0, 4.0])
def test_a_share_of_which_bytes_come_is_waited_for_until_the_stage_is_over_and_no_longer(
    silence_s: float,
) -> None:
    at = OneMember(5, patience_s=4.0, silence_s=silence_s)
    at.agree(10.0)
    at.share(B, 0, 10.5)
    for now in (10.75, 11.5, 12.25, 13.0, 13.75):
        assert charged(at.wait_before(now)) == {}
        for peer in at.others[1:]:
            at.feed(Arriving(GID, peer), now)
    assert charged(at.wait_before(14.0)) == {}
    assert at.core.next_deadline() == 14.0
    assert charged(at.wait(14.0)) == pytest.approx(dict.fromkeys(at.others[1:], 4.0 / 3))


def test_of_those_that_give_no_share_only_the_silent_are_gone_on_without_before_that() -> None:
    at = OneMember(5, patience_s=4.0, silence_s=1.0)
    at.agree(10.0)
    at.share(B, 0, 10.5)
    at.feed(Arriving(GID, C), 10.75)
    assert charged(at.wait_before(11.0)) == {}
    told = at.wait(11.0)
    assert charged(told) == dict.fromkeys(at.others[2:], 0.5)
    assert said(told, wire.Flush)[-1:] == at.tell(wire.Flush(GID, raw((A, B, C)), ()), C)


def test_who_gives_no_sum_is_gone_on_without_after_two_stages() -> None:
    at = OneMember(4, patience_s=2.0)
    at.agree(10.0)
    at.load(10.0)
    for peer in (B, C, D):
        at.share(peer, 0, 10.5)
    at.reduced(0, 10.5)
    at.sum(B, 1, 10.75)
    at.sum(C, 2, 10.75)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == 14.0
    assert charged(told) == {D: 4.0}


@pytest.mark.parametrize(("n_prepared", "ends_at"), [(0, 16.0), (1, 16.0), (2, 16.0), (3, 13.0)])
def test_who_is_not_prepared_is_gone_on_without_after_three_stages_or_one_after_most_are(
    n_prepared: int, ends_at: float
) -> None:
    at = OneMember(6, patience_s=2.0)
    at.prepare(10.0)
    for peer in at.others[:n_prepared]:
        at.prepared(peer, 11.0)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    missing = at.others[n_prepared:]
    held_s = (ends_at - 10.0) / len(missing)
    assert now == ends_at
    assert charged(told) == pytest.approx(dict.fromkeys(missing, held_s))


def test_one_that_says_again_that_it_is_prepared_is_one_member() -> None:
    """It repeats that until it hears the same: others have their time all the while."""
    at = OneMember(6, patience_s=2.0)
    for now in (10.25, 10.5, 10.75):
        at.prepared(C, now, plan=OTHER_PLAN)
    at.prepare(10.0)
    for now in (10.25, 10.5, 10.75):
        at.prepared(B, now)
        at.prepared(C, now, plan=OTHER_PLAN)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == 16.0
    assert charged(told).keys() == {*IDS[2:6]}


def test_one_that_says_again_that_it_is_prepared_wins_no_time_for_another() -> None:
    at = OneMember(4, patience_s=2.0)
    at.prepare(10.0)
    for peer in (B, C):
        at.prepared(peer, 11.0)
    at.prepared(B, 12.5, plan=OTHER_PLAN)
    at.prepared(B, 12.75)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == 13.0
    assert charged(told) == {D: 3.0}


def test_who_says_again_that_it_is_prepared_while_this_node_is_slow_pays_nothing() -> None:
    at = OneMember(3, patience_s=2.0)
    at.agree(10.0)
    at.load(10.0)
    for piece, peer in ((1, B), (2, C)):
        at.share(peer, 0, 10.25)
        at.sum(peer, piece, 10.25)
    at.reduced(0, 10.25)
    for peer, now in ((B, 10.5), (C, 10.5), (C, 11.0), (B, 15.25)):
        at.prepared(peer, now)
    told = at.assembled(15.5)
    assert charged(told) == {}
    assert outcomes(told) == [Commit(GID, at.plan, (A, B, C), RESULT, 0.5)], "nor is it usual"


def test_who_waits_for_itself_alone_is_too_slow() -> None:
    at = OneMember(3, patience_s=2.0)
    at.agree(10.0)
    for piece, peer in ((1, B), (2, C)):
        at.share(peer, 0, 10.5)
        at.sum(peer, piece, 10.5)
    now, told = at.wait_until(lambda each: isinstance(each, Abort))
    assert now == 14.0
    assert outcomes(told) == [Abort(GID, "timeout: this node is too slow itself", False)]


# --- witnesses ----------------------------------------------------------------------------------


def own_witness(n: int) -> tuple[OneMember, int]:
    """Return a member that is a witness, and of which piece, when all have agreed at 0.1."""
    at = OneMember(n, has_witnesses=True, patience_s=2.0)
    piece = witnessed_by(A, at.plan, at.members, n)
    assert piece is not None
    at.agree(0.1)
    at.load(0.1)
    return at, piece


def test_a_witness_asks_for_what_a_piece_is_made_of_when_it_has_its_sum_and_makes_it_again() -> (
    None
):
    at, piece = own_witness(3)
    maker = IDS[piece]
    assert not at.core.expects(maker, wire.Share(GID, piece, 1.0, at.plan))
    for peer in at.others:
        at.share(peer, 0, 0.2)
    at.reduced(0, 0.2)
    (other,) = {1, 2} - {piece}
    at.sum(IDS[other], other, 0.3)
    kept: list[Effect] = [KeepSum(GID, at.plan, piece)]
    asked = [Send(peer, want(at, (piece,), ())) for peer in at.others]
    assert at.sum(maker, piece, 0.4) == [*kept, *asked, Assemble(GID, at.plan)]
    hashes = (b"0" * 32, b"1" * 32, b"2" * 32)
    assert at.feed(Assembled(GID, at.plan, RESULT, hashes), 0.5) == DONE, "not yet made again"
    for peer in at.others:
        told = at.share(peer, piece, 0.6)
    weights = (1.0, 1.0, 1.0)
    assert told[-1] == Witness(GID, at.plan, piece, at.members, weights, maker)
    assert at.load(0.7) == DONE, "it is made again once"
    assert at.feed(Witnessed(GID, OTHER_PLAN, (hashes[piece],)), 0.8) == DONE
    prepared = wire.Prepared(GID, at.plan, RESULT, (hashes[piece],))
    assert at.feed(Witnessed(GID, at.plan, (hashes[piece],)), 0.8) == at.tell(prepared)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (RESULT, "a part of the mean differs from its witness's"),
        (OTHER_RESULT, "the hashes of the mean differ: one of the members is faulty"),
    ],
    ids=["one result", "another result"],
)
def test_a_witness_that_comes_to_something_else_says_who_differ(result: bytes, why: str) -> None:
    at, piece = own_witness(3)
    for peer in at.others:
        at.share(peer, 0, 0.2)
    at.reduced(0, 0.2)
    for number, peer in ((1, B), (2, C)):
        at.sum(peer, number, 0.3)
        at.share(peer, piece, 0.4)
    for peer in at.others:
        at.share(peer, piece, 0.5)
    hashes = (b"0" * 32, b"1" * 32, b"2" * 32)
    at.feed(Assembled(GID, at.plan, RESULT, hashes), 0.6)
    at.feed(Witnessed(GID, at.plan, (b"x" * 32,)), 0.7)
    at.prepared(B, 0.8, result=result)
    (abort,) = outcomes(at.prepared(C, 0.9, result=result))
    assert abort == Abort(GID, why, True, ((IDS[piece], A),))


def test_who_is_no_witness_or_holds_what_others_had_prepared_makes_nothing_again() -> None:
    at = OneMember(3, has_witnesses=True, is_witness=False)
    told = at.prepare(0.1)
    assert not any(isinstance(each, Witness) for each in told)
    assert said(told, wire.Prepared) == at.tell(wire.Prepared(GID, at.plan, RESULT))
    at, _ = own_witness(5)
    hear_claims(at, 3, 0.2)
    told = [each for n in range(5) for each in at.sum((B, C, D)[n % 3], n, 0.3)]
    assert told[-1] == Assemble(GID, at.plan)
    assert not any(isinstance(each, Witness) for each in told)
    assert at.assembled(0.4) == at.tell(wire.Prepared(GID, at.plan, RESULT), B, C, D)


def test_with_witnesses_shares_of_a_piece_that_is_made_again_have_the_third_stage() -> None:
    at, piece = own_witness(3)
    for peer in at.others:
        at.share(peer, 0, 0.2)
    at.reduced(0, 0.2)
    for number, peer in ((1, B), (2, C)):
        at.sum(peer, number, 0.3)
    at.share(B, piece, 0.4)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == pytest.approx(0.1 + 3 * 2.0)
    assert charged(told) == pytest.approx({C: 6.0})


def test_a_witness_waits_for_sums_before_it_waits_for_shares_of_a_piece_made_again() -> None:
    at, piece = own_witness(4)
    slow = max({1, 2, 3} - {piece})
    for peer in at.others:
        at.share(peer, 0, 0.2)
    at.reduced(0, 0.2)
    for number in {1, 2, 3} - {slow}:
        at.sum(IDS[number], number, 0.3)
    now, told = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == pytest.approx(0.1 + 2 * 2.0)
    assert charged(told) == pytest.approx({IDS[slow]: 4.0})


def test_with_witnesses_there_is_a_fourth_stage_until_all_are_prepared() -> None:
    at = OneMember(4, has_witnesses=True, is_witness=False, patience_s=2.0)
    at.prepare(10.0)
    now, _ = at.wait_until(lambda each: isinstance(each, HeldRound))
    assert now == 18.0
