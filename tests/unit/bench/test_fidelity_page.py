"""The page of findings: what it says, its pictures, and that it is what the command has written."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from swarmnode.bench.fidelity.finding import Check, Finding, Plot, Series, Table
from swarmnode.bench.fidelity.page import read_findings, render, verdict, write_page
from swarmnode.bench.fidelity.run import format_finding
from swarmnode.bench.fidelity.svg import draw
from swarmnode.errors import ConfigError
from tests.conftest import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def finding(name: str = "one", value: float | None = 1.0, *, is_quick: bool = False) -> Finding:
    series = [
        Series(name="a < b", points=[(0.0, 1.0), (10.0, 1e-6)]),
        Series(name="dots", points=[(5.0, 0.01)], style="dots"),
        Series(name="dashes", points=[(0.0, 0.5), (10.0, 0.0)], style="dashes"),
    ]
    return Finding(
        name=name,
        title=f"Claim {name}: it learns",
        source="A. Author, “Paper”, 2020",
        claim="It learns.",
        experiment="We let it.",
        seeds=[1, 2],
        checks=[Check(what="loss", value=value, low=0.5, high=2.0)],
        plots=[Plot(name="loss", title="Loss & time", x="t", y="y", series=series, log_y=True)],
        table=Table(header=["run", "loss"], rows=[["a", "1"]]),
        cpu_s=3.5,
        made_with={"torch": "2.0"},
        is_quick=is_quick,
    )


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (Check(what="w", value=1.0, low=1.0, high=1.0), True),
        (Check(what="w", value=0.9, low=1.0), False),
        (Check(what="w", value=1.1, high=1.0), False),
        (Check(what="w", value=None, high=1.0), False),
        (Check(what="w", value=7.0), True),
    ],
)
def test_a_figure_is_within_its_bounds_or_not(check: Check, holds: bool) -> None:
    assert check.holds is holds


def test_verdicts() -> None:
    assert verdict(finding()) == "holds"
    assert verdict(finding(value=3.0)) == "**does not hold**"
    assert verdict(finding(value=None)) == "**does not hold**"
    assert verdict(finding(value=3.0, is_quick=True)).startswith("not judged")
    assert "! loss" in format_finding(finding(value=3.0))
    assert "DOES NOT HOLD" in format_finding(finding(value=None))
    assert "! " not in format_finding(finding())


def test_the_page_says_claim_command_figures_and_circumstances() -> None:
    page = render("fidelity.md", [finding()])["fidelity.md"]
    for line in (
        "| [Claim one: it learns](#claim-one-it-learns) | holds |",
        "*A. Author, “Paper”, 2020.*",
        "    swarmnode bench fidelity --only one",
        "| loss | 1 | 0.5 to 2 | yes |",
        "| a | 1 |",
        "![Loss & time](fidelity/one-loss.svg)",
        "Seeds 1, 2; 3.5 s of one core; torch 2.0.",
    ):
        assert line in page.splitlines()


def test_a_picture_is_small_and_readable_on_light_and_dark_pages() -> None:
    text = draw(finding().plots[0])
    root = ElementTree.fromstring(text)
    assert len(text) < 6000
    assert "prefers-color-scheme:dark" in text
    assert {"a < b", "dots", "Loss & time"} <= {e.text for e in root.iter(f"{SVG}text")}
    # The point at 0 has no place on a logarithmic axis.
    paths = [e.attrib["d"] for e in root.iter(f"{SVG}path") if "l" in e.attrib["class"].split()]
    assert [path.count("L") for path in paths] == [1, 1, 1, 0]  # the legend's samples among them
    for x, y in _places(root):
        assert 0 <= x <= 640
        assert 0 <= y <= 340


def _places(root: ElementTree.Element) -> list[tuple[float, float]]:
    places = [(float(e.attrib["cx"]), float(e.attrib["cy"])) for e in root.iter(f"{SVG}circle")]
    for path in root.iter(f"{SVG}path"):
        if "l" in path.attrib["class"].split():
            for pair in path.attrib["d"].removeprefix("M").split("L"):
                x, y = map(float, pair.split())
                places.append((x, y))
    return places


@pytest.mark.parametrize(
    ("values", "is_log", "labels"),
    [
        ([0.0, 800.0], False, ["0", "200", "400", "600", "800"]),
        ([1.02, 1.17], False, ["1", "1.05", "1.1", "1.15", "1.2"]),
        ([3.0, 3.0], False, ["3"]),
        ([1e-12, 100.0], True, ["1e-12", "1e-10", "1e-8", "1e-6", "1e-4", "0.01", "1", "100"]),
        ([0.06, 0.3], True, ["0.05", "0.1", "0.2", "0.5"]),
    ],
)
def test_axes_have_round_numbers(values: list[float], is_log: bool, labels: list[str]) -> None:
    series = Series(name="s", points=[(float(n), value) for n, value in enumerate(values)])
    plot = Plot(name="p", title="t", x="x", y="y", series=[series], log_y=is_log)
    root = ElementTree.fromstring(draw(plot))
    found = [e.text for e in root.iter(f"{SVG}text") if e.attrib.get("text-anchor") == "end"]
    assert found == labels


def test_a_part_is_measured_anew_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    page = tmp_path / "fidelity.md"
    write_page(page, [finding("one"), finding("two")])
    write_page(page, [finding("one", value=9.0)])
    found = read_findings(tmp_path / "fidelity" / "findings.json")
    assert [(f.name, f.holds) for f in found] == [("one", False), ("two", True)]
    assert "| loss | 9 | 0.5 to 2 | **no** |" in page.read_text()
    assert (tmp_path / "fidelity" / "two-loss.svg").read_text().startswith("<svg")

    (tmp_path / "fidelity" / "findings.json").write_text("{}")
    with pytest.raises(ConfigError, match="expected findings of an earlier run"):
        write_page(page, [finding()])


def test_the_page_of_the_documentation_is_what_the_command_has_written() -> None:
    """By hand nothing can be changed on it."""
    findings = read_findings(ROOT / "docs" / "fidelity" / "findings.json")
    written = render("fidelity.md", findings)
    for name, text in written.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, name
    pictures = {path.name for path in (ROOT / "docs" / "fidelity").glob("*.svg")}
    assert pictures == {Path(name).name for name in written if name.endswith(".svg")}
    assert not any(finding.is_quick for finding in findings)
    assert [f.name for f in findings if not f.holds] == []
