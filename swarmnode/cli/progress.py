"""What a verb that takes a while is doing: one line on a terminal, now and then one elsewhere."""

from __future__ import annotations

import sys
import threading
import time

_TICK_S = 0.5
_LINE_EVERY_S = 5.0  # where lines stay, in a log
_CLEAR = "\r\x1b[K"


class Progress:
    """Say on standard error what goes on, and for how long. Owns: a thread."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._words = ""
        self._says_lines = False  # where it is no terminal: once something long has begun
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def show(self, words: str, *, is_long: bool) -> None:
        """From now on it is doing this; ``is_long``: it is known to take a while."""
        self._words = words
        self._says_lines = self._says_lines or is_long
        if self._is_terminal or is_long:
            self._print()

    def __enter__(self) -> Progress:
        if not self._is_quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._is_quiet:
            return
        self._thread.join()
        if self._is_terminal:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def _tick(self) -> None:
        while not self._is_over.wait(_TICK_S if self._is_terminal else _LINE_EVERY_S):
            self._print()

    def _print(self) -> None:
        if self._is_quiet or not (self._words and (self._is_terminal or self._says_lines)):
            return
        line = f"swarmnode: {self._words}, {time.monotonic() - self._began_s:.0f} s"
        if self._is_terminal:
            print(f"{_CLEAR}{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
