"""What a service manager is told: that the node is up, what it does, that its loop still turns.

Source: sd_notify(3), sd_watchdog_enabled(3). A message is one datagram of ``KEY=VALUE`` lines to
the socket that ``NOTIFY_SOCKET`` names; without that nobody is told anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping

import trio

from swarmnode import limits

_STATUS_CHARACTERS_MAX = 200


class ServiceManager:
    """Owns: a socket, if there is a manager."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the manager's address out of the environment: what we start is not the service."""
        address = environ.pop("NOTIFY_SOCKET", "")
        watchdog_us, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        is_ours = pid in ("", str(os.getpid()))
        # Two more chances for a ping that is late.
        self.watchdog_s = int(watchdog_us) / 3e6 if watchdog_us.isdecimal() and is_ours else None

    def tell(self, **values: str | int) -> None:
        """Send a message; a manager that is busy or gone misses it."""
        if self._socket is None:
            return
        text = "\n".join(f"{key}={_line(value)}" for key, value in values.items())
        with contextlib.suppress(OSError):
            self._socket.sendto(text.encode(), self._address)

    async def follow(self, status: Callable[[], str]) -> None:
        """Say that the node is up, then what it does, and ping the watchdog, until cancelled.

        The pings come from the event loop: one that hangs is ended and started anew.
        """
        if self._socket is None:
            return
        self.tell(READY=1, STATUS=status(), MAINPID=os.getpid())
        async with trio.open_nursery() as nursery:
            if self.watchdog_s is not None:
                nursery.start_soon(self._ping, self.watchdog_s)
            while True:
                await trio.sleep(limits.PROGRESS_LINE_S)
                self.tell(STATUS=status())

    async def _ping(self, every_s: float) -> None:
        while True:
            self.tell(WATCHDOG=1)
            await trio.sleep(every_s)

    def close(self) -> None:
        """Give the socket back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _line(value: str | int) -> str:
    """Return one line: some of a status is text from peers."""
    text = "".join(char if char.isprintable() else " " for char in str(value))
    return text[:_STATUS_CHARACTERS_MAX]
