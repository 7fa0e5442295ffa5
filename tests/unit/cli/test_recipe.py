"""The recipe of a new swarm: what its task says, what its creator says, and both in words."""

import pytest

from swarmnode.cli.swarm.recipe import make_recipe, parse_settings, recipe_words
from swarmnode.errors import ConfigError
from swarmnode.ipc.lr_schedule import Horizon
from swarmnode.quantities import parse_count
from swarmnode.wire.recipe import Recipe

LANGUAGE = {"schedule": "cosine", "warmup_tokens": 100_000, "clip_norm": 1.0}


def test_what_the_creator_says_comes_on_top_of_the_tasks_recipe():
    settings = parse_settings(("recipe.clip_norm=0.5", "dim=8", "strategy.every=4"))
    assert settings == ({"dim": 8}, {"every": 4}, {"clip_norm": 0.5})
    recipe = make_recipe(LANGUAGE, settings[2], 10**9, "wsd")
    assert recipe == Recipe(
        schedule="wsd", warmup_tokens=100_000, clip_norm=0.5, target_tokens=10**9
    )


def test_the_warm_up_of_a_short_training_is_a_part_of_it():
    assert make_recipe(LANGUAGE, {}, 1_000_000, None).warmup_tokens == 50_000
    chosen = make_recipe(LANGUAGE, {"warmup_tokens": 400_000}, 1_000_000, None)
    assert chosen.warmup_tokens == 400_000
    assert make_recipe(LANGUAGE, {}, 0, None).warmup_tokens == 100_000


def test_a_mean_over_the_last_steps_is_for_swarms_whose_learning_rate_never_falls():
    task = LANGUAGE | {"ema_share": 0.05}
    assert make_recipe(task, {}, 0, None).ema_share == 0.05
    assert make_recipe(task, {}, 10**9, None).ema_share == 0
    assert make_recipe(task, {"target_tokens": 10**9}, 0, None).ema_share == 0
    assert make_recipe(task, {}, 10**9, "constant").ema_share == 0.05
    assert make_recipe(task, {"ema_share": 0.1}, 10**9, None).ema_share == 0.1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr": 1}, "unknown setting 'lr'; known settings: schedule, "),
        ({"clip_norm": -1}, "recipe: setting clip_norm: expected `float` >= 0.0, got -1"),
        ({"schedule": "linear"}, "expected one of constant, cosine, wsd, got 'linear'"),
    ],
)
def test_what_no_recipe_has_is_refused(settings, said):
    with pytest.raises(ConfigError) as caught:
        make_recipe(LANGUAGE, settings, 0, None)
    assert said in str(caught.value)


def test_a_recipe_in_words():
    assert recipe_words(None) == "none: each member's optimizer is as the task made it"
    assert recipe_words(make_recipe(LANGUAGE, {}, 0, None)) == (
        "no end yet; learning rate: warm-up 100,000 tokens, then cosine down to 5%;"
        " gradients clipped at 1"
    )
    everything = Recipe(
        members_exponent=0.86,
        members_max=8,
        batches_per_step=4,
        weight_decay=0.1,
        ema_share=0.05,
        target_tokens=300,
    )
    assert recipe_words(everything, Horizon(500)) == (
        "500 tokens of the whole swarm; learning rate: constant, over the last 25% down to 5%;"
        " × members^0.86 up to 8 of them, once there is an end; 4 batches a step;"
        " weight decay 0.1; exported as a mean over the last 5%"
    )
    assert recipe_words(Recipe(schedule="constant")) == "no end yet; learning rate: constant"


@pytest.mark.parametrize(
    ("text", "count"),
    [("300M", 300_000_000), ("2.5B", 2_500_000_000), ("40k", 40_000), ("1_000", 1000), ("7", 7)],
)
def test_counts_as_people_write_them(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "1e9", "3MM", "many", "1" * 40])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(ConfigError, match="expected a number such as 300M"):
        parse_count(text)
