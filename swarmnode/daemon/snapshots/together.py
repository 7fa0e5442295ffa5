"""Several jobs on one stream: the first that fails ends all, and its error comes out as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from swarmnode.errors import SwarmNodeError


async def run_together(*jobs: Callable[[], Awaitable[None]]) -> None:
    """Run jobs until all of them have ended.

    Raises:
        SwarmNodeError: of the job that failed first; the others are cancelled. A nursery alone
            would wrap it in a group, and every caller would have to unwrap it.
    """
    failures: list[SwarmNodeError] = []
    async with trio.open_nursery() as nursery:

        async def guard(job: Callable[[], Awaitable[None]]) -> None:
            try:
                await job()
            except SwarmNodeError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        for job in jobs:
            nursery.start_soon(guard, job)
    if failures:
        raise failures[0]
