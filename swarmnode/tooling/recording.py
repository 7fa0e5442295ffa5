"""Records a terminal: ``python -m swarmnode.tooling.recording FILE.svg -- swarmnode demo …``.

The command runs in a terminal of its own, and what stood on the screen, and when, becomes an SVG
that plays by itself, light or dark, over and over. A run that took longer than a reader waits is
played faster, and the last line says how much faster. Nothing is edited: what the command did not
write is not there.

Of the language of terminals it knows what verbs here use: lines that wrap and scroll, moves up, and
lines that are cleared. Colours and all else are left out.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

_ROWS, _COLUMNS = 20, 100
_PLAYED_S = 18.0
_STILL_S = 2.0  # of the end, before it begins again
_FRAMES_PER_S = 5.0
_READ_BYTES = 1 << 16
_CELL_PX, _LINE_PX, _EDGE_PX = 7.25, 17, 14
# A move, a cleared line, any other order, an end of line, or text.
_TOKENS = re.compile(r"\x1b\[(\d*)A|(\x1b\[2K)|\x1b\[[\d;?]*[A-Za-z]|([\r\n])|([^\x1b\r\n]+)")

_STYLE = """\
rect{fill:#f6f8fa;stroke:#d0d7de}text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#24292f;\
white-space:pre}.c{fill:#0b6bcb;font-weight:600}
@media(prefers-color-scheme:dark){rect{fill:#161b22;stroke:#30363d}text{fill:#e6edf3}.c{fill:#58a6ff}}
@media(prefers-reduced-motion:reduce){text{animation:none!important}}
"""


@dataclass
class Screen:
    """What stands in a terminal of ``rows`` lines; lines above it are gone."""

    rows: int = _ROWS
    columns: int = _COLUMNS
    lines: list[str] = field(default_factory=lambda: [""])
    _row: int = 0
    _column: int = 0

    def write(self, text: str) -> None:
        """Take what a program has written."""
        for up, cleared, end, words in _TOKENS.findall(text):
            if words:
                self._put(words)
            elif end == "\n":
                self._down()
            elif end == "\r":
                self._column = 0
            elif cleared:
                self.lines[self._row] = ""
            elif up:
                self._row = max(0, self._row - int(up))

    def _put(self, words: str) -> None:
        while words:
            if self._column == self.columns:
                self._down()
                self._column = 0
            part, words = words[: self.columns - self._column], words[self.columns - self._column :]
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + part + line[self._column + len(part) :]
            self._column += len(part)

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")
        if len(self.lines) > self.rows:
            del self.lines[0]
            self._row -= 1


@dataclass(frozen=True)
class Frame:
    """What stood there from a moment on."""

    at_s: float
    lines: tuple[str, ...]


def record(command: Sequence[str]) -> tuple[list[Frame], int]:
    """Run a command in a terminal; return what was seen, and its exit status."""
    screen, frames, began_s = Screen(), [Frame(0.0, ())], time.monotonic()
    child, ours = pty.fork()
    if child == 0:
        os.execvp(command[0], list(command))  # noqa: S606 - what the person typed
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    while data := _read(ours):
        screen.write(data.decode(errors="replace"))
        frames.append(Frame(time.monotonic() - began_s, tuple(screen.lines)))
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    os.close(ours)
    return frames, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, _READ_BYTES)
    except OSError:  # Linux says so when the last program has closed it
        return b""


def thinned(frames: Sequence[Frame], played_s: float = _PLAYED_S) -> tuple[list[Frame], float]:
    """Return the frames that are seen, in the time of the player, and how much faster it is."""
    took_s = frames[-1].at_s
    speed = max(1.0, took_s / played_s)
    kept: dict[int, Frame] = {}
    for frame in frames:  # the last of each moment stays
        place = round(frame.at_s / speed * _FRAMES_PER_S)
        kept[place] = Frame(place / _FRAMES_PER_S, frame.lines)
    return [kept[place] for place in sorted(kept)], speed


def to_svg(command: str, frames: Sequence[Frame], speed: float) -> str:
    """Return the picture that plays the frames; where nothing moves it shows the last one."""
    end_s = frames[-1].at_s + _STILL_S
    width = round(_COLUMNS * _CELL_PX + 2 * _EDGE_PX)
    height = (_ROWS + 2) * _LINE_PX + 2 * _EDGE_PX
    rules: dict[str, str] = {}
    texts = []
    for begin_s, stop_s, row, line in _spans(frames):
        kind = _rule(begin_s, stop_s, end_s, rules)
        y = _EDGE_PX + (row + 2) * _LINE_PX
        texts.append(f'<text{kind} x="{_EDGE_PX}" y="{y}">{escape(line, quote=False)}</text>')
    title = f"{command}: {frames[-1].at_s * speed:.0f} s, played {speed:.1f} times as fast"
    first = f'<text class="c" x="{_EDGE_PX}" y="{_EDGE_PX + 12}">$ {escape(command)}</text>'
    # The last one is beside the first line, where nothing else is written.
    pace = f'<text x="{width - _EDGE_PX - 80}" y="{_EDGE_PX + 12}">{speed:.0f}× as fast</text>'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_STYLE}{''.join(rules.values())}</style>",
            f'<rect width="{width}" height="{height}" rx="6"/>',
            *(first, pace, *texts),
            "</svg>\n",
        )
    )


def _spans(frames: Sequence[Frame]) -> Iterable[tuple[float, float | None, int, str]]:
    """Yield each line with its row, from when and until when it stood there; None: the end."""
    standing: dict[int, tuple[float, str]] = {}
    for frame in frames:
        for row in range(_ROWS):
            line = frame.lines[row].rstrip() if row < len(frame.lines) else ""
            since = standing.get(row, (0.0, ""))
            if line != since[1]:
                if since[1]:
                    yield since[0], frame.at_s, row, since[1]
                standing[row] = (frame.at_s, line)
    for row, (begin_s, line) in standing.items():
        if line:
            yield begin_s, None, row, line


def _rule(begin_s: float, stop_s: float | None, end_s: float, rules: dict[str, str]) -> str:
    """Return the attribute of a text that is there for so long; its rule is added to ``rules``."""
    begin = 100 * begin_s / end_s
    name = f"a{begin_s * _FRAMES_PER_S:.0f}" + (
        "" if stop_s is None else f"_{stop_s * _FRAMES_PER_S:.0f}"
    )
    steps = f"0%{{opacity:0}}{begin:.2f}%{{opacity:1}}" if begin else "0%{opacity:1}"
    steps += "" if stop_s is None else f"{100 * stop_s / end_s:.2f}%,100%{{opacity:0}}"
    still = 1 if stop_s is None else 0
    rules[name] = (
        f".{name}{{opacity:{still};animation:{name} {end_s:.1f}s step-end infinite}}"
        f"@keyframes {name}{{{steps}}}\n"
    )
    return f' class="{name}"'


def main(arguments: list[str] | None = None) -> int:
    """Run the command, write the recording, and end as the command did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where the SVG goes")
    parser.add_argument("command", nargs="+", help="behind --: what is run")
    given = parser.parse_args(arguments)
    frames, status = record(given.command)
    seen, speed = thinned(frames)
    shown = shlex.join([Path(given.command[0]).name, *given.command[1:]])
    given.file.write_text(to_svg(shown, seen, speed), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
