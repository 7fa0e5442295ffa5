"""The worker's end of the control socket: never blocks a training step.

What cannot be sent at once waits in an outbox. A daemon that reads too slowly costs
heartbeats first; one that does not read at all is treated like one that has died.
"""

from __future__ import annotations

import select
import socket
import time

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ipc.control import FromWorker, Progress, ToWorker, decode_to_worker, encode_message

# What the worker may still owe a daemon that reads slowly: a message per slot, answers to
# a few requests; past this, heartbeats are left out, and past twice this the daemon is dead.
WORKER_OUTBOX_BYTES_MAX = 64 * limits.KIB

_READ_BYTES = 64 * limits.KIB
_LENGTH_BYTES = 4


class DaemonGone(Exception):
    """The daemon closed the control socket, died, or no longer reads it: save and leave."""


class Channel:
    """Owns: the socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._put_back: list[ToWorker] = []
        self._abandoned = ""

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def abandon(self, why: str) -> None:
        """Let the next :meth:`poll` raise DaemonGone; may be called from a signal handler."""
        self._abandoned = why

    def send(self, message: FromWorker) -> None:
        """Queue a message and send what the socket takes. Raises DaemonGone."""
        waiting_bytes = len(self._outbox)
        if waiting_bytes > WORKER_OUTBOX_BYTES_MAX and isinstance(message, Progress):
            return  # the next one says the same, newer
        if waiting_bytes > 2 * WORKER_OUTBOX_BYTES_MAX:
            raise DaemonGone("the daemon does not read its worker's messages")
        self._outbox += encode_message(message)
        self._send_some()

    def poll(self, wait_s: float = 0.0) -> list[ToWorker]:
        """Return the messages that have come, waiting at most ``wait_s`` for the first.

        Raises:
            DaemonGone: the daemon closed the socket or died, or :meth:`abandon` was called.
            MalformedMessage: it sent what is no message: the versions differ.
        """
        if self._abandoned:
            raise DaemonGone(self._abandoned)
        self._send_some()
        messages, self._put_back = self._put_back, []
        if wait_s and not messages and not self._has_message():
            select.select([self._socket], [], [], wait_s)
        self._receive_some()
        while self._has_message():
            end = _LENGTH_BYTES + self._next_length()
            messages.append(decode_to_worker(bytes(self._inbox[_LENGTH_BYTES:end])))
            del self._inbox[:end]
        return messages

    def put_back(self, messages: list[ToWorker]) -> None:
        """Let the next :meth:`poll` begin with these."""
        self._put_back = messages

    def flush(self, deadline_s: float) -> None:
        """Send what is left, for at most ``deadline_s``: for the last message of a process."""
        until = time.monotonic() + deadline_s
        while self._outbox and time.monotonic() < until:
            select.select([], [self._socket], [], until - time.monotonic())
            self._send_some()

    def _has_message(self) -> bool:
        return len(self._inbox) >= _LENGTH_BYTES + self._next_length()

    def _next_length(self) -> int:
        length = int.from_bytes(self._inbox[:_LENGTH_BYTES], "little")
        if length > limits.MESSAGE_BYTES_MAX:
            raise MalformedMessage(f"control socket: a message of {length} bytes is announced")
        return length

    def _send_some(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise DaemonGone(str(error)) from error

    def _receive_some(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise DaemonGone(str(error)) from error
        if not data:
            raise DaemonGone("the daemon closed the control socket")
        self._inbox += data
