"""A member whose snapshots are whole and good for nothing, and said to be further than all others.

Their hashes are right, and every number in them is finite: what their holder says of them is a lie.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import trio

from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.snapshots.snapshots import Snapshots
from swarmnode.protocol.crdt.events import Update

CLAIM_EVERY_S = 1.0
_FAR_AHEAD_STEPS = 10**6


def far_ahead(swarm_step: int) -> int:
    """Return a step that no member can have come to."""
    return swarm_step + _FAR_AHEAD_STEPS


def half_as_far_again(swarm_step: int) -> int:
    """Return a step that counts, see ``protocol/plausible.py``, and that no honest member is at."""
    return swarm_step * 3 // 2


class BoastingSnapshots(Snapshots):
    """In place of :class:`Snapshots`; a subclass has its ``ahead``, of the swarm's step."""

    ahead: ClassVar[Callable[[int], int]]

    def __init__(self, *, part: SwarmPart, **parts: Any) -> None:
        super().__init__(part=part, **parts)
        self._swarm = part

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Offer as an honest node does, and say again and again that it is ahead."""
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run)
            task_status.started()
            while True:
                self._boast()
                await trio.sleep(CLAIM_EVERY_S)

    def _boast(self) -> None:
        """What it has from others stays as they said: it is good."""
        step = type(self).ahead(self._swarm.swarm_step())
        own = {name: self.claims[name] for name in self._own if name in self.claims}
        claims = {name: msgspec.structs.replace(each, step=step) for name, each in own.items()}
        if claims:
            self._swarm.state.say(Update(snapshots=claims))


def boasting(ahead: Callable[[int], int]) -> type[Snapshots]:
    """Return what takes the place of :class:`Snapshots`."""
    return type("Boasting", (BoastingSnapshots,), {"ahead": staticmethod(ahead)})


def turned(path: Path) -> None:
    """Write a snapshot anew with all of its weights turned around."""
    _spoil(path, "model/", lambda tensor: tensor.neg_())


def no_moments(path: Path) -> None:
    """Write a snapshot anew with moments that are no numbers."""
    _spoil(path, "optimizer/", lambda tensor: tensor.fill_(float("nan")))


def _spoil(path: Path, prefix: str, change: Callable[[Any], Any]) -> None:
    from swarmnode.worker.snapshots.tensorfile import read_tensors, write_tensors  # imports torch

    tensors, about = read_tensors(path)
    for name, tensor in tensors.items():
        if name.startswith(prefix) and tensor.is_floating_point():
            change(tensor)
    write_tensors(path, tensors, about)
