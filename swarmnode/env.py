"""The only door to clocks and randomness.

Cores never ask for the time or for a random number: a shell passes ``now``
and ``rng``. A test or the simulator passes others.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Env:
    """What a node may know about time and chance.

    ``monotonic`` counts seconds for durations and deadlines, ``wall`` is Unix
    time and is only ever shown or signed, never used to decide an order.
    """

    monotonic: Callable[[], float]
    wall: Callable[[], float]
    rng: random.Random = field(default_factory=lambda: random.Random(secrets.randbits(128)))

    def token(self, n_bytes: int) -> bytes:
        """Return ``n_bytes`` from this environment's generator."""
        return self.rng.randbytes(n_bytes)


def real_env(monotonic: Callable[[], float] = time.monotonic) -> Env:
    """Return the environment of a real node; a Trio shell passes ``trio.current_time``."""
    return Env(monotonic=monotonic, wall=time.time)
