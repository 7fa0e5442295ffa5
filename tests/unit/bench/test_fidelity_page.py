"""The page of findings: what it says, its pictures, and that it is what the command has written."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from swarmnode.bench.fidelity.finding import Check, Finding, Plot, Series, Table
from swarmnode.bench.fidelity.page import (
    digest_of,
    draw,
    read_findings,
    render,
    verdict,
    write_page,
)
from swarmnode.bench.fidelity.run import format_finding
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
        (Check(what="w", value=0.9, low=0.8, error=0.03), True),
        (Check(what="w", value=0.9, low=0.8, error=0.04), False),
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


def test_what_may_be_luck_is_not_shown() -> None:
    lucky = Check(what="share", value=0.85, low=0.8, error=0.03)
    found = msgspec.structs.replace(finding(), checks=[lucky])
    assert verdict(found) == "**not shown**"
    assert "NOT SHOWN" in format_finding(found)
    assert "| share | 0.85 ± 0.03 | at least 0.8 | **not shown** |" in render("f.md", [found]).page
    clear = msgspec.structs.replace(found, checks=[lucky, Check(what="loss", value=3.0, high=2.0)])
    assert verdict(clear) == "**does not hold**"


def test_the_page_says_claim_command_figures_and_circumstances() -> None:
    page = render("fidelity.md", [finding()]).page
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


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, by WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_picture_is_whole_and_readable_on_light_and_dark_pages() -> None:
    plot = finding().plots[0]
    text = draw(plot)
    root = ElementTree.fromstring(text)
    assert draw(plot) == text
    assert len(text) < 60_000
    assert {"a < b", "dots", "Loss & time"} <= {e.text for e in root.iter(f"{SVG}text")}
    assert digest_of(plot) in text
    for colour in re.findall(r"#[0-9a-f]{6}", text):
        on_white = 1.05 / (luminance(colour) + 0.05)
        on_dark = (luminance(colour) + 0.05) / (luminance("#0d1117") + 0.05)
        assert min(on_white, on_dark) >= 3, colour


def test_without_matplotlib_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="--write needs matplotlib"):
        draw(finding().plots[0])


def test_a_part_is_measured_anew_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    page = tmp_path / "fidelity.md"
    write_page(page, [finding("one"), finding("two")])
    write_page(page, [finding("one", value=9.0)])
    found = read_findings(tmp_path / "fidelity" / "findings.json")
    assert [(f.name, f.holds) for f in found] == [("one", False), ("two", True)]
    assert "| loss | 9 | 0.5 to 2 | **no** |" in page.read_text()
    assert (tmp_path / "fidelity" / "two-loss.svg").read_text().startswith("<?xml")

    (tmp_path / "fidelity" / "findings.json").write_text("{}")
    with pytest.raises(ConfigError, match="expected findings of an earlier run"):
        write_page(page, [finding()])


def test_the_page_of_the_documentation_is_what_the_command_has_written() -> None:
    """By hand nothing can be changed on it."""
    findings = read_findings(ROOT / "docs" / "fidelity" / "findings.json")
    written = render("fidelity.md", findings)
    assert (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8") == written.page
    pictures = {path.name for path in (ROOT / "docs" / "fidelity").glob("*.svg")}
    assert pictures == {Path(name).name for name in written.plots}
    for name, plot in written.plots.items():  # another matplotlib draws the same otherwise
        assert digest_of(plot) in (ROOT / "docs" / name).read_text(encoding="utf-8"), name
    assert not any(finding.is_quick for finding in findings)
    assert [f.name for f in findings if not f.holds] == []
