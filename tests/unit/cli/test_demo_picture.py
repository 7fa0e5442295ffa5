"""The picture of the demo: what is drawn where, and that its figures are those printed."""

import math
from pathlib import Path

from swarmnode.cli.demo.picture import Line, Picture, Point, draw, lost_at, paced

_FIRST = [Point(5.0, 4000, 100, 2.5), Point(10.0, 8000, 200, 2.0)]
_LATE = [Point(8.0, 6400, 20, 2.3), Point(10.0, 8000, 60, 2.1)]


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
    assert draw(picture, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
