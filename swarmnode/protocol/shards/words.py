"""How claims and progress are written in the shared state.

=================  ====================  =============================================
lease set          ``shard``             element ``EPOCH/INDEX``, decimal: "I train this"
registers          ``shards.0`` …        ``EPOCH:BITMAP`` in register EPOCH modulo
                                         SHARD_EPOCHS_OPEN; bit INDEX of the hexadecimal
                                         number is set once the author has trained it
=================  ====================  =============================================

What other authors wrote is read leniently: text that says nothing of this kind is None, and
counts for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from swarmnode import limits

CLAIMS = "shard"  # the set
_NUMBER = "(0|[1-9][0-9]{0,8})"  # up to SHARD_EPOCH_MAX, in one way only
_ELEMENT = re.compile(f"{_NUMBER}/{_NUMBER}")
_PROGRESS = re.compile(f"{_NUMBER}:([0-9a-f]{{1,{limits.SHARDS_PER_EPOCH_MAX // 4}}})")


@dataclass(frozen=True, order=True)
class Shard:
    """One part of the data in one pass over it."""

    epoch: int
    index: int

    @property
    def element(self) -> str:
        """What claims it in the set."""
        return f"{self.epoch}/{self.index}"


def read_element(element: str) -> Shard | None:
    """Return the shard that an element of the set claims."""
    found = _ELEMENT.fullmatch(element)
    if found is None or int(found[2]) >= limits.SHARDS_PER_EPOCH_MAX:
        return None
    return Shard(int(found[1]), int(found[2]))


def register_name(epoch: int) -> str:
    """Return the register for the progress of an epoch."""
    return f"shards.{epoch % limits.SHARD_EPOCHS_OPEN}"


REGISTERS = tuple(register_name(epoch) for epoch in range(limits.SHARD_EPOCHS_OPEN))


def write_progress(epoch: int, bitmap: int) -> str:
    """Return what the register of an epoch holds; ``bitmap``: bit i for shard i."""
    return f"{epoch}:{bitmap:x}"


def read_progress(name: str, content: float | str) -> tuple[int, int] | None:
    """Return (epoch, bitmap) of a register."""
    found = _PROGRESS.fullmatch(content) if isinstance(content, str) else None
    if found is None or register_name(int(found[1])) != name:
        return None
    return int(found[1]), int(found[2], 16)
