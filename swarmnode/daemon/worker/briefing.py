"""What the worker is told of the others: who trains, and how long a round is to be.

Both follow from what peers say of themselves, so both are told seldom, however often that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Members, Progress, RoundSteps, WorkerReady
from swarmnode.protocol.pacing import Pacer
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.worker")


class Briefing:
    """Looks at the others and tells the worker that runs now.

    Args:
        members: who trains now, ourselves included.
        speeds: seconds of a local step, as each other one of them says.
        post: sends a message to the worker, if there is one.
    """

    def __init__(
        self,
        self_id: PeerId,
        *,
        members: Callable[[], tuple[PeerId, ...]],
        speeds: Callable[[], Mapping[PeerId, float]],
        post: Callable[[Members | RoundSteps], None],
    ) -> None:
        self._self_id = self_id
        self._members = members
        self._speeds = speeds
        self._post = post
        self._is_ready = False
        self._told: tuple[bytes, ...] = ()
        self._pacer: Pacer | None = None  # of the worker's rounds, if its strategy has any
        self._steps = 0  # of a round, as the worker was told
        self._changed = trio.Event()

    async def run(self) -> None:
        """Tell of changed members until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            self._tell_members()
            await trio.sleep(limits.MEMBERS_TOLD_S)

    async def pace(self) -> None:
        """Fit the rounds to the swarm until cancelled."""
        while True:
            await trio.sleep(limits.PACING_TOLD_S)
            self._tell_steps()

    def worker_ready(self, ready: WorkerReady) -> None:
        """A new worker knows of nobody, and of no pace."""
        self._is_ready, self._told = True, ()
        self._tell_members()
        self._pacer, self._steps = None, ready.round_steps
        if ready.round_steps:
            fewest = max(1, int(limits.PACING_FEWEST_SHARE * ready.round_steps))
            self._pacer = Pacer(ready.round_steps, fewest)

    def worker_gone(self) -> None:
        """There is nobody to tell."""
        self._is_ready, self._pacer = False, None

    def progress(self, progress: Progress) -> None:
        """Take note of our own speed."""
        if self._pacer is not None and progress.step_time_s > 0:
            self._pacer.note_step(progress.step_time_s)

    def members_changed(self) -> None:
        """Somebody came or went, or may have."""
        self._changed.set()

    def _tell_members(self) -> None:
        members = tuple(sorted({self._self_id, *self._members()}))
        if self._is_ready and members != self._told:
            self._told = members
            self._post(Members(members))

    def _tell_steps(self) -> None:
        if self._pacer is None:
            return
        steps = self._pacer.steps(self._speeds().values())
        if steps >= limits.PACING_EQUAL_SHARE * self._pacer.most:
            steps = self._pacer.most
        if abs(steps - self._steps) > limits.PACING_CHANGE_SHARE * self._steps:
            self._steps = steps
            _log.info("rounds are fitted", steps=steps, own_step_s=round(self._pacer.step_s, 6))
            self._post(RoundSteps(steps))
