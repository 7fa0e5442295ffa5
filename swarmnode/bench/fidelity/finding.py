"""What an experiment has found: the record between ``swarmnode.testing.fidelity`` and its page.

The experiments run in a process that has torch, the page is written by one that has not.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Style = Literal["line", "dashes", "dots"]

_ERRORS_MIN = 3.0  # between a mean and its bound, or it is not shown


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure, and what the claim makes us expect of it.

    Attributes:
        low, high: the bounds, inclusive; None: none on that side.
        error: of a mean over seeds its standard error; None: it is of one run.
    """

    what: str
    value: float | None  # None: it is infinite or no number
    low: float | None = None
    high: float | None = None
    error: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the figure is within its bounds, and not by luck."""
        return self.margin >= 0 and self.is_shown

    @property
    def margin(self) -> float:
        """How far within the nearer bound the figure is; negative: it is beyond."""
        if self.value is None:
            return -math.inf
        above = math.inf if self.low is None else self.value - self.low
        below = math.inf if self.high is None else self.high - self.value
        return min(above, below)

    @property
    def is_shown(self) -> bool:
        """Whether the standard error is at most a third of the margin."""
        return self.error is None or _ERRORS_MIN * self.error <= abs(self.margin)


class Series(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a plot; ``points`` are (x, y)."""

    name: str
    points: list[tuple[float, float]]
    style: Style = "line"


class Plot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One picture. ``name`` is that of its file, behind the name of the finding."""

    name: str
    title: str
    x: str
    y: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in full; cells as they are printed."""

    header: list[str]
    rows: list[list[str]]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim of a paper, and what became of it here.

    Attributes:
        name: what ``--only`` calls it.
        source: the paper.
        seeds: of the runs.
        cpu_s: time on one core; of what runs in several processes ``wall_s`` is given instead.
        made_with: names and versions of what it was measured with.
        fails_isolated: what was not as expected with exchange switched off; None: not tried.
        is_quick: from runs so short that they say nothing about the claim.
    """

    name: str
    title: str
    source: str
    claim: str
    experiment: str
    seeds: list[int]
    checks: list[Check]
    plots: list[Plot]
    table: Table | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    made_with: dict[str, str] = {}
    fails_isolated: list[str] | None = None
    is_quick: bool = False

    @property
    def is_shown(self) -> bool:
        """Whether it holds, or a figure that is not as expected is clearly so."""
        return (
            self.fails_isolated == []
            or any(check.is_shown and not check.holds for check in self.checks)
            or self.holds
        )

    @property
    def holds(self) -> bool:
        """Whether every figure is as expected, and not all of them without exchange too."""
        return all(check.holds for check in self.checks) and self.fails_isolated != []
