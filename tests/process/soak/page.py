"""The summary of a soak as one page, which needs nothing else: a line, a curve for each thing."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from swarmnode.bench.chaos.findings import judge, leak_table
from tests.process.soak.held import REST, THINGS

if TYPE_CHECKING:
    from tests.process.soak.run import Soak

_WIDTH, _HEIGHT = 160, 28
_POINTS_MAX = 160
_LIVES_MAX = 32
_SLOPE_OF_S = 1800.0
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
polyline { fill: none; stroke: #2a7de1; stroke-width: 1.5 }
.bad { color: #d33 }
"""


def page(soak: Soak, *, hours: float, n_nodes: int) -> str:
    """Return it as HTML."""
    evidence, violations = soak.evidence, soak.violations()
    verdict = judge(evidence)
    audit = verdict.audit
    lives = leak_table(evidence.lives)
    slopes = [row["rss_slope_mb_per_h"] for row in lives if row["seen_s"] > _SLOPE_OF_S]
    slope = max((each for each in slopes if each is not None), default="an unknown number of")
    said = [
        f"{n_nodes} nodes, {hours:g} hours; {soak.returns} times one left and came back,"
        f" {soak.newcomers} times a newcomer took its place.",
        f"{audit.committed} exchanges committed, {audit.aborted} aborted,"
        f" {len(verdict.half_applied)} half applied.",
        f"Of the processes that lived half an hour the one that grows fastest grows by {slope} MB"
        " an hour.",
        f"{len(violations)} violations.",
    ]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>soak</title>",
        f"<style>{_STYLE}</style><h1>Soak</h1>",
        *(f"<p>{html.escape(each)}</p>" for each in said),
        *(f"<p class=bad>{html.escape(each)}</p>" for each in violations),
        "<h2>What is kept, the most of all nodes</h2>",
        _table(
            ("thing", "over time", "first third", "last third", "most", "bound", "why that"),
            (_row(soak, thing.name, thing.most, thing.why) for thing in (*THINGS, REST)),
        ),
        "<h2>What processes hold, the longest life first: first and last third</h2>",
        _table(
            ("process", "seen", "MB", "MB an hour", "descriptors", "threads", "segments"),
            (_life(row) for row in lives[:_LIVES_MAX]),
        ),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _row(soak: Soak, name: str, bound: float, why: str) -> list[str]:
    values = soak.seen.get(name) or [0.0]
    third = max(1, len(values) // 3)
    first, last = (statistics.median(part) for part in (values[:third], values[-third:]))
    return [
        html.escape(name),
        _curve(values),
        *(_number(each) for each in (first, last, max(values), bound)),
        html.escape(why),
    ]


def _life(row: dict[str, object]) -> list[str]:
    ends = {name: " → ".join(f"{each:g}" for each in row[name]) for name in _ENDS}  # type: ignore[attr-defined]
    slope = row["rss_slope_mb_per_h"]
    return [
        f"{row['process']} of n{row['node']}",
        f"{float(row['seen_s']) / 3600:.2f} h",  # type: ignore[arg-type]
        _right(ends["rss_mb"]),
        _right("" if slope is None else str(slope)),
        *(_right(ends[name]) for name in ("fds", "threads", "memfds")),
    ]


_ENDS = ("rss_mb", "fds", "threads", "memfds")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{each}" for each in head)]
    lines += ["<tr>" + "".join(c if c[:3] == "<td" else f"<td>{c}" for c in row) for row in rows]
    return "\n".join([*lines, "</table>"])


def _number(value: float) -> str:
    return _right(f"{value:,.0f}")


def _right(text: str) -> str:
    return f"<td class=n>{html.escape(text)}"


def _curve(values: Sequence[float]) -> str:
    """From zero to the most, so that what stands still is a line and what grows is none."""
    shown = values[:: max(1, len(values) // _POINTS_MAX)]
    most = max(*shown, 1.0) if len(shown) > 1 else 1.0
    across = max(1, len(shown) - 1)
    points = " ".join(
        f"{n / across * _WIDTH:.1f},{_HEIGHT - 1 - value / most * (_HEIGHT - 3):.1f}"
        for n, value in enumerate(shown)
    )
    return f'<svg width={_WIDTH} height={_HEIGHT}><polyline points="{points}"/></svg>'
