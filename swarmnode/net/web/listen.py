"""Where the HTTP server listens, and which connections it serves at once.

It listens at a Unix socket that only its owner reaches, or at a TCP port. Silent connections keep
no caller out::

    accepted --a slot is free--> served: any number of requests, one after the other
       |                            | idle between two of them: ends when its slot is needed
       +--all are taken--> waiting room: its first request is read, and then
                              the route's own slot --> one answer
                              a slot              --> served
                              none in HTTP_SLOT_WAIT_S, or the room is full --> 503

A route with a slot of its own, such as ``/status``, answers however busy the others keep the
server. The room is first in, first out: the oldest makes way for a newcomer, so that a thousand
silent clients cannot keep the one out that asks at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.errors import ConfigError, Refused

_BACKLOG = 64


@contextlib.contextmanager
def unix_listener(path: Path) -> Iterator[trio.SocketListener]:
    """Listen at ``path`` until the block ends, then remove the socket.

    Its directory is made with mode 0700. A socket left by a crash is replaced.

    Raises:
        ConfigError: The path is too long, its directory is open to others, or something that
            is no socket has its name.
        Refused: Another process listens there.
    """
    n_bytes = len(os.fsencode(path))
    if n_bytes > limits.UNIX_PATH_BYTES_MAX:
        raise ConfigError(
            f"the path of a Unix socket has at most {limits.UNIX_PATH_BYTES_MAX} bytes, this one "
            f"has {n_bytes}: choose a shorter SWARMNODE_HOME than {path.parent}"
        )
    with _path_errors(path):
        _make_socket_dir(path.parent)
        _remove_stale_socket(path)
        listening = _bind(path)
        bound = path.stat()
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    try:
        yield listener
    finally:
        # Only ours: another daemon may have replaced a socket that it found dead.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == bound.st_ino:
                path.unlink()
        listener.socket.close()


async def open_tcp_listeners(
    host: str | None, port: int, *, setting: str
) -> list[trio.SocketListener]:
    """Listen on a TCP port; ``host`` None is every interface, ``setting`` is named in errors.

    Raises:
        ConfigError: The port is taken or forbidden, or the host is none of this machine.
    """
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        where = f"{setting}: cannot listen on port {port} of {host or 'any interface'}"
        if error.errno == errno.EADDRINUSE:
            advice = (
                f"another program uses it: stop that one or set {setting} to another port "
                "(0 picks a free one)"
            )
        elif error.errno == errno.EACCES:
            advice = "ports below 1024 belong to the administrator: choose a higher one"
        else:
            advice = error.strerror or str(error)
        raise ConfigError(f"{where}: {advice}") from error


def _make_socket_dir(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{directory} belongs to another user (uid {status.st_uid}): remove it, or choose "
            "another SWARMNODE_HOME"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"{directory} can be entered by others (mode {stat.S_IMODE(status.st_mode):04o}) and "
            f"would let them control this node: chmod 700 {directory}"
        )


def _remove_stale_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} is in the way of a socket and is none: move it elsewhere")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog counts as alive too
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise Refused(f"another swarmnode listens on {path}: stop it first")


def _bind(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with ExitStack() as undo:
        undo.callback(listening.close)
        listening.bind(os.fsencode(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
        undo.pop_all()
    return listening


@contextlib.contextmanager
def _path_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error


# Connections that wait for a slot: enough for every verb of some people at one moment.
HTTP_WAITING_MAX = 32
# As long as silent clients hold slots, and half a command's patience (processes/client.py).
HTTP_SLOT_WAIT_S = 5.0


class Busy(Exception):
    """No slot became free, or others needed the place in the waiting room."""


class Cut(Exception):
    """The connection was idle, and its slot was needed."""


class Slots:
    """Those of one server."""

    def __init__(self) -> None:
        self._n_taken = 0
        self._own_taken: set[str] = set()
        self._room: dict[ConnectionSlot, trio.CancelScope] = {}  # the oldest first
        self._idle: dict[ConnectionSlot, trio.CancelScope] = {}  # idle the longest first
        self._freed = trio.lowlevel.ParkingLot()

    def enter(self) -> ConnectionSlot:
        """Return the place of a new connection; :meth:`ConnectionSlot.leave` gives it back."""
        place = ConnectionSlot(self)
        if self._n_taken < limits.HTTP_CONNECTIONS_MAX:
            self._n_taken += 1
            place.has_slot = True
        return place

    def _take(self) -> bool:
        """Take a slot that is free, or that of the connection that has been idle longest."""
        if self._n_taken < limits.HTTP_CONNECTIONS_MAX:
            self._n_taken += 1
            return True
        for place, scope in self._idle.items():
            del self._idle[place]
            place.has_slot = False
            scope.cancel()
            return True
        return False

    def _give_back(self) -> None:
        self._n_taken -= 1
        self._freed.unpark_all()


class ConnectionSlot:
    """Of one connection."""

    def __init__(self, slots: Slots) -> None:
        self.has_slot = False
        self._slots = slots
        self._own = ""

    @property
    def is_for_one(self) -> bool:
        """Whether the connection ends with the answer, as it has a route's own slot."""
        return bool(self._own)

    def leave(self) -> None:
        """Let others have it. Idempotent."""
        if self.has_slot:
            self.has_slot = False
            self._slots._give_back()
        if self._own:
            self._slots._own_taken.discard(self._own)
            self._own = ""
            self._slots._freed.unpark_all()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Around a wait between two requests. Raises Cut: the slot was needed."""
        with trio.CancelScope() as scope:
            self._slots._idle[self] = scope
            self._slots._freed.unpark_all()  # one that waits may have it
            try:
                yield
            finally:
                self._slots._idle.pop(self, None)
        if not self.has_slot:
            raise Cut

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around everything before a connection has a slot. Raises Busy: there was none."""
        room = self._slots._room
        if len(room) >= HTTP_WAITING_MAX:
            room.pop(next(iter(room))).cancel()
        with trio.CancelScope() as scope:
            room[self] = scope
            try:
                yield
            finally:
                room.pop(self, None)
        if not (self.has_slot or self._own):
            raise Busy

    async def wait_slot(self, own: str) -> None:
        """Return with a slot; ``own`` is the path of the route if that has one of its own.

        Raises:
            Busy: there was none in HTTP_SLOT_WAIT_S.
        """
        slots = self._slots
        with trio.move_on_after(HTTP_SLOT_WAIT_S):
            while True:
                if own and own not in slots._own_taken:
                    slots._own_taken.add(own)
                    self._own = own
                    return
                if slots._take():
                    self.has_slot = True
                    return
                await slots._freed.park()
        raise Busy
