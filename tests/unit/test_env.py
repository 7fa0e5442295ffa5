"""What a simulated node does in a thread is done in a thread: Trio refuses there what it would."""

from __future__ import annotations

import threading

import pytest
import trio

from swarmnode.env import Env
from swarmnode.errors import StorageError


async def test_neither_trio_nor_its_clock_is_there(autojump_clock) -> None:
    env = Env(trio.current_time, lambda: trio.current_time())
    for asked in (env.monotonic, env.wall, trio.lowlevel.current_task):
        with pytest.raises(RuntimeError, match="async context"):
            await env.in_thread(asked)


async def test_it_is_waited_for_and_virtual_time_stands_still(autojump_clock) -> None:
    env = Env(trio.current_time, trio.current_time)
    before = env.monotonic()
    assert await env.in_thread(threading.current_thread) is not threading.current_thread()
    assert await env.in_thread(divmod, 7, 2) == (3, 1)
    assert env.monotonic() == before


async def test_what_it_raises_is_raised_here() -> None:
    def fail() -> None:
        raise StorageError("the disk is gone")

    with pytest.raises(StorageError, match="the disk is gone"):
        await Env(trio.current_time, trio.current_time).in_thread(fail)
