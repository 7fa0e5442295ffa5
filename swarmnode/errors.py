"""Every error that swarmnode raises on purpose.

::

    SwarmNodeError                    .exit_code
    ├ ConfigError(ValueError)         a setting, link, manifest or file is wrong
    ├ NotRunning                      no daemon answers on this home
    ├ Refused                         trust or a limit says no
    │ └ KeyInUse                      another running node has our key
    ├ ProtocolError                   .peer
    │ ├ LocalProtocolError            we misused a core: a bug in swarmnode
    │ └ RemoteProtocolError           the peer broke a rule: penalise, maybe close
    │   ├ MalformedMessage
    │   ├ LimitExceeded
    │   ├ AuthenticationFailed
    │   │ └ NoNodeKey
    │   └ VersionMismatch
    ├ TransportError
    │ ├ DialFailed                    .address
    │ ├ ChannelClosed                 we closed it
    │ └ ChannelBroken                 they, or the network, broke it
    ├ DeadlineExceeded(TimeoutError)  .operation .limit_s
    ├ Overloaded                      load was shed: try again later, elsewhere
    ├ StorageError
    │ ├ CorruptRecord                 .path
    │ └ StorageFull
    └ WorkerError
      ├ WorkerCrashed                 .signal_number
      ├ WorkerLeft                    a program of the owner's that trained, see integrations/
      ├ WorkerHung
      └ SpecMismatch                  model or codec differs from what was agreed
    InvariantViolation(AssertionError)  never caught: the daemon exits

A message says what was expected, what came, and what to do about it: the
command line prints it as its only line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

DialCause = Literal["refused", "blocked", "no-name", "no-route", "silent", "busy", "proxy"]


class SwarmNodeError(Exception):
    """Root of the tree. ``exit_code`` is what a command line that ends on it returns."""

    exit_code = 1


class ConfigError(SwarmNodeError, ValueError):
    """A setting, a link, a manifest or a file that the user named is wrong."""

    exit_code = 2


class NotRunning(SwarmNodeError):
    """No daemon answers for this home."""

    exit_code = 3


class Refused(SwarmNodeError):
    """A rule of trust or a limit says no."""

    exit_code = 4


class KeyInUse(Refused):
    """Another running node signs with our key: a copied home, or a restored backup."""

    @classmethod
    def of_node(cls, where: str) -> KeyInUse:
        """Return the error of a node whose home, or a copy of it, another node uses as well."""
        return cls(
            f"another node with this node's key is running {where}: two nodes must not share a home"
            " or a copy of it; stop one of them, or give this one a home of its own (--home)"
        )


class ProtocolError(SwarmNodeError):
    """A rule of a protocol was broken; ``peer`` names the other side where known."""

    def __init__(self, message: str, *, peer: str | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class LocalProtocolError(ProtocolError):
    """We misused a protocol core: a bug in swarmnode."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule."""


class MalformedMessage(RemoteProtocolError):
    """Bytes that are no message of ours, or a field out of its range."""


class LimitExceeded(RemoteProtocolError):
    """The peer sent more than a limit allows."""


class AuthenticationFailed(RemoteProtocolError):
    """The peer is not the one it should be, or could not prove it."""

    exit_code = 4


class NoNodeKey(AuthenticationFailed):
    """The peer speaks TLS, and has no key as nodes have: a web server, a login page."""


class VersionMismatch(RemoteProtocolError):
    """The peer speaks another version, or belongs to another network."""

    exit_code = 4


class TransportError(SwarmNodeError):
    """Bytes could not be moved."""


class DialFailed(TransportError):
    """No node could be reached at ``address``.

    ``cause``: refused (no process listens there), blocked, no-name, no-route, silent, or
    busy (a relay has no room for it), or proxy (that of this network says no).
    """

    def __init__(self, message: str, *, address: str = "", cause: DialCause = "silent") -> None:
        super().__init__(message)
        self.address = address
        self.cause: DialCause = cause


class ChannelClosed(TransportError):
    """We closed this channel, session or stream."""


class ChannelBroken(TransportError):
    """The peer or the network broke this channel, session or stream."""


class DeadlineExceeded(SwarmNodeError, TimeoutError):
    """Something took longer than its limit; the message says what was waited for."""

    def __init__(self, operation: str, limit_s: float) -> None:
        super().__init__(f"{operation}: no result within {limit_s:g} s")
        self.operation = operation
        self.limit_s = limit_s


class Overloaded(SwarmNodeError):
    """Load was shed; the same request may work later or elsewhere."""

    exit_code = 4


class StorageError(SwarmNodeError):
    """The disk did not do what was asked."""


class CorruptRecord(StorageError):
    """Stored bytes are not what was written."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class StorageFull(StorageError):
    """No space is left where we write."""


class WorkerError(SwarmNodeError):
    """The worker process failed."""


class WorkerCrashed(WorkerError):
    """The worker process ended by itself; ``signal_number`` is set if a signal ended it."""

    def __init__(self, message: str, *, signal_number: int | None = None) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class WorkerLeft(WorkerError):
    """A program that trained for this node has gone, by its own choice or not."""


class WorkerHung(WorkerError):
    """The worker process stopped answering."""


class SpecMismatch(WorkerError):
    """A model, layout or codec differs from what the swarm agreed on."""

    exit_code = 4


# Wrong settings and refusals do not go away by themselves: starting again mends none of them.
FINAL_EXIT_CODES = (ConfigError.exit_code, Refused.exit_code)


class InvariantViolation(AssertionError):
    """A promise that swarmnode makes to itself is broken; never caught."""


@contextmanager
def one_error() -> Iterator[None]:
    """Turn a group of errors that structured concurrency made into the first of ours.

    Ctrl-C before the node listens to signals ends in such a group too.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        ours, rest = group.split((SwarmNodeError, KeyboardInterrupt))
        if ours is None or rest is not None:
            raise
        raise first_leaf(ours) from group


def first_leaf(error: BaseException) -> BaseException:
    """Return the first error of a group of them, at any depth; of what is no group, itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
