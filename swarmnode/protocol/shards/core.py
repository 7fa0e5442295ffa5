"""Data shards: which member trains which part, agreed on through the shared state alone.

One pass over the data is an *epoch* of ``n_shards`` *shards*. A peer claims the shard it
trains and the next one ahead, so that training never waits. A shard of ours is::

    free --claimed--> waiting --seen in the state for SHARD_SETTLE_S--> assigned --> done
                         |                                                 |
                         +------- a rival with a higher score, ------------+--> free, theirs
                                  or a member has trained it

* A free shard is neither done nor claimed by a live member. Those that we are preferred for
  (:class:`Owners`) come first, then what else is free, and only then the next epoch.
* A claim holds while its author lives, through all churn. The dead claim nothing, so what
  they had begun is free again; what they have done stays done.
* An epoch is open as long as its register is (words.py). A peer that is so far behind goes on
  with its shard, and holds no other up; if it dies, that shard is left out.

No member can check that another has trained what it says: a liar can make others skip shards.

Invariants: at most SHARD_CLAIMS_MAX claims; what is assigned is claimed, and has been visible
for SHARD_SETTLE_S without a rival that is preferred to us.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.shards import events
from swarmnode.protocol.shards.words import CLAIMS, Shard, register_name, write_progress

_DOMAIN = b"swarmnode/shards/1\0"
_NUMBERS = struct.Struct(">QQ")
_SCORE_BYTES = 8
_NO_MEMBER = (-1, b"")

# Ties of scores are settled by the id; the greater one is preferred.
Rank = tuple[int, bytes]


@cache
def _score_format(n_shards: int) -> struct.Struct:
    return struct.Struct(f">{n_shards}Q")


def scores(swarm_seed: int, epoch: int, peer: PeerId, n_shards: int) -> tuple[int, ...]:
    """Return the member's score for each shard of the epoch. Cost: 7 µs for 256."""
    material = _DOMAIN + _NUMBERS.pack(swarm_seed, epoch) + peer
    digest = hashlib.shake_256(material).digest(_SCORE_BYTES * n_shards)
    return _score_format(n_shards).unpack(digest)


class Owners:
    """The preferred member of each shard of one epoch, kept up: rendezvous hashing.

    Each member has a score for each shard, and the free shard belongs to the member with the
    highest one. So nodes that see the same members agree without a word, and a member that comes or
    goes moves only the shards that become or were its own.

    Source: Thaler, Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    Deviation: all scores of one member in one epoch come out of one SHAKE-256, not each out of a
    hash of its own: 256 shards of 1,000 members take 0.02 s instead of 0.13 s.
    """

    def __init__(self, swarm_seed: int, epoch: int, n_shards: int) -> None:
        self.epoch = epoch
        self._seed = swarm_seed
        self._n_shards = n_shards
        self._members: frozenset[PeerId] = frozenset()
        self._best: list[Rank] = [_NO_MEMBER] * n_shards

    def follow(self, members: frozenset[PeerId]) -> None:
        """Take the membership as it is now. Cost: 20 µs for each that came, 7 µs a member
        once a member went.
        """
        left = self._members - members
        orphans = [i for i, (_, peer) in enumerate(self._best) if peer in left]
        for index in orphans:
            self._best[index] = _NO_MEMBER
        if orphans:
            self._challenge(self._members & members, orphans)
        self._challenge(members - self._members, range(self._n_shards))
        self._members = members

    def owned_by(self, peer: PeerId) -> list[int]:
        """Return the shards that the member is preferred for."""
        return [i for i, (_, owner) in enumerate(self._best) if owner == peer]

    def _challenge(self, peers: Set[PeerId], indices: list[int] | range) -> None:
        best = self._best
        for peer in peers:
            theirs = scores(self._seed, self.epoch, peer, self._n_shards)
            for index in indices:
                if (theirs[index], peer) > best[index]:
                    best[index] = (theirs[index], peer)


_NOTHING_SEEN = events.View(frozenset(), {}, {}, {})


@dataclass
class _Claim:
    seen_at: float | None = None  # when it was first in the shared state
    is_assigned: bool = False


class ShardCore:
    """One peer's part of the agreement; ``swarm_seed`` and ``n_shards`` are the swarm's.

    Raises:
        LocalProtocolError: ``n_shards`` is not in 1..SHARDS_PER_EPOCH_MAX.
    """

    def __init__(self, self_id: PeerId, swarm_seed: int, n_shards: int) -> None:
        if not 1 <= n_shards <= limits.SHARDS_PER_EPOCH_MAX:
            raise LocalProtocolError(
                f"expected 1 to {limits.SHARDS_PER_EPOCH_MAX} shards in an epoch, got {n_shards}"
            )
        self._self_id = self_id
        self._seed = swarm_seed
        self._n_shards = n_shards
        self._view = _NOTHING_SEEN
        self._others: frozenset[PeerId] = frozenset()  # live members but for ourselves
        self._taken: dict[int, int] = {}  # epoch to what other live members claim
        self._claims: dict[Shard, _Claim] = {}  # in the order of training
        self._mine: dict[int, int] = {}  # what our registers say
        self._owners = Owners(swarm_seed, 0, n_shards)
        self._is_working = False
        self._leases: dict[tuple[str, str], int] = {}
        self._registers: dict[str, str] = {}
        self._effects: list[events.Effect] = []
        self._finished = self._lost = 0

    # --- the five methods -----------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> None:
        """Take in one event."""
        match event:
            case events.View():
                self._look(event, now)
            case events.WorkerUp():
                self._is_working = True
            case events.WorkerGone():
                self._is_working = False
                for claim in self._claims.values():
                    claim.is_assigned = False
            case events.Rest():
                for shard in list(self._claims):
                    self._release(shard)
                self._is_working = False
            case events.Finished(shard):
                self._finish(shard)
        self._review(now)

    def poll_effects(self) -> list[events.Effect]:
        """Return what is to be done, in order."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when the next claim has been seen for long enough."""
        if not self._is_working:
            return None
        waiting = [c.seen_at for c in self._claims.values() if not c.is_assigned]
        return min((at + limits.SHARD_SETTLE_S for at in waiting if at is not None), default=None)

    def handle_deadline(self, now: float) -> None:
        """Assign what is ours by now."""
        self._review(now)

    def statistics(self) -> events.ShardStatistics:
        """Return counters."""
        return events.ShardStatistics(
            self._oldest_open(), len(self._claims), self._finished, self._lost
        )

    # --- what is known --------------------------------------------------------------------

    def _look(self, view: events.View, now: float) -> None:
        self._view = view
        self._others = view.members - {self._self_id}
        for epoch, bitmap in view.mine.items():
            self._record(epoch, bitmap)
        self._taken = {}
        for shard, peers in view.claims.items():
            if peers & self._others:
                self._taken[shard.epoch] = self._taken.get(shard.epoch, 0) | 1 << shard.index
        for shard, claim in list(self._claims.items()):
            if claim.seen_at is None and self._self_id in view.claims.get(shard, ()):
                claim.seen_at = now
            if self._is_done(shard) or self._is_outranked(shard):
                self._lost += 1
                self._release(shard)

    def _oldest_open(self) -> int:
        newest = max(self._view.done.keys() | self._mine.keys(), default=0)
        return max(0, newest - limits.SHARD_EPOCHS_OPEN + 1)

    def _is_done(self, shard: Shard) -> bool:
        return bool(self._view.done.get(shard.epoch, 0) >> shard.index & 1)

    def _is_outranked(self, shard: Shard) -> bool:
        rivals = self._view.claims.get(shard, frozenset()) & self._others
        return any(self._rank(shard, rival) > self._rank(shard, self._self_id) for rival in rivals)

    def _rank(self, shard: Shard, peer: PeerId) -> Rank:
        return scores(self._seed, shard.epoch, peer, self._n_shards)[shard.index], peer

    # --- what is done about it ------------------------------------------------------------

    def _review(self, now: float) -> None:
        """Claim up to what may be claimed, assign what has settled, and say what is new."""
        if self._is_working and self._self_id in self._view.members:
            self._claim_more()
        if self._is_working:
            self._assign_settled(now)
        if self._leases or self._registers:
            self._effects.append(events.Say(self._leases, self._registers))
            self._leases, self._registers = {}, {}

    def _claim_more(self) -> None:
        while len(self._claims) < limits.SHARD_CLAIMS_MAX:
            shard = self._choose()
            if shard is None:
                return
            self._claims[shard] = _Claim()
            self._leases[CLAIMS, shard.element] = int(limits.STATE_LEASE_S)

    def _choose(self) -> Shard | None:
        """Return the free shard that is next: of the oldest epoch that has one."""
        for epoch in range(self._oldest_open(), limits.SHARD_EPOCH_MAX + 1):
            free = set(self._free(epoch))
            if free:
                return Shard(epoch, self._best(epoch, free))
        return None

    def _free(self, epoch: int) -> Iterator[int]:
        used = self._view.done.get(epoch, 0) | self._mine.get(epoch, 0) | self._taken.get(epoch, 0)
        for shard in self._claims:
            if shard.epoch == epoch:
                used |= 1 << shard.index
        return (index for index in range(self._n_shards) if not used >> index & 1)

    def _best(self, epoch: int, free: set[int]) -> int:
        """Return, of those that we are preferred for or else of all, the one with our top score."""
        if self._owners.epoch != epoch:
            self._owners = Owners(self._seed, epoch, self._n_shards)
        self._owners.follow(self._view.members)
        ours = free.intersection(self._owners.owned_by(self._self_id))
        own_scores = scores(self._seed, epoch, self._self_id, self._n_shards)
        return max(ours or free, key=own_scores.__getitem__)

    def _assign_settled(self, now: float) -> None:
        for shard, claim in self._claims.items():
            is_settled = claim.seen_at is not None and claim.seen_at + limits.SHARD_SETTLE_S <= now
            if is_settled and not claim.is_assigned:
                claim.is_assigned = True
                self._effects.append(events.Assign(shard))

    def _finish(self, shard: Shard) -> None:
        """It counts even if we had to give it up meanwhile: it is trained."""
        self._finished += 1
        if self._claims.pop(shard, None) is not None:
            self._leases[CLAIMS, shard.element] = 0
        self._record(shard.epoch, 1 << shard.index)

    def _release(self, shard: Shard) -> None:
        if self._claims.pop(shard).is_assigned:
            self._effects.append(events.Withdraw(shard))
        self._leases[CLAIMS, shard.element] = 0

    def _record(self, epoch: int, bitmap: int) -> None:
        """Add to what our registers say, as far as the epoch still has one."""
        both = self._mine.get(epoch, 0) | bitmap
        if both == self._mine.get(epoch) or epoch < self._oldest_open():
            return
        self._mine[epoch] = both
        self._registers[register_name(epoch)] = write_progress(epoch, both)
        for old in [e for e in self._mine if e <= epoch - limits.SHARD_EPOCHS_OPEN]:
            del self._mine[old]
