"""Exchange switched off: a claim about a swarm that still holds then says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_isolated: ContextVar[bool] = ContextVar("isolated", default=False)


@contextmanager
def isolated() -> Iterator[None]:
    """Within this, no node of the laboratory meets another: every intent comes to nothing."""
    token = _isolated.set(True)
    try:
        yield
    finally:
        _isolated.reset(token)


def is_isolated() -> bool:
    """Return whether exchange is switched off."""
    return _isolated.get()
