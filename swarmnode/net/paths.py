"""What kind of way a session takes, read from the description of its channel.

Every kind of channel begins its description with its own word; what follows is for people.
"""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

Path = Literal["direct", "punched-tcp", "rtc", "relay", "other"]

PATHS: Final[tuple[Path, ...]] = get_args(Path)
DIRECT_WORD: Final = "tcp"
PUNCHED_WORD: Final = "punched-tcp"
RTC_WORD: Final = "rtc"
RELAY_WORD: Final = "relay"

_PATHS: dict[str, str] = {
    DIRECT_WORD: "direct",
    PUNCHED_WORD: "punched-tcp",
    RTC_WORD: "rtc",
    RELAY_WORD: "relay",
}
_RANKS: dict[Path, int] = {"direct": 0, "punched-tcp": 0, "rtc": 1, "other": 1, "relay": 2}


def path_of(description: str) -> Path:
    """Return the kind of way; ``other`` for what is none of ours, as in tests."""
    word = description.split(" ", 1)[0].split(":", 1)[0]
    return cast("Path", _PATHS.get(word, "other"))


def is_better(path: Path, than: Path) -> bool:
    """Whether moving a session from ``than`` to ``path`` is worth it: kernel TCP, rtc, relay."""
    return _RANKS[path] < _RANKS[than]
