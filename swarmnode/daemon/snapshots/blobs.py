"""The blob service of a node: ``add_file`` offers, ``fetch`` brings, and what is held is served.

Wire: ``proto/blobs.md``. Nothing here says which peer holds what: callers know that from the
shared state and the DHT, and pass peers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swarmnode import limits
from swarmnode.daemon.snapshots.chunks import OpenSession, Uploads
from swarmnode.daemon.snapshots.fetch import Fetch, FetchTally, Order
from swarmnode.env import Env
from swarmnode.errors import Refused
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.store.blobs import BlobStore
from swarmnode.store.shelf import Runner, Shelf, Threads


@dataclass(frozen=True)
class BlobStatistics:
    """Gauges, then counters since the node started."""

    held: int
    held_bytes: int
    fetches_running: int
    uploads_running: int  # peers that are being sent chunks
    chunks_sent_total: int
    bytes_sent_total: int
    busy_refusals_total: int
    chunks_rotten_total: int  # found when they were to be sent
    chunks_received_total: int
    bytes_received_total: int
    bytes_wasted_total: int
    holders_dropped_total: int


def _serve_every_peer(_peer: PeerId) -> bool:
    return True


def snapshot_bytes_max(numel: int) -> int:
    """Return how large a snapshot of a model with so many parameters may be."""
    return numel * limits.SNAPSHOT_BYTES_PER_PARAMETER_MAX + limits.SNAPSHOT_EXTRA_BYTES_MAX


def tenths_of_the_model(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return what is told how many bytes are here, of how many, and says each tenth of many."""
    tenth = 0

    def on_progress(here_bytes: int, all_bytes: int) -> None:
        nonlocal tenth
        if here_bytes * 10 // all_bytes > tenth and all_bytes > limits.SNAPSHOT_SAY_BYTES:
            tenth = here_bytes * 10 // all_bytes
            say(f"fetching the model: {10 * tenth} %")

    return on_progress


class Blobs:
    """Fetches and serves blobs, each at a bounded rate."""

    def __init__(
        self,
        store: BlobStore,
        services: Services,
        open_session: OpenSession,
        env: Env,
        *,
        may_serve: Callable[[PeerId], bool] = _serve_every_peer,
        upload_bytes_per_s: float | None = None,
        download_bytes_per_s: float | None = None,
        run: Runner | None = None,
    ) -> None:
        """Serve what the store holds from now on, as ``blob/1``.

        Args:
            open_session: gives an open session to a peer, dialled if need be; it may raise any
                SwarmNodeError.
            may_serve: whether this peer may fetch from here.
            upload_bytes_per_s, download_bytes_per_s: limits over all peers; None: none.
            run: where disk and hashes go; threads of its own unless given. On virtual time
                there must be none.

        Raises:
            StorageError: the store cannot be read.
        """
        self._shelf = Shelf(store, run or Threads())
        self._open_session = open_session
        self._env = env
        self._bucket = TokenBucket(download_bytes_per_s) if download_bytes_per_s else None
        self._held = store.complete()
        self._fetches: dict[bytes, Fetch] = {}
        self._fetched = FetchTally()
        self._uploads = Uploads(
            self._shelf,
            services,
            env,
            may_serve=may_serve,
            rate_bytes_per_s=upload_bytes_per_s,
            found_rotten=self._found_rotten,
        )

    async def add_file(self, path: Path) -> bytes:
        """Offer a file and return the blob's name. The file must not change any more.

        Raises:
            StorageFull, StorageError: as the disk says.
        """
        blob = await self._shelf.run(partial(self._shelf.store.add_file, path))
        blob.close()
        self._shelf.forget(blob.name)  # there may have been a part of it
        self._held[blob.name] = blob.manifest.size_bytes
        return blob.name

    async def fetch(
        self,
        name: bytes,
        holders: Callable[[], Collection[PeerId]],
        *,
        on_progress: Callable[[int, int], None],
        size_bytes_max: int,
    ) -> Path:
        """Bring a blob here and return the path of its file; then it is held and served.

        What is on disk of it already is checked and kept, whether the whole or a part. Chunks
        are served to others while the rest is being fetched.

        Args:
            holders: peers that may have some of it, at this moment; asked every BLOB_LOOK_S.
            on_progress: is told (bytes here, bytes in all), after every chunk.
            size_bytes_max: a larger blob is not begun.

        Raises:
            DeadlineExceeded: no holder sent anything for BLOB_NO_PROGRESS_S, or only that it is
                busy for BLOB_BUSY_PATIENCE_S; names what is missing and the last trouble.
            Refused: it is larger than allowed.
            StorageFull, StorageError: as the disk says.
        """
        while name in self._fetches:
            await self._fetches[name].ended.wait()  # it may fail; then it is this one's turn
        order = Order(name, holders, on_progress, size_bytes_max)
        fetch = self._fetches[name] = Fetch(
            order,
            self._shelf,
            self._open_session,
            self._env,
            bucket=self._bucket,
            tally=self._fetched,
        )
        try:
            path, size_bytes = await fetch.run()
        finally:
            del self._fetches[name]
            fetch.ended.set()
        self._held[name] = size_bytes
        return path

    def held(self) -> dict[bytes, int]:
        """Return the size in bytes of every complete blob, by name."""
        return dict(self._held)

    async def parts(self) -> set[bytes]:
        """Return the names of blobs that are here in part only. Raises StorageError."""
        return set(await self._shelf.run(self._shelf.store.names)) - self._held.keys()

    async def link(self, name: bytes, path: Path) -> None:
        """Let a blob that is held appear as a file of its own, too.

        Raises:
            StorageFull, StorageError: as the disk says; an existing file is replaced or kept.
        """
        async with self._shelf.open(name) as blob:
            await self._shelf.run(partial(blob.link_to, path))

    async def remove(self, name: bytes) -> None:
        """Remove a blob, or the part that is here. Peers that are being sent it still get the rest.

        Raises:
            Refused: it is being fetched.
            StorageError: the disk fails.
        """
        if name in self._fetches:
            raise Refused(f"blob {name.hex()[:16]} is being fetched: cancel that before")
        self._held.pop(name, None)
        self._shelf.forget(name)
        await self._shelf.run(partial(self._shelf.store.remove, name))

    def statistics(self) -> BlobStatistics:
        """Return counters."""
        sent, received = self._uploads.tally, self._fetched
        return BlobStatistics(
            held=len(self._held),
            held_bytes=sum(self._held.values()),
            fetches_running=len(self._fetches),
            uploads_running=self._uploads.turns.n_peers,
            chunks_sent_total=sent.chunks_sent,
            bytes_sent_total=sent.bytes_sent,
            busy_refusals_total=sent.busy_refusals,
            chunks_rotten_total=sent.chunks_rotten,
            chunks_received_total=received.chunks_received,
            bytes_received_total=received.bytes_received,
            bytes_wasted_total=received.bytes_wasted,
            holders_dropped_total=received.holders_dropped,
        )

    def _found_rotten(self, name: bytes) -> None:
        """Hold it no more: :meth:`fetch` brings what is missing."""
        self._held.pop(name, None)
