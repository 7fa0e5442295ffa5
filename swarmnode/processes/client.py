"""How the command line talks to the daemon: HTTP over its Unix socket, from the standard library.

Loads neither Trio nor cryptography: ``swarmnode status`` answers in milliseconds.
"""

from __future__ import annotations

import http.client
import select
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from swarmnode import limits
from swarmnode.config import Paths
from swarmnode.errors import (
    ConfigError,
    DeadlineExceeded,
    NotRunning,
    Refused,
    SwarmNodeError,
    TransportError,
)

# The largest answer is the whole peer book as JSON, well below a MiB.
_HTTP_ANSWER_BYTES_MAX = 16 * limits.MIB

DEADLINE_S = 10.0
_CONNECT_RETRY_S = 0.02  # the kernel does not say when the daemon has accepted some
_ERRORS: dict[int, type[SwarmNodeError]] = {
    error.exit_code: error for error in (SwarmNodeError, ConfigError, NotRunning, Refused)
}


class _Refusal(msgspec.Struct):
    """What the daemon says instead of an answer."""

    error: str
    exit_code: int = 1


class _Answer(dict[str, Any]):
    """What a daemon says; one of another version, which is replaced or not yet, says less."""

    def __missing__(self, key: str) -> NoReturn:
        raise TransportError(
            f"the running node does not say {key!r}: it is of another version than this command;"
            " `swarmnode finish` ends it, and `swarmnode join` starts this version in its place"
        )


class _UnixConnection(http.client.HTTPConnection):
    """HTTP to a socket that lies in the file system."""

    def __init__(self, path: Path, deadline_s: float) -> None:
        super().__init__("localhost", timeout=deadline_s)
        self._path = path

    def connect(self) -> None:
        """Connect the socket that requests are sent through."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        until = time.monotonic() + (self.timeout or 0.0)
        while True:
            try:
                self.sock.connect(str(self._path))
                return
            except BlockingIOError as error:  # a busy daemon has yet to accept those before us
                if time.monotonic() >= until:
                    raise TimeoutError("not accepted") from error
                select.select([], [], [], _CONNECT_RETRY_S)

    def send(self, data: Any) -> None:
        """Send; a daemon that takes no more may have answered already, why not."""
        try:
            super().send(data)
        except (BrokenPipeError, ConnectionResetError):
            if not select.select([self.sock], [], [], 0)[0]:
                raise


class ControlClient:
    """Asks the daemon of one home; every call is one connection."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def get(self, path: str, *, deadline_s: float = DEADLINE_S) -> Any:
        """Return what the daemon has at ``path``, as plain Python.

        Raises:
            NotRunning: No daemon runs on this home.
            DeadlineExceeded: It did not answer in ``deadline_s``.
            TransportError: It went away in the middle, or answers what is no JSON; and later,
                where a field is asked of the answer that a node of another version does not say.
            SwarmNodeError: It refused: the class goes with the exit code of the refusal.
        """
        return self._request("GET", path, None, deadline_s)

    def get_bytes(self, path: str, *, deadline_s: float = DEADLINE_S) -> bytes:
        """Return what the daemon has at ``path``, as it is.

        Raises:
            The same as :meth:`get`.
        """
        status, answer = self._exchange("GET", path, None, deadline_s)
        return answer if status == http.client.OK else self._refuse(path, status, answer)

    def post(self, path: str, body: Any = None, *, deadline_s: float = DEADLINE_S) -> Any:
        """Send ``body`` (a record or plain Python; None sends ``{}``) and return the answer.

        Raises:
            The same as :meth:`get`.
        """
        encoded = msgspec.json.encode({} if body is None else body)
        return self._request("POST", path, encoded, deadline_s)

    def _request(self, method: str, path: str, body: bytes | None, deadline_s: float) -> Any:
        status, answer = self._exchange(method, path, body, deadline_s)
        if status != http.client.OK:
            self._refuse(path, status, answer)
        said = self._decode(path, status, answer, Any)
        return _Answer(said) if isinstance(said, dict) else said

    def _refuse(self, path: str, status: int, answer: bytes) -> NoReturn:
        refusal: _Refusal = self._decode(path, status, answer, _Refusal)
        raise _ERRORS.get(refusal.exit_code, SwarmNodeError)(refusal.error)

    def _decode(self, path: str, status: int, answer: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise TransportError(
                f"the daemon of {self._paths.home} answered {path} with status {status} and no "
                "JSON: is it of another version?"
            ) from error

    def _exchange(
        self, method: str, path: str, body: bytes | None, deadline_s: float
    ) -> tuple[int, bytes]:
        home, socket_path = self._paths.home, self._paths.control_socket
        connection = _UnixConnection(socket_path, deadline_s)
        try:
            self._check_owner(socket_path)
            connection.request(method, path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read(_HTTP_ANSWER_BYTES_MAX)
            if response.length and len(answer) < _HTTP_ANSWER_BYTES_MAX:
                raise http.client.IncompleteRead(answer, response.length)
            return response.status, answer
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
            raise NotRunning(
                f"no swarmnode runs on {home}: start it with `swarmnode join LINK`, or name its "
                "home with --home"
            ) from error
        except PermissionError as error:
            raise Refused(
                f"the swarmnode on {home} belongs to another user: run this as that user"
            ) from error
        except TimeoutError as error:
            operation = f"{method} {path} to the swarmnode on {home}"
            raise DeadlineExceeded(operation, deadline_s) from error
        except http.client.IncompleteRead as error:
            raise TransportError(
                f"the swarmnode on {home} went away while answering {path}: {len(error.partial)}"
                f" bytes came, {error.expected or 'some'} more were to come"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            if _was_not_read(error):
                raise TransportError(
                    f"the swarmnode on {home} closed the connection before it read the request for"
                    f" {path} ({why}): it is ending, or very busy; ask again"
                ) from error
            raise TransportError(
                f"the swarmnode on {home} went away while answering {path}: {why}"
            ) from error
        finally:
            connection.close()

    def _check_owner(self, socket_path: Path) -> None:
        """Refuse a socket that another user made in the shared temporary directory."""
        if self._paths.home in socket_path.parents:
            return
        owner, expected = socket_path.parent.stat().st_uid, self._paths.home.stat().st_uid
        if owner != expected:
            raise Refused(
                f"{socket_path.parent} belongs to uid {owner}, the home {self._paths.home} to "
                f"uid {expected}: remove the former, or choose a shorter home"
            )


def _was_not_read(error: Exception) -> bool:
    """Whether the daemon closed with our request unread: the kernel calls that a reset."""
    is_end = isinstance(error, http.client.RemoteDisconnected)  # it was read, and nothing came
    return isinstance(error, BrokenPipeError | ConnectionResetError) and not is_end
