"""The only door to clocks and randomness.

Cores never ask for the time or for a random number: a shell passes ``now``
and ``rng``. A test or the simulator passes others.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Rng(Protocol):
    """The part of ``random.Random`` that cores use: they take one and import none."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number in [a, b]."""

    def randrange(self, stop: int, /) -> int:
        """Return a whole number in [0, stop)."""

    def getrandbits(self, k: int, /) -> int:
        """Return a whole number of ``k`` random bits."""

    def randbytes(self, n: int, /) -> bytes:
        """Return ``n`` bytes."""

    def choice(self, seq: Sequence[_T], /) -> _T:
        """Return one of ``seq``."""

    def sample(self, population: Sequence[_T], k: int) -> list[_T]:
        """Return ``k`` different ones of ``population``."""

    def shuffle(self, x: list[Any], /) -> None:
        """Put a list in random order."""


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@dataclass
class Env:
    """What a node may know about time and chance.

    ``monotonic`` counts seconds for durations and deadlines, ``wall`` is Unix
    time and is only ever shown or signed, never used to decide an order. ``in_thread`` calls
    a function that waits for a disk; a simulation calls it at once, for virtual time must not
    pass while real time does.
    """

    monotonic: Callable[[], float]
    wall: Callable[[], float]
    rng: random.Random = field(default_factory=lambda: random.Random(secrets.randbits(128)))
    in_thread: Callable[..., Awaitable[Any]] = _at_once

    def token(self, n_bytes: int) -> bytes:
        """Return ``n_bytes`` from this environment's generator."""
        return self.rng.randbytes(n_bytes)


def real_env(
    monotonic: Callable[[], float] = time.monotonic,
    in_thread: Callable[..., Awaitable[Any]] = _at_once,
) -> Env:
    """Return the environment of a real node.

    A Trio shell passes ``trio.current_time`` and ``trio.to_thread.run_sync``.
    """
    return Env(monotonic=monotonic, wall=time.time, in_thread=in_thread)
