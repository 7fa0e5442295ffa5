"""When the table wants what: bootstrap, refresh, checks, and the search for the other half.

Bootstrap (2.3 of the Kademlia paper) is repeated self-lookups until one finds no new peer
close to us, then a lookup in every bucket farther away than our closest neighbour. Two
networks of the same peers that grew apart find each other again: every node now and then asks
a node of the link, of the disk, or one that it lost; and one that gets several new neighbours at
once looks itself up again, so the news goes round.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.protocol.dht.keys import KEY_BITS, number_of
from swarmnode.protocol.dht.table import RoutingTable
from swarmnode.wire.dht import Contact

# What has run out is not given to any node; this is only about its memory.
DHT_SWEEP_S = 60.0


@dataclass(frozen=True)
class LookUp:
    """Look up this key to fill the table."""

    target: int


@dataclass(frozen=True)
class Check:
    """See whether this contact still answers."""

    contact: Contact


@dataclass(frozen=True)
class Meet:
    """Ask this stranger which peers are close to us."""

    contact: Contact


@dataclass(frozen=True)
class Sweep:
    """Forget records that have expired."""


Task = LookUp | Check | Meet | Sweep


class Remembered:
    """Contacts outside the table that are worth a try, bounded, the oldest leave first."""

    def __init__(self) -> None:
        self._contacts: dict[int, Contact] = {}

    def add(self, contact: Contact) -> None:
        number = number_of(contact.peer)
        self._contacts.pop(number, None)
        self._contacts[number] = contact
        if len(self._contacts) > limits.DHT_REMEMBERED_MAX:
            del self._contacts[next(iter(self._contacts))]

    def outside(self, table: RoutingTable) -> list[Contact]:
        """Return those that are not in the table."""
        return [contact for number, contact in self._contacts.items() if number not in table]


class Upkeep:
    """Decides what is due; the core does it and says how lookups ended."""

    def __init__(self, table: RoutingTable, rng: Rng, now: float) -> None:
        self.is_bootstrapped = False
        self.hints = Remembered()
        self.lost = Remembered()
        self._table = table
        self._rng = rng
        self._is_looking = False
        self._self_at: float | None = None  # next self-lookup; None: no node to ask
        self._few_pause_s = limits.DHT_SELF_LOOKUP_PAUSE_S
        self._last_self_at = now
        self._in_a_row = 0
        self._new_neighbours = 0
        self._neighbours: frozenset[int] = frozenset()
        self._buckets_due: list[int] = []
        self._sweep_at = now + DHT_SWEEP_S
        self._check_at = now + self._jittered(limits.DHT_CHECK_INTERVAL_S)
        self._rejoin_at = now + self._jittered(limits.DHT_REJOIN_S)
        self._rechecks: list[tuple[float, int]] = []

    # --- what happened ------------------------------------------------------------------

    def discovered(self, contacts: list[Contact], now: float) -> list[Task]:
        """Take in strangers; return what to do at once."""
        strangers = [
            contact
            for contact in contacts
            if (number := number_of(contact.peer)) != self._table.self_number
            and number not in self._table
        ]
        for contact in strangers:
            self.hints.add(contact)
        if not strangers:
            return []
        if not self.is_bootstrapped:
            self._self_at = now
            return []
        return [Meet(contact) for contact in strangers]

    def inserted(self, number: int, now: float) -> None:
        """A new node is in the table: a neighbour, perhaps one of many."""
        if self._self_at is None:
            self._self_at = now
        if not self.is_bootstrapped or not self._table.is_near(number):
            return
        self._new_neighbours += 1
        # In a small network fewer of them are as much news.
        many = min(limits.DHT_NEW_NEIGHBOURS, 1 + len(self._neighbours) // 4)
        if self._new_neighbours >= many:
            self.look_around(now)

    def met(self, contacts: list[Contact], now: float) -> None:
        """A stranger has named the peers that it knows close to us: do we miss neighbours?"""
        for contact in contacts:
            number = number_of(contact.peer)
            if (
                number != self._table.self_number
                and number not in self._table
                and self._table.is_near(number)
            ):
                self.look_around(now)
                return

    def look_around(self, now: float) -> None:
        """Look ourselves up soon, but not again and again."""
        soon = max(now, self._last_self_at + self._jittered(limits.DHT_SELF_LOOKUP_PAUSE_S))
        if self._self_at is None or soon < self._self_at:
            self._self_at = soon

    def unanswered(self, number: int, now: float) -> None:
        """A contact owes an answer: ask it again before long."""
        heapq.heappush(self._rechecks, (now + self._jittered(limits.DHT_RECHECK_S), number))

    def ended(self, target: int, now: float) -> bool:
        """Note that a lookup of ours has ended; return whether that ended the bootstrap."""
        self._is_looking = False
        if target != self._table.self_number:
            bucket = self._table.buckets().get(self._table.bucket_index(target))
            if bucket is not None:
                bucket.refreshed_at = now
        else:
            self._self_lookup_ended(now)
        is_done = not (self.is_bootstrapped or self._buckets_due or self._self_at == now)
        if is_done and len(self._table) > 0:
            self.is_bootstrapped = True
            return True
        return False

    # --- what is due --------------------------------------------------------------------

    def next_deadline(self) -> float:
        """Return when something is due."""
        soonest = min(self._check_at, self._rejoin_at, self._sweep_at)
        if self._rechecks and self._rechecks[0][0] < soonest:
            soonest = self._rechecks[0][0]
        if not self._is_looking and self._self_at is not None and self._self_at < soonest:
            soonest = self._self_at
        return soonest

    def due(self, now: float) -> list[Task]:
        """Return what is to be done now."""
        tasks: list[Task] = []
        if now >= self._sweep_at:
            self._sweep_at = now + DHT_SWEEP_S
            self._queue_stale_buckets(now)
            tasks.append(Sweep())
        if now >= self._check_at:
            self._check_at = now + self._jittered(limits.DHT_CHECK_INTERVAL_S)
            entry = self._table.least_recently_seen()
            if entry is not None and now - entry.seen_at >= limits.DHT_CHECK_SILENCE_S:
                tasks.append(Check(entry.contact))
        while self._rechecks and self._rechecks[0][0] <= now:
            _, number = heapq.heappop(self._rechecks)
            entry = self._table.get(number)
            if entry is not None and entry.failures:
                tasks.append(Check(entry.contact))
        if now >= self._rejoin_at:
            self._rejoin_at = now + self._jittered(limits.DHT_REJOIN_S)
            tasks += self._rejoin(now)
        return tasks + self.next_lookup(now)

    def next_lookup(self, now: float) -> list[Task]:
        """Return the lookup to start now, if any; one runs at a time."""
        if self._is_looking:
            return []
        if self._self_at is not None and now >= self._self_at:
            self._is_looking = True
            self._self_at = now + self._jittered(limits.DHT_SELF_LOOKUP_S)
            self._last_self_at = now
            self._new_neighbours = 0
            return [LookUp(self._table.self_number)]
        if self._buckets_due:
            self._is_looking = True
            return [LookUp(self._random_in(self._buckets_due.pop()))]
        return []

    # --- inside -------------------------------------------------------------------------

    def _self_lookup_ended(self, now: float) -> None:
        before = self._neighbours
        closest = self._table.closest(self._table.self_number, limits.DHT_BUCKET_CONTACTS)
        self._neighbours = frozenset(entry.number for entry in closest)
        if not self.is_bootstrapped:
            self._in_a_row += 1
            if not closest:
                self._self_at, self._in_a_row = None, 0  # the next try is the rejoin's
                return
            is_stable = self._neighbours <= before
            if not is_stable and self._in_a_row < limits.DHT_BOOTSTRAP_LOOKUPS_MAX:
                self._self_at = now
                return
            self._buckets_due = self._far_buckets()
        if len(closest) < limits.DHT_BUCKET_CONTACTS:
            self._look_again(now)

    def _look_again(self, now: float) -> None:
        """Few are known: nodes that started together with us found only the one before them all.

        That one must not be their only way to each other for long.
        """
        again_at = now + self._jittered(self._few_pause_s)
        self._self_at = again_at if self._self_at is None else min(again_at, self._self_at)
        self._few_pause_s = min(2 * self._few_pause_s, limits.DHT_SELF_LOOKUP_S)

    def _rejoin(self, now: float) -> list[Task]:
        hints, lost = self.hints.outside(self._table), self.lost.outside(self._table)
        if hints and not len(self._table):
            self.look_around(now)  # a lookup then asks all of these, and none that we lost
            hints = []
        strangers = hints + lost
        if not strangers:
            return []
        return [Meet(strangers[self._rng.randrange(len(strangers))])]

    def _far_buckets(self) -> list[int]:
        nearest = min(index for index, bucket in self._table.buckets().items() if bucket.entries)
        return list(range(nearest, KEY_BITS))[-DHT_BUCKETS_REFRESHED_MAX:]

    def _queue_stale_buckets(self, now: float) -> None:
        if self._buckets_due or not self.is_bootstrapped:
            return
        for index, bucket in sorted(self._table.buckets().items()):
            if bucket.entries and now - bucket.refreshed_at > limits.DHT_REFRESH_S:
                bucket.refreshed_at = now
                self._buckets_due.append(index)

    def _random_in(self, index: int) -> int:
        """Return a key whose distance to us is in [2^index, 2^(index+1))."""
        distance = 1 << index
        if index:
            distance |= self._rng.getrandbits(index)
        return self._table.self_number ^ distance

    def _jittered(self, pause_s: float) -> float:
        return pause_s * self._rng.uniform(0.75, 1.25)


# More than log2 of any number of nodes: an id ground to be close to ours cannot cause more.
DHT_BUCKETS_REFRESHED_MAX = 40
