"""Blocking calls from Trio or asyncio, whichever runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import sniffio

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Run ``call`` in a thread; a cancellation leaves it behind. Checkpoint: yes."""
    if _is_trio():
        import trio

        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)
    return await asyncio.to_thread(call)


async def in_thread_to_the_end(call: Callable[[], None]) -> None:
    """Run ``call`` in a thread, and wait for its end also when cancelled meanwhile."""
    if _is_trio():
        import trio

        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(call)
        return
    running = asyncio.ensure_future(asyncio.to_thread(call))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError as error:
            if running.cancelled():  # the loop itself ends
                raise
            cancelled = error
    running.result()
    if cancelled is not None:
        raise cancelled


async def sleep(seconds: float) -> None:
    """Sleep. Checkpoint: yes."""
    if _is_trio():
        import trio

        await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


def _is_trio() -> bool:
    return sniffio.current_async_library() == "trio"
