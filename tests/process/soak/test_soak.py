"""``pytest -n 0 -s -m soak tests/process/soak``: a day, with its summary in ``build/soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.process.soak.held import REST, THINGS
from tests.process.soak.page import page
from tests.process.soak.run import HOURS, NODES, Soak, soak


@pytest.mark.soak
def test_a_day_at_low_duty_grows_beyond_no_bound() -> None:
    assert soak(ROOT / "build" / "soak", hours=HOURS, n_nodes=NODES, say=print) == []


@pytest.mark.slow
def test_three_minutes_show_all_that_is_looked_at(tmp_path: Path) -> None:
    assert soak(tmp_path, hours=0.05, n_nodes=3, say=print) == []
    summary = (tmp_path / "index.html").read_text()
    assert "0 violations" in summary
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) >= 5


def test_a_thing_beyond_its_bound_is_said() -> None:
    seen = {thing.name: [0.0, thing.most] for thing in (*THINGS, REST)}
    assert Soak([0.0, 30.0], seen).violations() == []
    seen[THINGS[0].name].append(THINGS[0].most + 1)
    found = Soak([0.0, 30.0, 60.0], seen)
    (violation,) = found.violations()
    assert violation.startswith("history: ")
    assert violation in page(found, hours=1, n_nodes=2)


def test_a_thing_that_was_never_seen_is_said() -> None:
    seen = {thing.name: [1.0] for thing in THINGS[1:]}
    found = Soak([0.0], seen).violations()
    assert found == [f"{name}: no node ever said how much" for name in (THINGS[0].name, REST.name)]
