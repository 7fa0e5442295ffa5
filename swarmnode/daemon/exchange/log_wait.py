"""Since when a round of the log has been wanted, and none has closed."""

from __future__ import annotations


class LogWait:
    """Told of records that wait and of rounds that close; knows how long nothing has moved."""

    def __init__(self) -> None:
        self._since: float | None = None  # None: nobody here waits for a round

    def want(self, now: float) -> None:
        """A record waits for a round to be in."""
        if self._since is None:
            self._since = now

    def note_round(self, now: float, *, is_more_wanted: bool) -> None:
        """A round has closed."""
        self._since = now if is_more_wanted else None

    def forget(self) -> None:
        """Nobody waits any more: the worker is gone."""
        self._since = None

    def waited_s(self, now: float) -> float:
        """Return for how long a record has waited without any round closing."""
        return 0.0 if self._since is None else now - self._since
