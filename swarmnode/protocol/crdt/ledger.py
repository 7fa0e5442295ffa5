"""All chains that a replica holds: which records get in, in which order, and what is let go.

A record passes these checks, the cheap ones first, or is left out with a verdict that names
the reason::

    size, form, swarm       oversized, malformed, foreign
    banned author           banned
    known already           duplicate, stale (an earlier life, or before the checkpoint)
    room                    full
    silent for too long     expired
    clock                   future
    signature               forged
    chain                   equivocation, gap, author-full

The state is a function of the heads: each author's part follows from its last checkpoint and
the deltas after it, an earlier life of a peer ends with the first record of a later one, and
a ban is the greatest head there is. So two replicas with equal heads have equal bytes.

Letting go is not a join, and it is local: an author that was silent for long is *retired*.
Its head stays in the digests, so a replica that still has it neither sends it again nor sees
a difference; it comes back when it says something new.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import NamedTuple

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    LimitExceeded,
    MalformedMessage,
    VersionMismatch,
)
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Actor
from swarmnode.protocol.crdt.chains import Chain
from swarmnode.protocol.crdt.clock import HybridClock
from swarmnode.protocol.crdt.document import Document
from swarmnode.protocol.crdt.records import (
    NO_HASH,
    Opened,
    RangeIndex,
    Read,
    check,
    check_proof,
    weigh,
)
from swarmnode.protocol.identity import Verify
from swarmnode.wire.crdt import Head, Proof
from swarmnode.wire.swarm import Signed

# Proofs of two records each, kept for newcomers: 4 MiB at worst.
STATE_BANS_MAX = 256

_LAST = 2**63 - 1  # epoch and sequence of the head of a banned peer


class Verdict(enum.StrEnum):
    """What became of a record."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    STALE = "stale"
    GAP = "gap"
    MALFORMED = "malformed"
    OVERSIZED = "oversized"
    FOREIGN = "foreign"
    FORGED = "forged"
    FUTURE = "future"
    EXPIRED = "expired"
    BANNED = "banned"
    FULL = "full"
    AUTHOR_FULL = "author-full"
    EQUIVOCATION = "equivocation"


# Every honest replica checks these before it passes a record on: the sender is at fault.
SENDER_AT_FAULT = frozenset({Verdict.MALFORMED, Verdict.OVERSIZED, Verdict.FOREIGN, Verdict.FORGED})


class Judgement(NamedTuple):
    """A verdict and what goes with it."""

    verdict: Verdict
    opened: Opened | None = None
    changed: frozenset[str] = frozenset()
    proof: Proof | None = None


class Ledger:
    """Chains, bans and retired authors of one swarm, and the document that they add up to."""

    def __init__(
        self,
        self_id: PeerId,
        swarm_id: bytes,
        clock: HybridClock,
        verify: Verify,
        read: Read,
    ) -> None:
        self.document = Document()
        self.chains: dict[PeerId, Chain] = {}
        self._by_key: dict[bytes, Chain] = {}  # an id costs a hash, and most records came before
        self.bans: dict[PeerId, Proof] = {}
        self.size_bytes = 0
        self.near = {self_id}  # ourselves, and those with an open session
        self._self_id = self_id
        self._swarm_id = swarm_id
        self._clock = clock
        self._verify = verify
        self._read = read
        self._retired: dict[PeerId, Head] = {}  # in order of retirement
        self._index = RangeIndex()
        self._heard_at_min = math.inf  # no author was heard of before this

    # --- records --------------------------------------------------------------------------

    def accept(self, signed: Signed, now: float, heard_at: float) -> Judgement:
        """Take a record in, or say why not.

        ``heard_at`` is when its author was last heard of, which may have been elsewhere.
        """
        chain = self._by_key.get(signed.public_key)
        held = None if chain is None else chain.find(signed.body)
        if held is not None:
            return Judgement(Verdict.DUPLICATE, held)  # and no sign of life: any node may repeat it
        try:
            opened = self._read(signed, self._swarm_id)
        except LimitExceeded:
            return Judgement(Verdict.OVERSIZED)
        except MalformedMessage:
            return Judgement(Verdict.MALFORMED)
        except VersionMismatch:
            return Judgement(Verdict.FOREIGN)
        verdict = self._screen(opened, now, heard_at)
        if verdict is None:
            try:
                check(opened, self._verify)
            except AuthenticationFailed:
                verdict = Verdict.FORGED
        if verdict is not None:
            return Judgement(verdict, opened)
        return self._link(opened, now, heard_at)

    def ban(self, proof: Proof) -> tuple[PeerId, frozenset[str]] | None:
        """Check a proof and ban its author; None if it is banned already.

        Raises:
            RemoteProtocolError: it proves nothing.
        """
        peer = check_proof(proof, self._swarm_id, self._verify)
        if peer in self.bans:
            return None
        if len(self.bans) >= STATE_BANS_MAX:
            oldest = next(iter(self.bans))
            del self.bans[oldest]
            self._index.remove(oldest)
        changed = self._drop(peer)
        self._retired.pop(peer, None)
        self.bans[peer] = proof
        self._index.put(weigh(Head(bytes(peer), _LAST, _LAST, NO_HASH)))
        return peer, changed

    def retire_silent(self, now: float) -> list[tuple[PeerId, frozenset[str]]]:
        """Let go of authors that were not heard of for STATE_RETENTION_S; say what went."""
        if now < self.next_retirement():
            return []
        keep_s = limits.STATE_RETENTION_S
        silent = [p for p, chain in self.chains.items() if chain.heard_at + keep_s <= now]
        gone = [(peer, self._retire(peer)) for peer in silent]
        self._heard_at_min = min((c.heard_at for c in self.chains.values()), default=math.inf)
        return gone

    def go_by_stamps(self, now: float) -> None:
        """After a journal was read: an author was last heard of when it says that it spoke.

        That is seconds ago if we are back at once. A wrong clock, theirs or ours, makes their
        leases end too early, or up to one lease too late, until they speak again.
        """
        for chain in self.chains.values():
            age_s = (self._clock.wall_ms(now) - chain.newest.stamp.wall_ms) / 1000
            chain.heard_at = now - min(max(0.0, age_s), limits.STATE_LEASE_S_MAX)

    def next_retirement(self) -> float:
        """Return when :meth:`retire_silent` may have something to do, at the earliest."""
        return self._heard_at_min + limits.STATE_RETENTION_S

    # --- what others compare ----------------------------------------------------------------

    @property
    def index(self) -> RangeIndex:
        """Digests over the heads of all authors, retired and banned ones too."""
        return self._index

    def head(self, peer: PeerId) -> Head:
        """Return how far we know a peer; sequence 0: not at all."""
        return self._index.get(peer) or Head(bytes(peer), 0, 0, NO_HASH)

    def wanted(self, peer: PeerId) -> Head:
        """Return the head to ask with: of a retired peer we have no records to build on."""
        head = self.head(peer)
        return head if peer in self.chains else Head(bytes(peer), head.epoch, 0, NO_HASH)

    def version_vector(self) -> tuple[Head, ...]:
        """Return the heads of what is held, in id order, bans included and retired ones not."""
        return tuple(h for h in self._index.heads("") if PeerId(h.peer) not in self._retired)

    def heard_at(self, actor: Actor) -> float:
        """Return when an actor was last heard of."""
        return self.chains[actor.peer].heard_at

    def records(self) -> Iterator[Opened]:
        """Yield all records that are held, those of one author in order."""
        for chain in self.chains.values():
            yield from chain.records

    # --- inside -----------------------------------------------------------------------------

    def _screen(self, opened: Opened, now: float, heard_at: float) -> Verdict | None:
        """Refuse what needs no signature to be refused."""
        peer, version = opened.actor.peer, opened.version
        if peer in self.bans:
            return Verdict.BANNED
        chain = self.chains.get(peer)
        if chain is not None and chain.actor == opened.actor:
            if opened.sequence < chain.records[0].sequence:
                return Verdict.STALE
        else:
            known = self.head(peer)
            if version <= (known.epoch, known.sequence):
                return Verdict.STALE
        if not self._has_room(opened) and self._victim(peer, now) is None:
            return Verdict.FULL
        if now - heard_at > limits.STATE_RETENTION_S:
            return Verdict.EXPIRED
        is_ahead = self._clock.is_ahead(opened.stamp, now) and peer != self._self_id
        return Verdict.FUTURE if is_ahead else None

    def _link(self, opened: Opened, now: float, heard_at: float) -> Judgement:
        """Put an authentic record where it belongs in its author's chain."""
        chain = self.chains.get(opened.actor.peer)
        if chain is not None and chain.actor == opened.actor:
            against = chain.contradiction(opened)
            if against is not None:
                proof = Proof(against.signed, opened.signed)
                return Judgement(Verdict.EQUIVOCATION, opened, proof=proof)
            is_next = opened.sequence == chain.newest.sequence + 1
        else:
            is_next = False
        if not (is_next or opened.record.checkpoint):
            return Judgement(Verdict.GAP, opened)
        if not opened.record.checkpoint:
            assert chain is not None
            if chain.size_bytes + opened.size_bytes > limits.STATE_AUTHOR_BYTES_MAX:
                return Judgement(Verdict.AUTHOR_FULL, opened)
        changed = self._make_room(opened, now)
        if not self._has_room(opened):
            return Judgement(Verdict.FULL, opened, frozenset(changed))
        changed |= self._extend(opened, now, heard_at)
        return Judgement(Verdict.ACCEPTED, opened, frozenset(changed))

    def _extend(self, opened: Opened, now: float, heard_at: float) -> set[str]:
        peer = opened.actor.peer
        changed: set[str] = set()
        chain = self.chains.get(peer)
        if chain is not None and chain.actor != opened.actor:
            changed |= self._drop(peer)
            chain = None
        if chain is None:
            self._retired.pop(peer, None)
            self.chains[peer] = chain = Chain.begin(opened, heard_at)
            self._by_key[opened.signed.public_key] = chain
            self._heard_at_min = min(self._heard_at_min, heard_at)
            self.size_bytes += chain.size_bytes
        else:
            self.size_bytes += chain.append(opened, heard_at)
        self._clock.observe(opened.stamp, now)
        self._index.put(opened.weighed)
        return changed | self.document.apply(opened.delta)

    def _make_room(self, opened: Opened, now: float) -> set[str]:
        """Retire authors until the record fits, or no other may go; return what they said."""
        changed: set[str] = set()
        while not self._has_room(opened):
            victim = self._victim(opened.actor.peer, now)
            if victim is None:
                break
            changed |= self._retire(victim)
        return changed

    def _has_room(self, opened: Opened) -> bool:
        is_known = opened.actor.peer in self.chains
        return (
            is_known or len(self.chains) < limits.STATE_AUTHORS_MAX
        ) and self.size_bytes + opened.size_bytes <= limits.STATE_BYTES_MAX

    def _victim(self, newcomer: PeerId, now: float) -> PeerId | None:
        """Return the author that goes if there is no room: the longest silent, else for a peer that
        is near the youngest stranger, as floods of made-up authors come after the honest ones.
        """
        if now - self._heard_at_min > limits.STATE_SILENT_S:
            others = (chain for peer, chain in self.chains.items() if peer != newcomer)
            longest = min(others, key=lambda chain: chain.heard_at, default=None)
            if longest is not None:
                own = self.chains.get(newcomer, longest)
                self._heard_at_min = min(longest.heard_at, own.heard_at)
                if now - longest.heard_at > limits.STATE_SILENT_S:
                    return longest.actor.peer
        if newcomer not in self.near:
            return None
        return next((p for p in reversed(self.chains) if p not in self.near), None)

    def _retire(self, peer: PeerId) -> frozenset[str]:
        """Forget a peer, but not that we knew it."""
        newest = self.chains[peer].newest
        changed = self._drop(peer)
        if len(self._retired) >= limits.STATE_RETIRED_MAX:
            oldest = next(iter(self._retired))
            del self._retired[oldest]
            self._index.remove(oldest)
        self._retired[peer] = newest.head
        return changed

    def _drop(self, peer: PeerId) -> frozenset[str]:
        """Forget a peer, but for its head in the index."""
        chain = self.chains.pop(peer, None)
        if chain is None:
            return frozenset()
        del self._by_key[chain.newest.signed.public_key]
        self.size_bytes -= chain.size_bytes
        return frozenset(self.document.forget(chain.actor))
