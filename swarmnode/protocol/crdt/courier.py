"""What is sent to which neighbour: fresh records at once, and by anti-entropy what is missing.

Anti-entropy: neighbours compare digests, and send each other what only one of them has.

It never sends a record to a neighbour that is known to have it, and answers a message with a
bounded number of others.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.clock import HybridClock
from swarmnode.protocol.crdt.events import Send
from swarmnode.protocol.crdt.ledger import Ledger
from swarmnode.protocol.crdt.records import NO_HASH, Opened
from swarmnode.wire import crdt as wire
from swarmnode.wire.crdt import Carried, Head

# Versions that a neighbour is known to have, so that they are not sent again; the most recent.
STATE_KNOWN_PER_NEIGHBOUR_MAX = 1024

Version = tuple[int, int]  # (epoch, sequence)


class _Known(NamedTuple):
    version: Version
    noted_at: float
    is_sent: bool  # by us; else it came from them


@dataclass
class Neighbour:
    """One peer that a session is open with, and what it is known to have: sent no second time.

    Kept for STATE_RESEND_S, and of STATE_KNOWN_PER_NEIGHBOUR_MAX authors at most: a fresh record
    is passed on within a moment, and whatever is older shows in the listings of both sides. What
    falls out too early costs one record that is sent once more.
    """

    peer: PeerId
    clock_skew_s: float | None = None  # its wall clock minus ours
    _known: OrderedDict[PeerId, _Known] = field(default_factory=OrderedDict)
    _asked: OrderedDict[PeerId, tuple[Version, float]] = field(default_factory=OrderedDict)

    def has(self, author: PeerId, version: Version) -> bool:
        """Whether it has that record, or it is on the way to it."""
        known = self._known.get(author)
        return known is not None and known.version >= version

    def has_told(self, author: PeerId, version: Version) -> bool:
        """Whether it sent us that record."""
        known = self._known.get(author)
        return known is not None and known.version >= version and not known.is_sent

    def is_on_the_way(self, author: PeerId, version: Version, now: float) -> bool:
        """Whether we sent that record so lately that a listing may not know of it yet."""
        known = self._known.get(author)
        if known is None or known.version < version:
            return False
        return known.is_sent and now - known.noted_at < limits.STATE_RESEND_S

    def note_received(self, author: PeerId, version: Version, now: float) -> None:
        """It sent us that record."""
        known = self._known.get(author)
        if known is None or known.version < version:
            self._note(author, _Known(version, now, False))

    def note_sent(self, author: PeerId, version: Version, now: float) -> None:
        """We send it that record."""
        self._note(author, _Known(version, now, True))

    def may_ask(self, author: PeerId, version: Version, now: float) -> bool:
        """Whether to ask it for what follows ``version``: once in a while is enough."""
        asked = self._asked.pop(author, None)
        again = asked is None or asked[0] != version or now - asked[1] >= limits.STATE_RESEND_S
        self._asked[author] = (version, now) if again or asked is None else asked
        if len(self._asked) > STATE_KNOWN_PER_NEIGHBOUR_MAX:
            self._asked.popitem(last=False)
        return again

    def _note(self, author: PeerId, known: _Known) -> None:
        entries = self._known
        entries[author] = known
        entries.move_to_end(author)
        since = known.noted_at - limits.STATE_RESEND_S
        while entries[oldest := next(iter(entries))].noted_at < since or (
            len(entries) > STATE_KNOWN_PER_NEIGHBOUR_MAX
        ):
            del entries[oldest]


_TAGS = {
    each: str(each.__struct_config__.tag)
    for each in (wire.Summary, wire.Listing, wire.Want, wire.Push, wire.Proofs)
}
# Messages in answer to one message; a newcomer asks again until it has all.
STATE_PUSHES_PER_ANSWER_MAX = 8


class Courier:
    """The sending side of a replica."""

    def __init__(self, self_id: PeerId, ledger: Ledger, clock: HybridClock, rng: Rng) -> None:
        self.neighbours: dict[PeerId, Neighbour] = {}
        self.messages: Counter[str] = Counter()
        self.records_sent = 0
        self._self_id = self_id
        self._ledger = ledger
        self._clock = clock
        self._rng = rng
        self._fresh: list[Opened] = []
        self._push_at: float | None = None
        self._sync_at = math.inf
        self.outbox: list[Send] = []  # to be taken

    def take(self) -> list[Send]:
        """Return what is to be sent, and forget it."""
        outbox, self.outbox = self.outbox, []
        return outbox

    # --- time -------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """Return when :meth:`handle_deadline` wants to be called."""
        return self._sync_at if self._push_at is None else min(self._sync_at, self._push_at)

    def handle_deadline(self, now: float) -> None:
        """Push what is fresh and compare with a neighbour, if it is time to."""
        if self._push_at is not None and now >= self._push_at:
            self._push_fresh(now)
        if now >= self._sync_at:
            self._sync_at = now + self._interval_s()
            self.compare_with(self._rng.choice(sorted(self.neighbours)), now)

    # --- neighbours -------------------------------------------------------------------------

    def up(self, peer: PeerId, now: float) -> None:
        """A session is open: one of the two begins to compare."""
        self.neighbours[peer] = Neighbour(peer)
        self._sync_at = min(self._sync_at, now + self._interval_s())
        if self._self_id < peer:
            self.compare_with(peer, now)

    def down(self, peer: PeerId) -> None:
        """A session is gone, and with it what was on its way."""
        self.neighbours.pop(peer, None)
        if not self.neighbours:
            self._sync_at = math.inf

    def compare_with(self, peer: PeerId, now: float) -> None:
        """Ask a neighbour whether anything differs."""
        self._send(peer, wire.Summary((self._ledger.index.digest(""),), self._clock.wall_ms(now)))

    # --- records ----------------------------------------------------------------------------

    def publish(self, opened: Opened, now: float) -> None:
        """Pass a fresh record on with the next batch."""
        delay_s = limits.STATE_PUSH_DELAY_S
        if self._has_few_neighbours() and opened.actor.peer != self._self_id:
            delay_s = self._rng.uniform(delay_s, limits.STATE_PASS_ON_S)
        self._fresh.append(opened)
        if self._push_at is None or now + delay_s < self._push_at:
            self._push_at = now + delay_s
        if len(self._fresh) >= limits.STATE_RECORDS_PER_MESSAGE_MAX:
            self._push_fresh(now)

    def received(self, peer: PeerId, opened: Opened, now: float) -> None:
        """A neighbour sent us that record, so it has it."""
        self.neighbours[peer].note_received(opened.actor.peer, opened.version, now)

    def ask(self, peer: PeerId, authors: Iterable[PeerId], now: float) -> None:
        """Ask a neighbour for what it has newer of these authors."""
        neighbour = self.neighbours[peer]
        heads = [self._ledger.wanted(author) for author in authors]
        heads = [
            head
            for head in heads
            if neighbour.may_ask(PeerId(head.peer), (head.epoch, head.sequence), now)
        ]
        if heads:
            self._send(peer, wire.Want(tuple(heads)))

    def tell_ban(self, peer: PeerId, author: PeerId, now: float) -> None:
        """Prove to a neighbour that it should listen to an author no more."""
        head, neighbour = self._ledger.head(author), self.neighbours[peer]
        if not neighbour.is_on_the_way(author, _version(head), now):
            neighbour.note_sent(author, _version(head), now)
            self._send(peer, wire.Proofs((self._ledger.bans[author],)))

    # --- answers ----------------------------------------------------------------------------

    def answer_summary(self, peer: PeerId, message: wire.Summary, now: float) -> None:
        """Go into every range that differs."""
        theirs_ms, ours_ms = message.clock_ms, self._clock.wall_ms(now)
        self.neighbours[peer].clock_skew_s = (theirs_ms - ours_ms) / 1000
        self._push_fresh(now)  # or the listing has what is about to be sent, and it is asked for
        for theirs in message.ranges:
            ours = self._ledger.index.digest(theirs.prefix)
            if ours == theirs:
                continue
            if theirs.n_heads == 0:
                self.answer_listing(peer, wire.Listing(theirs.prefix, ()), now)
            elif ours.n_heads <= limits.STATE_LISTING_HEADS:
                heads = tuple(self._ledger.index.heads(theirs.prefix))
                self._send(peer, wire.Listing(theirs.prefix, heads))
            else:
                parts = self._ledger.index.split(theirs.prefix)
                self._send(peer, wire.Summary(parts, ours_ms))

    def answer_listing(self, peer: PeerId, message: wire.Listing, now: float) -> None:
        """Send what the other side lacks, ask for what we lack."""
        theirs = {head.peer: head for head in message.heads}
        index = self._ledger.index
        differ = {h.peer for h in index.heads(message.prefix) if theirs.get(h.peer) != h}
        differ.update(head.peer for head in message.heads if index.get(head.peer) != head)
        neighbour = self.neighbours[peer]
        send, wanted = [], []
        for author in map(PeerId, sorted(differ)):
            have = theirs.get(author) or Head(bytes(author), 0, 0, NO_HASH)
            mine = self._ledger.head(author)
            if _version(have) > _version(mine):
                wanted.append(author)
            elif have != mine and not neighbour.is_on_the_way(author, _version(mine), now):
                send.append(have)
        self.ask(peer, wanted, now)
        self.send_newer(peer, send, now)

    def send_newer(self, peer: PeerId, heads: Sequence[Head], now: float) -> None:
        """Send what follows these heads, as far as one answer goes."""
        batch: list[Carried] = []
        batch_bytes = n_messages = 0
        neighbour = self.neighbours[peer]
        for head in heads:
            author = PeerId(head.peer)
            if author in self._ledger.bans:
                self.tell_ban(peer, author, now)
                continue
            chain = self._ledger.chains.get(author)
            records = [] if chain is None else chain.lacking(head)
            size_bytes = sum(opened.size_bytes for opened in records)
            if batch and (
                batch_bytes + size_bytes > limits.STATE_PUSH_BYTES_MAX
                or len(batch) + len(records) > limits.STATE_RECORDS_PER_MESSAGE_MAX
            ):
                n_messages += 1
                is_last = n_messages == STATE_PUSHES_PER_ANSWER_MAX
                self._send(peer, wire.Push(tuple(batch), more=is_last))
                batch, batch_bytes = [], 0
                if is_last:
                    return
            batch += [self._carried(opened, now) for opened in records]
            batch_bytes += size_bytes
            if records:
                neighbour.note_sent(author, records[-1].version, now)
        if batch:
            self._send(peer, wire.Push(tuple(batch)))

    # --- inside -----------------------------------------------------------------------------

    def _push_fresh(self, now: float) -> None:
        fresh, self._fresh, self._push_at = self._fresh, [], None
        held = self._ledger.chains
        ready = [
            (each, self._carried(each, now))
            for each in fresh
            if each.actor.peer in held and not self._is_told_enough(each)
        ]
        others = [peer for peer in sorted(self.neighbours) if self._lacks(peer, ready)]
        for peer in self._rng.sample(others, min(limits.STATE_PUSH_FANOUT, len(others))):
            neighbour = self.neighbours[peer]
            batch: list[Carried] = []
            batch_bytes = 0
            for opened, carried in ready:
                author, version = opened.actor.peer, opened.version
                if neighbour.has(author, version):
                    continue
                neighbour.note_sent(author, version, now)
                if batch and batch_bytes + opened.size_bytes > limits.STATE_PUSH_BYTES_MAX:
                    self._send(peer, wire.Push(tuple(batch)))
                    batch, batch_bytes = [], 0
                batch.append(carried)
                batch_bytes += opened.size_bytes
            if batch:
                self._send(peer, wire.Push(tuple(batch)))

    def _lacks(self, peer: PeerId, ready: Sequence[tuple[Opened, Carried]]) -> bool:
        """Whether a neighbour is not known to have one of these."""
        has = self.neighbours[peer].has
        return not all(has(opened.actor.peer, opened.version) for opened, _ in ready)

    def _has_few_neighbours(self) -> bool:
        return len(self.neighbours) <= limits.STATE_FEW_NEIGHBOURS

    def _is_told_enough(self, opened: Opened) -> bool:
        """Whether so many neighbours have told us of it that the others have heard it as well."""
        if not self._has_few_neighbours():
            return False
        author, version = opened.actor.peer, opened.version
        n_told = sum(each.has_told(author, version) for each in self.neighbours.values())
        return n_told >= limits.STATE_TOLD_ENOUGH

    def _carried(self, opened: Opened, now: float) -> Carried:
        heard_at = self._ledger.chains[opened.actor.peer].heard_at
        return Carried(opened.signed, max(0, int(now - heard_at)))

    def _send(self, peer: PeerId, message: wire.Message) -> None:
        self.messages[_TAGS[type(message)]] += 1
        if isinstance(message, wire.Push):
            self.records_sent += len(message.records)
        self.outbox.append(Send(peer, message))

    def _interval_s(self) -> float:
        return limits.STATE_SYNC_INTERVAL_S * self._rng.uniform(0.75, 1.25)


def _version(head: Head) -> tuple[int, int]:
    return (head.epoch, head.sequence)
