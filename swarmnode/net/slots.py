"""How many streams one side of a session has open that it opened itself."""

from __future__ import annotations

import trio

from swarmnode import limits
from swarmnode.wire.session import Priority


class StreamSlots:
    """Room for our own streams. ``changed`` is woken when there may be more."""

    def __init__(self) -> None:
        self.changed = trio.lowlevel.ParkingLot()
        self._streams = 0
        self._bulk_streams = 0

    def has_room(self, priority: Priority) -> bool:
        """Whether one more may be opened."""
        return self._streams < limits.STREAMS_PER_SIDE_MAX and (
            priority is not Priority.BULK or self._bulk_streams < limits.BULK_STREAMS_PER_SIDE_MAX
        )

    def take(self, priority: Priority) -> None:
        """Count one that is opened."""
        self._streams += 1
        self._bulk_streams += priority is Priority.BULK

    def give_back(self, priority: Priority) -> None:
        """Count one that is over."""
        self._streams -= 1
        self._bulk_streams -= priority is Priority.BULK
        self.changed.unpark_all()
