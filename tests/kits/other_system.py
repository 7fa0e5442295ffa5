"""Calls of the operating system that do something else: as elsewhere, or on a disk that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import PosixPath
from typing import Any, Self


@contextmanager
def other_system(**calls: Callable[..., Any] | None) -> Iterator[None]:
    """Let functions of ``os`` be these while the block runs; None: there is no such function."""
    before = {name: getattr(os, name) for name in calls if hasattr(os, name)}
    for name, call in calls.items():
        if call is not None:
            setattr(os, name, call)
        elif name in before:
            delattr(os, name)
    try:
        yield
    finally:
        for name in calls:
            if name in before:
                setattr(os, name, before[name])
            else:
                delattr(os, name)


def failing(code: int) -> Callable[..., Any]:
    """Return a call that always fails with this error."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


class UnreadablePath(PosixPath):
    """A folder that the system does not let us list."""

    def iterdir(self) -> Generator[Self, None, None]:
        raise PermissionError(errno.EACCES, "Permission denied")


class BusyPath(PosixPath):
    """A folder whose files another process takes away just before we look at them or do so."""

    def lstat(self) -> os.stat_result:
        self._take_away()
        return super().lstat()

    def unlink(self, missing_ok: bool = False) -> None:
        self._take_away()
        super().unlink(missing_ok=missing_ok)

    def _take_away(self) -> None:
        PosixPath(self).unlink(missing_ok=True)
