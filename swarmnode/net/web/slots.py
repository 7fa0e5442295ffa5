"""Which connections an HTTP server serves at once. Silent ones keep no caller out.

::

    accepted --a slot is free--> served: any number of requests, one after the other
       |                            | idle between two of them: ends when its slot is needed
       +--all are taken--> waiting room: its first request is read, and then
                              the route's own slot --> one answer
                              a slot              --> served
                              none in HTTP_SLOT_WAIT_S, or the room is full --> 503

A route with a slot of its own, such as ``/status``, answers however busy the others keep the
server. The room is first in, first out: the oldest makes way for a newcomer, so that a thousand
silent clients cannot keep the one out that asks at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from swarmnode import limits

# Who comes when all of them are taken: enough for every verb of some people at one moment.
HTTP_WAITING_MAX = 32
# As long as silent clients hold slots, and half a command's patience (processes/client.py).
HTTP_SLOT_WAIT_S = 5.0


class Busy(Exception):
    """No slot became free, or others needed the place in the waiting room."""


class Cut(Exception):
    """The connection was idle, and its slot was needed."""


class Slots:
    """Those of one server."""

    def __init__(self) -> None:
        self._n_taken = 0
        self._own_taken: set[str] = set()
        self._room: dict[ConnectionSlot, trio.CancelScope] = {}  # the oldest first
        self._idle: dict[ConnectionSlot, trio.CancelScope] = {}  # idle the longest first
        self._freed = trio.lowlevel.ParkingLot()

    def enter(self) -> ConnectionSlot:
        """Return the place of a new connection; :meth:`ConnectionSlot.leave` gives it back."""
        place = ConnectionSlot(self)
        if self._n_taken < limits.HTTP_CONNECTIONS_MAX:
            self._n_taken += 1
            place.has_slot = True
        return place

    def _take(self) -> bool:
        """Take a slot that is free, or that of the connection that has been idle longest."""
        if self._n_taken < limits.HTTP_CONNECTIONS_MAX:
            self._n_taken += 1
            return True
        for place, scope in self._idle.items():
            del self._idle[place]
            place.has_slot = False
            scope.cancel()
            return True
        return False

    def _give_back(self) -> None:
        self._n_taken -= 1
        self._freed.unpark_all()


class ConnectionSlot:
    """Of one connection."""

    def __init__(self, slots: Slots) -> None:
        self.has_slot = False
        self._slots = slots
        self._own = ""

    @property
    def is_for_one(self) -> bool:
        """Whether the connection ends with the answer, as it has a route's own slot."""
        return bool(self._own)

    def leave(self) -> None:
        """Let others have it. Idempotent."""
        if self.has_slot:
            self.has_slot = False
            self._slots._give_back()
        if self._own:
            self._slots._own_taken.discard(self._own)
            self._own = ""
            self._slots._freed.unpark_all()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Around a wait between two requests. Raises Cut: the slot was needed."""
        with trio.CancelScope() as scope:
            self._slots._idle[self] = scope
            self._slots._freed.unpark_all()  # who waits may have it
            try:
                yield
            finally:
                self._slots._idle.pop(self, None)
        if not self.has_slot:
            raise Cut

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around everything before a connection has a slot. Raises Busy: there was none."""
        room = self._slots._room
        if len(room) >= HTTP_WAITING_MAX:
            room.pop(next(iter(room))).cancel()
        with trio.CancelScope() as scope:
            room[self] = scope
            try:
                yield
            finally:
                room.pop(self, None)
        if not (self.has_slot or self._own):
            raise Busy

    async def wait_slot(self, own: str) -> None:
        """Return with a slot; ``own`` is the path of the route if that has one of its own.

        Raises:
            Busy: there was none in HTTP_SLOT_WAIT_S.
        """
        slots = self._slots
        with trio.move_on_after(HTTP_SLOT_WAIT_S):
            while True:
                if own and own not in slots._own_taken:
                    slots._own_taken.add(own)
                    self._own = own
                    return
                if slots._take():
                    self.has_slot = True
                    return
                await slots._freed.park()
        raise Busy
