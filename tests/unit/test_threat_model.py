"""The threat model promises no more than there is, and names the figures of its limits."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "docs/threat-model.md"
MEASURED = "([measured](#what-was-measured))"


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def figures() -> dict[str, str]:
    """The table of measurements: what was tried, and what came of it."""
    text = PAGE.read_text(encoding="utf-8").partition("## What was measured")[2].partition("## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return {row[0].strip(): row[2].strip() for row in rows}


@pytest.mark.parametrize(
    "claim",
    [
        "It cannot make others wait",
        "It cannot take another member out",
        "a little with each exchange",
        "| Nobody aims a node at a third party. |",
    ],
)
def test_what_was_found_false_is_no_longer_claimed(page: str, claim: str) -> None:
    assert claim not in page


@pytest.mark.parametrize(
    ("limit", "measurement"),
    [
        ("**Members can send wrong weights.**", "wrong weights"),
        ("**Members can make others wait.**", "waiting"),
        ("**Members can aim dials at a third party.**", "dials at a third party"),
        ("**Members can lie about themselves**", "false reports"),
        ("**Many made-up nodes.**", "made-up members"),
        ("**Floods.**", "the listener"),
    ],
)
def test_a_limit_names_its_measurement(
    page: str, figures: dict[str, str], limit: str, measurement: str
) -> None:
    (said,) = re.findall(rf"- {re.escape(limit)}(.*?)(?: - \*\*| ## )", page)
    assert MEASURED in said
    assert re.search(r"\d", figures[measurement])


def test_huge_values_are_said_to_be_refused(page: str, figures: dict[str, str]) -> None:
    assert "huge values, far above one's own in the largest or in the norm, are refused" in page
    assert "not yet refused" in figures["huge values"]


def test_dials_told_by_members_are_excepted_where_requests_are_safe(page: str) -> None:
    assert "No peer aims what answers a request at a third party" in page
