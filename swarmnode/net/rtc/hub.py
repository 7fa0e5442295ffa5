"""The asyncio side: all connections of a node, in one loop. Nothing else imports aiortc."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from swarmnode import limits
from swarmnode.net.rtc.letters import (
    Close,
    Command,
    Connect,
    Event,
    Gather,
    Grant,
    Send,
    Stop,
)
from swarmnode.net.rtc.link import Link

_log = logging.getLogger("swarmnode.rtc")


class Hub:
    """Carries out commands; a command for a connection that is gone does nothing."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._links: dict[int, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = asyncio.Event()
        # They speak of every check and every lost race, as loudly as strangers like.
        for name in ("aioice", "aiortc"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def handle(self, command: Command) -> None:
        """Carry out a command."""
        if isinstance(command, Stop):
            self._is_stopping.set()
            return
        if isinstance(command, Gather):
            self._start(command)
            return
        link = self._links.get(command.link)
        if link is None:
            return
        match command:
            case Send(data=data):
                link.send(data)
            case Grant(total=total):
                link.grant(total)
            case Connect(remote=remote):
                link.connect(remote)
            case Close():
                link.close()

    async def serve(self) -> None:
        """Run until told to stop, then close every connection."""
        asyncio.get_running_loop().set_exception_handler(_note_exception)
        await self._is_stopping.wait()
        for link in self._links.values():
            link.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limits.RTC_STOP_S)

    def _start(self, order: Gather) -> None:
        link = self._links[order.link] = Link(order, self._emit)
        task = asyncio.create_task(self._run(order.link, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, number: int, link: Link) -> None:
        try:
            await link.run()
        finally:
            del self._links[number]


def _note_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A background task of aiortc lost a race, such as sending after the end: no harm done."""
    _log.debug("asyncio: %s: %r", context["message"], context.get("exception"))
