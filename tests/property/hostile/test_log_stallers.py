"""One member of six that holds up the log: the others close most of their rounds without it."""

from __future__ import annotations

import functools

import pytest
import trio
import trio.testing

from tests.kits.hostile.attacks import ATTACKS, replaced_parts
from tests.kits.log_kit import check_agreement, join, writers

pytestmark = pytest.mark.slow

N_HONEST = 5
WARM_S, WATCHED_S = 20.0, 240.0
STEP_S = 1.0


async def _rounds_closed(attack: str) -> int:
    """Return how many rounds the honest members close beside a sixth one, over all of them."""
    async with writers(N_HONEST, delay_s=0.02, step_s=STEP_S) as (made, honest):
        await made.until(lambda: all(len(w.rounds) >= 2 for w in honest), 60)
        await trio.sleep(WARM_S)
        with replaced_parts(ATTACKS[attack], lambda _: True):
            await join(made, "hostile")
        before = sum(len(w.rounds) for w in honest)
        await trio.sleep(WATCHED_S)
        check_agreement(*honest)
        return sum(len(w.rounds) for w in honest) - before


@functools.cache
def rounds_closed(attack: str, turn: int = 0) -> int:
    """Return that of one ``turn``: which task is the first of two follows from no seed."""
    del turn
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_rounds_closed, attack, clock=clock)


@pytest.mark.parametrize(
    "attack",
    [
        *(f"round-{stall}" for stall in ("enlist", "flush", "sum", "prepared")),
        *(f"round-{cuts}" for cuts in ("cuts", "cuts-late")),
    ],
)
def test_four_fifths_of_the_rounds_are_left(attack: str) -> None:
    assert rounds_closed(attack) >= 0.8 * rounds_closed("none")


@pytest.mark.parametrize("attack", ["round-share", "round-cuts-one"])
def test_two_fifths_are_left_where_none_but_the_maker_can_know_who_lies(attack: str) -> None:
    """Four fifths are not reached. The middle one of three, as they differ by half."""
    turns = sorted(rounds_closed(attack, turn) for turn in range(3))
    assert turns[1] >= 0.4 * rounds_closed("none")
