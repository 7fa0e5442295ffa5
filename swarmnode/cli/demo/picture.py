"""``loss.png``: the held-out losses of the demo, against tokens of the swarm and against time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmnode.errors import ConfigError

_NO_LOSS = float("nan")


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


def draw(picture: Picture, path: Path) -> bool:
    """Write the picture; False: there is no matplotlib to draw with. Raises ConfigError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(11, 5), layout="constrained")
    by_tokens, by_time = figure.subplots(1, 2, sharey=True)
    _draw_lines(by_tokens, picture, lambda point: point.tokens / 1e6)
    _draw_lines(by_time, picture, lambda point: point.at_s)
    by_tokens.set_xlabel("million tokens of the swarm")
    by_tokens.set_ylabel("loss on held-out text (nats per byte)")
    by_time.set_xlabel("seconds")
    by_time.legend(loc="upper right")  # losses fall; "best" takes long on a busy machine
    figure.suptitle(picture.title)
    figure.savefig(path, dpi=120)
    if path.stat().st_size == 0:
        raise ConfigError(f"{path} came out empty")
    return True


def _draw_lines(axes: Any, picture: Picture, place: Any) -> None:
    alone = picture.alone
    axes.plot(
        [place(point) for point in alone.points],
        [point.loss for point in alone.points],
        color="0.45",
        linestyle="--",
        label=alone.label,
    )
    for line in picture.nodes:
        axes.plot(
            [place(point) for point in line.points],
            [point.loss for point in line.points],
            linewidth=1.4,
            marker=".",
            markevery=[len(line.points) - 1],
            label=line.label,
        )
    axes.axvline(place(picture.killed_at), color="0.7", linewidth=0.8)
    axes.annotate(
        f"{picture.killed} killed",
        (place(picture.killed_at), axes.get_ylim()[1]),
        xytext=(4, -10),
        textcoords="offset points",
        fontsize=8,
        color="0.35",
    )
    axes.grid(alpha=0.3)
