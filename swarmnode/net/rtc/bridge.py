"""An asyncio loop in a thread of its own, and the letters between it and the Trio side of WebRTC.

Letters are plain data with the number of a connection: no object of one side is ever touched by
the other, so the asyncio side could be another process.

Why not asyncio inside Trio's thread: aiortc leaves exceptions in background tasks that a peer
can provoke. An asyncio loop logs them; trio-asyncio ends the program. Each direction is a
deque and at most one wake-up that is under way, so that a burst costs one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.wire.connect.nat import RtcDescription


@dataclass(frozen=True, slots=True)
class Gather:
    """Find our own candidates. ``servers`` are (IPv4 address, UDP port) of peers with STUN."""

    link: int
    hosts: tuple[str, ...]
    servers: tuple[tuple[str, int], ...]
    is_offerer: bool


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the channel with the author of this description; its candidates were chosen."""

    link: int
    remote: RtcDescription


@dataclass(frozen=True, slots=True)
class Send:
    """Send a binary message."""

    link: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """Send a credit."""

    link: int
    total: int


@dataclass(frozen=True, slots=True)
class Close:
    """Send what is queued, then let go of it."""

    link: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Close every connection and end."""


Command = Gather | Connect | Send | Grant | Close | Stop


@dataclass(frozen=True, slots=True)
class Gathered:
    """Our side of the description."""

    link: int
    local: RtcDescription


@dataclass(frozen=True, slots=True)
class Opened:
    """The channel is open with this address (host, port) of the other side."""

    link: int
    remote: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Received:
    """A binary message came."""

    link: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Credited:
    """The other side read so much of what we sent; it was checked."""

    link: int
    total: int


@dataclass(frozen=True, slots=True)
class Drained:
    """Of all bytes that we were told to send, so many have left the queue."""

    link: int
    total: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The other side closed the channel; nothing comes after what came."""

    link: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The connection is broken, or never came about."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Its sockets are closed."""

    link: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The asyncio side is over; ``reason`` is empty if it was told to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Carried:
    """What datagrams took of the line since the last time beyond what sessions know of."""

    sent_bytes: int
    received_bytes: int


Event = (
    Gathered | Opened | Received | Credited | Drained | Ended | Failed | Gone | Carried | Stopped
)


class Server(Protocol):
    """The asyncio side: made and used in the thread."""

    def handle(self, command: Command) -> None:
        """Carry out a command; must not wait or raise."""

    async def serve(self) -> None:
        """Run until told to stop."""


MakeServer = Callable[[Callable[[Event], None]], Server]


class LoopThread:
    """Runs a :class:`Server`. All methods are for Trio's thread.

    Args:
        make_server: called in the thread, where slow imports hold no task up; gets ``emit``.
        deliver: called in Trio's thread with each event; must not wait or raise. The last
            one is ``Stopped``.
    """

    def __init__(self, make_server: MakeServer, deliver: Callable[[Event], None]) -> None:
        self._make_server = make_server
        self._deliver = deliver
        self._token = trio.lowlevel.current_trio_token()
        self._commands: deque[Command] = deque()
        self._events: deque[Event] = deque()
        self._is_loop_woken = False
        self._is_trio_woken = False
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_stopped = trio.Event()
        # Does not keep the process alive if it should ever hang.
        self._thread = threading.Thread(target=self._main, name="swarmnode-rtc", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, command: Command) -> None:
        """Hand over a command, now and without waiting; nothing happens once it has stopped."""
        self._commands.append(command)
        loop = self._loop  # before it exists, commands wait for it
        if loop is not None and not self._is_loop_woken:
            self._is_loop_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._take_commands)

    async def stop(self) -> None:
        """Stop it and wait for the thread, also when cancelled."""
        self.post(Stop())
        with trio.move_on_after(limits.RTC_STOP_S + limits.RTC_SHUT_S, shield=True):
            await self._has_stopped.wait()
            self._thread.join()  # it has only to return

    # --- in the thread --------------------------------------------------------------------

    def _main(self) -> None:
        reason = ""
        try:
            self._server = self._make_server(self._emit)
            with asyncio.Runner() as runner:
                runner.run(self._serve(self._server))
        except ImportError as error:
            reason = f"{error}; install aiortc, or use other ways to the peer"
        except Exception as error:  # noqa: BLE001 -- the node lives on without WebRTC, and says so
            reason = f"stopped by {type(error).__name__}: {error}"
        self._emit(Stopped(reason))

    async def _serve(self, server: Server) -> None:
        self._loop = asyncio.get_running_loop()
        self._take_commands()
        await server.serve()

    def _take_commands(self) -> None:
        assert self._server is not None
        self._is_loop_woken = False  # before looking: a command from now on wakes again
        for _ in range(len(self._commands)):
            self._server.handle(self._commands.popleft())

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if not self._is_trio_woken:
            self._is_trio_woken = True
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._take_events)

    # --- in Trio's thread again -------------------------------------------------------------

    def _take_events(self) -> None:
        self._is_trio_woken = False
        for _ in range(len(self._events)):
            event = self._events.popleft()
            self._deliver(event)
            if isinstance(event, Stopped):
                self._has_stopped.set()
