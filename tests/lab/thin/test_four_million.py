"""Daemons with four million parameters over lines of 1 Mbit/s: their exchanges count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.thin.four_million import measure


@pytest.mark.soak
def test_exchanges_of_four_million_parameters_count_at_1_mbit_per_s(
    able: None, tmp_path: Path
) -> None:
    """One node at a public address, and one behind a line that is as thin both ways."""
    found = measure(tmp_path, rate_mbit=1, n_thin=1, seconds=300)
    assert min(found["committed"]) >= 2, found
    assert found["half_applied"] == 0, found
    assert found["first_commit_s"] < 120, found
