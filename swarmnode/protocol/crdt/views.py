"""What the shared state says: plain values for a shell to show and to decide by."""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.document import RegisterContent, SnapshotEntry
from swarmnode.protocol.crdt.ledger import Ledger

MEMBER = "member"  # the set of the peers that are here: each author adds its own id, as text


@dataclass(frozen=True)
class View:
    """Reads of a ledger. ``now`` decides what has expired; nothing is kept."""

    ledger: Ledger

    def sets(self, now: float) -> dict[str, dict[str, frozenset[PeerId]]]:
        """Return set -> element -> the peers that say so."""
        return self.ledger.document.leases.value(self.ledger.heard_at, now)

    def members(self, now: float) -> tuple[PeerId, ...]:
        """Return the peers that say they are here, in id order; no node vouches for another."""
        claimed = self.sets(now).get(MEMBER, {})
        return tuple(sorted(p for e, peers in claimed.items() for p in peers if str(p) == e))

    def of(self, peer: PeerId, now: float) -> dict[str, tuple[str, ...]]:
        """Return set -> elements that this peer says of itself and that have not expired."""
        found: dict[str, list[str]] = {}
        for name, element in sorted(self._said_by(peer, now)):
            found.setdefault(name, []).append(element)
        return {name: tuple(elements) for name, elements in found.items()}

    def elements_of(self, peer: PeerId, name: str, now: float) -> tuple[str, ...]:
        """Return what this peer says of itself in one set, and has not expired."""
        said = self._said_by(peer, now)
        return tuple(sorted(element for each, element in said if each == name))

    def _said_by(self, peer: PeerId, now: float) -> list[tuple[str, str]]:
        """Return (set, element) of what has not expired."""
        chain = self.ledger.chains.get(peer)
        if chain is None:
            return []
        leases = self.ledger.document.leases.of(chain.actor).items()
        return [said for said, ttl_s in leases if now < chain.heard_at + ttl_s]

    def counters(self) -> dict[str, int]:
        """Return the totals over all authors that are held."""
        return self.ledger.document.counters.value()

    def counters_of(self, peer: PeerId) -> dict[str, int]:
        """Return the totals of one author."""
        chain = self.ledger.chains.get(peer)
        return {} if chain is None else self.ledger.document.counters.of(chain.actor)

    def counters_by_author(self, name: str) -> dict[PeerId, int]:
        """Return what each author that is held says of one counter."""
        counters = self.ledger.document.counters
        said = {p: counters.of(c.actor).get(name, 0) for p, c in self.ledger.chains.items()}
        return {peer: total for peer, total in said.items() if total}

    def marks(self, name: str) -> dict[PeerId, int]:
        """Return how far each author says that the swarm is; one that says nothing is left out."""
        maxima = self.ledger.document.maxima
        said = {p: maxima.of(c.actor).get(name, 0) for p, c in self.ledger.chains.items()}
        return {peer: mark for peer, mark in said.items() if mark}

    def registers(self) -> dict[PeerId, dict[str, RegisterContent]]:
        """Return what each author last said of itself."""
        return self.ledger.document.registers.value()

    def registers_of(self, peer: PeerId) -> dict[str, RegisterContent]:
        """Return what one author last said of itself."""
        chain = self.ledger.chains.get(peer)
        return {} if chain is None else self.ledger.document.registers.of(chain.actor)

    def verdicts_of(self, author: PeerId) -> dict[PeerId, int]:
        """Return what one author says of other peers, in tenths."""
        chain = self.ledger.chains.get(author)
        said = {} if chain is None else self.ledger.document.verdicts.of(chain.actor)
        return {PeerId(peer): tenths for peer, tenths in said.items()}

    def maxima(self) -> dict[str, int]:
        """Return how far the swarm is."""
        return self.ledger.document.maxima.value()

    def snapshots(self, now: float) -> tuple[SnapshotEntry, ...]:
        """Return which snapshots there are and which peers hold them, the newest first."""
        return self.ledger.document.snapshots.value(self.ledger.heard_at, now)
