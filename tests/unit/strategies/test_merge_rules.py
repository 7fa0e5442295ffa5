"""Rules over many vectors: what each makes of few numbers, and of members that send nonsense."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest

from swarmnode.ipc.records import ViewShape
from swarmnode.strategies.merging.best_of import better
from swarmnode.strategies.merging.mixing import Measured, Mix, Round
from swarmnode.strategies.merging.rules import (
    candidates,
    encode_parts,
    find_mixes,
    find_rule,
    mixed_values,
    without_outsized,
)
from swarmnode.strategies.merging.slot import GroupMerge, is_mild
from swarmnode.tensor.codec import get_codec
from swarmnode.tensor.pieces import Part, cut_chunks

RULES = get_args(GroupMerge)

NUMEL = 10_000  # more than a block
ROBUST = [
    "clipped-mean",
    "nnm",
    "nnm-trimmed",
    "trimmed-mean",
    "monna",
    "flag",
    "best-of",
    "sybil-mean",
]


def drawn(n, seed=0, numel=NUMEL):
    """Return vectors that share a direction, as pseudo-gradients do: [n, numel]."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal(numel)
    return (shared + rng.standard_normal((n, numel))).astype(np.float32)


def made(rule, rows, weights=None, **options):
    weights = [1.0] * len(rows) if weights is None else weights
    return candidates(find_rule(rule), lambda: iter([rows]), weights, **options)


def cosine(one, other):
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_the_mean_has_the_bits_that_daemons_without_a_rule_come_to():
    rows, weights = drawn(5), [1.0, 0.125, 1.0, 0.7, 1 / 3]
    plain = bytearray(rows[0].nbytes)
    get_codec("RAW32").encode_mean(
        [row.tobytes() for row in rows], weights, sum(weights), plain, NUMEL
    )
    (found,) = made("mean", rows, weights)
    assert found.tobytes() == bytes(plain)


@pytest.mark.parametrize("name", ["Q8B64", "E3M0", "T3B320", "TK4"])
def test_long_payloads_are_taken_a_slice_at_a_time_between_blocks(name):
    numel = 150_000
    (chunk,) = cut_chunks([ViewShape("x", name, numel)], "Q8B64")
    payloads = [bytearray(chunk.codec.payload_bytes(numel)) for _ in range(3)]
    decoded = np.empty((3, numel), np.float32)
    for row, values, payload in zip(decoded, drawn(3, numel=numel), payloads, strict=True):
        chunk.codec.encode(values.data, payload)
        chunk.codec.decode(payload, row.data)
    parts, shares = [Part(0, chunk, 0, numel)], [[payload] for payload in payloads]
    for rule in ("mean", "trimmed-mean", "best-of"):
        expected = made(rule, decoded)
        mixes = find_mixes(rule, parts, shares, [1.0] * 3, 0)
        for mix, values in zip(mixes, expected, strict=True):
            assert mixed_values(mix, parts, shares).tobytes() == values.tobytes()
            payload = bytearray(chunk.codec.payload_bytes(numel))
            chunk.codec.encode(values.data, payload)
            assert encode_parts(mix, parts, shares) == [payload]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_of_three_or_less_none_can_be_told_from_the_others(n):
    rows, weights = drawn(n), [0.5] * n
    (plain,) = made("mean", rows, weights)
    for rule in ("best-of", "nnm-trimmed", "nnm", "sybil-mean"):
        (found,) = made(rule, rows, weights)
        assert np.array_equal(found, plain), rule


def test_the_inner_products_are_those_of_the_vectors_however_they_are_cut():
    rows = drawn(6)
    measured = Measured(6)
    for begin in range(0, NUMEL, 3000):
        measured.add(rows[:, begin : begin + 3000])
    wide = rows.astype(np.float64)
    np.testing.assert_allclose(measured.gram(), wide @ wide.T, rtol=1e-10)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_parts_give_the_bits_of_the_whole(rule):
    rows = drawn(8)
    cuts = [0, 4096, 8192, NUMEL]

    def parts():
        return (rows[:, begin:end] for begin, end in itertools.pairwise(cuts))

    whole = made(rule, rows)
    in_parts = candidates(find_rule(rule), parts, [1.0] * 8)
    for one, other in zip(whole, in_parts, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("factor", [1e30, -1e6, -10.0])
def test_a_quarter_of_the_members_cannot_turn_what_the_others_learnt(rule, factor):
    rows = drawn(8)
    honest = rows[2:].mean(0)
    rows[:2] = factor * honest
    found = made(rule, rows, own=3)[-1]
    assert cosine(found, honest) > 0.8
    assert np.linalg.norm(found) < 2 * np.linalg.norm(honest)


@pytest.mark.parametrize("factor", [1e30, -10.0])
def test_the_mean_itself_is_turned(factor):
    rows = drawn(8)
    honest = rows[2:].mean(0)
    rows[:2] = factor * honest
    (found,) = made("mean", rows)
    assert np.linalg.norm(found.astype(np.float64) - honest) > np.linalg.norm(honest)


@pytest.mark.parametrize("rule", ROBUST)
def test_without_hostile_members_it_points_where_the_mean_does(rule):
    rows = drawn(12)
    (plain,) = made("mean", rows)
    for found in made(rule, rows, own=2):
        assert cosine(found, plain) > 0.95


def test_coordinates_are_no_matter_for_sparse_messages():
    rng = np.random.default_rng(1)
    rows = np.where(rng.random((20, NUMEL)) < 0.02, drawn(20), 0).astype(np.float32)
    (trimmed,) = made("trimmed-mean", rows)
    (neighbours,) = made("nnm-trimmed", rows)
    assert not trimmed.any(), "most values of each coordinate are zero"
    assert cosine(neighbours, rows.mean(0)) > 0.5


def test_clipping_brings_a_vector_down_to_the_median_norm_and_none_up():
    rows = np.stack([np.full(10, value, np.float32) for value in (1, 2, 3)])
    (found,) = made("clipped-mean", rows)
    np.testing.assert_allclose(found, np.full(10, (1 + 2 + 2) / 3), rtol=1e-6)


def at_right_angles(n, n_hostile, factor):
    """Return vectors that have nothing in common, and liars that turn their mean around."""
    rows = np.eye(n, 4096, dtype=np.float32)
    rows[n - n_hostile :] = factor * rows[: n - n_hostile].mean(0)
    return rows


@pytest.mark.parametrize(("n", "n_hostile"), [(4, 1), (5, 1), (8, 2), (20, 4), (20, 8), (64, 16)])
@pytest.mark.parametrize("factor", [-1.0, -10.0, -1e6])
def test_those_who_turn_around_what_others_learn_are_left_out(n, n_hostile, factor):
    rows = at_right_angles(n, n_hostile, factor)
    honest = rows[: n - n_hostile].mean(0)
    (found,) = made("sybil-mean", rows)
    assert cosine(found, honest) > 0.99
    assert np.linalg.norm(found) > 0.99 * np.linalg.norm(honest)


def test_of_clipped_vectors_each_copy_counts():
    rows = at_right_angles(20, 8, -10.0)
    (found,) = made("clipped-mean", rows)
    assert cosine(found, rows[:12].mean(0)) < -0.9


@pytest.mark.parametrize(("n", "n_hostile"), [(8, 2), (20, 5), (64, 16)])
@pytest.mark.parametrize("share", np.linspace(0.1, 1.0, 10))
def test_liars_who_hide_their_likeness_in_noise_turn_nothing_around(n, n_hostile, share):
    rows = at_right_angles(n, n_hostile, -1.0)
    honest = rows[: n - n_hostile].mean(0)
    pushed = -share * honest / np.linalg.norm(honest)
    rows[n - n_hostile :] = 100 * pushed
    rows[range(n - n_hostile, n), range(100, 100 + n_hostile)] = 100 * np.sqrt(1 - share**2)
    (found,) = made("sybil-mean", rows)
    assert found @ honest > 0.35 * honest @ honest


def test_a_vector_that_is_sent_again_takes_its_vote_from_the_first_only():
    rows = np.eye(8, 16, dtype=np.float32)
    rows[6:] = rows[0]
    (found,) = made("sybil-mean", rows)
    np.testing.assert_allclose(found[:6], 1 / 6, rtol=1e-6)


def test_members_that_learn_from_like_data_keep_their_votes_and_copies_share_theirs():
    rows = drawn(8)
    rows[7] = rows[6]
    wide = rows.astype(np.float64)
    (mix,) = find_rule("sybil-mean")(Round(wide @ wide.T, (1.0,) * 8))
    counts = mix.coefficients[0] / mix.coefficients[0].max()
    assert counts[:6].min() > 0.9
    assert counts[6:] == pytest.approx(0.5, abs=0.05)


def counts(rows):
    """Return how much each vector counts by ``sybil-mean``, of the one that counts most: [n]."""
    wide = rows.astype(np.float64)
    (mix,) = find_rule("sybil-mean")(Round(wide @ wide.T, (1.0,) * len(rows)))
    return mix.coefficients[0] / mix.coefficients[0].max()


def with_old(n_hostile, n=8):
    """Return vectors that agree, and one of long ago: it agrees a little, and is sent by some."""
    rows = drawn(n)
    old = np.random.default_rng(7).standard_normal(NUMEL) + 0.1 * rows[0]
    rows[n - n_hostile :] = old
    return rows


@pytest.mark.parametrize("n_hostile", [1, 2])
def test_where_most_agree_an_old_vector_counts_by_how_much_it_does(n_hostile):
    found = counts(with_old(n_hostile))
    assert found[: 8 - n_hostile].min() > 0.95
    assert sum(found[8 - n_hostile :]) < 0.3


def test_copies_do_not_agree_with_each_other():
    one, two = counts(with_old(1)), counts(with_old(2))
    assert two[7] == pytest.approx(one[7] / 2, rel=0.1)


def test_noise_counts_for_little_where_most_agree():
    rows = drawn(8)
    rows[6:] = 1e4 * np.random.default_rng(7).standard_normal((2, NUMEL))
    assert counts(rows)[6:].max() < 0.1


def test_where_honest_vectors_are_at_right_angles_none_is_judged_by_how_little_it_agrees():
    rows = np.random.default_rng(3).standard_normal((20, 256)).astype(np.float32)
    assert counts(rows).min() > 0.5


@pytest.mark.parametrize(
    ("n", "reach"), [(4, 3**0.5 / 1.2), (5, 5 / 3), (9, 2.0), (16, 2.0), (25, 1.6), (64, 1.0)]
)
def test_a_vector_is_no_longer_than_one_or_two_medians(n, reach):
    rows = np.eye(n, 4096, dtype=np.float32)
    rows[0] *= 1000
    (found,) = made("sybil-mean", rows)
    np.testing.assert_allclose(found[0], reach / n, rtol=1e-6)
    np.testing.assert_allclose(found[1:n], 1 / n, rtol=1e-6)


def test_of_two_in_the_middle_the_larger_one_is_the_median_of_lengths():
    """Who takes more steps than most in a round is as long as that: 4.5 to 0.4 at speeds of 8."""
    rows = np.diag([4.5, 2.6, 1.0, 0.4]).astype(np.float32)
    (found,) = made("sybil-mean", rows)
    reach = 3**0.5 / 1.2
    np.testing.assert_allclose(found, np.array([2.6 * reach, 2.6, 1.0, 0.4]) / 4, rtol=1e-6)


def test_neighbourhoods_weigh_their_members():
    rows = np.array([[1.0], [2.0], [3.0], [100.0]], np.float32)
    (found,) = made("nnm", rows, [1.0, 0.5, 1.0, 1.0])
    near = (1 * 1.0 + 2 * 0.5 + 3 * 1.0) / 2.5  # of the fourth it is 41.6, and brought down
    np.testing.assert_allclose(found, [near], rtol=1e-6)


def test_monna_stays_with_those_that_are_near_to_its_own():
    rows = np.array([[0.0], [1.0], [2.0], [50.0], [51.0], [52.0], [53.0], [54.0]], np.float32)
    (found,) = made("monna", rows, own=1)
    np.testing.assert_allclose(found, [(0 + 1 + 2 + 50) / 4])


def test_bristle_takes_the_nearest_and_by_chance_some_of_the_rest():
    rows = np.array([[1.0], [1.0], [1.0], [1.0], [2.0], [4.0], [8.0], [16.0]], np.float32)
    found = {float(made("bristle", rows, seed=str(seed))[0][0]) for seed in range(40)}
    assert found == {1.0}, "what is explored is no longer than most of what was taken"
    rows[4:] *= -1
    found = {float(made("bristle", rows, seed=str(seed))[0][0]) for seed in range(40)}
    np.testing.assert_allclose(sorted(found), [(4 - 1) / 5], rtol=1e-6)


@pytest.mark.parametrize("n", [2, 3])
def test_bristle_of_two_or_three_keeps_its_own(n):
    rows = np.array([[1.0], [1.5], [2.0]], np.float32)[:n]
    assert [float(made("bristle", rows, own=own)[0][0]) for own in range(n)] == [*rows[:, 0]]


def test_flag_keeps_what_vectors_have_in_common():
    rows = np.zeros((6, 8), np.float32)
    rows[:, 0] = 3.0
    rows[np.arange(6), 1 + np.arange(6)] = 0.01
    (found,) = made("flag", rows)
    np.testing.assert_allclose(found[0], 3.0, rtol=1e-3)
    assert np.abs(found[1:]).max() < 0.01


def test_honest_models_differ_by_a_tenth_and_a_little_more():
    assert is_mild(1.0, 1.1)
    assert is_mild(0.0, 0.01), "near convergence"
    assert not is_mild(1.0, 1.15)
    assert not is_mild(0.0, 0.05)


def test_the_nearest_vectors_are_those_at_the_smallest_distance():
    line = np.array([1.0, 1.5, 0.8, -1.0, 0.7])
    about = Round(np.outer(line, line), (1.0,) * len(line))
    assert [about.nearest(0, n) for n in (1, 2, 3)] == [(0,), (0, 2), (0, 2, 4)]
    assert about.nearest(3, 2) == (3, 4)


def counted(rows):
    """Return which vectors are in the mean of those that are not outsized."""
    wide = rows.astype(np.float64)
    (mix,) = without_outsized(find_rule("mean"), Round(wide @ wide.T, (1.0,) * len(rows)))
    return np.flatnonzero(mix.coefficients[0]).tolist()


def test_two_of_five_that_have_learnt_nothing_make_the_others_not_outsized():
    rows = drawn(5, numel=64)
    rows[:2] *= 1e-6
    assert counted(rows) == [0, 1, 2, 3, 4]
    rows[4] *= 1000
    assert counted(rows) == [0, 1, 2, 3]


def test_nothing_learnt_gives_nothing():
    for rule in sorted(RULES):
        for found in made(rule, np.zeros((5, 7), np.float32)):
            assert not found.any(), rule


def test_the_probe_decides_only_what_it_can_tell():
    assert better(1.0, 2.0) == 0
    assert better(2.0, 1.0) == 1
    assert better(0.9999, 1.0) == 1, "machines differ by less than that"
    assert better(float("nan"), 1.0) == 1
    assert better(float("inf"), 1.0) == 1


def test_only_one_mixture_is_a_weighted_mean_that_codecs_can_make_of_payloads():
    assert Mix(np.ones((1, 4)), (4.0,)).is_weighted_mean
    assert not Mix(np.ones((3, 4)), (4.0, 4.0, 4.0)).is_weighted_mean
    assert not Mix(np.ones((3, 4)), (4.0, 4.0, 4.0), trim=1).is_weighted_mean
