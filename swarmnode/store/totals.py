"""What one node gave to its swarms over all its lives, in ``totals.json`` of its home.

``mark`` is the step of the model, and its tokens, up to which the totals have counted. A snapshot
is older than the last step before a crash: what is trained again up to the mark is not counted
twice.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from swarmnode import limits
from swarmnode.errors import CorruptRecord
from swarmnode.store.files import read_file, storage_errors, write_atomic
from swarmnode.wire.records import Count

# A home that was in more swarms keeps the sum over all, and those that it gave most.
TOTALS_SWARMS_MAX = 1000
# TOTALS_SWARMS_MAX entries of 64 characters and six numbers.
TOTALS_FILE_BYTES_MAX = limits.MIB

_log = logging.getLogger("swarmnode.store")


class Mark(msgspec.Struct, frozen=True):
    """How far the model of this node is."""

    step: Count = 0
    tokens: Count = 0


class Totals(msgspec.Struct, frozen=True):
    """What was given: to one swarm, or to all."""

    steps: Count = 0
    tokens: Count = 0
    exchanges_committed: Count = 0
    sent_bytes: Count = 0
    received_bytes: Count = 0
    trained_s: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.exchanges_committed + other.exchanges_committed,
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
            self.trained_s + other.trained_s,
        )


class SwarmTotals(msgspec.Struct, frozen=True):
    """Of one swarm, with the mark up to which steps are counted."""

    given: Totals = Totals()
    mark: Mark = Mark()


class Book(msgspec.Struct, frozen=True):
    """The whole file; ``all`` counts swarms too that are no longer listed."""

    all: Totals = Totals()
    swarms: dict[str, SwarmTotals] = msgspec.field(default_factory=dict)


def load_totals(path: Path) -> Book:
    """Return what was saved; a damaged file is set aside, and counting begins at 0.

    Raises:
        StorageError: the system does not let us read it, or set it aside.
    """
    try:
        return msgspec.json.decode(read_file(path, bytes_max=TOTALS_FILE_BYTES_MAX), type=Book)
    except FileNotFoundError:
        return Book()
    except (CorruptRecord, msgspec.DecodeError, UnicodeDecodeError) as error:
        aside = path.with_name(f"{path.name}.damaged")
        with storage_errors(path, "set aside"):
            path.replace(aside)
        _log.warning("totals are counted from 0, the damaged file is now %s: %s", aside, error)
        return Book()


def save_totals(path: Path, book: Book) -> None:
    """Write it down; when this returns it survives a power failure. Raises StorageError."""
    most = sorted(book.swarms.items(), key=lambda item: item[1].given.trained_s, reverse=True)
    kept = dict(most[:TOTALS_SWARMS_MAX])
    write_atomic(path, msgspec.json.encode(Book(book.all, kept)))
