"""Fetch one blob from many holders at once; see the states of a chunk.

::

    MISSING -Request-> ASKED -right chunk-> ARRIVED -ChunkStored-> stored
       ^                 |  holder lost, dropped, or refuses
       +-----------------+

Rarest chunks first, so that what few have is in many hands soon; equal ones in an order of our
own, so that newcomers do not all fetch the same one. A chunk counts only when its proof leads
to the root. A wrong chunk drops its sender and names it; so does silence. A chunk is asked for
once, and again only if its holder fails, or if it alone is late while others have nothing to
do. Chunks on disk from before are simply not missing.

Invariants: at most BLOB_REQUESTS_MAX chunks are asked for or unwritten; no chunk is stored
twice; a dropped holder is never asked again.

Source: rarest first and end game: Cohen, "Incentives build robustness in BitTorrent", 2003.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs import events
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.blobs.events import Cancel, Completed, Drop, Effect, Event, Request, Store
from swarmnode.protocol.blobs.holders import Holder, has_bit
from swarmnode.protocol.blobs.merkle import chunk_size, is_in_blob, n_chunks_of
from swarmnode.wire.blobs import BlobManifest

# Idle holders take over a chunk that is late (BLOB_TAKEOVER_TIMES), but none that is younger.
BLOB_TAKEOVER_S_MIN = 2.0
# A busy holder is asked again after this, with full jitter on top.
BLOB_BUSY_PAUSE_S = 1.0


@dataclass(frozen=True)
class FetchStatistics:
    """Gauges, then counters of this fetch."""

    n_chunks: int
    stored: int
    asked: int
    arrived: int
    holders: int
    requests_total: int
    bytes_received_total: int
    bytes_wasted_total: int  # wrong, or another holder was faster
    takeovers_total: int
    dropped_total: int


@dataclass
class _Tally:
    requests: int = 0
    bytes_received: int = 0
    bytes_wasted: int = 0
    takeovers: int = 0


class FetchCore:
    """Sans-IO core of one fetch; the shell moves, hashes and writes the bytes."""

    def __init__(
        self,
        manifest: BlobManifest,
        rng: Rng,
        *,
        stored: Set[int] = frozenset(),
        bucket: TokenBucket | None = None,
    ) -> None:
        """``stored``: chunks on disk already; ``bucket``: a bandwidth limit, perhaps shared."""
        self._manifest = manifest
        self._rng = rng
        n_chunks = n_chunks_of(manifest)
        self._n_chunks = n_chunks
        self._missing = set(range(n_chunks)) - stored
        self._asked: dict[int, list[PeerId]] = {}
        self._arrived: set[int] = set()
        self._holders: dict[PeerId, Holder] = {}
        self._dropped: set[PeerId] = set()
        self._availability = [0] * n_chunks
        self._tie_break = list(range(n_chunks))
        rng.shuffle(self._tie_break)
        self._order: list[int] | None = None  # missing ones, the next to ask for last
        self._bucket = bucket
        self._tokens_at: float | None = None
        self._usual_s = 0.0
        self._effects: list[Effect] = []
        self._tally = _Tally()
        if not self._missing:
            self._effects.append(Completed())

    # --- the five methods ----------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in one event.

        Raises:
            LocalProtocolError: ChunkStored for a chunk that was not to be stored: a bug.
        """
        match event:
            case events.HolderFound(peer, have):
                self._found(peer, have, now)
            case events.HolderLost(peer):
                self._remove(peer)
            case events.Heard(peer):
                if peer in self._holders:
                    self._holders[peer].heard_at = now
            case events.ChunkArrived():
                self._arrive(event, now)
            case events.ChunkRefused():
                self._refused(event, now)
            case events.ChunkStored(index):
                self._stored(index)
        self._ask(now)

    def poll_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        if self.is_complete:
            return None
        times = [holder.idle_at for holder in self._holders.values() if holder.idle_at is not None]
        times += [h.resting_until for h in self._holders.values() if h.resting_until > 0.0]
        if self._missing and self._tokens_at is not None:
            times.append(self._tokens_at)
        late_at = self._late_at()
        if late_at is not None:
            times.append(late_at)
        return min(times, default=None)

    def handle_deadline(self, now: float) -> None:
        """Drop the silent, wake the resting, let the idle take over what is late."""
        for holder in list(self._holders.values()):
            if holder.idle_at is not None and holder.idle_at <= now:
                owed = len(holder.asked)
                why = f"slow: sent none of {owed} chunks in {limits.BLOB_IDLE_S:g} s"
                self._drop(holder.peer, lied=False, why=why)
            elif holder.resting_until <= now:
                holder.resting_until = 0.0
        if self._tokens_at is not None and self._tokens_at <= now:
            self._tokens_at = None
        self._take_over(now)
        self._ask(now)

    def statistics(self) -> FetchStatistics:
        """Return a frozen record of counters."""
        tally = self._tally
        return FetchStatistics(
            n_chunks=self._n_chunks,
            stored=self._n_chunks - len(self._missing) - len(self._asked) - len(self._arrived),
            asked=len(self._asked),
            arrived=len(self._arrived),
            holders=len(self._holders),
            requests_total=tally.requests,
            bytes_received_total=tally.bytes_received,
            bytes_wasted_total=tally.bytes_wasted,
            takeovers_total=tally.takeovers,
            dropped_total=len(self._dropped),
        )

    # --- what a shell reads --------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is stored."""
        return not (self._missing or self._asked or self._arrived)

    @property
    def is_held_back(self) -> bool:
        """Whether nothing is under way only because of our own bandwidth limit."""
        return self._tokens_at is not None and not self._asked

    # --- holders -------------------------------------------------------------------------

    def _found(self, peer: PeerId, have: bytes, now: float) -> None:
        if peer in self._dropped:
            return
        holder = self._holders.get(peer)
        if holder is None:
            if len(self._holders) >= limits.BLOB_HOLDERS_MAX:
                return
            holder = self._holders[peer] = Holder(peer, bytearray(), heard_at=now)
        self._count(holder, -1)
        holder.have = bytearray(have[: (self._n_chunks + 7) // 8])
        self._count(holder, +1)

    def _count(self, holder: Holder, change: int) -> None:
        for index in range(min(self._n_chunks, 8 * len(holder.have))):
            if has_bit(holder.have, index):
                self._availability[index] += change
        self._order = None

    def _remove(self, peer: PeerId) -> None:
        """Forget a holder; what it owes is missing again."""
        holder = self._holders.pop(peer, None)
        if holder is None:
            return
        self._count(holder, -1)
        for index in list(holder.asked):
            self._take_back(peer, index)

    def _take_back(self, peer: PeerId, index: int) -> None:
        askers = self._asked[index]
        askers.remove(peer)
        if not askers:
            del self._asked[index]
            self._missing.add(index)
            self._order = None

    def _drop(self, peer: PeerId, *, lied: bool, why: str) -> None:
        for index in self._holders[peer].asked:
            self._effects.append(Cancel(peer, index))
        self._remove(peer)
        self._dropped.add(peer)
        self._effects.append(Drop(peer, lied, why))

    # --- asking --------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        """Ask each holder with room in turn, one chunk at a time, the emptiest first."""
        while self._missing and self._n_under_way < limits.BLOB_REQUESTS_MAX:
            with_room = [h for h in self._holders.values() if h.room(self._chunk_bytes, now) > 0]
            with_room.sort(key=lambda holder: len(holder.asked))
            if not any(self._ask_one(holder, now) for holder in with_room):
                return

    def _ask_one(self, holder: Holder, now: float) -> bool:
        index = self._choose(holder)
        if index is None or not self._may_spend(chunk_size(self._manifest, index), now):
            return False
        self._missing.remove(index)
        self._request(holder, index, now)
        return True

    def _request(self, holder: Holder, index: int, now: float) -> None:
        self._asked.setdefault(index, []).append(holder.peer)
        holder.ask(index, now)
        self._tally.requests += 1
        self._effects.append(Request(holder.peer, index))

    def _choose(self, holder: Holder) -> int | None:
        """Return the rarest missing chunk that this holder has."""
        if self._order is None:
            rarity = self._availability
            ties = self._tie_break
            self._order = sorted(self._missing, key=lambda i: (rarity[i], ties[i]), reverse=True)
        while self._order and self._order[-1] not in self._missing:
            self._order.pop()
        for index in reversed(self._order):
            if index in self._missing and has_bit(holder.have, index):
                return index
        return None

    def _may_spend(self, n_bytes: int, now: float) -> bool:
        if self._bucket is None:
            return True
        if self._tokens_at is not None and now < self._tokens_at:
            return False
        if self._bucket.try_take(n_bytes, now):
            return True
        self._tokens_at = self._bucket.free_at()
        return False

    @property
    def _chunk_bytes(self) -> int:
        return self._manifest.chunk_bytes

    @property
    def _n_under_way(self) -> int:
        return len(self._asked) + len(self._arrived)

    # --- arriving ------------------------------------------------------------------------

    def _arrive(self, event: events.ChunkArrived, now: float) -> None:
        holder = self._holders.get(event.peer)
        if holder is None or event.index not in holder.asked:
            self._tally.bytes_wasted += event.size_bytes  # cancelled while it was on its way
            return
        expected_bytes = chunk_size(self._manifest, event.index)
        is_right = event.size_bytes == expected_bytes and is_in_blob(
            self._manifest, event.index, event.leaf, event.proof
        )
        if not is_right:
            self._tally.bytes_wasted += event.size_bytes
            self._drop(
                event.peer, lied=True, why=f"chunk {event.index} is not the one of this blob"
            )
            return
        took_s = holder.deliver(event.index, event.size_bytes, now)
        self._usual_s += (0.2 if self._usual_s else 1.0) * (took_s - self._usual_s)
        self._tally.bytes_received += event.size_bytes
        for other in self._asked.pop(event.index):
            if other != event.peer:
                del self._holders[other].asked[event.index]
                self._effects.append(Cancel(other, event.index))
        self._arrived.add(event.index)
        self._effects.append(Store(event.peer, event.index))

    def _refused(self, event: events.ChunkRefused, now: float) -> None:
        holder = self._holders.get(event.peer)
        if holder is None or event.index not in holder.asked:
            return
        del holder.asked[event.index]
        self._take_back(event.peer, event.index)
        if event.reason == "absent":
            if not has_bit(holder.have, event.index):
                return  # it has told us meanwhile
            holder.have[event.index >> 3] &= ~(1 << (event.index & 7)) & 0xFF
            self._availability[event.index] -= 1
            self._order = None
        else:
            holder.resting_until = now + BLOB_BUSY_PAUSE_S * (1.0 + self._rng.random())

    def _stored(self, index: int) -> None:
        if index not in self._arrived:
            raise LocalProtocolError(f"ChunkStored for chunk {index}, which was not to be stored")
        self._arrived.remove(index)
        if self.is_complete:
            self._effects.append(Completed())

    # --- the end game --------------------------------------------------------------------

    def _late_after_s(self) -> float:
        return max(BLOB_TAKEOVER_S_MIN, limits.BLOB_TAKEOVER_TIMES * self._usual_s)

    def _late(self) -> Iterator[tuple[float, int, Holder]]:
        """Yield what one holder alone was asked for and another that owes nothing also has."""
        if self._missing:
            return
        idle = [h for h in self._holders.values() if not h.asked and h.resting_until == 0.0]
        for index, askers in self._asked.items():
            helper = next((h for h in idle if has_bit(h.have, index)), None)
            if len(askers) == 1 and helper is not None:
                asked_at = self._holders[askers[0]].asked[index]
                yield asked_at + self._late_after_s(), index, helper

    def _late_at(self) -> float | None:
        return min((at for at, _, _ in self._late()), default=None)

    def _take_over(self, now: float) -> None:
        for at, index, helper in sorted(self._late(), key=lambda late: late[:2]):
            if at <= now and len(helper.asked) < limits.BLOB_REQUESTS_PER_HOLDER_MIN:
                self._tally.takeovers += 1
                if self._bucket is not None:
                    self._bucket.spend(chunk_size(self._manifest, index), now)
                self._request(helper, index, now)
