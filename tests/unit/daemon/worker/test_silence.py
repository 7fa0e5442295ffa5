"""A worker that says nothing takes no steps, unless it is known to be silent now and then."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from swarmnode import limits
from swarmnode.daemon.worker.link import SilenceWatch
from swarmnode.ipc.control import Progress

QUIET_S = limits.WORKER_QUIET_S
LONG_S = 4 * QUIET_S


class Rig:
    def __init__(self) -> None:
        self.silences: list[float] = []
        self.watch = SilenceWatch(self.silences.append)

    def hears(self, step_time_s: float = 0.1, loss: float = 2.0) -> bool:
        return self.watch.heard(Progress(1, 1, loss, 2.0, step_time_s))

    async def is_noticed_in(self, seconds: float) -> bool:
        """Let it say nothing for so long; return whether that was noticed, once, in time."""
        self.silences.clear()
        await trio.sleep(seconds)
        noticed, ended = list(self.silences), self.hears()
        assert self.silences == noticed
        assert ended == bool(noticed)
        assert len(noticed) <= 1
        return ended


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.watch.run)
        yield made
        nursery.cancel_scope.cancel()


async def test_each_silence_is_told_once_and_soon(autojump_clock) -> None:
    async with rig() as it:
        it.hears()
        assert not await it.is_noticed_in(QUIET_S - 0.5)
        assert await it.is_noticed_in(LONG_S)
        assert QUIET_S < it.silences[0] < QUIET_S + 1.1
        assert await it.is_noticed_in(LONG_S)


async def test_the_first_step_takes_as_long_as_it_likes(autojump_clock) -> None:
    async with rig() as it:
        await trio.sleep(LONG_S)
        assert not it.hears(loss=math.nan)
        assert not await it.is_noticed_in(LONG_S)
        assert await it.is_noticed_in(LONG_S)


async def test_slow_steps_are_waited_for(autojump_clock) -> None:
    async with rig() as it:
        it.hears(step_time_s=10.0)
        await trio.sleep(limits.WORKER_QUIET_STEPS * 10 - 0.5)
        assert it.silences == []
        await trio.sleep(2)
        assert len(it.silences) == 1


async def test_one_silence_is_no_excuse_for_the_next_but_two_are(autojump_clock) -> None:
    """A look at the probe takes long, each time; who stood still once did so for no reason."""
    async with rig() as it:
        it.hears()
        assert await it.is_noticed_in(LONG_S)
        assert await it.is_noticed_in(LONG_S)
        assert not await it.is_noticed_in(limits.WORKER_QUIET_STEPS * LONG_S - 0.5)
        assert await it.is_noticed_in(limits.WORKER_QUIET_STEPS * LONG_S + 2)


async def test_the_next_worker_is_not_known(autojump_clock) -> None:
    async with rig() as it:
        it.hears()
        for _ in range(3):
            await it.is_noticed_in(LONG_S)
        it.watch.worker_gone()
        it.silences.clear()
        await trio.sleep(LONG_S)
        assert it.silences == []
        assert not it.hears()
        assert await it.is_noticed_in(LONG_S)


async def test_a_daemon_that_stood_still_itself_has_missed_as_much(mock_clock) -> None:
    """It hears what its worker said meanwhile before it looks."""
    made = Rig()
    made.hears()
    mock_clock.jump(LONG_S)
    assert made.hears(), "ends a silence"
    assert made.silences == [LONG_S]
    assert not made.hears()


async def test_a_machine_that_sleeps_every_night_is_no_excuse(autojump_clock) -> None:
    async with rig() as it:
        it.hears()
        for _ in range(3):
            await trio.sleep(1.5)
            it.hears()
            autojump_clock.jump(8 * 3600.0)
            assert await it.is_noticed_in(0.5)
        assert await it.is_noticed_in(LONG_S)
