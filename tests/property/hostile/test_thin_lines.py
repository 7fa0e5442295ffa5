"""Members on lines of 1 Mbit/s are in means of four million parameters, and hold others little."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import get_args

import pytest

from swarmnode import limits
from tests.property.models.thin_line_world import Thin, ThinWorld

EVERY_S, WARM_S, WATCHED_S = 8.0, 60.0, 1200.0


@functools.cache
def watched(manner: Thin | None) -> ThinWorld:
    """Return a world of five fast members after a while, and one more on a thin line with them."""
    world = ThinWorld(every_s=EVERY_S)
    world.run(WARM_S)
    if manner is not None:
        world.let_in(manner)
    world.run(WATCHED_S)
    return world


def test_members_that_are_all_as_thin_commit_one_mean_after_the_other() -> None:
    world = ThinWorld(every_s=EVERY_S, n_thin=5)
    world.run(WATCHED_S)
    for peer in world.honest:  # 26 s for shares, as long for sums, and the pause
        assert len(world.members[peer].commits_s) >= 0.8 * WATCHED_S / (2 * 26 + EVERY_S)


def test_one_thin_member_among_fast_ones_commits_again_and_again() -> None:
    world = watched("honest")
    commits_s = world.members[world.attacker].commits_s
    gaps_s = [later - earlier for earlier, later in pairwise([WARM_S, *commits_s])]
    assert len(commits_s) >= 3
    # A round for it takes 2 · 27 s, an eighth of the time.
    assert max(gaps_s) <= 1.25 * 2 * 27 / limits.ROUND_THIN_SHARE


@pytest.mark.parametrize("manner", get_args(Thin))
def test_the_fast_ones_keep_four_fifths_of_their_means(manner: Thin) -> None:
    commits, alone = (watched(each).commits(since_s=WARM_S) for each in (manner, None))
    assert commits >= 0.8 * alone


@pytest.mark.parametrize("manner", [each for each in get_args(Thin) if each != "honest"])
def test_one_that_holds_a_round_for_nothing_holds_no_other_for_ten_minutes(manner: Thin) -> None:
    world = watched(manner)
    longest_s = world.gaps_s(WARM_S)[-1]
    stage_s = limits.ROUND_THIN_SLACK * max(world.needs_s(6).values())
    assert longest_s <= 3 * stage_s + 2 * EVERY_S, "three stages, and it is over"
    lengths_s = [gap for gap in world.gaps_s(WARM_S) if gap > 3 * EVERY_S]
    assert len(lengths_s) <= 5 * (1 + WATCHED_S / limits.ROUND_THIN_AGAIN_S)
