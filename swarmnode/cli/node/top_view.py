"""What ``swarmnode top`` draws; needs rich, the extra ``tui``.

::

    demo · synthetic · 2,048 parameters ...        up 36 s
    training  on cpu
    loss of the swarm, four lines high, and the figures of this node
    one line for each member that fits
    newest snapshots; keys
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from swarmnode import limits
from swarmnode.cli.main import plain

_TONES = {
    "training": "green",
    "serving": "green",
    "paused": "yellow",
    "stopped": "yellow",
    "finished": "green",
    "suspect": "yellow",
    "left": "red",
    "dead": "red",
    "failed": "red",
}
_PATH_TONES = {"direct": "green", "punched-tcp": "blue", "rtc": "magenta", "relay": "yellow"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_CHART_LINES = 4
_AROUND_LINES = 9  # everything but the chart and the members
_LABEL_COLUMNS = 8
_BAR_COLUMNS = 10
_MEMBERS_LINES_MIN = 3
_GONE = ("dead", "left")


class Screen:
    """Holds what was last seen, and draws it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live: Live | None = None
        self._overview: Mapping[str, Any] = {}
        self._losses: list[float | None] = []
        self._said = ""

    @property
    def is_paused(self) -> bool:
        """Whether this node was paused when last seen."""
        return bool(self._overview["node"]["state"] == "paused")

    def show(self, overview: Mapping[str, Any], history: Mapping[str, Any] | None = None) -> None:
        """Take a new overview, and the losses before it if they are known; draw it."""
        if history is not None:
            self._losses = [each["swarm"] for each in history["samples"]]
        self._overview, self._said = overview, ""
        self._losses.append(overview["swarm_loss"])
        del self._losses[: -limits.DASHBOARD_SAMPLES_MAX]
        self._draw()

    def say(self, text: str) -> None:
        """Draw the last overview with a line about what is wrong."""
        self._said = text
        self._draw()

    def print_once(self) -> None:
        """Print one frame, as long as it needs to be."""
        self._console.print(self._frame(lines=None))

    @contextmanager
    def live(self) -> Iterator[None]:
        """Take the whole terminal for a block, and give it back as it was."""
        frame = self._frame(self._console.height)
        with Live(frame, console=self._console, screen=True, auto_refresh=False) as self._live:
            try:
                yield
            finally:
                self._live = None

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._frame(self._console.height), refresh=True)

    # --- the frame ----------------------------------------------------------------------------

    def _frame(self, lines: int | None) -> RenderableType:
        seen, node = self._overview, self._overview["node"]
        problems = [_line(text, "bold red") for text in (node["alarm"], self._said) if text]
        n_members = len(seen["members"])
        if lines is not None:
            room = max(_MEMBERS_LINES_MIN, lines - _AROUND_LINES - _CHART_LINES)
            n_members = room - len(problems)
        return Group(
            _title(node, self._console.width),
            _state(node),
            *problems,
            *_chart(self._losses, self._console.width),
            *_figures(seen),
            Text(),
            _members(seen, n_members, self._console.width),
            Text(),
            _snapshots(seen["snapshots"]),
            _line("q quits, p pauses or goes on", "dim"),
        )


def _title(node: Mapping[str, Any], width: int) -> Text:
    recipe = (
        f" · {node['task']} · {node['numel']:,} parameters · {node['strategy']}"
        if node["task"]
        else " · waiting for the manifest"
    )
    left = Text(no_wrap=True, overflow="ellipsis")
    left.append(plain(node["swarm"]), "bold")
    left.append(plain(recipe), "dim")
    right = f"up {_duration(node['uptime_s'])}"
    left.truncate(max(10, width - len(right) - 1), overflow="ellipsis", pad=True)
    return left.append(f" {right}", "dim")


def _state(node: Mapping[str, Any]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(plain(node["state"]), f"bold {_TONES.get(node['state'], 'cyan')}")
    return text.append(f"  {plain(node['reason'])}")


def _line(text: str, style: str = "") -> Text:
    return Text(plain(text), style, no_wrap=True, overflow="ellipsis")


def _figures(seen: Mapping[str, Any]) -> tuple[Text, Text]:
    node = seen["node"]
    step_ms = node["step_time_s"] and node["step_time_s"] * 1e3
    return (
        _line(
            f"loss {_number(seen['swarm_loss'], '.4f')} swarm,"
            f" {_number(node['eval_loss'], '.4f')} here"
            f"   step {node['step']:,}, {_number(step_ms, '.1f')} ms each"
        ),
        _line(
            f"exchanges {node['exchanges_committed']:,} ok, {node['exchanges_aborted']:,} aborted,"
            f" {node['exchanges_declined']:,} declined"
            f"   sent {_bytes(node['sent_bytes'])}, received {_bytes(node['received_bytes'])}"
        ),
    )


def _chart(losses: Sequence[float | None], width: int) -> list[Text]:
    """Return the mean loss of the swarm over time, one column for each of the newest samples."""
    columns = max(10, width - _LABEL_COLUMNS - 1)
    shown = list(losses)[-columns:]
    known = [value for value in shown if value is not None]
    if not known:
        return [_line("loss of the swarm: no member has said one yet", "dim")]
    low, high = min(known), max(known)
    units = _CHART_LINES * (len(_BLOCKS) - 1)
    heights = [
        0 if value is None else 1 + round((value - low) / ((high - low) or 1.0) * (units - 1))
        for value in shown
    ]
    labels = {_CHART_LINES - 1: f"{high:.4g}", 0: f"{low:.4g}"}
    drawn = []
    for row in reversed(range(_CHART_LINES)):
        full = len(_BLOCKS) - 1
        blocks = "".join(_BLOCKS[min(full, max(0, height - row * full))] for height in heights)
        text = Text(no_wrap=True, overflow="crop")
        text.append(f"{labels.get(row, ''):>{_LABEL_COLUMNS}} ", "dim")
        drawn.append(text.append(blocks, "cyan"))
    return drawn


def _members(seen: Mapping[str, Any], rows_max: int, width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=width < 100)
    table.add_column("member", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("path", no_wrap=True)
    for name in ("rtt ms", "trust", "loss", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("share of steps", no_wrap=True)
    members = sorted(seen["members"], key=lambda each: (not each["is_self"], -each["step"]))
    all_steps = max(1, seen["swarm_steps"])
    shown = members if len(members) <= rows_max else members[: max(1, rows_max - 1)]
    for member in shown:
        table.add_row(*_member(member, all_steps))
    hidden = seen["members_known"] - len(shown)
    if hidden > 0:
        table.add_row(Text(f"… {hidden:,} more", "dim"))
    return table


def _member(member: Mapping[str, Any], all_steps: int) -> Iterator[Text]:
    state = "suspect" if member["alive"] == "suspect" else member["state"]
    is_gone = member["alive"] in _GONE
    path = "this node" if member["is_self"] else member["path"] or "-"
    tone = "dim" if is_gone else "bold" if member["is_self"] else ""
    letters = plain(member["name"])  # of its id: two may be called the same
    yield Text(" ".join(filter(None, (plain(member.get("node_name", "")), letters))), tone)
    yield Text(plain(state), _TONES.get(state, "cyan"))
    yield Text(plain(path), _PATH_TONES.get(path, "dim"))
    yield Text(_number(member["rtt_s"] and member["rtt_s"] * 1e3, ".1f"))
    yield Text(_number(member.get("trust"), ".2f"))
    yield Text(_number(member["eval_loss"], ".4f"))
    yield Text(f"{member['step']:,}")
    share = min(1.0, member["step"] / all_steps)
    filled = round(share * _BAR_COLUMNS)
    bar = Text("█" * filled, "cyan")
    bar.append("░" * (_BAR_COLUMNS - filled), "dim")
    yield bar.append(f" {share:4.0%}")


def _snapshots(snapshots: Sequence[Mapping[str, Any]]) -> Text:
    if not snapshots:
        return _line("snapshots: no member says that it holds one", "dim")
    said = (f"step {each['step']:,} held by {each['n_holders']}" for each in snapshots)
    return _line("snapshots: " + "; ".join(said))


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} PB"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
    return f"{whole // 86400} d {whole // 3600 % 24} h {whole // 60 % 60} min"
