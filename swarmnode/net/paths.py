"""What kind of way a session takes, read from the description of its channel.

Every kind of channel begins its description with its own word; what follows is for people. Where
the word is one of TCP, the address of the other side comes after a space.
"""

from __future__ import annotations

from typing import Final, Literal, cast

Path = Literal["direct", "punched-tcp", "rtc", "relay", "other"]

DIRECT_WORD: Final = "tcp"
PROXIED_WORD: Final = "proxied-tcp"
PUNCHED_WORD: Final = "punched-tcp"
RTC_WORD: Final = "rtc"
RELAY_WORD: Final = "relay"

_PATHS: dict[str, str] = {
    DIRECT_WORD: "direct",
    PROXIED_WORD: "direct",
    PUNCHED_WORD: "punched-tcp",
    RTC_WORD: "rtc",
    RELAY_WORD: "relay",
}


def path_of(description: str) -> Path:
    """Return the kind of way; ``other`` for what is none of ours, as in tests."""
    word = description.split(" ", 1)[0].split(":", 1)[0]
    return cast("Path", _PATHS.get(word, "other"))


# What a byte costs on a way, beside one on a TCP connection: WebRTC takes 30 times the CPU time and
# moves 20 MB/s at best; a relay's owner gives us a share of a line, and both directions count.
_COSTS: dict[Path, float] = {"direct": 1, "punched-tcp": 1, "rtc": 2, "other": 1, "relay": 4}


def cost_of(description: str) -> float:
    """Return how much rarer a partner is to be met by this way than by TCP."""
    return _COSTS[path_of(description)]
