"""Snapshots of the swarm's model: offered to newcomers, copied for safety, fetched by joiners.

::

    worker -SnapshotSaved-> blob (hashed, linked) -> claim in the shared state, provider in the DHT
    newest snapshot with too few holders -> a few members, chosen by hash, fetch a copy: replicas,
        seldom where enough hold one that is nearly as far
    newcomer -> newest claim -> fetch from all its holders at once -> the worker begins with it

Steps in claims are the swarm's: the furthest that any member says it is. A node's own count
begins anew when it joins, so that it alone cannot tell which of two snapshots is further. A holder
may lie: a step above twice the median of what members say counts for nothing, what two
holders in different networks have comes first, the more of its holders are trusted less the later
it comes, and a newcomer whose probe loss stays far above that of its neighbours begins again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.driver import run_concurrently
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.snapshots.blobs import Blobs, snapshot_bytes_max, tenths_of_the_model
from swarmnode.env import Env
from swarmnode.errors import CorruptRecord, Overloaded, Refused, StorageError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Progress, SnapshotSaved, WorkerFailed
from swarmnode.protocol.crdt.document import SnapshotEntry, is_safe
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.dht.keys import blob_key
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.protocol.plausible import FirstMinute
from swarmnode.protocol.trust import Seen
from swarmnode.store.checkpoints import has_fresh, set_aside, verify_checkpoint
from swarmnode.store.files import make_private_dir
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor.snapshot_format import FETCHED_NAME
from swarmnode.wire import dht as wire_dht
from swarmnode.wire.admission import Role
from swarmnode.wire.crdt import SnapshotClaim

_HOLDERS: tuple[Role, ...] = ("trainer", "keeper")
_log = get_logger("swarmnode.daemon.snapshots")


class Snapshots:
    """What this node does about snapshots.

    Args:
        folder: where the worker writes its own.
        on_event: told of each stage, for the terminal.

    Attributes:
        claims: what we hold and say so, by name, in the order in which it came.
    """

    def __init__(
        self,
        *,
        blobs: Blobs,
        part: SwarmPart,
        discovery: Discovery,
        folder: Path,
        self_id: PeerId,
        env: Env,
        on_event: Callable[[str], None],
    ) -> None:
        self.claims: dict[bytes, SnapshotClaim] = {}
        self._blobs = blobs
        self._part = part
        self._discovery = discovery
        self._folder = folder
        self._self_id = self_id
        self._env = env
        self._on_event = on_event
        self._size_max = snapshot_bytes_max(part.manifest.numel)
        self._own: set[bytes] = set()  # of those in claims, what our worker wrote
        self._began_with = b""  # the root of what the worker was given
        self._began_from: tuple[PeerId, ...] = ()  # its holders then
        self._first_minute = FirstMinute()
        self._tried: set[bytes] = set()
        self._bad: dict[bytes, None] = {}  # roots that no worker could begin with, oldest first
        self._parts: set[bytes] = set()  # fetches that were begun, in an earlier life too
        self._saved: deque[SnapshotSaved] = deque(maxlen=1)  # the newest that is to be offered
        self._to_provide: dict[bytes, None] = {}  # of claims
        self._saved_wanted, self._provide_wanted = trio.Event(), trio.Event()
        self._replicated_at = env.monotonic()  # what a trainer begins with is a copy itself

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Offer, copy and tidy up until cancelled."""
        await self._claim_what_is_held()
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._offer_saved)
            nursery.start_soon(self._replicate)
            nursery.start_soon(self._provide_claimed)

    def saved(self, saved: SnapshotSaved) -> None:
        """The worker has written a snapshot."""
        self._saved.append(saved)
        self._saved_wanted.set()

    # --- joining --------------------------------------------------------------------------

    async def catch_up(self) -> bool:
        """Let a node that has no model of its own, or an old one, begin with the swarm's.

        If no member offers one, training begins from the swarm's seed, as on every other node.

        Returns:
            Whether it begins with the model of a peer.

        Raises:
            StorageError: what a full or failing disk says.
        """
        if await self._env.in_thread(has_fresh, self._folder, self._env.wall()):
            return False
        return await self._begin_with_any()

    async def mend(self, failed: WorkerFailed) -> bool:
        """Fetch another snapshot if the worker has ended because the one it had is unfit.

        The unfit one is neither fetched nor served again. After SNAPSHOT_TRIES_MAX the worker
        begins with an older file of its own, or from the seed. Returns whether that was it.

        Raises:
            StorageError: what a full or failing disk says.
        """
        if failed.kind != "snapshot":
            return False
        self._on_event(f"the model that was fetched is unfit, another is tried: {failed.message}")
        if self._began_with:
            for peer in self._began_from:  # who took it from a liar and holds it is no better off
                self._part.trust.note(peer, Seen.REFUSED, self._env.monotonic())
            await self._shun(self._began_with)
            self._began_with = b""
        await self._begin_with_any()
        return True

    async def begin_anew(self) -> None:
        """Let the next worker begin with what others made, else anew. Raises StorageError."""
        self._saved.clear()
        self._tried.clear()
        for name in sorted({*self._own, self._began_with} - {b""}):  # no newcomer begins with it
            await self._shun(name)
        self._began_with = b""
        if not await self._begin_with_any():
            await self._env.in_thread(set_aside, self._folder)

    def complaint(self, progress: Progress) -> str:
        """Return what is wrong with the model that the worker began with, if there is another."""
        if not self._began_with:
            return ""
        partners = set(self._part.partners()) - {self._self_id}
        said = (self._part.peer_report(peer).numbers for peer in partners)
        others = [each["eval_loss"] for each in said if "eval_loss" in each]
        why = self._first_minute.complaint(progress.eval_loss, others, self._env.monotonic())
        return why if any(entry.root not in self._tried for entry in self._ranked()) else ""

    async def _begin_with_any(self) -> bool:
        """Try one after the other, so many in all. Raises StorageError."""
        tried = self._tried
        while len(tried) < limits.SNAPSHOT_TRIES_MAX:
            entries = await self._wait_for_entries(tried)
            if not tried:
                others, connected = len(self._part.members.live()) - 1, len(self._part.sessions)
                self._on_event(f"in the swarm: {others} others, {connected} connected")
            if not entries:
                return False
            tried.add(entries[0].root)
            if await self._begin_with(entries[0]):
                return True
        self._on_event("no model of the swarm could be fetched: training begins from its seed")
        return False

    async def _begin_with(self, entry: SnapshotEntry) -> bool:
        """Whether the worker can begin with this snapshot. Raises StorageError."""
        try:
            await self._fetch(entry, say=self._on_event)
        except SwarmNodeError as error:
            if isinstance(error, StorageError) and not isinstance(error, CorruptRecord):
                raise  # it is our disk, and no other snapshot would fit either
            _log.warning("not fetched, another one is tried", why=str(error))
            return False
        await self._blobs.link(entry.root, self._folder / FETCHED_NAME)
        self._began_with = entry.root
        self._began_from = tuple(peer for peer in entry.holders if peer != self._self_id)
        self._first_minute.begin()
        self._claim(entry.root, self._part.counted_step(entry.step), entry.size_bytes, entry.loss)
        return True

    async def _wait_for_entries(self, tried: Collection[bytes]) -> list[SnapshotEntry]:
        """Return the snapshots that others hold, best first; none if there seem to be none."""
        started_at = trio.current_time()
        while True:
            waited_s = trio.current_time() - started_at
            entries = self._ranked(tried)
            if entries or waited_s > limits.SNAPSHOT_WAIT_S:
                return entries
            is_informed = self._knows_its_neighbours() or waited_s > limits.NEWCOMER_WAIT_S
            if is_informed and not self._others_have_trained():
                return []
            await trio.sleep(limits.SNAPSHOT_LOOK_S)

    def _knows_its_neighbours(self) -> bool:
        """Whether there are some, and each has said in the shared state what it does."""
        peers = list(self._part.sessions)
        return bool(peers) and all(self._part.peer_report(peer).state for peer in peers)

    def _others_have_trained(self) -> bool:
        """Whether a member here has, even if it trains no more, or keeps what others did."""
        return self._part.swarm_step() > 0 and len(self._part.members.live()) > 1

    def _ranked(self, tried: Collection[bytes] = ()) -> list[SnapshotEntry]:
        """Return what others hold, by how many of its holders are trusted; last what was tried."""

        def place(entry: SnapshotEntry) -> tuple[bool, float, bool]:
            others = set(entry.holders) - {self._self_id}
            trusted = sum(map(self._part.is_trusted, others)) / len(others)
            return entry.root in tried, -trusted, not self._is_confirmed(entry)

        return sorted(self._to_copy(), key=place)

    def _to_copy(self) -> list[SnapshotEntry]:
        """Return what others hold, that first of which a part is here, then the furthest."""
        entries = [entry for entry in self._entries() if set(entry.holders) - {self._self_id}]
        return sorted(entries, key=lambda entry: entry.root not in self._parts)

    def _is_confirmed(self, entry: SnapshotEntry) -> bool:
        """Whether two networks hold it that is not old; one owner may have all of a network."""
        networks = {self._part.network_of(p) for p in self._holders(entry.root)} - {""}
        is_new = entry.step >= limits.SNAPSHOT_NEW_SHARE * self._part.swarm_step()
        return is_new and len(networks) > 1

    def _entries(self) -> list[SnapshotEntry]:
        """Return what members hold now, the furthest first."""
        found = []
        for entry in self._part.state.view.snapshots(self._env.monotonic()):
            here = tuple(peer for peer in entry.holders if not self._is_gone(peer))
            is_good = entry.size_bytes <= self._size_max and entry.root not in self._bad
            if here and is_good:
                step = self._part.counted_step(entry.step)
                found.append(replace(entry, step=step, holders=here))
        return sorted(found, key=lambda entry: (-entry.step, -len(entry.holders), entry.root))

    def _is_gone(self, peer: PeerId) -> bool:
        """Whether a member has left or died: what it holds is of no use until it is back."""
        is_back = peer == self._self_id or peer in self._part.sessions
        gone = self._part.members.detector.state_of(peer) in (MemberState.DEAD, MemberState.LEFT)
        return not is_back and (gone or self._part.peer_report(peer).state == "left")

    async def _fetch(self, entry: SnapshotEntry, *, say: Callable[[str], None]) -> None:
        """Bring a snapshot here, and check it. Raises SwarmNodeError."""
        say(
            f"fetching the model at step {entry.step:,} ({entry.size_bytes / 1e6:.1f} MB)"
            f" from {len(entry.holders)} peer(s)"
        )
        on_progress = tenths_of_the_model(say)
        await self._drop_parts(keep=entry.root)
        self._parts.add(entry.root)
        before, began_s = self._blobs.statistics(), self._env.monotonic()
        others = await self._providers(entry.root)
        found: list[Path] = []

        def holders() -> set[PeerId]:
            return {peer for peer in self._holders(entry.root) | others if not self._is_gone(peer)}

        async def fetch() -> None:
            found.append(
                await self._blobs.fetch(
                    entry.root, holders, on_progress=on_progress, size_bytes_max=self._size_max
                )
            )

        await run_concurrently(fetch, partial(self._watch_holders, entry.root, holders, found))
        (path,) = found
        self._parts.discard(entry.root)
        await self._check(entry.root, path)
        after, took_s = self._blobs.statistics(), self._env.monotonic() - began_s
        _log.info(
            "snapshot fetched",
            blob=entry.root.hex()[:16],
            chunks=after.chunks_received_total - before.chunks_received_total,
            received_bytes=after.bytes_received_total - before.bytes_received_total,
            wasted_bytes=after.bytes_wasted_total - before.bytes_wasted_total,
            took_s=round(took_s, 2),
        )
        say(f"the model is here ({took_s:.1f} s)")

    async def _watch_holders(
        self, name: bytes, holders: Callable[[], set[PeerId]], found: Collection[Path]
    ) -> None:
        """Raise Overloaded if no member that has it is there, and those of the DHT send nothing."""
        there_at, came = self._env.monotonic(), 0
        while not found:
            before, came = came, self._blobs.statistics().bytes_received_total
            is_there = self._holders(name) & {*self._part.members.live(), *self._part.sessions}
            now = self._env.monotonic()
            there_at = now if is_there or came != before else there_at
            if not holders() or now - there_at > limits.SNAPSHOT_ABANDONED_S:
                raise Overloaded("all who held it have left, died or cannot be reached")
            await trio.sleep(limits.SNAPSHOT_LOOK_S)

    async def _drop_parts(self, keep: bytes) -> None:
        """Remove what is left of fetches that no task goes on with: it takes room of the others."""
        for name in self._parts - {keep}:
            with suppress(Refused):  # it is being fetched just now
                await self._blobs.remove(name)
                self._parts.discard(name)

    async def _check(self, name: bytes, path: Path) -> None:
        """Raise CorruptRecord, and hold it no more, if that is no snapshot of our model."""
        try:
            info = await self._env.in_thread(verify_checkpoint, path)
            if info.layout_hash != self._part.manifest.layout_hash:
                raise CorruptRecord(f"{path} is a snapshot of another model", path=str(path))
        except CorruptRecord:
            await self._blobs.remove(name)
            raise

    def _holders(self, name: bytes) -> set[PeerId]:
        holders = {p for entry in self._entries() if entry.root == name for p in entry.holders}
        return holders - {self._self_id}

    async def _providers(self, name: bytes) -> set[PeerId]:
        """Ask the DHT which other nodes have it."""
        try:
            found = await self._discovery.get(blob_key(name))
        except SwarmNodeError as error:
            _log.debug("the DHT does not answer", why=str(error))
            return set()
        for opened in found.records:
            self._part.members.told(opened.author, opened.record.addresses)
        return {opened.author for opened in found.records} - {self._self_id}

    # --- offering -------------------------------------------------------------------------

    async def _offer_saved(self) -> None:
        """Offer what the worker saves, not more often than is of use."""
        while True:
            await self._saved_wanted.wait()
            self._saved_wanted = trio.Event()
            if self._saved:
                try:
                    await self._offer(self._saved.pop())
                except (SwarmNodeError, OSError) as error:
                    _log.warning("a snapshot is not offered", why=str(error))
            await trio.sleep(limits.SNAPSHOT_OFFER_S)

    @property
    def is_merged_offered(self) -> bool:
        """Whether members hold the model that all were merged into, and none has gone on."""
        furthest = max((entry.step for entry in self._entries()), default=0)
        return furthest > self._swarm_step

    async def offer_merged(self, path: Path, loss: float | None) -> None:
        """Offer what all members' models were merged into: it lies beyond all that they saved.

        Raises:
            StorageFull, StorageError: as the disk says.
        """
        name = await self._blobs.add_file(path)
        self._own.add(name)
        self._claim(name, self._swarm_step + 1, self._blobs.held()[name], loss)
        await self._tidy()

    async def write_furthest(self, path: Path, written: bytes) -> bytes:
        """Let the furthest model that is held here be a file of its own; return its name.

        ``written``: the name of what that file is already; b"": nothing.

        Raises:
            StorageFull, StorageError: as the disk says.
        """
        held = max(self.claims, key=lambda name: self.claims[name].step, default=b"")
        if held and held != written:
            await self._env.in_thread(make_private_dir, path.parent)
            await self._blobs.link(held, path)
        return held or written

    @property
    def _swarm_step(self) -> int:
        """The furthest step that any member says it is at, ourselves included."""
        return max(self._part.report().step, self._part.swarm_step())

    async def _offer(self, saved: SnapshotSaved) -> None:
        name = await self._blobs.add_file(Path(saved.path))
        self._own.add(name)
        self._parts.discard(name)
        loss = self._part.peer_report(self._self_id).numbers.get("loss")
        self._claim(name, self._swarm_step, self._blobs.held()[name], loss)
        await self._tidy()

    def _claim(self, name: bytes, step: int, size_bytes: int, loss: float | None) -> None:
        ttl_s = int(limits.STATE_LEASE_S)
        claim = SnapshotClaim(name, step, size_bytes, ttl_s, loss)
        self.claims.pop(name, None)
        self.claims[name] = claim
        self._part.state.say(Update(snapshots={name: claim}))
        self._to_provide[name] = None
        self._provide_wanted.set()

    async def _provide_claimed(self) -> None:
        """Say in the DHT as well what we hold."""
        while True:
            await self._provide_wanted.wait()
            self._provide_wanted = trio.Event()
            while self._to_provide:
                await self._provide(self._to_provide.popitem()[0])

    async def _provide(self, name: bytes) -> None:
        addresses = self._part.report().addresses[: limits.DHT_ADDRESSES_MAX]
        draft = wire_dht.ProviderRecord(0, 0, limits.DHT_RECORD_TTL_S, addresses, name)
        try:
            await self._discovery.publish(blob_key(name), draft)
        except SwarmNodeError as error:
            _log.debug("a snapshot is not in the DHT", why=str(error))

    async def _claim_what_is_held(self) -> None:
        """After a start: say again what is on disk, as it was said before."""
        self._parts = await self._blobs.parts()
        said = self._part.state.own_claims()
        for name, size_bytes in self._blobs.held().items():
            claim = said.get(name)
            self._claim(name, claim.step if claim else 0, size_bytes, claim.loss if claim else None)
        self.claims = dict(sorted(self.claims.items(), key=lambda item: item[1].step))

    async def _tidy(self) -> None:
        """Keep the last few of our own and of others', and take back what we said of the rest."""
        own = [name for name in self.claims if name in self._own]
        others = [name for name in self.claims if name not in self._own]
        for name in own[: -limits.SNAPSHOTS_KEPT] + others[: -limits.SNAPSHOTS_KEPT]:
            await self._forget(name)

    async def _shun(self, name: bytes) -> None:
        """Neither fetch it nor serve it again."""
        self._bad[name] = None
        while len(self._bad) > limits.SNAPSHOTS_BAD_MAX:
            del self._bad[next(iter(self._bad))]
        await self._forget(name)

    async def _forget(self, name: bytes) -> None:
        """Hold it no more, and say so."""
        self._own.discard(name)
        self._to_provide.pop(name, None)
        if name in self.claims:
            claim = self.claims.pop(name)
            gone = SnapshotClaim(name, claim.step, claim.size_bytes, 0)
            self._part.state.say(Update(snapshots={name: gone}))
        self._discovery.withdraw(blob_key(name))
        await self._blobs.remove(name)

    # --- replicas -------------------------------------------------------------------------

    async def _replicate(self) -> None:
        """Copy the newest snapshot if it is our turn: it must outlive its writer."""
        while True:
            await trio.sleep(limits.SNAPSHOT_REPLICATE_LOOK_S)
            for entry in self._to_copy()[:1]:
                if entry.root not in self.claims and self._is_our_turn(entry):
                    await self._copy(entry)

    async def _copy(self, entry: SnapshotEntry) -> None:
        try:
            await self._fetch(entry, say=lambda text: _log.info("replica", what=text))
            self._claim(entry.root, entry.step, entry.size_bytes, entry.loss)
            self._replicated_at = self._env.monotonic()
            await self._tidy()
        except SwarmNodeError as error:
            _log.info("no replica", why=str(error))

    def _is_our_turn(self, entry: SnapshotEntry) -> bool:
        report = self._part.report()
        if report.state in ("starting", "syncing"):  # it is yet to see which holders lie
            return False
        is_keeper = report.role == "keeper"
        rate = limits.SNAPSHOT_REPLICATE_BYTES_PER_S * (10 if is_keeper else 1)
        is_urgent = is_keeper or not is_safe(self._entries(), entry.step)
        pause_s = limits.SNAPSHOT_REPLICATE_S if is_urgent else limits.SNAPSHOT_REPLICATE_SAFE_S
        pause_s = max(pause_s, entry.size_bytes / rate)
        if self.claims and self._env.monotonic() - self._replicated_at < pause_s:
            return False
        return is_keeper or self._self_id in self._next_holders(entry)

    def _next_holders(self, entry: SnapshotEntry) -> list[PeerId]:
        """Which live members shall hold it, by a hash that is the same on all of them."""
        live = self._part.members.live()
        free = {p for p in live if self._part.peer_report(p).role in _HOLDERS} - set(entry.holders)
        ranked = sorted(free, key=lambda peer: hashlib.sha256(entry.root + peer).digest())
        return ranked[: max(0, limits.SNAPSHOT_REPLICAS - len(entry.holders))]
