"""Each stage of the guard of pairs, and what gets through where it is left out."""

import math
from dataclasses import replace

import pytest
import torch

from swarmnode.ipc.names import GUARD_REFUSALS
from swarmnode.strategies.merging.safe_merge import (
    MERGE_WEIGHT,
    Harm,
    SafeMerge,
    Stage,
    digest_of,
    harm_of,
)
from swarmnode.strategies.merging.slot import LossAlong, Pair, Reason, Verdict

PEER, OTHER = b"p" * 32, b"o" * 32
NUMEL = 100
BAN_ROUNDS = 60
TOPICS_MAX, PEERS_MAX, DIGESTS_MAX = 64, 4096, 1024


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


# --- to the number --------------------------------------------------------------------------------


def exactly(distance: float, axis: int = 0) -> torch.Tensor:
    found = torch.zeros(NUMEL)
    found[axis] = distance
    return found


def others(guard: SafeMerge, n: int, distance: float, **changes) -> None:
    """Let a guard accept so many others of that distance; each is another vector."""
    for number in range(n):
        theirs = exactly(distance)
        theirs[1] = 1e-5 * distance * (1 + guard.totals.contacts)
        asked = pair(peer=bytes([200, number]) * 16, theirs=theirs, **changes)
        assert guard.weigh(asked).refusal is None


def measured_guard(distance: float = 1.0) -> SafeMerge:
    guard = SafeMerge()
    others(guard, 5, distance)
    return guard


def losses(own: float, mixed: float, theirs: float) -> LossAlong:
    return lambda a: {0.0: own, 1.0: theirs}.get(a, mixed)


FLAT = losses(1.0, 1.0, 1.0)


class Asked:
    """A loss, and how far along the way it was asked for."""

    def __init__(self, along: LossAlong) -> None:
        self._along, self.of = along, set[float]()

    def __call__(self, a: float) -> float:
        self.of.add(a)
        return self._along(a)


def test_what_was_weighed_is_counted_by_what_became_of_it() -> None:
    guard = SafeMerge()
    none = dict.fromkeys(("contacts", "accepted", "clipped", "escaped", "given", "bans"), 0)
    assert vars(guard.totals) == none | {"refused": {}}
    others(guard, 4, 1.0)
    assert vars(guard.totals) == none | {"contacts": 4, "accepted": 4, "refused": {}}
    guard.weigh(pair(theirs=exactly(1.6, 9)))
    assert (guard.totals.accepted, guard.totals.clipped) == (5, 1)
    guard.weigh(pair(theirs=exactly(0.9), loss_along=losses(1.0, 1.01, 1.0)))
    assert (guard.totals.accepted, guard.totals.given, guard.totals.clipped) == (6, 1, 1)
    guard.weigh(pair(theirs=exactly(8.0), loss_along=losses(1.0, 1.0, 0.5)))
    assert (guard.totals.accepted, guard.totals.escaped, guard.totals.clipped) == (7, 1, 2)
    for _ in range(4):
        guard.weigh(pair(theirs=exactly(99.0)))
    assert vars(guard.totals) == {
        "contacts": 11,
        "accepted": 7,
        "clipped": 2,
        "escaped": 1,
        "given": 1,
        "bans": 1,
        "refused": {Reason.DISTANCE: 3, Reason.BANNED: 1},
    }


def test_what_is_refused_for_what_it_is_lets_nothing_else_pass_than_before() -> None:
    guard = SafeMerge()
    guard.weigh(pair(their_round=100, theirs=exactly(1.0)))
    for _ in range(2):
        guard.weigh(pair(their_round=1, theirs=exactly(1.0, 1)))
        guard.weigh(pair(peer=OTHER, theirs=exactly(math.inf)))
    refused = guard.weigh(pair(peer=b"x" * 32, theirs=exactly(5.1)))
    assert refused.refusal is Reason.DISTANCE


def test_at_just_the_bound_a_vector_is_near() -> None:
    assert SafeMerge().weigh(pair(theirs=exactly(5.0))) == Verdict()


def test_equal_models_are_taken_whole() -> None:
    guard = known_guard()
    assert guard.weigh(pair(theirs=torch.zeros(NUMEL), round=9)) == Verdict()


@pytest.mark.parametrize("scale", [0.25, 1.25])
def test_four_accepted_distances_are_the_measure_of_the_fifth(scale: float) -> None:
    few, enough = SafeMerge(), SafeMerge()
    others(few, 3, scale, moved=scale)
    others(enough, 4, scale, moved=scale)
    for guard, bound in ((few, 5 * scale), (enough, 2 * scale)):
        near, far = exactly(0.97 * bound, 9), exactly(1.03 * bound, 8)
        assert guard.weigh(pair(theirs=far, moved=scale)).refusal is Reason.DISTANCE
        verdict = guard.weigh(pair(theirs=near, moved=scale))
        assert verdict.refusal is None
        assert verdict.share == pytest.approx(1.0 if guard is few else 1 / 1.94)


def test_a_node_that_moves_further_than_others_are_away_is_measured_by_its_movement() -> None:
    guard = SafeMerge()
    others(guard, 4, 2.0, moved=3.0)
    assert guard.weigh(pair(theirs=exactly(5.9, 9), moved=3.0)).refusal is None
    assert guard.weigh(pair(theirs=exactly(6.1, 9), moved=3.0)).refusal is Reason.DISTANCE


def test_a_node_that_knows_nothing_of_distances_accepts_any() -> None:
    guard = SafeMerge()
    for axis in range(3):
        assert guard.weigh(pair(theirs=exactly(1e6, axis), moved=0.0)) == Verdict()


def test_of_one_round_the_first_movement_counts_alone() -> None:
    guard = SafeMerge()
    guard.weigh(pair(theirs=exactly(1.0), moved=1.0, round=1))
    guard.weigh(pair(theirs=exactly(1.0, 1), moved=9.0, round=1))
    guard.weigh(pair(theirs=exactly(1.0, 2), moved=0.0, round=2))
    refused = guard.weigh(pair(theirs=exactly(5.1, 3), moved=9.0, round=1))
    assert refused.refusal is Reason.DISTANCE
    assert guard.weigh(pair(theirs=exactly(27.4, 4), moved=9.0, round=3)).refusal is None


@pytest.mark.parametrize(
    ("distance", "along", "trivial"),
    [
        (0.9, losses(1.0, 1.01, 1.0), None),  # a little harm
        (9.0, FLAT, None),  # far, and no better
        (9.0, losses(1.0, 1.0, 2.0), 1.5),  # far, and worse than nothing
        (0.9, losses(1.0, 9.0, 2.0), 1.5),  # harm, and worse than nothing
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_each_that_is_not_taken_lets_a_tenth_more_pass_once_in_five_rounds(
    times: int, distance: float, along: LossAlong, trivial: float | None
) -> None:
    guard = SafeMerge()

    def untaken(round_number: int) -> None:
        for _ in range(times):
            peer = bytes([2, round_number]) * 16
            asked = pair(peer=peer, theirs=exactly(distance, 50), round=round_number)
            verdict = guard.weigh(replace(asked, loss_along=along, loss_trivial=trivial))
            assert verdict.refusal or not verdict.share

    def share(of: float, round_number: int) -> float:
        theirs = exactly(of, round_number)
        return guard.weigh(pair(theirs=theirs, round=round_number, loss_along=FLAT)).share

    untaken(1)
    assert (share(5.4, 1), share(5.6, 1)) == (1.0, 0.0)
    untaken(5)
    assert share(5.6, 5) == 0.0, "four rounds later it is not the time yet"
    untaken(6)
    assert (share(6.0, 6), share(6.1, 6)) == (1.0, 0.0)


def test_without_a_probe_each_refusal_lets_a_tenth_more_pass() -> None:
    guard = SafeMerge()
    for number, bound in enumerate((5.0, 5.5, 6.05, 6.655)):
        for peer in (bytes([3, number]) * 16, bytes([4, number]) * 16)[: 1 + (number == 3)]:
            asked = pair(peer=peer, theirs=exactly(1.005 * bound, number))
            assert guard.weigh(asked).refusal is (Reason.DISTANCE if peer[0] == 3 else None)


def test_what_is_known_of_distances_grows_by_a_tenth_with_each_that_is_not_taken() -> None:
    guard = SafeMerge()
    others(guard, 4, 1.25)
    for number in range(4):
        asked = pair(theirs=exactly(9.0), round=10 + 5 * number, loss_along=FLAT)
        assert guard.weigh(asked) == Verdict(share=0.0)
    usual = (1.25 + 1.1 * 1.25) / 2  # half of eight are as before
    for bound, share in ((1.01, 0.0), (0.99, 1 / 1.98)):
        asked = pair(theirs=exactly(2 * bound * usual, 1), round=26, loss_along=FLAT)
        assert guard.weigh(asked).share == pytest.approx(share)


def test_vectors_a_fifth_as_far_as_others_are_no_measure() -> None:
    for distance, usual in ((0.15, 1.0), (0.25, 0.25)):
        guard = SafeMerge()
        others(guard, 4, 1.0, moved=0.0)
        others(guard, 8, distance, moved=0.0)
        verdict = guard.weigh(pair(theirs=exactly(0.45, 50), moved=0.0))
        assert verdict.refusal is None
        assert verdict.share == pytest.approx(min(1.0, usual / 0.45))


def test_vectors_half_as_far_as_a_node_moves_are_no_measure() -> None:
    for distance, usual in ((0.45, 1.0), (0.55, 0.55)):
        guard = SafeMerge()
        others(guard, 4, 1.0)
        others(guard, 8, distance)
        assert guard.weigh(pair(theirs=exactly(1.0, 50))).share == pytest.approx(usual)


def test_the_first_distances_are_a_measure_however_small_they_are() -> None:
    guard = SafeMerge()
    others(guard, 4, 0.2, moved=0.1)
    assert guard.weigh(pair(theirs=exactly(0.39, 50), moved=0.1)).share == pytest.approx(0.2 / 0.39)


def test_who_is_let_in_late_counts_as_no_further_than_twice_the_usual() -> None:
    guard = SafeMerge()
    others(guard, 4, 0.25, moved=0.25)
    late = [pair(theirs=exactly(0.95, axis), moved=0.25) for axis in range(6)]
    said = [guard.weigh(each) for each in late]
    assert said[0].refusal is Reason.DISTANCE
    usual = [0.25, 0.25, 0.25, (0.25 + 1.1 * 0.25) / 2, (1.1 * 0.25 + 2 * 0.25) / 2]
    assert [each.share for each in said[1:]] == pytest.approx([each / 0.95 for each in usual])


def test_who_comes_near_again_is_as_far_as_any_other_from_then_on() -> None:
    guard = known_guard()
    far = [pair(theirs=exactly(3.9, axis), round=9) for axis in range(4)]
    assert guard.weigh(far[0]).refusal is Reason.DISTANCE
    assert guard.weigh(far[1]).share == pytest.approx(1 / 3.9)
    assert guard.weigh(pair(theirs=exactly(1.0), round=9)).refusal is None
    assert guard.weigh(far[2]).refusal is Reason.DISTANCE


def test_patience_is_for_where_distances_are_known_and_no_probe_is() -> None:
    unknown = SafeMerge()
    assert unknown.weigh(pair(theirs=exactly(5.1))).refusal is Reason.DISTANCE
    assert unknown.weigh(pair(theirs=exactly(6.0))).refusal is Reason.DISTANCE
    probing = known_guard()
    worse = losses(1.0, 1.0, 2.0)
    for _ in range(2):
        nothing = pair(theirs=exactly(9.0), loss_along=worse, loss_trivial=1.5, round=9)
        probing.weigh(nothing)
    assert probing.totals.refused[Reason.DISTANCE] == 1
    assert probing.weigh(pair(theirs=exactly(3.0), loss_along=FLAT, round=9)).share == 0.0


def test_of_a_first_good_model_as_much_is_taken_as_is_known_to_be_usual() -> None:
    """Twice the own movement, or the distances that were accepted."""
    better = losses(1.0, 1.0, 0.5)
    for n, share in ((0, 0.2), (1, 0.1)):
        guard = SafeMerge()
        others(guard, n, 1.0)
        asked = Asked(better)
        verdict = guard.weigh(pair(theirs=exactly(10.0, 9), loss_along=asked))
        assert verdict.share == pytest.approx(share)
        assert asked.of == {0.0, 1.0, MERGE_WEIGHT * verdict.share}


def test_no_more_than_all_is_taken_of_a_good_model() -> None:
    """A node that moved far once knows of distances that are large beside its movements now."""
    guard = SafeMerge()
    others(guard, 1, 40.0, moved=10.0, round=1)
    for number in (2, 3):
        guard.weigh(pair(theirs=torch.zeros(NUMEL), moved=0.1, round=number))
    good = pair(theirs=exactly(20.0, 9), moved=0.1, round=3, loss_along=losses(1.0, 1.0, 0.5))
    assert guard.weigh(good) == Verdict(share=1.0)
    assert (guard.totals.escaped, guard.totals.clipped) == (1, 0)


def test_what_is_taken_of_good_models_doubles_until_distances_are_known() -> None:
    guard, shares = SafeMerge(), []
    for axis in range(6):
        peer = bytes([axis]) * 32
        asked = pair(peer=peer, theirs=exactly(10.0, axis), moved=0.01)
        shares.append(guard.weigh(replace(asked, loss_along=losses(1.0, 1.0, 0.5))).share)
    assert shares == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.010, 0.011])


@pytest.mark.parametrize(
    ("own", "theirs", "trivial", "escapes"),
    [
        (1.0, 0.97, None, True),
        (1.0, 0.98, None, False),
        (1.0, 0.89, 1.0, True),
        (1.0, 0.90, 1.0, False),
        (1.0, 0.97, 9.0, True),
        (math.inf, 5.0, None, True),
        (math.nan, 5.0, 5.0, False),
    ],
)
def test_a_model_is_provably_good_by_a_fiftieth_and_a_tenth_better_than_none(
    own: float, theirs: float, trivial: float | None, escapes: bool
) -> None:
    guard = known_guard()
    asked = pair(theirs=exactly(10.0), loss_along=losses(own, own, theirs), round=9)
    assert (guard.weigh(replace(asked, loss_trivial=trivial)).share > 0) is escapes
    assert guard.totals.escaped == escapes


def test_where_the_step_towards_a_good_model_does_harm_nothing_is_taken() -> None:
    asked = pair(theirs=exactly(10.0), loss_along=losses(1.0, 1.001, 0.5), round=9)
    assert known_guard().weigh(asked) == Verdict(share=0.0)


@pytest.mark.parametrize(
    ("own", "theirs", "trivial", "is_refused"),
    [
        (1.0, 1.6, 1.5, True),
        (1.0, 1.5, 1.5, False),  # as good as none is not worse
        (1.5, 1.6, 1.5, False),  # the own one is no better
        (1.0, math.inf, None, True),
        (1.0, math.nan, 1.5, True),
        (1.0, 1e9, None, False),  # it is not known what none has
    ],
)
def test_a_far_model_is_refused_where_it_is_worse_than_none_and_the_own_one_better(
    own: float, theirs: float, trivial: float | None, is_refused: bool
) -> None:
    guard = known_guard()
    asked = pair(theirs=exactly(10.0), loss_along=losses(own, own, theirs), loss_trivial=trivial)
    said = [guard.weigh(replace(asked, round=9)) for _ in range(2)]
    assert said == [Verdict(share=0.0), Verdict(Reason.DISTANCE) if is_refused else said[0]]


def test_a_peer_that_has_learnt_nothing_is_helped_again_when_its_strike_is_forgotten() -> None:
    nothing = pair(theirs=exactly(10.0), loss_along=losses(1.0, 1.0, 2.0), loss_trivial=1.5)
    for n_good, refusal in ((0, Reason.DISTANCE), (1, None), (9, None)):
        guard = measured_guard()
        for axis in range(3, 8):  # before there is any strike
            assert guard.weigh(pair(theirs=exactly(1.0, axis), loss_along=FLAT)).share == 1.0
        assert guard.weigh(nothing) == Verdict(share=0.0)
        for axis in range(n_good):
            assert guard.weigh(pair(theirs=exactly(1.0, 19 + axis), loss_along=FLAT)).share == 1.0
        assert guard.weigh(nothing).refusal is refusal


def test_four_accepted_vectors_make_up_for_a_strike() -> None:
    guard = measured_guard()
    far = pair(theirs=exactly(500.0), round=9)
    refusals = [guard.weigh(far).refusal for _ in range(2)]
    for axis in range(3, 7):
        assert guard.weigh(pair(theirs=exactly(1.0, axis), round=9)).refusal is None
    refusals += [guard.weigh(far).refusal for _ in range(3)]
    assert refusals == [Reason.DISTANCE] * 4 + [Reason.BANNED]


def test_in_its_first_round_a_node_bans_none_that_it_meets() -> None:
    guard = SafeMerge()
    for axis in range(2):
        assert guard.weigh(pair(theirs=exactly(1.0, axis), round=0)).refusal is None
    assert not guard.is_banned(PEER, 0)


@pytest.mark.parametrize(
    ("before", "after", "harm"),
    [
        (1.0, 1.0, Harm.NONE),
        (1.0, 1.01, Harm.MILD),
        (1.0, 1.13, Harm.GRAVE),
        (math.inf, math.inf, Harm.NONE),
        (math.nan, math.nan, Harm.GRAVE),
    ],
)
def test_harm_is_by_how_much_the_loss_grows(before: float, after: float, harm: Harm) -> None:
    assert harm_of(pair(loss_along=losses(before, after, 0.0))) is harm


def test_which_topics_are_known_is_by_which_came_last_for_the_first_time() -> None:
    guard = SafeMerge()

    def is_known(topic: str, peer: int) -> bool:
        far = pair(peer=bytes([1, peer]) * 16, theirs=exactly(4.5, 99), topic=topic)
        return guard.weigh(far).refusal is Reason.DISTANCE

    topics = [f"x/{number}" for number in range(TOPICS_MAX)]
    for topic in topics:
        others(guard, 4, 1.0, topic=topic)
    others(guard, 1, 1.0, topic=topics[1])
    assert is_known(topics[0], 0)
    others(guard, 1, 1.0, topic="one more")
    assert guard.kept[0] == TOPICS_MAX
    assert is_known(topics[1], 1)
    assert not is_known(topics[0], 2)


def small(number: int) -> torch.Tensor:
    return torch.tensor([1.0, number / 10_000])


def test_the_peers_that_were_met_last_are_remembered() -> None:
    guard, own = SafeMerge(), torch.zeros(2)
    first, second = b"1" * 32, b"2" * 32
    far = pair(own=own, theirs=torch.tensor([99.0, 0.0]))
    assert guard.weigh(replace(far, peer=first)).refusal is Reason.DISTANCE
    for peer in (second, second, second, first, first):
        guard.weigh(replace(far, peer=peer))
    for number in range(PEERS_MAX - 1):
        assert guard.is_banned(second, 1), number
        guard.weigh(pair(own=own, theirs=own, peer=number.to_bytes(32, "big")))
    assert guard.kept[1] == PEERS_MAX
    assert not guard.is_banned(second, 1)
    assert guard.is_banned(first, 1), "it was met again later"


def test_the_vectors_that_were_merged_last_are_remembered() -> None:
    guard, own = SafeMerge(), torch.zeros(2)

    def refusal(number: int) -> Reason | None:
        return guard.weigh(pair(own=own, theirs=small(number))).refusal

    assert {refusal(number) for number in range(DIGESTS_MAX)} == {None}
    assert refusal(0) is Reason.REPLAY
    assert refusal(DIGESTS_MAX) is None
    assert refusal(0) is None, "it is forgotten"
    assert refusal(2) is Reason.REPLAY
    assert refusal(DIGESTS_MAX) is Reason.REPLAY


@pytest.mark.parametrize(("numel", "read"), [(8, 3), (2**17 - 1, 3), (2**17, 1)])
def test_digests_are_of_every_element_of_a_small_vector(numel: int, read: int) -> None:
    zeros, found = torch.zeros(numel), 0
    for at in (1, numel - 2, numel - 1):
        changed = zeros.clone()
        changed[at] = 1.0
        found += digest_of(changed) != digest_of(zeros)
    assert found == read
