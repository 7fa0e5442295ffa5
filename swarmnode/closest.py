"""What a misspelt name probably means."""

from __future__ import annotations

from collections.abc import Iterable

# Of the letters, how many agree: "stauts" and "status" do in 0.83, "pause" and "peers" in 0.4.
_LIKENESS_MIN = 0.75


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like ``name``; None if none is."""
    from difflib import get_close_matches  # only ever needed for an error

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=_LIKENESS_MIN)), None)
