"""What a session costs for each chunk beside encrypting it and sending it: in calls and in copies.

Counted, not timed: how much faster than Python a machine encrypts and copies differs by a factor of
two between those that this ran on. What it takes is in `swarmnode bench`.
"""

from __future__ import annotations

import sys
from collections import deque
from types import FrameType
from typing import Any

import trio

from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.session.inbox import Inbox
from swarmnode.protocol.session.records import Role
from tests.kits.session_kit import ALICE, BOB, start

CHUNK_BYTES = 523_776  # the payload of a chunk of an exchange in Q8B64
SMALL_BYTES_MAX = 16 * 1024
PAYLOAD = bytearray(CHUNK_BYTES)
CHUNKS, TURNS = 8, 10
# Which task runs first is trio's dice: 675 to 755 of Python's and C's.
CALLS_MAX = 900
# A scope costs as much as a switch of tasks. Where each park of the pump entered one: 0.75.
SCOPES_MAX = 0.3
COPIED_BYTES_MAX = 64  # the length of a message, and its header


class Handed:
    """One direction: what is large waits where its sender has it until it has been copied."""

    def __init__(self) -> None:
        self.pieces: deque[memoryview] = deque()
        self.changed = trio.lowlevel.ParkingLot()


class Hand:
    """One end of a channel that does little itself."""

    description = "memory"

    def __init__(self, there: Handed, back: Handed) -> None:
        self._there, self._back = there, back

    async def send_all(self, data: memoryview) -> None:
        is_small = len(data) <= SMALL_BYTES_MAX
        self._there.pieces.append(memoryview(bytes(data)) if is_small else data)
        self._there.changed.unpark_all()
        await trio.lowlevel.checkpoint()
        while self._there.pieces and not is_small:
            await self._there.changed.park()

    def send_nowait(self, _data: memoryview) -> int:
        return 0

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        pieces = self._back.pieces
        while not pieces:
            await self._back.changed.park()
        piece = pieces[0]
        n_bytes = min(len(buffer), len(piece))
        buffer[:n_bytes] = piece[:n_bytes]
        if n_bytes < len(piece):
            pieces[0] = piece[n_bytes:]
        else:
            pieces.popleft()
            self._back.changed.unpark_all()
        return n_bytes

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def hands() -> tuple[Hand, Hand]:
    there, back = Handed(), Handed()
    return Hand(there, back), Hand(back, there)


async def send_chunks(stream: Stream) -> None:
    for _ in range(CHUNKS):
        await stream.send_message(b"header", PAYLOAD)
    await stream.receive()


async def sink(_session: Session, stream: Stream) -> None:
    while True:
        for _ in range(CHUNKS):
            await stream.receive_message(CHUNK_BYTES)
        await stream.send(b"1")


class Counted:
    """What was called while a profiler of this thread was on."""

    def __init__(self) -> None:
        self.calls = self.scopes = self.copied_bytes = 0

    def __call__(self, frame: FrameType, event: str, returned: Any) -> None:
        self.calls += event in ("call", "c_call")
        if event == "call" and frame.f_code is trio.CancelScope.__enter__.__code__:
            self.scopes += 1
        if event == "return" and frame.f_code is Inbox.read_into.__code__:
            self.copied_bytes += returned


async def test_a_chunk_costs_few_calls_no_scope_and_no_copy() -> None:
    near, far = hands()
    services = Services()
    services.add_stream("sink", sink)
    counted = Counted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, nursery, far, BOB, Role.SERVER, services)
        session = await start(nursery, near, ALICE, Role.CLIENT)
        stream = await session.open_stream("sink")
        await send_chunks(stream)
        sys.setprofile(counted)
        try:
            for _ in range(TURNS):
                await send_chunks(stream)
        finally:
            sys.setprofile(None)
        nursery.cancel_scope.cancel()
    chunks = TURNS * CHUNKS
    assert counted.calls / chunks < CALLS_MAX
    assert counted.scopes / chunks < SCOPES_MAX
    assert 0 < counted.copied_bytes / chunks < COPIED_BYTES_MAX
