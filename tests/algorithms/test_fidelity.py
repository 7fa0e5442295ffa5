"""The experiments behind docs/fidelity.md, in runs so short that only their form is judged."""

import math

import msgspec
import pytest

from swarmnode.bench.fidelity.figures import claim, number
from swarmnode.bench.fidelity.page import read_findings
from swarmnode.errors import ConfigError
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.fidelity import gossip, overlap
from swarmnode.testing.fidelity.experiments import (
    EXPERIMENTS,
    failures_isolated,
    run_experiment,
)
from swarmnode.testing.fidelity.kit import fit, line
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "fidelity" / "findings.json"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_measures(name):
    found = run_experiment(name, is_quick=True)
    assert found.is_quick
    assert found.made_with["torch"]
    assert found.seeds
    assert found.checks
    assert all(check.value is not None for check in found.checks)
    assert all(check.low is not None or check.high is not None for check in found.checks)
    for plot in found.plots:
        for series in plot.series:
            assert series.points
            assert all(math.isfinite(x) and math.isfinite(y) for x, y in series.points)
    if found.table is not None:
        assert {len(row) for row in found.table.rows} == {len(found.table.header)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_claim_survives_without_exchange(name):
    assert failures_isolated(name, is_quick=True)


def test_a_claim_that_holds_without_exchange_does_not_hold():
    found = run_experiment("noloco-boundary", is_quick=True)
    holds = msgspec.structs.replace(found, checks=[])
    assert holds.holds
    assert not msgspec.structs.replace(holds, fails_isolated=[]).holds
    assert msgspec.structs.replace(holds, fails_isolated=["consensus"]).holds


def test_a_claim_over_seeds_is_no_luck():
    clear, lucky, below = (
        claim("share", values, low=0.8)
        for values in ([0.9, 0.91, 0.92], [0.7, 0.8, 1.1], [0.7, 0.71, 0.72])
    )
    assert (clear.holds, clear.is_shown) == (True, True)
    assert (lucky.holds, lucky.is_shown) == (False, False)
    assert (below.holds, below.is_shown) == (False, True)
    assert claim("share", [0.9], low=0.8).error is None
    assert claim("loss over another", [0.99, 1.0, 1.001], high=1.02).holds


def test_the_same_again_is_the_same():
    figures = [run_experiment("noloco-variance", is_quick=True) for _ in range(2)]
    assert figures[0].checks == figures[1].checks
    assert figures[0].plots == figures[1].plots


def test_the_page_has_every_experiment():
    assert {finding.name for finding in read_findings(PAGE)} - {"daemons", "default"} == set(
        EXPERIMENTS
    )


def test_who_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r"expected an experiment among dadao, .*, got 'dido'"):
        run_experiment("dido", is_quick=True)


# --- figures come from runs: an algorithm that is not what it says is found out -------------------


def test_a_mutant_without_acceleration_does_not_hold(monkeypatch):
    assert run_experiment("a2cid2-rings", is_quick=True).holds
    monkeypatch.setattr(gossip, "A2CiD2", PairAverage)
    found = run_experiment("a2cid2-rings", is_quick=True)
    assert not found.holds
    assert found.checks[0].value == pytest.approx(1.0, abs=0.1)


def test_a_mutant_that_sends_in_full_is_seen_in_the_bytes(monkeypatch):
    class Wasteful(Streaming):
        def __init__(self, settings, x):
            super().__init__({**settings, "delta_codec": "RAW32", "weights_codec": "RAW32"}, x)

    monkeypatch.setattr(overlap, "Streaming", Wasteful)
    found = run_experiment("streaming", is_quick=True)
    (ratio,) = (check for check in found.checks if check.what.startswith("bytes"))
    assert not ratio.holds
    assert ratio.value == pytest.approx(1.0)


# --- numbers that fit a page ----------------------------------------------------------------------


def test_a_curve_keeps_its_ends_and_not_more_points_than_a_picture_has_room_for():
    series = line("c", [(float(t), t / 3) for t in range(1000)])
    assert series.points[0] == (0.0, 0.0)
    assert series.points[-1] == (999.0, 333.0)
    assert len(series.points) <= 61


def test_what_diverges_ends_its_curve():
    series = line("c", [(0.0, 1.0), (1.0, 2.0), (2.0, math.inf), (3.0, math.nan)])
    assert series.points == [(0.0, 1.0), (1.0, 2.0)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.5, "1,234"),
        (0.123456, "0.1235"),
        (1e-12, "1.00e-12"),
        (math.inf, "diverges"),
    ],
)
def test_cells(value, text):
    assert number(value) == text


def test_a_straight_line_is_one():
    assert fit([(t, 3 - 2 * t) for t in range(5)]) == pytest.approx((-2.0, 1.0))
