"""How a node that joins late gets on level: it begins from a peer's snapshot.

Without it a newcomer's first exchanges would pull trained models halfway to
fresh weights. The service ``snapshot/1`` gives a peer's newest snapshot file as
one stream; the worker checks its checksum and layout before it uses it, and
begins afresh if it is damaged. The file is plain safetensors: nothing in it is
executed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.neighbours import Neighbours
from swarmnode.errors import (
    DeadlineExceeded,
    LimitExceeded,
    MalformedMessage,
    Overloaded,
    StorageError,
    SwarmNodeError,
)
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.store.files import IncomingFile, make_private_dir
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.membership import SnapshotHeader
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority

SNAPSHOT_SERVICE = "snapshot/1"
_log = get_logger(__name__)


class SnapshotService:
    """Gives our newest snapshot to newcomers, a few at a time."""

    def __init__(self, services: Services, newest: Callable[[], tuple[int, Path] | None]) -> None:
        self._newest = newest
        self._running = 0
        services.add_stream(SNAPSHOT_SERVICE, self._serve)

    async def _serve(self, session: Session, stream: Stream) -> None:  # noqa: ARG002
        newest = self._newest()
        if newest is None:
            raise Overloaded("no snapshot has been written here yet")
        if self._running >= limits.SNAPSHOT_UPLOADS_MAX:
            raise Overloaded("other newcomers are being served: ask another peer")
        self._running += 1
        try:
            await self._send(stream, *newest)
        finally:
            self._running -= 1

    async def _send(self, stream: Stream, step: int, path: Path) -> None:
        try:
            file = path.open("rb")
        except OSError as error:  # replaced by a newer one a moment ago
            raise Overloaded("the snapshot is being replaced: ask again") from error
        with file:
            size_bytes = os.fstat(file.fileno()).st_size
            header = SnapshotHeader(step=step, size_bytes=size_bytes)
            await stream.send_message(encode_record(header))
            buffer = bytearray(limits.SNAPSHOT_PIECE_BYTES)
            while n_bytes := file.readinto(buffer):
                await stream.send(memoryview(buffer)[:n_bytes])
        await stream.send_end()


class Newcomer:
    """Fetches a snapshot before the first training, if anybody has one."""

    def __init__(
        self, neighbours: Neighbours, folder: Path, *, numel: int, on_event: Callable[[str], None]
    ) -> None:
        self._neighbours = neighbours
        self._folder = folder
        self._bytes_max = (
            numel * limits.SNAPSHOT_BYTES_PER_PARAMETER_MAX + limits.SNAPSHOT_EXTRA_BYTES_MAX
        )
        self._on_event = on_event

    def has_own(self) -> bool:
        """Whether this node has trained before: it goes on from there."""
        return self._folder.is_dir() and any(self._folder.glob("snapshot-*.safetensors"))

    async def catch_up(self) -> None:
        """Fetch from the most advanced neighbours, one after the other, until one delivers.

        Without any, training begins from the swarm's seed, as on every other node. What a
        full or failing disk says is raised; whatever a peer does wrong is not.
        """
        await self._wait_for_records()
        for session in self._sources():
            try:
                with trio.CancelScope() as scope:
                    await self._fetch(session, scope)
                    return
                raise DeadlineExceeded("a piece of the snapshot", limits.SNAPSHOT_FETCH_IDLE_S)
            except StorageError:
                raise
            except SwarmNodeError as error:
                _log.info("no snapshot", peer=session.peer.short, why=str(error))

    async def _wait_for_records(self) -> None:
        """A session says who a peer is; only its record says how far it is."""
        book = self._neighbours.book
        with trio.move_on_after(limits.NEWCOMER_WAIT_S):
            while not self._neighbours.sessions or any(  # noqa: ASYNC110 -- two seconds, once
                book.entries[peer].record is None for peer in self._neighbours.sessions
            ):
                await trio.sleep(0.05)

    def _sources(self) -> list[Session]:
        ahead = [
            (entry.record.status.step, entry.peer)
            for entry in self._neighbours.book.entries.values()
            if entry.record is not None and entry.record.status.step > 0
        ]
        ahead.sort(reverse=True)
        sessions = [self._neighbours.sessions.get(peer) for _, peer in ahead]
        return [one for one in sessions if one is not None][: limits.SNAPSHOT_SOURCES_MAX]

    async def _fetch(self, session: Session, scope: trio.CancelScope) -> None:
        scope.deadline = trio.current_time() + limits.SNAPSHOT_FETCH_IDLE_S
        stream = await session.open_stream(SNAPSHOT_SERVICE, priority=Priority.BULK)
        async with stream:
            await stream.send_end()
            raw, _ = await stream.receive_message(limits.MESSAGE_BYTES_MAX)
            header = decode_record(raw, SnapshotHeader)
            if header.size_bytes > self._bytes_max:
                raise LimitExceeded(
                    f"a snapshot of {header.size_bytes} bytes, this model has at most"
                    f" {self._bytes_max}"
                )
            self._on_event(
                f"fetching the model at step {header.step:,} from {session.peer.short}…"
                f" ({header.size_bytes / 1e6:.1f} MB)"
            )
            make_private_dir(self._folder)
            # Step 0: it is older than every snapshot of our own, and none of our own work.
            with IncomingFile(self._folder / "snapshot-000000000000.safetensors") as file:
                await self._receive(stream, header.size_bytes, file, scope)
                file.commit()

    async def _receive(
        self, stream: Stream, size_bytes: int, file: IncomingFile, scope: trio.CancelScope
    ) -> None:
        received_bytes = 0
        while piece := await stream.receive():
            received_bytes += len(piece)
            if received_bytes > size_bytes:
                break
            file.write(piece)
            scope.deadline = trio.current_time() + limits.SNAPSHOT_FETCH_IDLE_S
        if received_bytes != size_bytes:
            raise MalformedMessage(f"expected a snapshot of {size_bytes} bytes, got another size")
