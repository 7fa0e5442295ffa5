"""The only way to clocks and randomness.

Cores never ask for the time or for a random number: a shell passes ``now``
and ``rng``. A test or the simulator passes others.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread
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


async def _thread_joined(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a thread of its own while this one stands still.

    Virtual time does not pass meanwhile. That it is another thread is the point: what must not be
    called there, such as Trio's clock, fails in a simulation as it does on a real node.
    """
    found: list[Any] = []
    failures: list[BaseException] = []

    def call() -> None:
        try:
            found.append(function(*arguments))
        except BaseException as error:  # noqa: BLE001 -- raised again by the caller, below
            failures.append(error)

    thread = Thread(target=call, name="in_thread")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return found[0]


@dataclass
class Env:
    """What a node may know about time and chance.

    ``monotonic`` counts seconds for durations and deadlines, ``wall`` is Unix
    time and is only ever shown or signed, never used to decide an order. ``in_thread`` calls
    a function that waits for a disk. A simulation waits for that thread without letting virtual
    time pass. The function sees neither Trio nor this clock: what it needs of them is an argument.
    """

    monotonic: Callable[[], float]
    wall: Callable[[], float]
    rng: random.Random = field(default_factory=lambda: random.Random(secrets.randbits(128)))
    in_thread: Callable[..., Awaitable[Any]] = _thread_joined

    def token(self, n_bytes: int) -> bytes:
        """Return ``n_bytes`` from this environment's generator."""
        return self.rng.randbytes(n_bytes)


def real_env(
    monotonic: Callable[[], float] = time.monotonic,
    in_thread: Callable[..., Awaitable[Any]] = _thread_joined,
) -> Env:
    """Return the environment of a real node.

    A Trio shell passes ``trio.current_time`` and ``trio.to_thread.run_sync``.
    """
    return Env(monotonic=monotonic, wall=time.time, in_thread=in_thread)
