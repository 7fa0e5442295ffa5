"""Each stage of the guard of pairs, and what gets through where it is left out."""

import math
from dataclasses import replace

import pytest
import torch

from swarmnode.ipc.names import GUARD_REFUSALS
from swarmnode.strategies.merging.safe_merge import Harm, SafeMerge, Stage, digest_of, harm_of
from swarmnode.strategies.merging.slot import Pair, Reason, Verdict

PEER, OTHER = b"p" * 32, b"o" * 32
NUMEL = 100
BAN_ROUNDS = 60


def bowl(own: torch.Tensor, theirs: torch.Tensor, best: torch.Tensor):
    """The loss along the way from one to the other, of a task whose optimum is ``best``."""
    return lambda a: 0.01 * float((own + a * (theirs - own) - best).square().sum())


def vector(seed: int, norm: float = 1.0) -> torch.Tensor:
    drawn = torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))
    return drawn * (norm / drawn.norm())


def pair(**changes) -> Pair:
    """A peer one unit away, as far as this node moves in a round, and no probe."""
    own = changes.pop("own", torch.zeros(NUMEL))
    seed = changes.pop("seed", 1)
    theirs = changes.pop("theirs") if "theirs" in changes else own + vector(seed)
    plain = Pair(PEER, "x/0", 1, 1, own, theirs, moved=1.0)
    return replace(plain, **changes)


def known_guard(off: frozenset[Stage] = frozenset(), distance: float = 1.0) -> SafeMerge:
    """A guard that has accepted five others, all as far away as that."""
    guard = SafeMerge(off)
    for number in range(5):
        theirs = vector(100 + number, distance)
        peer = bytes([number]) * 32
        assert guard.weigh(pair(peer=peer, theirs=theirs, round=number + 1)).refusal is None
    return guard


def test_reasons_are_those_of_the_metric() -> None:
    assert tuple(Reason) == GUARD_REFUSALS


def test_what_is_near_and_does_no_harm_is_accepted_whole() -> None:
    verdict = SafeMerge().weigh(pair())
    assert (verdict.refusal, verdict.share) == (None, 1.0)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_structure(number) -> None:
    theirs = torch.zeros(NUMEL)
    theirs[7] = number
    assert SafeMerge().weigh(pair(theirs=theirs)).refusal is Reason.NOT_FINITE
    off = frozenset({Stage.STRUCTURE})
    assert SafeMerge(off).weigh(pair(theirs=theirs, moved=0.0)).refusal is None


def test_window() -> None:
    for off, expected in ((frozenset(), Reason.ROUND), (frozenset({Stage.WINDOW}), None)):
        guard = SafeMerge(off)
        assert guard.weigh(pair(their_round=100)).refusal is None
        assert guard.weigh(pair(their_round=80, seed=2)).refusal is None
        assert guard.weigh(pair(their_round=79, seed=3)).refusal is expected


def test_rounds_are_compared_with_those_of_the_same_peer_alone() -> None:
    guard = SafeMerge()
    assert guard.weigh(pair(their_round=10**6)).refusal is None
    assert guard.weigh(pair(peer=OTHER, their_round=1, seed=2)).refusal is None


def test_replay() -> None:
    for off, expected in ((frozenset(), Reason.REPLAY), (frozenset({Stage.WINDOW}), None)):
        guard = SafeMerge(off)
        assert guard.weigh(pair()).refusal is None
        guard.aborted("x/0")
        assert guard.weigh(pair()).refusal is None  # the first came to nothing: sent again
        assert guard.weigh(pair(peer=OTHER)).refusal is expected


def test_models_that_are_alike_are_no_replay() -> None:
    guard = SafeMerge()
    for number in range(3):
        same = torch.zeros(NUMEL)
        assert guard.weigh(pair(peer=bytes([number]) * 32, theirs=same)).refusal is None


def test_distance() -> None:
    far = vector(3, 2.5)
    guard = known_guard()
    assert guard.weigh(pair(theirs=far, round=9)).refusal is Reason.DISTANCE
    open_guard = known_guard(frozenset({Stage.DISTANCE}))
    assert open_guard.weigh(pair(theirs=far, round=9)).refusal is None


def test_the_first_contacts_are_measured_by_the_own_movement() -> None:
    assert SafeMerge().weigh(pair(theirs=vector(3, 4.9))).refusal is None
    assert SafeMerge().weigh(pair(theirs=vector(3, 5.1))).refusal is Reason.DISTANCE


def test_vectors_of_who_repeats_what_it_got_are_no_measure() -> None:
    """Free riders a hundredth away must not make a node refuse all others."""
    guard = known_guard()
    for number in range(20):
        near = vector(200 + number, 0.01)
        assert guard.weigh(pair(peer=OTHER, theirs=near, round=9 + number)).refusal is None
    assert guard.weigh(pair(theirs=vector(3, 1.9), round=40)).refusal is None


def test_probe() -> None:
    """Nothing is too little: of what makes the public probe worse by a thousandth none is taken."""
    own, best = torch.zeros(NUMEL), vector(1)
    for worse, trivial, refusal in ((0.001, 0.1, None), (3.0, 0.1, Reason.PROBE), (3.0, 9.9, None)):
        away = -worse * best
        along = bowl(own, away, best)
        asked = pair(own=own, theirs=away, loss_along=along, loss_trivial=trivial, round=9)
        guard = known_guard(distance=4.0)
        assert guard.weigh(asked) == Verdict(share=0.0)
        verdict = guard.weigh(asked)
        assert (verdict.refusal, verdict.share) == (refusal, 1.0 if refusal else 0.0)
        careless = known_guard(frozenset({Stage.PROBE}), distance=4.0).weigh(asked)
        assert (careless.refusal, careless.share) == (None, 1.0)
    near = 0.9 * best
    towards = replace(asked, theirs=near, loss_along=bowl(own, near, best))
    assert known_guard().weigh(towards) == Verdict()


def test_the_probe_sees_the_whole_step_before_it_is_clipped() -> None:
    """A vector of twice the usual length, harmful in whole, and not as far as it would be clipped.

    Its first part helps, so that who measures after the clip lets it pass.
    """
    own, direction = torch.zeros(NUMEL), vector(1)
    best, theirs = 0.45 * direction, 1.9 * direction
    along = bowl(own, theirs, best)
    assert along(0.5) > along(0.0) > along(0.5 / 1.9)
    asked = pair(own=own, theirs=theirs, loss_along=along, round=9)
    assert known_guard().weigh(asked) == Verdict(share=0.0)


def test_a_loss_that_is_no_number_is_harm() -> None:
    assert harm_of(pair(loss_along=lambda a: math.nan if a else 1.0)) is Harm.GRAVE
    assert harm_of(pair(loss_along=lambda a: 1.0 if a else math.nan)) is Harm.NONE


def test_clip() -> None:
    theirs = vector(3, 1.6)
    assert known_guard().weigh(pair(theirs=theirs, round=9)).share == pytest.approx(1 / 1.6)
    assert known_guard(frozenset({Stage.CLIP})).weigh(pair(theirs=theirs, round=9)).share == 1.0


def test_strikes_ban_and_the_ban_ends() -> None:
    for off, expected in ((frozenset(), Reason.BANNED), (frozenset({Stage.STRIKES}), None)):
        guard = known_guard(off)
        for number in range(3):
            far = vector(10 + number, 50.0)
            assert guard.weigh(pair(theirs=far, round=10)).refusal is Reason.DISTANCE
        assert guard.weigh(pair(seed=5, round=11)).refusal is expected
        assert guard.is_banned(PEER, 9 + BAN_ROUNDS) is bool(expected)
        assert not guard.is_banned(PEER, 10 + BAN_ROUNDS)
        assert guard.weigh(pair(seed=6, round=10 + BAN_ROUNDS)).refusal is None
        assert guard.totals.bans == (1 if expected else 0)


def test_who_went_back_is_banned_once_and_then_begins_anew() -> None:
    """A peer whose disk was lost counts its rounds from 0 again."""
    guard = SafeMerge()
    assert guard.weigh(pair(their_round=1000)).refusal is None
    for number in range(3):
        refused = guard.weigh(pair(their_round=number, seed=2 + number, round=2))
        assert refused.refusal is Reason.ROUND
    assert guard.weigh(pair(their_round=50, seed=9, round=2 + BAN_ROUNDS)).refusal is None


def test_mild_harm_is_no_strike() -> None:
    """Honest peers do it too, as each fits its own data."""
    own, best = vector(1, 3.0), torch.zeros(NUMEL)
    away = 1.01 * own
    guard = known_guard()
    for number in range(10):
        asked = pair(
            own=own, theirs=away, loss_along=bowl(own, away, best), round=9 + number, their_round=9
        )
        assert guard.weigh(asked) == Verdict(share=0.0)
    assert guard.totals.bans == 0
    assert guard.totals.given == 10


@pytest.mark.parametrize(("their_loss", "bans"), [(2.2, 0), (2.4, 1)])
def test_harm_is_refused_only_from_a_model_that_has_learnt_nothing(their_loss, bans) -> None:
    """Early in training, and with uneven labels, honest models harm each other."""
    guard = known_guard()
    along = {0.0: 1.0, 0.5: 2.0, 1.0: their_loss}
    for number in range(3):
        asked = pair(theirs=vector(10 + number, 0.9), loss_along=along.__getitem__, round=9)
        verdict = guard.weigh(replace(asked, loss_trivial=math.log(10)))
        assert verdict == (Verdict(Reason.PROBE) if bans and number else Verdict(share=0.0))
    assert guard.totals.bans == bans


def test_escape() -> None:
    """A node that was left behind follows a peer whose own model is much better."""
    own = torch.zeros(NUMEL)
    best = vector(3, 10.0)
    asked = pair(own=own, theirs=best, loss_along=bowl(own, best, best), round=9)
    verdict = known_guard().weigh(asked)
    assert (verdict.refusal, verdict.share) == (None, pytest.approx(0.1))
    locked = known_guard(frozenset({Stage.ESCAPE}))
    assert locked.weigh(asked).refusal is Reason.DISTANCE
    round_a_hill = replace(asked, loss_along=lambda a: {0.0: 1.0, 1.0: 0.5}.get(a, 1.1))
    assert known_guard().weigh(round_a_hill) == Verdict(share=0.0)
    nothing_learnt = replace(asked, loss_trivial=0.0)
    assert known_guard().weigh(nothing_learnt) == Verdict(share=0.0)


def test_a_node_that_moves_no_more_learns_by_good_peers_how_far_they_are() -> None:
    """It has fitted all of its data: five times its movement is nothing beside the way to them."""
    guard, own, best = SafeMerge(), torch.zeros(NUMEL), vector(3, 10.0)
    shares = []
    for number in range(40):
        asked = pair(own=own, theirs=best, loss_along=bowl(own, best, best), moved=0.01)
        share = guard.weigh(replace(asked, peer=bytes([number]) * 32, round=number)).share
        shares.append(share)
        own = own + share / 2 * (best - own)
        best = best + vector(number, 0.001)  # no replay
    assert shares[0] == pytest.approx(0.002)
    assert shares[-1] > 10 * shares[0]


def test_who_was_left_behind_is_given_a_model_and_nothing_is_taken() -> None:
    """Or no pair of the two would ever commit, and it could not escape."""
    own, behind = torch.zeros(NUMEL), vector(3, 10.0)
    asked = pair(own=own, theirs=behind, loss_along=bowl(own, behind, own), round=9)
    guard = known_guard()
    said = [guard.weigh(replace(asked, round=9 + number)) for number in range(4)]
    assert said == [Verdict(share=0.0)] * 4
    nonsense = replace(asked, loss_trivial=0.5)
    said = [guard.weigh(replace(nonsense, round=9 + number)).refusal for number in range(4)]
    assert said == [None, Reason.DISTANCE, Reason.DISTANCE, Reason.BANNED]


def test_a_peer_that_has_learnt_nothing_is_given_a_model_once_and_again_after_its_ban() -> None:
    """Else one whose data fit two labels is refused by all others, and never learns the rest."""
    guard, rounds = known_guard(), []
    nothing = pair(theirs=vector(3, 10.0), loss_along=lambda a: 1.0 + a, loss_trivial=1.5)
    for number in range(9, 9 + 2 * BAN_ROUNDS):
        verdict = guard.weigh(replace(nothing, round=number))
        assert verdict.refusal is not None or verdict.share == 0.0
        rounds += [number] * (verdict.refusal is None)
    assert rounds == [9, 11 + BAN_ROUNDS]


def test_a_node_that_takes_of_no_other_lets_go_after_a_while() -> None:
    guard, far = known_guard(), 4.0
    untaken = 0
    for number in range(400):
        peer = number.to_bytes(32, "big")
        asked = pair(
            peer=peer,
            theirs=vector(1000 + number, far),
            round=10 + number,
            loss_along=lambda _: 1.0,
        )
        if guard.weigh(asked).share > 0:
            break
        untaken += 1
    assert 20 < untaken < 400


def refusals_until_accepted(guard: SafeMerge, distance: float) -> int | None:
    """How often a peer that far away is refused for it, beside near ones, before it is accepted."""
    refused = 0
    for number in range(1, 300):
        near = pair(peer=OTHER, theirs=vector(500 + number), round=number, their_round=number)
        assert guard.weigh(near).refusal is None
        far = pair(theirs=vector(900 + number, distance), round=number, their_round=number)
        verdict = guard.weigh(far)
        if verdict.refusal is None:
            assert verdict.share <= 2 / distance  # no more than others, whatever it sent
            return refused
        refused += verdict.refusal is Reason.DISTANCE
    return None


def test_without_a_probe_who_came_late_is_let_in_by_and_by() -> None:
    assert refusals_until_accepted(known_guard(), 10.0) == 3
    assert refusals_until_accepted(known_guard(frozenset({Stage.ESCAPE})), 10.0) is None


def test_without_a_probe_what_is_forty_times_as_far_as_others_never_counts() -> None:
    assert refusals_until_accepted(known_guard(), 40.0) is None


def test_topics_have_distances_of_their_own_and_peers_do_not() -> None:
    guard = known_guard()
    asked = pair(theirs=vector(3, 4.5), round=9)
    assert guard.weigh(replace(asked, topic="x/1")).refusal is None
    assert guard.weigh(asked).refusal is Reason.DISTANCE


def test_what_is_kept_is_bounded() -> None:
    guard = SafeMerge()
    small = torch.zeros(2)
    for number in range(5000):
        theirs = torch.tensor([1.0, number / 1000])
        asked = pair(own=small, theirs=theirs, peer=number.to_bytes(32, "big"), moved=10.0)
        guard.weigh(replace(asked, topic=f"x/{number % 100}"))
        guard.weigh(replace(asked, topic=f"x/{number % 100}", theirs=-theirs))
    assert guard.kept == (64, 4096, 1024)


def test_digests_of_large_vectors_are_of_a_sample() -> None:
    large = torch.arange(2**18, dtype=torch.float32)
    assert digest_of(large) == digest_of(large.clone())
    changed = large.clone()
    changed[::4] += 1
    assert digest_of(changed) != digest_of(large)
