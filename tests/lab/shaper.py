"""Delay, jitter, loss and rate between pairs of TAP devices, in user space.

Kernels without netem can do none of this. One process carries about 450 Mbit/s. It is
started by the lab with its settings as JSON, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import selectors
import sys
import time
from dataclasses import dataclass, field

from tests.lab.namespaces import open_tap

# Buffer in front of a rate limit: a home router's queue.
QUEUE_S = 0.1
_FRAME_BYTES_MAX = 2048
_BATCH_FRAMES = 64


@dataclass(frozen=True)
class Shape:
    """What happens to a frame on an uplink, in each direction."""

    delay_ms: float = 0
    jitter_ms: float = 0
    loss_percent: float = 0
    rate_mbit: float = 0  # 0: as fast as it goes

    @property
    def is_plain(self) -> bool:
        """Whether nothing happens to it."""
        return not (self.delay_ms or self.jitter_ms or self.loss_percent or self.rate_mbit)


@dataclass
class Lane:
    """One direction of one uplink."""

    target: int
    free_at: float = 0.0  # when the rate limit has sent what waits
    last_due: float = 0.0


@dataclass
class Shaper:
    """Frames under way, in the order in which they are due."""

    shape: Shape
    chance: random.Random = field(default_factory=random.Random)
    _under_way: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _count: int = 0

    def take(self, lane: Lane, frame: bytes, now: float) -> None:
        """Put a frame on its way, or lose it."""
        shape = self.shape
        if shape.loss_percent and self.chance.random() * 100 < shape.loss_percent:
            return
        leaves = now
        if shape.rate_mbit:
            starts = max(now, lane.free_at)
            if starts - now > QUEUE_S:
                return
            lane.free_at = leaves = starts + len(frame) * 8 / (shape.rate_mbit * 1e6)
        # Jitter varies the delay but does not reorder frames.
        delay_s = (shape.delay_ms + self.chance.random() * shape.jitter_ms) / 1e3
        lane.last_due = max(leaves + delay_s, lane.last_due)
        self._count += 1
        heapq.heappush(self._under_way, (lane.last_due, self._count, lane.target, frame))

    def deliver(self, now: float) -> None:
        """Write every frame that is due."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, target, frame = heapq.heappop(self._under_way)
            try:
                os.write(target, frame)
            except OSError:
                continue  # a full queue, or an uplink that is cut: lost

    def wait_s(self, now: float) -> float | None:
        """Return how long nothing is due."""
        return max(0.0, self._under_way[0][0] - now) if self._under_way else None


def _read_frames(source: int) -> list[bytes]:
    frames = []
    for _ in range(_BATCH_FRAMES):
        try:
            frames.append(os.read(source, _FRAME_BYTES_MAX))
        except OSError:  # nothing more, or an uplink that is cut
            break
    return frames


def main(settings: str) -> None:
    """Join the pairs of devices until standard input ends."""
    wanted = json.loads(settings)
    shaper = Shaper(Shape(**wanted["shape"]))
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    # Before all that trains: a frame that waits for the processor is delay that was not asked for,
    # and a node takes it for a queue on its line.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for first, first_device, second, second_device in wanted["links"]:
        ends = open_tap(first, first_device), open_tap(second, second_device)
        for source, target in (ends, ends[::-1]):
            selector.register(source, selectors.EVENT_READ, Lane(target))
    print("ready", flush=True)
    while True:
        for key, _ in selector.select(shaper.wait_s(time.monotonic())):
            if key.data is None:
                return
            for frame in _read_frames(key.fd):
                shaper.take(key.data, frame, time.monotonic())
        shaper.deliver(time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1])
