"""The gate of ``tests/mutants/disk.py``: what it makes of what was caught, and what it tries."""

from __future__ import annotations

from tests.mutants.disk import CAUGHT_SHARE_MIN, HARMLESS, MISSED, judge, mutants

NAMES = [name for name, _, _ in mutants()]
CAUGHT = [name for name in NAMES if name not in HARMLESS | MISSED]
SURVIVED = [name for name in NAMES if name in HARMLESS | MISSED]


def test_a_hundred_are_tried_each_by_a_name_of_its_own() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 100


def test_each_reason_is_of_one_that_is_tried() -> None:
    assert set(SURVIVED) == HARMLESS.keys() | MISSED.keys()
    assert not HARMLESS.keys() & MISSED.keys()
    assert all(len(why) > 20 for why in (HARMLESS | MISSED).values())


def test_what_survives_with_a_reason_passes_as_long_as_enough_are_caught() -> None:
    assert judge(CAUGHT, SURVIVED) == []
    n_few = int(CAUGHT_SHARE_MIN * len(CAUGHT)) - len(MISSED)
    *_, said = judge(CAUGHT[:n_few], [*SURVIVED, *CAUGHT[n_few:]])
    assert said.startswith(f"expected 95% to be caught, {n_few} of ")


def test_one_that_survives_without_a_reason_fails() -> None:
    (said,) = judge(CAUGHT[1:] * 2, [*SURVIVED, CAUGHT[0]])
    assert said == f"SURVIVED without a reason: {CAUGHT[0]}"


def test_a_reason_that_is_not_due_fails() -> None:
    (said,) = judge([*CAUGHT, SURVIVED[0]], SURVIVED[1:])
    assert said == f"caught, so that no reason is due: {SURVIVED[0]}"
