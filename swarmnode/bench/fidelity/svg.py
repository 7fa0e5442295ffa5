"""A plot of a finding as SVG: small, readable on light and on dark pages, the same every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from swarmnode.bench.fidelity.finding import Plot, Series

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 62, 44  # margins, with room for title, legend and labels
_COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#8b3fc7", "#b0124e")
_ON_DARK = ("#6cb6ff", "#f69d50", "#57ab5a", "#c99bff", "#ff7b9c")
_DASHES = {"line": "", "dashes": "6 4", "dots": "0"}
_DECADES_MAX = 7  # labels on a logarithmic axis
_TICKS = 5
_NARROW = 100.0  # a range that is labelled at 2 and 5 too
_NEAR = 1 + 1e-9
_CHARACTER = 6.6  # width of one in the legend, about

Scale = Callable[[float], float]


def draw(plot: Plot) -> str:
    """Return the plot as a file of SVG."""
    points = [point for series in plot.series for point in _shown(series, plot)]
    x_ticks = _ticks([x for x, _ in points], is_log=plot.log_x)
    y_ticks = _ticks([y for _, y in points], is_log=plot.log_y)
    xs, ys = [x for x, _ in points] + x_ticks, [y for _, y in points] + y_ticks
    x_of = _scale(xs, _LEFT, _WIDTH - _RIGHT, is_log=plot.log_x)
    y_of = _scale(ys, _HEIGHT - _BOTTOM, _TOP, is_log=plot.log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' width="{_WIDTH}" height="{_HEIGHT}" role="img">',
        f"<title>{escape(plot.title)}</title>",
        _style(),
        f'<text class="t" x="{_LEFT}" y="20">{escape(plot.title)}</text>',
        *_legend(plot.series),
        *(_grid_line(x_of(x), _label(x), is_vertical=True) for x in x_ticks),
        *(_grid_line(y_of(y), _label(y), is_vertical=False) for y in y_ticks),
        *_axis_names(plot),
    ]
    for number, series in enumerate(plot.series):
        parts += _curve(number, [(x_of(x), y_of(y)) for x, y in _shown(series, plot)], series)
    return "\n".join([*parts, "</svg>", ""])


def _shown(series: Series, plot: Plot) -> list[tuple[float, float]]:
    """Return the points that have a place on the axes."""
    return [
        (x, y) for x, y in series.points if (x > 0 or not plot.log_x) and (y > 0 or not plot.log_y)
    ]


# --- axes ----------------------------------------------------------------------------------------


def _ticks(values: Sequence[float], *, is_log: bool) -> list[float]:
    """Return round numbers over the range of the values."""
    low, high = min(values), max(values)
    if is_log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        if high <= low * _NARROW:
            fine = [c * 10.0**power for power in range(first - 1, last + 1) for c in (1, 2, 5)]
            begin = max(number for number, tick in enumerate(fine) if tick <= low * _NEAR)
            end = min(number for number, tick in enumerate(fine) if tick >= high / _NEAR)
            return fine[begin : end + 1]
        every = math.ceil((last - first) / _DECADES_MAX)
        return [10.0**power for power in range(first, last + 1, every)]
    step = _round_up((high - low) / _TICKS) if high > low else 1.0
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def _round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next(c * unit for c in (1, 2, 5, 10) if c * unit >= value * (1 - 1e-9))


def _scale(values: Sequence[float], begin: float, end: float, *, is_log: bool) -> Scale:
    """Return the map of the values' range to pixels."""
    place: Scale = math.log10 if is_log else float
    low, high = place(min(values)), place(max(values))
    return lambda value: begin + (end - begin) * (place(value) - low) / ((high - low) or 1.0)


def _label(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e5:
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        factor = value / 10.0**exponent
        return f"1e{exponent}" if round(factor, 6) == 1 else f"{factor:g}e{exponent}"
    return f"{round(value, 9):,.10g}"


def _grid_line(at: float, label: str, *, is_vertical: bool) -> str:
    if is_vertical:
        bottom = _HEIGHT - _BOTTOM
        return (
            f'<path class="g" d="M{at:.1f} {_TOP}V{bottom}"/>'
            f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>'
        )
    return (
        f'<path class="g" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _axis_names(plot: Plot) -> list[str]:
    across, down = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        f'<text x="{across:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(plot.x)}</text>',
        f'<text transform="translate(14 {down:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(plot.y)}</text>",
    ]


# --- what is drawn -------------------------------------------------------------------------------


def _curve(number: int, places: list[tuple[float, float]], series: Series) -> list[str]:
    colour = f"c{number % len(_COLOURS)}"
    if series.style == "dots":
        return [f'<circle class="{colour} d" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in places]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dashes = _DASHES[series.style]
    attribute = f' stroke-dasharray="{dashes}"' if dashes else ""
    return [f'<path class="{colour} l" d="M{path}"{attribute}/>']


def _legend(series: Sequence[Series]) -> list[str]:
    """Return a sample and a name for each, in one line."""
    parts, x = [], float(_LEFT)
    for number, one in enumerate(series):
        end = x + 20
        parts += _curve(
            number, [(x, 42), (end, 42)] if one.style != "dots" else [(x + 10, 42)], one
        )
        parts.append(f'<text x="{end + 5:.0f}" y="46">{escape(one.name)}</text>')
        x = end + 5 + _CHARACTER * len(one.name) + 14
    return parts


def _style() -> str:
    """Return colours for both kinds of page; the background is the page's own."""
    rules = ["text{font:12px system-ui,sans-serif;fill:#3d444d}.t{font-weight:600;font-size:14px}"]
    rules.append(".l{fill:none;stroke-width:2;stroke-linejoin:round}.g{stroke:#d1d9e0}")
    rules += _colours(_COLOURS)
    dark = ["text{fill:#d1d7e0}.g{stroke:#3d444d}", *_colours(_ON_DARK)]
    return f"<style>{''.join(rules)}@media(prefers-color-scheme:dark){{{''.join(dark)}}}</style>"


def _colours(colours: Sequence[str]) -> list[str]:
    return [f".c{n}{{stroke:{c}}}.c{n}.d{{fill:{c}}}" for n, c in enumerate(colours)]
