"""SIGTERM, Ctrl-C, a closed terminal, and an output that is read no more: one way to end.

The processes that the verb has started are ended first, at once; the verb then unwinds,
and ``main`` says one line. A verb that takes longer than ``_UNWIND_S`` for that is ended
as it is. The daemon has its own handlers (``daemon.app``), and so has ``top``.

Nothing is raised inside of Trio, whose own state that would break: its run is cancelled.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from swarmnode.errors import one_error

if TYPE_CHECKING:
    import trio

_WORDS = {
    signal.SIGINT: "stopped by Ctrl-C",
    signal.SIGTERM: "stopped by SIGTERM",
    signal.SIGHUP: "stopped: the terminal was closed",
}
_UNREAD = "stopped: the output is read no more (broken pipe)"
# Removing a temporary folder takes some tenths. Two seconds are promised for all of it.
_UNWIND_S = 1.2
_STDOUT = 1
T = TypeVar("T")


class _Stop:
    """What is known of the end of this process."""

    def __init__(self) -> None:
        self.words = ""  # why; empty while it is not to end
        self.was_signalled = False
        self.is_said = threading.Lock()
        self.say: Callable[[str], None] | None = None  # None: the signals are not ours
        self.end_children: Callable[[], None] = _end_none
        self.run: tuple[trio.lowlevel.TrioToken, trio.CancelScope] | None = None
        self.wake: int | None = None


def _end_none() -> None:
    """Nothing was started."""


_stop = _Stop()


def install(say: Callable[[str], None]) -> None:
    """Take over the signals of this process; ``say`` prints why it ended, for want of time."""
    _stop.say = say
    for number in _WORDS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _on_signal)


def reason() -> str:
    """Return why this process is to end; empty while it is not."""
    return _stop.words


def may_say() -> bool:
    """Return whether no reason was given before; True for one caller only."""
    return _stop.is_said.acquire(blocking=False)


def end_started() -> None:
    """End at once all that this process has started and still runs."""
    _stop.end_children()


def watch(end: Callable[[], None] | None = None) -> None:
    """From now on see to it that the end comes in time, and that the output is read.

    ``end``: what ends the processes that will be started.
    """
    if end is not None:
        _stop.end_children = end
    if _stop.say is not None and _stop.wake is None:
        reads, _stop.wake = os.pipe()
        threading.Thread(target=_wait, args=(reads,), name="stopping", daemon=True).start()


def run_async(
    main: Callable[..., Awaitable[T]], *args: object, clock: trio.abc.Clock | None = None
) -> T:
    """Do what ``trio.run`` does, and unwind when this process is to end.

    Errors of ours come out bare, not in a group.
    """
    import trio

    async def stoppable() -> T:
        with trio.CancelScope() as scope:
            _stop.run = trio.lowlevel.current_trio_token(), scope
            if _stop.words:  # while Trio started
                scope.cancel()
            try:
                return await main(*args)
            finally:
                _stop.run = None
        raise SystemExit(1)

    with one_error():
        return trio.run(stoppable, clock=clock)


def _on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    if _stop.was_signalled:
        _end_now()  # a second signal means: do not wait
    _stop.was_signalled = True
    _stop.words = _stop.words or _WORDS[signal.Signals(number)]
    end_started()
    if _stop.wake is not None:
        os.write(_stop.wake, b"\0")
    if _stop.run is None:
        raise SystemExit(1)  # not KeyboardInterrupt, for which click prints an empty line
    token, scope = _stop.run
    token.run_sync_soon(scope.cancel)


def _wait(wake: int) -> None:
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    if _is_pipe(_STDOUT):
        poll.register(_STDOUT, 0)  # errors only: that the other end was closed
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == wake:
                time.sleep(_UNWIND_S)
                _end_now()
            poll.unregister(_STDOUT)
            _stop.words = _stop.words or _UNREAD
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _is_pipe(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:  # we were started without one
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _end_now() -> NoReturn:
    end_started()
    if _stop.say is not None and may_say():
        _stop.say(_stop.words)
    os._exit(1)
