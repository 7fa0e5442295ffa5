"""Where the HTTP server listens: a Unix socket that only its owner reaches, or a TCP port."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
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
    try:
        listening.bind(os.fsencode(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
    except BaseException:  # whatever the reason, the descriptor is closed; then it goes on up
        listening.close()
        raise
    return listening


@contextlib.contextmanager
def _path_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
