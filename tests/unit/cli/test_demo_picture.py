"""The picture of the demo: what is drawn where, and that its figures are those printed."""

import hashlib
import json
import math
import re
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from swarmnode.cli.demo.command import demo
from swarmnode.cli.demo.picture import (
    Line,
    Picture,
    Point,
    draw,
    encode_figures,
    lost_at,
    paced,
    write_picture,
)
from tests.conftest import ROOT

_FIRST = [Point(5.0, 4000, 100, 2.5), Point(10.0, 8000, 200, 2.0)]
_LATE = [Point(8.0, 6400, 20, 2.3), Point(10.0, 8000, 60, 2.1)]


def read_figures(data: bytes) -> Picture:
    """Return what was drawn; JSON has no NaN."""
    raw = json.loads(data)
    points = [point for line in raw["nodes"] for point in line["points"]]
    for point in (*points, raw["killed_at"]):
        point["loss"] = math.nan if point["loss"] is None else point["loss"]
    return msgspec.convert(raw, Picture)


def _picture() -> Picture:
    alone = Line("one node alone", paced([(100, 2.6), (200, 2.4)], _FIRST, 2), 2.4)
    lines = [Line("n0", _FIRST, 2.0), Line("n1", _LATE, 2.1)]
    return Picture(lines, alone, "n1", Point(9.0, 7200, 40, math.nan), 2.05)


def test_a_node_alone_keeps_the_pace_of_one_of_the_swarm() -> None:
    alone = paced([(100, 2.6), (200, 2.4)], _FIRST, 2)
    assert [(point.at_s, point.tokens) for point in alone] == [(5.0, 2000), (10.0, 4000)]


def test_a_pace_is_that_of_the_last_loss_that_there_is() -> None:
    ended = [*_FIRST, lost_at(12.0, 9000, 240)]
    assert paced([(200, 2.4)], ended, 1)[0].at_s == 10.0
    assert paced([(200, 2.4)], [], 1) == []


def test_a_latecomer_begins_where_it_joined() -> None:
    assert _picture().nodes[1].points[0].at_s == 8.0
    assert _picture().nodes[1].points[0].tokens == 6400


def test_what_is_printed_is_on_the_picture(tmp_path: Path) -> None:
    picture = _picture()
    assert "2.0500" in picture.title
    assert "2.4000" in picture.title
    assert [line.label for line in picture.nodes] == ["n0: 2.0000", "n1: 2.1000"]
    assert write_picture(picture, tmp_path)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "loss.svg").read_text()
    assert picture.title in svg
    assert "n0: 2.0000" in svg
    assert "prefers-color-scheme:dark" in svg


def test_the_figures_beside_the_picture_are_those_drawn(tmp_path: Path) -> None:
    ended = Line("n2", [*_FIRST, lost_at(12.0, 9000, 240)], 2.0)
    picture = replace(_picture(), nodes=[ended])
    write_picture(picture, tmp_path)
    kept = read_figures((tmp_path / "loss.json").read_bytes())
    assert math.isnan(kept.nodes[0].points[-1].loss)
    assert encode_figures(kept) == encode_figures(picture)
    assert draw(kept, "svg") == (tmp_path / "loss.svg").read_bytes()
    other = replace(kept, loss=2.06)
    assert draw(other, "svg") != draw(kept, "svg")


def test_a_long_run_is_drawn_with_fewer_points(tmp_path: Path) -> None:
    points = [Point(float(at), at, at, 2.0 - at / 1e4) for at in range(1, 1001)]
    points[500] = lost_at(501.0, 501, 501)
    short = _picture()
    picture = replace(short, nodes=[replace(short.nodes[0], points=points), short.nodes[1]])
    write_picture(picture, tmp_path)
    drawn = read_figures((tmp_path / "loss.json").read_bytes())
    kept = drawn.nodes[0].points
    assert 100 <= len(kept) <= 122
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert [point.at_s for point in kept if math.isnan(point.loss)] == [501.0]
    assert drawn.nodes[1].points == _LATE


def test_every_colour_of_the_picture_has_one_for_the_dark() -> None:
    svg = draw(_picture(), "svg").decode()
    drawn, _, rules = svg.rpartition("<style>")
    used = set(re.findall(r"(?:stroke|fill): (#[0-9a-f]{6})", drawn))
    assert len(used) >= 4
    assert used <= set(re.findall(r"(?:stroke|fill): (#[0-9a-f]{6})", rules))


# --- the picture of the README --------------------------------------------------------------------

SHOWN = ROOT / "docs" / "demo"


def test_the_picture_of_the_readme_is_drawn_from_the_figures_beside_it() -> None:
    figures, svg = (SHOWN / "loss.json").read_bytes(), (SHOWN / "loss.svg").read_text()
    picture = read_figures(figures)
    digest = hashlib.sha256(encode_figures(picture)).hexdigest()
    assert f"<dc:identifier>{digest}</dc:identifier>" in svg
    assert picture.title in svg
    assert all(line.label in svg for line in (*picture.nodes, picture.alone))
    assert len(svg) < 60_000
    # Of a swarm, and one that has gained from being one.
    assert len(picture.nodes) == 4
    assert picture.loss < picture.alone.end_loss


def test_the_recording_is_of_the_run_that_the_picture_shows() -> None:
    picture = read_figures((SHOWN / "loss.json").read_bytes())
    root = ElementTree.fromstring((SHOWN / "recording.svg").read_text())
    said = "\n".join(
        element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")
    )
    assert f"swarm loss {picture.loss:.4f} " in said
    assert f"one node alone {picture.alone.end_loss:.4f} after" in said
    assert f"killed {picture.killed} with SIGKILL at step {picture.killed_at.step}" in said


def test_the_commands_that_made_them_are_named_and_exist() -> None:
    root = ElementTree.fromstring((SHOWN / "recording.svg").read_text())
    command = (root.findtext("{http://www.w3.org/2000/svg}title") or "").partition(":")[0]
    demo.make_context("demo", shlex.split(command)[2:])  # raises for an unknown option
    page = (ROOT / "docs" / "measure.md").read_text()
    assert f"python -m swarmnode.tooling.recording docs/demo/recording.svg -- {command}" in page
    assert find_spec("swarmnode.tooling.recording")
