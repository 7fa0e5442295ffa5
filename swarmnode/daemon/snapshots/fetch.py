"""One fetch: the Trio shell of ``protocol/blobs/fetch.py``.

::

    holders() --> a link each: dial, query, requests out, answers in
    answer --> hash, write (thread) --ChunkArrived--> core --Store--> ChunkStored --> core

Chunks that wait share a visit to a thread: hashing two takes little longer than one. A visit ends
when none waits, and a further one begins beside it only for as many as one takes at once: more
threads find single chunks, and take turns on the processor with the task that decrypts.

The manifest comes from the disk, if this blob was begun before, or else from the first holder
that has it; it is checked against the name either way. Two nurseries, one inside the other: links
live in the outer one, whatever touches the blob's files in the inner one, which ends before they
are closed.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.daemon.snapshots.chunks import Link, OpenSession
from swarmnode.env import Env
from swarmnode.errors import (
    CorruptRecord,
    DeadlineExceeded,
    Refused,
    RemoteProtocolError,
    StorageError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs import events
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.blobs.fetch import FetchCore
from swarmnode.protocol.blobs.holders import bitmap_of
from swarmnode.protocol.blobs.merkle import check_manifest, chunk_size, leaf_hashes, n_chunks_of
from swarmnode.store.blobs import Blob
from swarmnode.store.shelf import NotHere, Shelf
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import blobs as wire

_log = get_logger("swarmnode.daemon.snapshots")


@dataclass(frozen=True)
class Order:
    """What is wanted: a blob, from any of its holders, of at most this size."""

    name: bytes
    holders: Callable[[], Collection[PeerId]]
    on_progress: Callable[[int, int], None]  # bytes that are here, bytes in all
    size_bytes_max: int


@dataclass
class FetchTally:
    """Counters of all fetches."""

    chunks_received: int = 0
    bytes_received: int = 0
    bytes_wasted: int = 0  # wrong, or another holder was faster
    holders_dropped: int = 0


class _TooLarge(Refused):
    """The blob is, whichever holder says so: unlike other refusals it ends the fetch."""


_CHUNKS_PER_VISIT = 4  # two pairs for leaf_hashes; a fetch reports its progress after each visit


@dataclass(frozen=True)
class _Came:
    """A chunk that waits for our hash and disk."""

    link: Link
    index: int
    proof: tuple[bytes, ...]
    chunk: memoryview


class _Round:
    """A core, and the blob that it fills."""

    def __init__(self, blob: Blob, core: FetchCore, nursery: trio.Nursery) -> None:
        self.blob = blob
        self.core = core
        self.nursery = nursery
        self.driver: CoreDriver[events.Event, events.Effect]
        self.completed = trio.Event()
        self._came: deque[_Came] = deque()  # no more than the core has asked for, or has cancelled
        self._n_visits = 0
        self._unflushed_bytes = 0
        self._flush_due = trio.Event()

    def add(self, came: _Came, take: Callable[[list[_Came]], Awaitable[None]]) -> None:
        """Let ``take`` have a chunk, perhaps with another, as soon as a visit is due."""
        came.link.chunk_came()
        self._came.append(came)
        is_due = len(self._came) >= _CHUNKS_PER_VISIT and self._n_visits < limits.BLOB_THREADS_MAX
        if is_due or not self._n_visits:
            self._n_visits += 1
            self.nursery.start_soon(self._visit, take)

    async def _visit(self, take: Callable[[list[_Came]], Awaitable[None]]) -> None:
        try:
            while self._came:
                n_taken = min(len(self._came), _CHUNKS_PER_VISIT)
                taken = [self._came.popleft() for _ in range(n_taken)]
                try:
                    await take(taken)
                finally:
                    _let_go(taken)
        finally:
            self._n_visits -= 1

    def forget_came(self) -> None:
        """Give up what waits: its holders were asked for it, but the blob needs no more."""
        _let_go(self._came)
        self._came.clear()

    def count_unflushed(self, n_bytes: int) -> None:
        """Note that a chunk was written."""
        self._unflushed_bytes += n_bytes
        if self._unflushed_bytes >= limits.BLOB_FLUSH_BYTES:
            self._unflushed_bytes = 0
            self._flush_due.set()

    async def wait_flush_due(self) -> None:
        """Wait until enough was written since the last call."""
        await self._flush_due.wait()
        self._flush_due = trio.Event()


@dataclass
class _Liveness:
    """When anything was last received, and what a person should know if that is long ago."""

    moved_at: float
    busy_at: float = -math.inf  # when a holder last asked us to wait
    trouble: str = "none was reached"

    def limit_s(self, now: float) -> float:
        """Return how long nothing may come: one that says busy is there, and our turn comes."""
        is_queued = now - self.busy_at < limits.BLOB_NO_PROGRESS_S
        return limits.BLOB_BUSY_PATIENCE_S if is_queued else limits.BLOB_NO_PROGRESS_S


@dataclass
class _Known:
    """Peers that were tried."""

    tried_at: dict[PeerId, float] = field(default_factory=dict)  # of those that are still named
    banned: set[PeerId] = field(default_factory=set)  # lied, or too slow; as few as the core's


class Fetch:
    """Brings one blob here. Used once."""

    def __init__(
        self,
        order: Order,
        shelf: Shelf,
        open_session: OpenSession,
        env: Env,
        *,
        bucket: TokenBucket | None,
        tally: FetchTally,
    ) -> None:
        self.ended = trio.Event()
        self._order = order
        self._shelf = shelf
        self._open_session = open_session
        self._env = env
        self._bucket = bucket
        self._tally = tally
        self._links: dict[PeerId, Link] = {}
        self._known = _Known()
        self._liveness = _Liveness(env.monotonic())
        self._everything = b""  # the bitmap of a holder that has all
        self._is_known = False  # what the blob is
        self._known_now, self._to_know = trio.open_memory_channel[wire.BlobManifest](1)
        self._rounds: list[_Round] = []  # the one that goes on, if one does
        self._is_wanted = False  # the chunk that the core has just been told of
        self._done_bytes = 0
        self._failures: list[SwarmNodeError] = []  # the first one counts
        self._scope = trio.CancelScope()  # around holders
        self._tasks = Tasks()  # one for each holder

    async def run(self) -> tuple[Path, int]:
        """Return the path of the whole blob and its size in bytes.

        Raises:
            DeadlineExceeded: no holder sent anything for BLOB_NO_PROGRESS_S, or only that it is
                busy for BLOB_BUSY_PATIENCE_S.
            Refused: it is larger than was allowed.
            StorageFull, StorageError: as the disk says.
        """
        async with AsyncExitStack() as stack:
            try:
                blob = await stack.enter_async_context(self._shelf.open(self._order.name))
            except NotHere:
                blob = await self._download(partial(self._begin, stack))
            else:
                self._learn(blob.manifest)
                await self._check_complete(blob)
                if not blob.is_complete:
                    await self._download(partial(_as_it_is, blob))
            size_bytes = blob.manifest.size_bytes
            self._order.on_progress(size_bytes, size_bytes)
            return blob.path, size_bytes

    async def _check_complete(self, blob: Blob) -> None:
        """Read a blob that was complete before; what has rotted is missing from now on."""
        if not blob.is_complete:
            return
        for index in range(blob.n_chunks):
            try:
                await self._shelf.run(partial(blob.read, index))
            except CorruptRecord as error:
                _log.warning("chunk has rotted", blob=self._short, index=index, why=str(error))

    async def _begin(self, stack: AsyncExitStack) -> Blob:
        """Return an empty blob, once a holder has said what it is."""
        manifest = await self._to_know.receive()
        return await stack.enter_async_context(self._shelf.begin(self._order.name, manifest))

    async def _download(self, begin: Callable[[], Awaitable[Blob]]) -> Blob:
        with self._scope:
            async with self._tasks.open() as nursery:
                nursery.start_soon(self._look)
                try:
                    blob = await begin()
                    while len(blob.stored) < blob.n_chunks:  # again, if one rots meanwhile
                        await self._fill(blob)
                    await self._shelf.run(blob.complete)
                except SwarmNodeError as error:
                    self._failures.append(error)
                self._scope.cancel()
        if self._failures:
            raise self._failures[0]
        return blob

    async def _fill(self, blob: Blob) -> None:
        stored = blob.stored
        core = FetchCore(blob.manifest, self._env.rng, stored=stored, bucket=self._bucket)
        self._done_bytes = sum(chunk_size(blob.manifest, index) for index in stored)
        async with trio.open_nursery() as nursery:
            current = _Round(blob, core, nursery)
            carry_out = partial(self._carry_out, current)
            current.driver = CoreDriver(core, carry_out, now=self._env.monotonic)
            self._rounds.append(current)
            try:
                nursery.start_soon(current.driver.run)
                nursery.start_soon(self._keep_flushing, current)
                self._report(blob.manifest)
                for link in self._links.values():
                    self._offer(link)
                await current.completed.wait()
            finally:
                self._rounds.remove(current)
                current.forget_came()
                statistics = core.statistics()
                self._tally.bytes_wasted += statistics.bytes_wasted_total
            nursery.cancel_scope.cancel()

    async def _keep_flushing(self, current: _Round) -> None:
        """Let the disk write while chunks come, not only when they are all here."""
        try:
            while True:
                await current.wait_flush_due()
                await self._shelf.run(current.blob.flush)
        except StorageError as error:
            self._fail(error)

    def _fail(self, error: SwarmNodeError) -> None:
        self._failures.append(error)
        self._scope.cancel()

    # --- holders --------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look again and again for holders, for what they have, and for whether it goes on."""
        while True:
            now = self._env.monotonic()
            self._start_links(now)
            self._refresh(now)
            self._check_progress(now)
            await trio.sleep(limits.BLOB_LOOK_S)

    def _start_links(self, now: float) -> None:
        known, named = self._known, set(self._order.holders())
        known.tried_at = {peer: at for peer, at in known.tried_at.items() if peer in named}
        due = [
            peer
            for peer in sorted(named - known.banned - self._links.keys())
            if now - known.tried_at.get(peer, -limits.BLOB_RETRY_S) >= limits.BLOB_RETRY_S
        ]
        self._env.rng.shuffle(due)  # not all fetchers begin with the same ones
        due.sort(key=lambda peer: known.tried_at.get(peer, -1.0))
        for peer in due[: limits.BLOB_HOLDERS_MAX - len(self._links)]:
            known.tried_at[peer] = now
            self._links[peer] = Link(peer, self._order.name, self, self._env)
            self._tasks.start_soon(self._keep_link, self._links[peer])

    async def _keep_link(self, link: Link) -> None:
        try:
            await link.run(self._open_session)
        except _TooLarge as error:
            self._fail(error)
        except RemoteProtocolError as error:
            self._ban(link, f"broke a rule: {error}", lied=True)
        except SwarmNodeError as error:
            # What it sent before it went counts: the core must not ask for that again.
            await link.wait_taken_in()
            self._liveness.trouble = str(error)
            _log.info("holder is gone", blob=self._short, peer=link.peer.short, why=str(error))
        finally:
            del self._links[link.peer]
            self._known.tried_at[link.peer] = self._env.monotonic()
            self._feed(events.HolderLost(link.peer))

    def _ban(self, link: Link, why: str, *, lied: bool) -> None:
        self._known.banned.add(link.peer)
        self._tally.holders_dropped += 1
        self._liveness.trouble = f"{link.peer.short} {why}"
        log = _log.warning if lied else _log.info
        log("holder dropped", blob=self._short, peer=str(link.peer), why=why)
        link.scope.cancel()

    def _refresh(self, now: float) -> None:
        """Ask the holders that had not all of it what they have now."""
        for link in self._links.values():
            is_partial = link.has_answered and link.have != self._everything
            if is_partial and now - link.asked_at >= limits.BLOB_REFRESH_S:
                link.query()

    def _check_progress(self, now: float) -> None:
        if any(current.core.is_held_back for current in self._rounds):
            self._liveness.moved_at = now
        for link in self._links.values():
            if link.is_at_work():
                self._liveness.moved_at = now
                self._feed(events.Heard(link.peer))
        limit_s = self._liveness.limit_s(now)
        if now - self._liveness.moved_at >= limit_s:
            self._fail(DeadlineExceeded(self._what_is_missing(), limit_s))

    def _what_is_missing(self) -> str:
        missing = "its manifest"
        for current in self._rounds:
            statistics = current.core.statistics()
            missing = f"{statistics.n_chunks - statistics.stored} of {statistics.n_chunks} chunks"
        n_named = len(set(self._order.holders()))
        return (
            f"blob {self._short}: {missing} missing and nothing came from {n_named} holders "
            f"({len(self._links)} connected; last trouble: {self._liveness.trouble})"
        )

    # --- answers --------------------------------------------------------------------------

    def heard(self, link: Link, answer: wire.Answer, payload: memoryview) -> None:
        """Take an answer of a holder."""
        match answer:
            case wire.Holding(manifest=None):
                link.have = b""
            case wire.Holding(manifest=manifest, have=have) if manifest is not None:
                check_manifest(manifest, self._order.name)
                self._learn(manifest)
                if have != link.have:
                    link.have = have
                    self._offer(link)
            case wire.ChunkHeader():
                came = _Came(link, answer.index, answer.proof, payload)
                for current in self._rounds:
                    current.add(came, partial(self._take, current))
            case wire.ChunkRefusal(index=index, reason=reason):
                if reason == "busy":
                    self._liveness.busy_at = self._env.monotonic()
                    self._liveness.trouble = f"{link.peer.short} is busy"
                self._feed(events.ChunkRefused(link.peer, index, reason))

    def _learn(self, manifest: wire.BlobManifest) -> None:
        """Note what the blob is. Raises _TooLarge."""
        size_bytes, allowed_bytes = manifest.size_bytes, self._order.size_bytes_max
        if size_bytes > allowed_bytes:
            raise _TooLarge(
                f"blob {self._short} has {size_bytes} bytes, at most {allowed_bytes} are allowed: "
                "it is not the one that was expected"
            )
        if not self._is_known:
            self._is_known = True
            self._everything = bitmap_of(range(n_chunks_of(manifest)), n_chunks_of(manifest))
            self._known_now.send_nowait(manifest)

    def _offer(self, link: Link) -> None:
        if link.have:
            self._feed(events.HolderFound(link.peer, link.have))

    async def _take(self, current: _Round, taken: list[_Came]) -> None:
        """Hash chunks, write those that are right, and tell the core, in one visit to a thread.

        So one that another holder has brought meanwhile is written again, with the same bytes:
        that is rare, and a second visit for every chunk would cost more.
        """
        try:
            leaves = await self._shelf.run(partial(_check_in, current.blob, taken))
        except StorageError as error:
            self._fail(error)
            return
        for came, leaf in zip(taken, leaves, strict=True):
            self._arrived(current, came, leaf)

    def _arrived(self, current: _Round, came: _Came, leaf: bytes) -> None:
        index, size_bytes = came.index, len(came.chunk)
        self._is_wanted = False
        self._feed(events.ChunkArrived(came.link.peer, index, leaf, size_bytes, came.proof))
        if self._is_wanted:
            current.count_unflushed(size_bytes)
            self._stored(current.blob.manifest, index, size_bytes)

    def _stored(self, manifest: wire.BlobManifest, index: int, size_bytes: int) -> None:
        self._liveness.moved_at = self._env.monotonic()
        self._done_bytes += size_bytes
        self._tally.chunks_received += 1
        self._tally.bytes_received += size_bytes
        self._feed(events.ChunkStored(index))
        self._report(manifest)

    def _report(self, manifest: wire.BlobManifest) -> None:
        self._order.on_progress(self._done_bytes, manifest.size_bytes)

    # --- the core -------------------------------------------------------------------------

    def _feed(self, event: events.Event) -> None:
        """Tell the core; when there is none, the blob has no room for news."""
        for current in self._rounds:
            current.driver.feed(event)

    def _carry_out(self, current: _Round, effect: events.Effect) -> None:
        match effect:
            case events.Request(peer, index):
                self._links[peer].request(index)
            case events.Cancel():
                pass  # its answer comes all the same, and the core lets it fall
            case events.Store():
                self._is_wanted = True
            case events.Drop(peer, lied, why):
                self._ban(self._links[peer], why, lied=lied)
            case events.Completed():
                current.completed.set()

    @property
    def _short(self) -> str:
        return self._order.name.hex()[:16]


async def _as_it_is(blob: Blob) -> Blob:
    return blob


def _check_in(blob: Blob, taken: list[_Came]) -> list[bytes]:
    """Write the chunks that belong to the blob; return the hashes of all."""
    leaves = leaf_hashes([came.chunk for came in taken])
    for came, leaf in zip(taken, leaves, strict=True):
        with contextlib.suppress(CorruptRecord):  # it does not belong: the core will say so
            blob.write(came.index, came.chunk, leaf, came.proof)
    return leaves


def _let_go(taken: Iterable[_Came]) -> None:
    for came in taken:
        came.link.chunk_taken_in()
