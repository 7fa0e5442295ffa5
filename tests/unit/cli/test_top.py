"""The frames of ``swarmnode top``: they fit, and text of peers stays text."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from swarmnode.cli.node.top import top
from swarmnode.cli.node.top_view import Screen
from swarmnode.errors import SwarmNodeError

NODE = {
    "swarm": "demo",
    "task": "digits",
    "strategy": "noloco",
    "numel": 85_002,
    "state": "training",
    "reason": "on cpu, 1 threads",
    "alarm": "",
    "uptime_s": 4000.0,
    "step": 1234,
    "step_time_s": 0.0123,
    "eval_loss": 0.5,
    "exchanges_committed": 12,
    "exchanges_aborted": 1,
    "exchanges_declined": 3,
    "sent_bytes": 1_500_000,
    "received_bytes": 999,
}


def member(n: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": f"peer{n:04}",
        "is_self": n == 0,
        "alive": "alive",
        "state": "training",
        "path": "direct" if n else "",
        "rtt_s": 0.012 if n else None,
        "step": 1000 - n,
        "eval_loss": 0.25,
    } | changes


def overview(n_members: int = 3, **changes: Any) -> dict[str, Any]:
    return {
        "node": NODE,
        "members": [member(n) for n in range(n_members)],
        "members_known": n_members,
        "swarm_loss": 0.4,
        "swarm_steps": 3000,
        "snapshots": [{"step": 1200, "n_holders": 2}],
    } | changes


def history(*losses: float | None) -> dict[str, Any]:
    return {"generation": 0, "samples": [{"swarm": loss} for loss in losses]}


def frame(seen: dict[str, Any], past: dict[str, Any] | None = None, lines: int | None = 24) -> str:
    console = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    screen = Screen(console)
    screen.show(seen, past or history(2.0, 1.5, 1.0, 0.7))
    console.print(screen._frame(lines))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_frame_says_what_the_page_says() -> None:
    text = frame(overview())
    for expected in (
        "demo · digits · 85,002 parameters · noloco",
        "up 0 d 1 h 6 min",
        "training  on cpu, 1 threads",
        "loss 0.4000 swarm, 0.5000 here   step 1,234, 12.3 ms each",
        "12 ok, 1 aborted, 3 declined   sent 1.5 MB, received 999 B",
        "this node",
        "direct",
        "999",
        "33%",
        "step 1,200 held by 2",
        "q quits",
    ):
        assert expected in text, text


@pytest.mark.parametrize("n_members", [1, 3, 11, 12, 200])
def test_a_frame_fits_into_a_small_terminal(n_members: int) -> None:
    many = [{"step": n, "n_holders": n} for n in range(12)]
    node = NODE | {"alarm": "an alarm " * 50, "reason": "a reason " * 50, "swarm": "s" * 64}
    text = frame(overview(n_members, node=node, snapshots=many), history(*range(600)))
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "q quits" in lines[-1]
    if n_members > 12:
        assert "more" in text


def test_the_curve_goes_down_with_the_loss() -> None:
    lines = frame(overview(swarm_loss=0.0), history(4.0, 3.0, 2.0, 1.0)).splitlines()[2:6]
    assert lines[0].split() == ["4", "█"]
    assert lines[-1].split() == ["0", "████▁"]


def test_a_swarm_without_losses_has_a_frame() -> None:
    node = NODE | {"task": "", "eval_loss": None, "step_time_s": None, "state": "syncing"}
    seen = overview(swarm_loss=None, node=node, snapshots=[], swarm_steps=0)
    text = frame(seen, history(None, None))
    assert "no member has said one yet" in text
    assert "waiting for the manifest" in text
    assert "no member says that it holds one" in text


def test_a_loss_that_stays_the_same_has_a_curve() -> None:
    assert "▁" in frame(overview(swarm_loss=1.0), history(1.0, None, 1.0))


def test_text_of_others_neither_moves_the_cursor_nor_is_markup() -> None:
    evil = "\x1b[2J[bold red]x[/]\n\r\x07"
    members = [member(0), member(1, name=evil, state=evil, path=evil)]
    text = frame(overview(members=members, node=NODE | {"reason": evil, "swarm": evil}))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\r" not in text
    assert "[bold red]x[/]" in text
    assert len(text.splitlines()) <= 24


def test_a_line_tells_what_is_wrong_and_the_rest_stays() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    screen = Screen(console)
    screen.show(overview(), history())
    screen.say("no swarmnode runs on /home")
    screen.print_once()
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no swarmnode runs on /home" in text
    assert "peer0001" in text
    screen.show(overview())
    screen.print_once()
    later: str = console.file.getvalue()[len(text) :]  # type: ignore[attr-defined]
    assert "peer0001" in later
    assert "no swarmnode runs" not in later


def test_without_rich_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "swarmnode.cli.node.top_view")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(SwarmNodeError, match=r"extra `tui` .* -m pip install '\.\[tui\]'"):
        top.callback(once=True, home=None, as_json=False)  # type: ignore[misc]
