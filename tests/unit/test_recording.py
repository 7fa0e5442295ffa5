"""Recordings of a terminal: what stood on the screen, when it did, and what a reader sees."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from swarmnode.tooling.recording import Frame, Screen, main, thinned, to_svg

TEXT = "{http://www.w3.org/2000/svg}text"


def screen(*written: str, rows: int = 5, columns: int = 10) -> list[str]:
    shown = Screen(rows, columns)
    for text in written:
        shown.write(text)
    return shown.lines


def test_a_table_that_is_drawn_again_takes_the_place_of_the_one_before() -> None:
    assert screen("head\r\n", "one\r\ntwo\r\n", "\x1b[2A\x1b[2KONE\r\n\x1b[2KTWO\r\n") == [
        "head", "ONE", "TWO", "",
    ]  # fmt: skip


def test_long_lines_wrap_and_old_ones_leave_at_the_top() -> None:
    assert screen("0123456789abc") == ["0123456789", "abc"]
    assert screen("1\r\n2\r\n3\r\n4", rows=3) == ["2", "3", "4"]


def test_colours_are_left_out() -> None:
    assert screen("\x1b[1;32mgreen\x1b[0m") == ["green"]


def test_a_long_run_is_played_faster_and_its_end_stays() -> None:
    frames = [Frame(float(at), (f"at {at}",)) for at in range(361)]
    seen, speed = thinned(frames, played_s=18.0)
    assert speed == 20.0
    assert seen[-1] == Frame(18.0, ("at 360",))
    assert len(seen) <= 91
    assert thinned(frames[:3], played_s=18.0)[1] == 1.0


def test_a_line_is_there_only_while_it_stood_there() -> None:
    frames = [Frame(0.0, ("a < b", "kept")), Frame(2.0, ("next", "kept"))]
    root = ElementTree.fromstring(to_svg("swarmnode demo", frames, 3.0))
    assert root.findtext("{http://www.w3.org/2000/svg}title") == (
        "swarmnode demo: 6 s, played 3.0 times as fast"
    )
    names = {each.text: each.get("class") for each in root.iter(TEXT)}
    assert names["a < b"] == "a0_10"
    assert names["kept"] == "a0"
    assert names["next"] == "a10"
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    # Four seconds in all, two of them still; where nothing moves, only the end is to be seen.
    assert "@keyframes a0_10{0%{opacity:1}50.00%,100%{opacity:0}}" in style
    assert "@keyframes a10{0%{opacity:0}50.00%{opacity:1}}" in style
    assert ".a0_10{opacity:0;" in style
    assert ".a10{opacity:1;" in style


@pytest.mark.parametrize("status", [0, 3])
def test_a_real_command_is_recorded(tmp_path: Path, status: int, capfdbinary: object) -> None:
    code = f"import sys; print('is a terminal:', sys.stdout.isatty()); sys.exit({status})"
    picture = tmp_path / "run.svg"
    assert main([str(picture), "--", sys.executable, "-c", code]) == status
    said = [each.text for each in ElementTree.parse(picture).iter(TEXT)]
    assert "is a terminal: True" in said
