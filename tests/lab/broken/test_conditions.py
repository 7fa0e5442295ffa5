"""A node on a line that is broken says how, in one sentence, and its netcheck ends as it should."""

from __future__ import annotations

import pytest

from tests.lab.broken.conditions import CONDITIONS
from tests.lab.broken.world import TELL_S, measure
from tests.lab.matrix import is_right


@pytest.mark.parametrize("name", CONDITIONS)
def test_the_condition_is_named(able: None, name: str) -> None:
    found = measure(name, CONDITIONS[name])
    assert is_right(found), str(found)
    assert found["seconds"] < TELL_S
