"""A lookup: find the k peers closest to a target that answer. A pure state machine.

Each peer that the lookup knows of is one of::

    NEW       not asked
    WAITING   asked; counts against the parallelism α
    SLOW      asked, its time is up: counts no more, but may still answer
    ANSWERED
    FAILED    cannot answer any more

A window slides over the peers instead of rounds: whenever fewer than α are WAITING, the
closest NEW one among the k closest that are neither SLOW nor FAILED is asked. The lookup is
finished when those k have all answered.

With several paths (Baumgart and Mies, S/Kademlia, 4.4) the first peers are dealt out, each
peer is asked on one path only, and its answer is known to that path only; so a peer that lies to
one path does not steer the others. Each path ends by itself, by the rule above.

Every peer that is asked was named by one that answered, k at a time, and none is asked twice;
``DHT_LOOKUP_REQUESTS_MAX`` ends a lookup whose peers keep inventing closer ones.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Container, Iterable
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import AddressGroups, number_of
from swarmnode.wire.dht import Contact


class State(enum.Enum):
    """What is known of a peer (see the module's text)."""

    NEW = "new"
    WAITING = "waiting"
    SLOW = "slow"
    ANSWERED = "answered"
    FAILED = "failed"


# A look at an enum's class is dear, and these are asked for at every answer.
_NEW, _SLOW, _ANSWERED, _FAILED = State.NEW, State.SLOW, State.ANSWERED, State.FAILED


@dataclass(slots=True, eq=False)
class _Candidate:
    contact: Contact
    distance: int
    hops: int  # requests in a row that led to it, its own included
    state: State = State.NEW
    path: int = -1  # that asked it


@dataclass(slots=True)
class _Path:
    known: list[int]  # distances, ascending
    in_flight: int = 0


class Lookup:
    """See the module's text.

    Args:
        target: the key, as ``keys.number_of`` gives it.
        self_number: our own id, which is never asked.
        seeds: the closest peers that our table has, nearest first.
        groups: of one network no more candidates are taken than a table would.
        paths: disjoint ones; fewer if there are fewer seeds.
    """

    def __init__(
        self,
        target: int,
        self_number: int,
        seeds: Iterable[Contact],
        groups: AddressGroups,
        *,
        paths: int = 1,
        k: int = limits.DHT_BUCKET_CONTACTS,
        alpha: int = limits.DHT_LOOKUP_PARALLEL,
    ) -> None:
        self.target = target
        self.asked = 0
        self._self_distance = self_number ^ target
        self._groups = groups
        self._group_sizes: dict[str, int] = {}
        self._k = k
        self._alpha = alpha
        self._candidates: dict[int, _Candidate] = {}
        seeds = list(seeds)
        self._paths = [_Path([]) for _ in range(max(1, min(paths, len(seeds))))]
        for place, contact in enumerate(seeds):
            self._learn(self._paths[place % len(self._paths)], contact, hops=1)

    # --- what happened ------------------------------------------------------------------

    def next_contact(self) -> Contact | None:
        """Return the peer to ask now, and count it as asked; None: there is none, for now."""
        if self.in_flight >= self._alpha or self.asked >= limits.DHT_LOOKUP_REQUESTS_MAX:
            return None
        for index in sorted(range(len(self._paths)), key=lambda i: self._paths[i].in_flight):
            path = self._paths[index]
            candidate = self._first_new(path)
            if candidate is not None:
                candidate.state, candidate.path = State.WAITING, index
                path.in_flight += 1
                self.asked += 1
                return candidate.contact
        return None

    def answered(self, peer: PeerId, contacts: Iterable[Contact]) -> None:
        """Take in an answer, which may be late, or to a question that we never asked."""
        candidate = self._asked(peer)
        if candidate is None or candidate.state in (State.ANSWERED, State.FAILED):
            return
        path = self._paths[candidate.path]
        if candidate.state is State.WAITING:
            path.in_flight -= 1
        candidate.state = State.ANSWERED
        for contact in contacts:
            self._learn(path, contact, candidate.hops + 1)

    def slow(self, peer: PeerId) -> None:
        """Wait for this peer no longer; it may still answer."""
        self._give_up(peer, State.SLOW)

    def failed(self, peer: PeerId) -> None:
        """Expect nothing from this peer any more."""
        self._give_up(peer, State.FAILED)

    # --- what is known ------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many requests count against α."""
        return sum(path.in_flight for path in self._paths)

    @property
    def n_paths(self) -> int:
        """How many disjoint paths there are."""
        return len(self._paths)

    def is_finished(self) -> bool:
        """Whether the k closest have answered, on every path."""
        if self.asked >= limits.DHT_LOOKUP_REQUESTS_MAX:
            return self.in_flight == 0
        return all(self._have_answered(path, self._k) for path in self._paths)

    def is_near(self) -> bool:
        """Whether the peers around the target are known: on every path the closest answered.

        They name all k, so that asking the others brings no new one, as a rule.
        """
        return all(self._have_answered(path, limits.DHT_NEAR_ANSWERS) for path in self._paths)

    def nearest(self, besides: Container[PeerId]) -> list[Contact]:
        """Return the k closest known peers, nearest first, whether they were asked or not.

        Without those that are slow or failed, and ``besides`` others.
        """
        may_answer = [
            candidate
            for candidate in self._candidates.values()
            if candidate.state not in (State.SLOW, State.FAILED)
            and candidate.contact.peer not in besides
        ]
        may_answer.sort(key=lambda candidate: candidate.distance)
        return [candidate.contact for candidate in may_answer[: self._k]]

    def closest(self) -> list[Contact]:
        """Return up to k peers that answered, nearest first."""
        return [candidate.contact for candidate in self._result()]

    def hops(self) -> int:
        """Return how many requests in a row led to the closest peer that answered; 0: none."""
        return next((candidate.hops for candidate in self._result()), 0)

    def rounds(self) -> int:
        """Return the most requests in a row that led to any peer of the result."""
        return max((candidate.hops for candidate in self._result()), default=0)

    def path_of(self, peer: PeerId) -> int:
        """Return the path that asked this peer, -1 if none did."""
        candidate = self._asked(peer)
        return -1 if candidate is None else candidate.path

    # --- inside -------------------------------------------------------------------------

    def _result(self) -> list[_Candidate]:
        answered = [c for c in self._candidates.values() if c.state is State.ANSWERED]
        return sorted(answered, key=lambda candidate: candidate.distance)[: self._k]

    def _first_new(self, path: _Path) -> _Candidate | None:
        """Return the closest that was not asked, among the k of a path that may answer in time."""
        candidates, room = self._candidates, self._k
        for distance in path.known:
            candidate = candidates[distance]
            state = candidate.state
            if state is _NEW:
                return candidate
            if state is not _SLOW and state is not _FAILED:
                room -= 1
                if not room:
                    break
        return None

    def _have_answered(self, path: _Path, size: int) -> bool:
        """Whether all have answered of the ``size`` closest of a path that may answer in time."""
        candidates, room = self._candidates, size
        for distance in path.known:
            state = candidates[distance].state
            if state is _ANSWERED:
                room -= 1
                if not room:
                    break
            elif state is not _SLOW and state is not _FAILED:
                return False
        return True

    def _learn(self, path: _Path, contact: Contact, hops: int) -> None:
        distance = number_of(contact.peer) ^ self.target
        if distance == self._self_distance:
            return
        candidate = self._candidates.get(distance)
        if candidate is None:
            if not self._has_room(contact):
                return
            candidate = self._candidates[distance] = _Candidate(contact, distance, hops)
        else:
            if candidate.state is _NEW and hops < candidate.hops:
                candidate.hops = hops
            if len(self._paths) == 1:
                return  # what any path knows, this one does
        known = path.known
        place = bisect_left(known, distance)
        if place == len(known) or known[place] != distance:
            known.insert(place, distance)

    def _has_room(self, contact: Contact) -> bool:
        group = self._groups.group(contact.addresses[0])
        if group is None:
            return True
        size = self._group_sizes.get(group, 0)
        self._group_sizes[group] = size + 1
        return size < limits.DHT_GROUP_TABLE_MAX

    def _asked(self, peer: PeerId) -> _Candidate | None:
        candidate = self._candidates.get(number_of(peer) ^ self.target)
        return None if candidate is None or candidate.state is State.NEW else candidate

    def _give_up(self, peer: PeerId, state: State) -> None:
        candidate = self._asked(peer)
        if candidate is None or candidate.state in (State.ANSWERED, State.FAILED):
            return
        if candidate.state is State.WAITING:
            self._paths[candidate.path].in_flight -= 1
        candidate.state = state
