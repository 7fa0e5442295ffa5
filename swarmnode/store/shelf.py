"""Blobs in use, each open once: a caller that serves one sees what a fetch has just written to it.

Disk and hashes take milliseconds to seconds, so all of it runs in a few threads. A simulation
on virtual time, whose clock runs on while a thread works, passes another runner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import trio

from swarmnode import limits
from swarmnode.store.blobs import Blob, BlobStore
from swarmnode.wire.blobs import BlobManifest

T = TypeVar("T")


class Runner(Protocol):
    """Runs what blocks, where it blocks no task."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return what ``work`` returns, or raise what it raises, once it has ended."""


class Threads:
    """Runs what blocks in at most BLOB_THREADS_MAX threads."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(limits.BLOB_THREADS_MAX)

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run ``work`` to its end, even if cancelled meanwhile: it uses open files."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter)


@dataclass
class _Place:
    blobs: list[Blob] = field(default_factory=list)  # none before it was opened
    n_users: int = 0
    opening: trio.Lock = field(default_factory=trio.Lock)


class NotHere(Exception):
    """Nothing of a blob is in the store."""


class Shelf:
    """Hands out blobs of a store. A blob is closed when its last user is done."""

    def __init__(self, store: BlobStore, run: Runner) -> None:
        self.store = store
        self.run = run
        self._places: dict[bytes, _Place] = {}

    @asynccontextmanager
    async def open(self, name: bytes) -> AsyncIterator[Blob]:
        """Lend what there is of a blob, complete or not. Raises NotHere, StorageError."""
        async with self._lend(name, lambda: self.store.open(name)) as blob:
            yield blob

    @asynccontextmanager
    async def begin(self, name: bytes, manifest: BlobManifest) -> AsyncIterator[Blob]:
        """Lend a blob to write into. Raises StorageFull, StorageError."""
        async with self._lend(name, lambda: self.store.begin(manifest)) as blob:
            yield blob

    def forget(self, name: bytes) -> None:
        """Let the next caller open it anew: the blob has been removed, or replaced on disk."""
        self._places.pop(name, None)

    @asynccontextmanager
    async def _lend(self, name: bytes, open_blob: Callable[[], Blob | None]) -> AsyncIterator[Blob]:
        place = self._places.setdefault(name, _Place())
        place.n_users += 1
        try:
            async with place.opening:
                if not place.blobs:
                    place.blobs.append(await self._open(open_blob))
            yield place.blobs[0]
        finally:
            place.n_users -= 1
            if not place.n_users:
                if self._places.get(name) is place:
                    del self._places[name]
                for blob in place.blobs:
                    blob.close()

    async def _open(self, open_blob: Callable[[], Blob | None]) -> Blob:
        blob = await self.run(open_blob)
        if blob is None:
            raise NotHere
        return blob
