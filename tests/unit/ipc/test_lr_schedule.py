"""The learning rate as a function of the swarm's progress."""

import pytest

from swarmnode.ipc.lr_schedule import (
    MEMBERS_EXPONENT,
    MEMBERS_MAX,
    Horizon,
    ema_weight,
    is_decayed,
    lr_factor,
    members_factor,
)
from swarmnode.wire.recipe import Recipe

TARGET = 1_000_000
END = Horizon(TARGET)


def test_the_learning_rate_warms_up_and_follows_a_cosine_down_to_its_last_share():
    recipe = Recipe(schedule="cosine", warmup_tokens=50_000, lr_final=0.05)
    assert 0 < lr_factor(recipe, 0, END) < 1e-4
    assert lr_factor(recipe, 25_000, END) == pytest.approx(0.5, rel=1e-3)
    assert lr_factor(recipe, 50_000, END) == 1.0
    middle = (50_000 + TARGET) / 2
    assert lr_factor(recipe, middle, END) == pytest.approx(0.525)
    assert lr_factor(recipe, TARGET, END) == pytest.approx(0.05)
    assert lr_factor(recipe, 10 * TARGET, END) == pytest.approx(0.05)


def test_warm_up_stable_decay_is_constant_until_its_last_part():
    recipe = Recipe(schedule="wsd", decay_share=0.2, lr_final=0.1)
    assert lr_factor(recipe, 0.8 * TARGET, END) == 1.0
    assert lr_factor(recipe, 0.9 * TARGET, END) == pytest.approx(0.55)
    assert lr_factor(recipe, TARGET, END) == pytest.approx(0.1)
    assert not is_decayed(recipe, 0.5 * TARGET, END)
    assert is_decayed(recipe, 0.9 * TARGET, END)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "wsd"])
def test_without_an_end_nothing_decays_and_a_larger_swarm_is_not_faster(schedule):
    recipe = Recipe(schedule=schedule, members_exponent=0.86, members_max=8)
    for tokens in (0, 1e6, 1e12):
        assert lr_factor(recipe, tokens, Horizon(), members=8) == 1.0


def test_more_members_take_the_larger_steps_that_were_measured():
    recipe = Recipe(members_exponent=MEMBERS_EXPONENT, members_max=MEMBERS_MAX)
    factors = [members_factor(recipe, n) for n in (0.0, 1, 4, 8, 64)]
    assert factors == pytest.approx([1, 1, 1.41, 1.68, 1.68], rel=0.01)
    # Four nodes do as well from .02 to .03, within what runs differ by; see MEMBERS_EXPONENT.
    assert 0.02 < 0.02 * factors[2] < 0.03


def test_training_that_goes_on_after_its_end_warms_up_again_and_ends_at_the_new_target():
    recipe = Recipe(schedule="cosine", warmup_tokens=50_000)
    on = Horizon(2 * TARGET, resumed_tokens=TARGET)
    assert lr_factor(recipe, TARGET, on) < 0.001
    warm = lr_factor(recipe, TARGET + 50_000, on)
    assert warm == pytest.approx(lr_factor(recipe, TARGET + 50_000, Horizon(2 * TARGET)))
    assert lr_factor(recipe, 2 * TARGET, on) == pytest.approx(recipe.lr_final)
    assert lr_factor(recipe, TARGET / 2, on) == lr_factor(recipe, TARGET / 2, Horizon(2 * TARGET))
    assert END.is_reached(TARGET)
    assert not on.is_reached(TARGET)
    assert not Horizon().is_reached(1e18)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_thousandth_of_progress_is_less_than_a_percent_of_learning_rate(schedule):
    recipe = Recipe(schedule=schedule, lr_final=0.2)
    for tokens in range(0, TARGET, TARGET // 200):
        here, there = (lr_factor(recipe, tokens + d, END) for d in (0, TARGET // 1000))
        assert abs(there / here - 1) < 0.02
        assert there <= here


def test_the_mean_is_over_a_share_of_the_progress():
    recipe = Recipe(ema_share=0.1)
    mean = 0.0
    for step in range(1, 1001):
        mean += ema_weight(recipe, (step - 1) * 1000, step * 1000) * (step - mean)
    assert mean == pytest.approx(1000 * (1 - 0.1 / 1.1), rel=0.01)  # of t^(1/share)
    assert ema_weight(Recipe(), 5, 6) == 1.0
    assert ema_weight(recipe, 6, 5) == 0.0
