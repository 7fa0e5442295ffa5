"""What rules over many vectors come to, beside the formulas that their texts have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ipc.records import ViewShape
from swarmnode.strategies.base import Message, TaskFacts
from swarmnode.strategies.merging.best_of import TRIAL_STEPS, Trials, better
from swarmnode.strategies.merging.mixing import Mix, Round, mean, mean_of
from swarmnode.strategies.merging.rules import (
    OUTSIZED,
    candidates,
    encode_parts,
    find_mixes,
    find_rule,
    hashes_of,
    without_outsized,
)
from swarmnode.strategies.merging.slot import (
    ACCEPTED,
    GroupMerge,
    PairMerge,
    aggregate,
    is_mild,
)
from swarmnode.strategies.merging.sybil_mean import OPPOSED, SPREADS
from swarmnode.strategies.registry import check_strategy
from swarmnode.tensor.pieces import Part, by_view, cut_chunks, cut_pieces, hash_payload

RULES = sorted(get_args(GroupMerge))
Rows = NDArray[Any]


def drawn(n: int, seed: int = 0, numel: int = 40, shared: float = 0.0) -> Rows:
    rng = np.random.default_rng(seed)
    return shared * rng.standard_normal(numel) + rng.standard_normal((n, numel))


def round_of(rows: Rows, weights: Sequence[float] = (), own: int = 0) -> Round:
    return Round(rows @ rows.T, tuple(weights) or (1.0,) * len(rows), own)


def made(rule: str, rows: Rows, weights: Sequence[float] = ()) -> Rows:
    """Return the last candidate."""
    return find_rule(rule)(round_of(rows, weights))[-1].of(rows)


def on_a_line(*values: float) -> Rows:
    return np.array(values)[:, None]


# --- what rules share -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_of_vectors_a_thousandth_as_long_a_thousandth_comes(rule: str) -> None:
    rows = drawn(9, shared=1.0).astype(np.float32)
    rows[4] *= 30
    for found, other in zip(of_all(rule, rows), of_all(rule, rows * 2.0**-10), strict=True):
        assert np.array_equal(other, found * 2.0**-10)


def of_all(rule: str, rows: Rows) -> tuple[Rows, ...]:
    return candidates(find_rule(rule), lambda: iter([rows]), [1.0] * len(rows))


def test_rules_expect_a_quarter_to_be_hostile() -> None:
    expected = {1: 0, 3: 0, 4: 1, 7: 1, 8: 2, 11: 2, 12: 3}
    assert {n: round_of(np.eye(n)).n_hostile_max for n in expected} == expected


def test_of_equally_distant_vectors_the_first_are_nearest() -> None:
    about = round_of(on_a_line(0.0, 1.0, -1.0, 1.0, 3.0))
    assert [about.nearest(0, n) for n in (1, 2, 3, 4)] == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert about.nearest(4, 3) == (1, 3, 4)


def test_a_mean_may_be_of_some_and_is_by_weight() -> None:
    rows = on_a_line(1.0, 2.0, 4.0)
    weights = [1.0, 0.5, 0.25]
    assert mean_of(weights).of(rows) == pytest.approx([3.0 / 1.75])
    assert mean_of(weights, [0, 2]).of(rows) == pytest.approx([2.0 / 1.25])


def test_a_mix_has_the_type_of_its_rows_and_drops_extremes_of_each_coordinate() -> None:
    rows = np.array([[5.0, 1.0], [1.0, 2.0], [2.0, 9.0], [3.0, 3.0]])
    trimmed = Mix(np.eye(4), (1.0, 2.0, 1.0, 1.0), trim=1)
    typed: tuple[Rows, ...] = rows, rows.astype(np.float32)
    for each in typed:
        found = trimmed.of(each)
        assert found.dtype == each.dtype
        assert found.tolist() == [(2.0 + 3.0) / 2, (1.0 + 3.0) / 2]


def test_a_mix_whose_numbers_do_not_fit_together_makes_nothing() -> None:
    with pytest.raises(ValueError, match="argument"):
        Mix(np.ones((2, 3)), (1.0,)).of(drawn(3))


def counted(norms: Sequence[float], own: int = 0) -> tuple[list[int], Round]:
    """Return which of vectors of these lengths a rule is shown, and how."""
    shown = []

    def rule(about: Round) -> tuple[Mix, ...]:
        shown.append(about)
        return mean(about)

    about = round_of(on_a_line(*norms), range(1, len(norms) + 1), own)
    (mix,) = without_outsized(rule, about)
    ((divisor,), (row,)) = mix.divisors, mix.coefficients
    kept = np.flatnonzero(row).tolist()
    assert row[kept].tolist() == [number + 1 for number in kept], "each by its own weight"
    assert divisor == sum(row)
    return kept, shown[0]


def test_a_vector_of_just_a_hundred_medians_is_kept_and_a_longer_one_is_not() -> None:
    assert counted([1.0, 1.0, 1.0, 1.0, OUTSIZED])[0] == [0, 1, 2, 3, 4]
    assert counted([1.0, 1.0, 1.0, 1.0, 1.01 * OUTSIZED])[0] == [0, 1, 2, 3]
    assert counted([4.0, 4.0, 4.0, 4.0, 3.96 * OUTSIZED])[0] == [0, 1, 2, 3, 4]


def test_of_an_even_number_the_lower_one_in_the_middle_is_the_median() -> None:
    long = 1.5 * OUTSIZED
    assert counted([1.0, long, 1.0, long, 1.0, long])[0] == [0, 2, 4]
    assert counted([1.0, long, long, 1.0, long])[0] == [0, 1, 2, 3, 4]


def test_of_a_few_none_can_be_told_to_be_outsized() -> None:
    few = limits.GROUP_TELLS_FROM - 1
    long = 1.5 * OUTSIZED
    assert counted([1.0] * (few - 1) + [long])[0] == [*range(few)]
    assert counted([1.0] * few + [long])[0] == [*range(few)]


def test_who_makes_a_part_is_known_by_its_number_among_those_that_are_kept() -> None:
    norms = [1.0, 2.0 * OUTSIZED, 1.0, 1.0, 1.0, 3.0 * OUTSIZED]
    owns = [counted(norms, own)[1].own for own in (0, 2, 3, 4)]
    assert owns == [0, 1, 2, 3]
    for liar in (1, 5):
        kept, about = counted(norms, liar)
        assert kept == [0, 2, 3, 4]
        assert 0 <= about.own < about.n


# --- the rules ------------------------------------------------------------------------------------


def test_a_loss_has_to_be_smaller_by_a_thousandth() -> None:
    for second in (1.0, 50.0, -1.0):
        assert better(second - 0.0012 * abs(second), second) == 0
        assert better(second - 0.0008 * abs(second), second) == 1
    assert better(0.0, 0.0) == 1, "a tie is the second's"


def test_members_are_told_apart_from_four_on() -> None:
    rows = drawn(4)
    assert [len(find_rule("best-of")(round_of(rows[:n]))) for n in (3, 4)] == [1, 2]
    first, second = find_rule("best-of")(round_of(rows))
    assert np.array_equal(first.of(rows), made("clipped-mean", rows))
    assert np.array_equal(second.of(rows), made("nnm-trimmed", rows))


class Drawn(random.Random):
    """Draws what it is told to, and notes between what."""

    def __init__(self, *values: int) -> None:
        super().__init__(0)
        self.values, self.between = [*values], list[tuple[int, ...]]()

    def randrange(self, *between: int) -> int:  # type: ignore[override]
        self.between.append(between)
        return self.values.pop(0)


def test_a_trial_comes_after_half_to_one_and_a_half_of_so_many_steps() -> None:
    rng, asked = Drawn(10, 64, 100), list[int]()
    trials = Trials(rng)

    def loss_of(candidate: float) -> float:
        asked.append(step)
        return candidate

    for step in range(120):
        trials.prefer(step, [1.0, 2.0], loss_of)
    assert asked == [10, 10, 74, 74]
    between = TRIAL_STEPS // 2, TRIAL_STEPS * 3 // 2
    assert rng.between == [(TRIAL_STEPS,), between, between]


def test_of_two_candidates_that_are_as_good_the_second_is_taken() -> None:
    trials = Trials(Drawn(0, 1, 1, 1))
    losses = iter([1.0, 2.0, 3.0, 3.0])
    found = [trials.prefer(step, [0, 0], lambda _: next(losses)) for step in (0, 1)]
    assert found == [0, 1]


def test_monna_is_the_mean_of_the_nearest_to_the_own_one_and_by_weight() -> None:
    rows, weights = on_a_line(7.0, 1.0, 0.0, 3.0, 50.0), (1.0, 0.5, 1.0, 1.0, 1.0)
    monna = find_rule("monna")
    (of_the_second,) = monna(round_of(rows, weights, own=1))
    assert of_the_second.of(rows) == pytest.approx([(0.0 + 0.5 + 3.0) / 2.5])
    (unsaid,) = monna(Round(rows @ rows.T, weights))
    assert unsaid.of(rows) == pytest.approx([(7.0 + 0.5 + 3.0) / 2.5]), "the first one's own"


def test_nnm_brings_mixtures_down_to_their_median_length() -> None:
    rows = on_a_line(1.0, 2.0, 3.0, 100.0, 4.0)
    near = [(1 + 2 + 3 + 4) / 4] * 4 + [(2 + 3 + 4 + 100) / 4]
    assert made("nnm", rows) == pytest.approx([sum(min(each, near[0]) for each in near) / 5])
    trimmed = made("nnm-trimmed", rows)
    assert trimmed == pytest.approx([near[0]])


def test_clipping_is_by_weight_and_to_the_lower_median() -> None:
    rows, weights = on_a_line(1.0, -2.0, 8.0, 4.0), (1.0, 0.5, 0.25, 1.0)
    expected = (1.0 * 1 - 0.5 * 2 + 0.25 * 2 + 1.0 * 2) / 2.75
    assert made("clipped-mean", rows, weights) == pytest.approx([expected])


def by_singular_vectors(rows: Rows, weights: Sequence[float]) -> Rows:
    """Return what the text of the flag aggregator has, of vectors that are there whole."""
    lengths = np.linalg.norm(rows, axis=1)
    present = lengths > 0
    directions = (rows[present] / lengths[present, None]).T
    n = directions.shape[1]
    m = min(-(-(n + 1) // 2), int(np.linalg.matrix_rank(directions)))
    a = np.ones(n)
    for _ in range(8):
        y = np.linalg.svd(directions * a, full_matrices=False)[0][:, :m]
        a = (np.abs(1 - np.square(y.T @ directions).sum(0)) + 1e-7) ** -0.25
    wanted = directions @ np.array(weights)[present]
    length = np.sort(lengths[present])[(n - 1) // 2]
    found: Rows = y @ (y.T @ wanted) * length / sum(weights)
    return found


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_flag_is_what_singular_vectors_say(n: int) -> None:
    rows = drawn(n, seed=n, shared=1.0) * np.linspace(0.5, 2.0, n)[:, None]
    weights = np.linspace(0.25, 1.0, n).tolist()
    found = made("flag", rows, weights)
    np.testing.assert_allclose(found, by_singular_vectors(rows, weights), atol=2e-5)


def test_flag_leaves_out_zeros_and_does_with_fewer_directions_than_it_may_have() -> None:
    rows = np.zeros((7, 5))
    rows[[0, 1, 2], 0] = 2.0, 4.0, 8.0
    rows[[3, 5], 1] = 1.0
    weights = [1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.25]
    expected = np.zeros(5)
    expected[:2] = 2.0 * (1.0 + 0.5 + 1.0) / 5.75, 2.0 * (1.0 + 1.0) / 5.75
    np.testing.assert_allclose(made("flag", rows, weights), expected, atol=2e-5)


def by_pairs(rows: Rows, weights: Sequence[float]) -> Rows:
    """Return the mean of votes as its text has it, pair by pair."""
    n, kept = len(rows), list(range(len(rows)))
    lengths = np.linalg.norm(rows, axis=1)
    u = rows / np.where(lengths, lengths, 1.0)[:, None]

    def middle(values: Sequence[float]) -> tuple[float, float]:
        usual = sorted(values)[len(values) // 2]
        return usual, sorted(abs(value - usual) for value in values)[len(values) // 2]

    while True:
        pairs = [(i, j) for i in kept for j in kept if i < j]
        usual, spread = middle([float(u[i] @ u[j]) for i, j in pairs])
        rho = min(max(usual + SPREADS * spread, 0.0), 0.98)
        alike = {
            (i, j): min(max(float(u[i] @ u[j] - rho) / (1 - rho), 0.0), 1.0)
            for i in kept
            for j in kept
            if i != j
        }
        votes = {i: 1 / (1 + sum(alike[i, j] for j in kept if j != i)) for i in kept}
        agreement = {}
        for i in kept:
            rest = sum((1 - alike[i, j]) * votes[j] * u[j] for j in kept if j != i)
            length = float(np.linalg.norm(rest))
            agreement[i] = float(u[i] @ rest) / length if length else 0.0
        worst = min(kept, key=lambda i: agreement[i])
        if agreement[worst] >= -OPPOSED or len(kept) == n // 2 + 1:
            break
        kept.remove(worst)
    usual, spread = middle([agreement[i] for i in kept])
    least = usual - SPREADS * spread
    counts = {
        i: weights[i] * votes[i] * (min(max(agreement[i] / least, 0.0), 1.0) if least > 0 else 1.0)
        for i in kept
    }
    reach = max(1.0, min((n - n // 4) ** 0.5 / 1.2, 2.0, 8 / n**0.5))
    bound = reach * sorted(lengths[kept])[len(kept) // 2]
    clipped = {i: min(1.0, bound / lengths[i]) if lengths[i] else 1.0 for i in kept}
    summed = sum(counts[i] * clipped[i] * rows[i] for i in kept)
    found: Rows = summed / sum(counts.values())
    return found


def scene(name: str) -> Rows:
    rows = drawn(9, seed=5, shared=1.0)
    match name:
        case "they agree":
            rows[2] *= 40
        case "one agrees less":
            rows[3] = drawn(1, seed=6)[0] + 0.2 * rows[1]
        case "copies":
            rows[5:8] = rows[4]
        case "right angles":
            rows = np.eye(9, 40) * np.linspace(1.0, 9.0, 9)[:, None]
        case "a few oppose":
            rows[:2] = -rows[8] + 0.3 * drawn(2, seed=7)
        case "nearly half oppose":
            rows[:4] -= 4 * rows[8]
        case "half of eight oppose":
            rows = rows[:8]
            rows[:4] = -rows[4:] + 0.1 * drawn(4, seed=8)
        case "all are the same":
            rows[:] = rows[0]
        case "some have learnt nothing":
            rows[[1, 6]] = 0.0
        case "no two agree":
            rows = drawn(20, seed=9, numel=30)
        case "twenty":
            rows = drawn(20, seed=10, shared=0.7)
            rows[3] *= 3
    return rows


SCENES = (
    "they agree",
    "one agrees less",
    "copies",
    "right angles",
    "a few oppose",
    "nearly half oppose",
    "half of eight oppose",
    "all are the same",
    "some have learnt nothing",
    "no two agree",
    "twenty",
)


@pytest.mark.parametrize("name", SCENES)
def test_votes_are_what_the_text_says_pair_by_pair(name: str) -> None:
    rows = scene(name)
    weights = np.linspace(0.3, 1.0, len(rows)).tolist()
    found = made("sybil-mean", rows, weights)
    np.testing.assert_allclose(found, by_pairs(rows, weights), rtol=1e-9, atol=1e-12)


# --- payloads, and messages -----------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["best-of", "sybil-mean"])
def test_a_piece_has_a_hash_for_each_candidate_of_its_first_view(rule: str) -> None:
    views = [ViewShape("delta", "RAW32", 300), ViewShape("phi", "Q8B64", 1000)]
    (piece,) = cut_pieces(cut_chunks(views, "RAW32"), 1)
    rows = drawn(6, numel=1300).astype(np.float32)
    shares = [[part_of(row, part) for part in piece] for row in rows]
    weights, own = [1.0, 0.5, 1.0, 1.0, 1.0, 1.0], 2
    first, second = by_view(piece).values()
    heads, tails = shares_of(shares, 0, len(first)), shares_of(shares, len(first), len(piece))
    mixes = find_mixes(rule, first, heads, weights, own)
    last = encode_parts(find_mixes(rule, second, tails, weights, own)[-1], second, tails)
    expected = [hash_payload([*encode_parts(mix, first, heads), *last]) for mix in mixes]
    assert hashes_of(rule, piece, shares, weights, own) == expected
    assert len(set(expected)) == (2 if rule == "best-of" else 1)


def part_of(row: NDArray[np.float32], part: Part) -> bytearray:
    begin = part.chunk.begin + part.begin
    payload = bytearray(part.codec.payload_bytes(part.numel))
    part.codec.encode(row[begin : begin + part.numel].data, payload)
    return payload


def shares_of(shares: list[list[bytearray]], begin: int, end: int) -> list[list[bytearray]]:
    return [share[begin:end] for share in shares]


def message(*parts: Sequence[float]) -> Message:
    return Message(b"1" * 32, lambda: iter([torch.tensor(part) for part in parts]))


def test_messages_come_in_parts_and_all_count_the_same() -> None:
    messages = [message([1.0, 2.0], [3.0]), message([5.0, 4.0], [7.0])]
    for loss_of in (None, unasked):
        found = aggregate(find_rule("mean"), messages, loss_of)
        assert torch.equal(found, torch.tensor([3.0, 3.0, 5.0]))
    with pytest.raises(ValueError, match="shorter"):
        aggregate(find_rule("mean"), [messages[0], message([5.0, 4.0])])


def unasked(_: torch.Tensor) -> float:
    raise AssertionError("of one candidate no loss is asked for")


@pytest.mark.parametrize("liked", [0, 1])
def test_of_two_candidates_the_one_with_the_smaller_loss_is_taken(liked: int) -> None:
    rows = drawn(6).astype(np.float32)
    messages = [message(row[:30], row[30:]) for row in rows.tolist()]
    both = [torch.from_numpy(each) for each in of_all("best-of", rows)]
    rule = find_rule("best-of")
    found = aggregate(rule, messages, lambda x: float(not torch.equal(x, both[liked])))
    assert torch.equal(found, both[liked])
    assert torch.equal(aggregate(rule, messages), both[1])


def test_losses_of_honest_models_differ_by_a_tenth_and_a_fiftieth() -> None:
    for before in (0.0, 1.0, 4.0):
        assert is_mild(before, 1.1 * before + 0.0199)
        assert not is_mild(before, 1.1 * before + 0.0201)


def test_what_no_rule_weighs_counts_whole() -> None:
    assert (ACCEPTED.refusal, ACCEPTED.share) == (None, 1.0)


FACTS = TaskFacts("any")


@pytest.mark.parametrize("merge", RULES)
def test_a_rule_for_many_is_for_groups(merge: str) -> None:
    check_strategy("streaming", {"merge": merge}, FACTS)
    pairs = {"meet": "pair", "merge": merge}
    if merge in get_args(PairMerge):
        check_strategy("streaming", pairs, FACTS)
    else:
        with pytest.raises(ConfigError, match="expected merge mean or variance-corrected with"):
            check_strategy("streaming", pairs, FACTS)


@pytest.mark.parametrize("meet", ["pair", "group"])
@pytest.mark.parametrize("reference", [False, True])
def test_widening_is_for_pairs_without_a_reference(meet: str, reference: bool) -> None:
    settings = {"meet": meet, "reference": reference, "merge": "variance-corrected"}
    if (meet, reference) == ("pair", False):
        check_strategy("streaming", settings, FACTS)
    else:
        with pytest.raises(ConfigError, match="expected reference false and meet pair"):
            check_strategy("streaming", settings, FACTS)
    check_strategy("streaming", settings | {"merge": "mean"}, FACTS)


@pytest.mark.parametrize(
    ("fine", "wrong", "message"),
    [
        ({"gamma": 1.99}, {"gamma": 2.01}, "gamma below 2, .* over random groups"),
        ({"meet": "pair", "gamma": 1.49}, {"gamma": 1.51}, "gamma below 1.5, .* random pairs"),
        ({"delta_codec": "t3b320"}, {"delta_codec": "TK4"}, "codec that stands alone, .* 'TK4'"),
        ({"weights_codec": "q8b64"}, {"weights_codec": "Q9"}, "codec that stands alone, .* 'Q9'"),
        ({"every": 4, "fragments": 4}, {"every": 3}, "at most one fragment a step"),
        ({"every": 8, "fragments": 2, "overlap": 3}, {"overlap": 4}, "overlap below every"),
    ],
)
def test_settings_are_refused_from_where_they_cannot_work_on(
    fine: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    check_strategy("streaming", fine, FACTS)
    with pytest.raises(ConfigError, match=message):
        check_strategy("streaming", fine | wrong, FACTS)
