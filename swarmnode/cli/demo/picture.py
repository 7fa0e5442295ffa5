"""``loss.png``: the held-out losses of the demo, against tokens of the swarm and against time.

``loss.json`` has all that is drawn, and ``loss.svg`` is the same picture for pages, light and dark
ones; it names the SHA-256 of the figures that it was drawn from.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from swarmnode.errors import ConfigError

_POINTS_MAX = 120  # of a line: about as many as can be told apart
_MARGIN = 0.1  # below the lowest loss, of what is above it
_NO_LOSS = float("nan")
_INK, _GREY = "#24292f", "#6e7781"
_COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#8b3fc7", "#be185d", "#0e7490")
_DARK = dict(
    zip(
        (_INK, _GREY, *_COLOURS),
        ("#e6edf3", "#9da7b1", "#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#39c5cf"),
        strict=True,
    )
)
# Text stays text, so that it can be searched and is no larger than its letters; the salt makes the
# names of clip paths follow from the picture alone.
_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "swarmnode",
    "legend.frameon": False,
    "grid.color": _GREY,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK
    ),
}


@dataclass(frozen=True)
class Point:
    """A held-out loss of a node: when, since training began, and at how many tokens of the swarm.

    NaN where a life of the node ended: the line breaks there.
    """

    at_s: float
    tokens: int
    step: int
    loss: float


@dataclass(frozen=True)
class Line:
    """What one node has come to; ``end_loss`` is the figure that is printed for it."""

    name: str
    points: Sequence[Point]
    end_loss: float

    @property
    def label(self) -> str:
        """Its words in the legend."""
        return f"{self.name}: {self.end_loss:.4f}"


@dataclass(frozen=True)
class Picture:
    """All that is drawn.

    Attributes:
        alone: of the node that trained alone, at the pace of a node of the swarm.
        killed: name, and when and at how many tokens of the swarm that was.
        loss: the mean of the nodes at the end, as printed.
    """

    nodes: Sequence[Line]
    alone: Line
    killed: str
    killed_at: Point
    loss: float

    @property
    def title(self) -> str:
        """What it shows, with the figures that are printed."""
        return (
            f"{len(self.nodes)} nodes that train together: {self.loss:.4f},"
            f" one alone for as many steps: {self.alone.end_loss:.4f}"
        )


def lost_at(at_s: float, tokens: int, step: int) -> Point:
    """Return the point at which a life of a node ended."""
    return Point(at_s, tokens, step, _NO_LOSS)


def paced(curve: Sequence[tuple[int, float]], like: Sequence[Point], nodes: int) -> list[Point]:
    """Return the curve of a node alone, (step, loss), as if it had kept the pace of ``like``.

    On a machine of its own it would have: here the nodes share one, and it trains after them.
    Its tokens are its own, of which the swarm has ``nodes`` times as many in as many steps.
    """
    known = [point for point in like if point.loss == point.loss and point.step > 0]
    if not known:
        return []
    last = known[-1]
    per_step_s, per_step = last.at_s / last.step, last.tokens / last.step / nodes
    return [Point(step * per_step_s, round(step * per_step), step, loss) for step, loss in curve]


def _thinned(line: Line) -> Line:
    """Return a line of so many points that each can be seen; ends of lives are all kept."""
    points, every = line.points, 1 + len(line.points) // _POINTS_MAX
    last = len(points) - 1
    kept = [
        point
        for at, point in enumerate(points)
        if at % every == 0 or at == last or point.loss != point.loss
    ]
    return replace(line, points=kept)


def write_picture(picture: Picture, folder: Path) -> bool:
    """Write ``loss.json``, and the pictures; False: there is no matplotlib to draw them with.

    Raises:
        ConfigError: a picture came out empty.
    """
    nodes = [_thinned(line) for line in picture.nodes]
    picture = replace(picture, nodes=nodes, alone=_thinned(picture.alone))
    (folder / "loss.json").write_bytes(msgspec.json.format(encode_figures(picture), indent=1))
    try:
        drawn = {name: draw(picture, name.rpartition(".")[2]) for name in ("loss.png", "loss.svg")}
    except ImportError:
        return False
    for name, data in drawn.items():
        if not data:
            raise ConfigError(f"{folder / name} came out empty")
        (folder / name).write_bytes(data)
    return True


def encode_figures(picture: Picture) -> bytes:
    """Return all that is drawn, as JSON; a loss is null where a life of a node ended."""
    return msgspec.json.encode(picture)


def draw(picture: Picture, kind: str) -> bytes:
    """Return the picture as ``png`` or ``svg``. Raises ImportError without matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_LOOK if kind == "svg" else {}):
        figure = Figure(figsize=(9.5, 4.3), layout="constrained")
        by_tokens, by_time = figure.subplots(1, 2, sharey=True)
        _draw_lines(by_tokens, picture, lambda point: point.tokens / 1e6)
        _draw_lines(by_time, picture, lambda point: point.at_s)
        by_tokens.set_xlabel("million tokens of the swarm")
        by_tokens.set_ylabel("loss on held-out text (nats per byte)")
        by_time.set_xlabel("seconds")
        by_time.legend(loc="upper right")  # losses fall; "best" takes long on a busy machine
        figure.suptitle(picture.title)
        drawn = io.BytesIO()
        if kind == "png":
            figure.savefig(drawn, format="png", dpi=120)
            return drawn.getvalue()
        digest = hashlib.sha256(encode_figures(picture)).hexdigest()
        about = {"Title": picture.title, "Identifier": digest, "Date": None, "Creator": None}
        figure.savefig(drawn, format="svg", transparent=True, metadata=about)
    return _for_the_dark(drawn.getvalue())


def _for_the_dark(svg: bytes) -> bytes:
    """Give every colour another one on dark pages, over what matplotlib says of each element."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in _DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>\n</svg>"
    return svg.rstrip().removesuffix(b"</svg>") + style.encode()


def _draw_lines(axes: Any, picture: Picture, place: Any) -> None:
    alone = picture.alone
    axes.plot(
        [place(point) for point in alone.points],
        [point.loss for point in alone.points],
        color=_GREY,
        linestyle="--",
        label=alone.label,
    )
    for number, line in enumerate(picture.nodes):
        axes.plot(
            [place(point) for point in line.points],
            [point.loss for point in line.points],
            color=_COLOURS[number % len(_COLOURS)],
            linewidth=1.4,
            marker=".",
            markevery=[len(line.points) - 1],
            label=line.label,
        )
    lines = (picture.alone, *picture.nodes)
    losses = [point.loss for line in lines for point in line.points if point.loss == point.loss]
    top, lowest = _top(picture), min(losses, default=0.0)
    if lowest < top:
        axes.set_ylim(lowest - _MARGIN * (top - lowest), top)
    axes.axvline(place(picture.killed_at), color=_GREY, alpha=0.5, linewidth=0.8)
    axes.annotate(
        f"{picture.killed} killed",
        (place(picture.killed_at), axes.get_ylim()[0]),
        xytext=(4, 6),
        textcoords="offset points",
        fontsize=8,
        color=_GREY,
    )
    axes.grid(alpha=0.3)


def _top(picture: Picture) -> float:
    """Return the loss after a tenth of the run: what came before would hide all that differs."""
    known = [point.loss for point in picture.nodes[0].points if point.loss == point.loss]
    return known[len(known) // 10] * 1.02
