"""How all members of a round get every message: which member is asked for what, and which are told.

Each message is content-addressed, so any member may give it. A member first asks the authors, one
after the other beginning behind itself in the order of ids: then no two members ask one author at
the same time, and what each sends is its own message once for every other member. Where an author
is slow or gone, members that have its message are asked (*hedging*, J. Dean and L. Barroso, "The
tail at scale", 2013); of large messages every member says which it holds.

Which messages count is not decided here: see ``gather_set.py`` and ``group.py``. Until that is
known, everything that a member has signed is fetched, one message of each author; afterwards what
is in the set, and the rest is let go, also what an author has shown to some members only.

Nothing that a peer says makes this node hold anything: bytes count by their SHA-256. A peer that
gave wrong bytes is asked for nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import gather_events as events
from swarmnode.protocol.gossip.gather_events import (
    Cancel,
    Effect,
    Event,
    Fetch,
    Forget,
    Held,
    Tell,
)
from swarmnode.protocol.gossip.gather_set import Announced, RunTerms
from swarmnode.wire.exchange.gather import Have


@dataclass(frozen=True)
class GatherStatistics:
    """Messages of this run: held and known; and fetches that came to nothing, or went twice."""

    held: int
    known: int
    failed_total: int
    hedged_total: int


@dataclass
class _Message:
    """One message that is known, and where it may be had."""

    announced: Announced
    is_held: bool = False
    holders: set[PeerId] = field(default_factory=set)
    asked: dict[PeerId, float] = field(default_factory=dict)  # fetches under way, since when
    retry_at: dict[PeerId, float] = field(default_factory=dict)


class GatherCore:
    """Sans-IO core of one member in one run; see the module."""

    def __init__(self, self_id: PeerId, terms: RunTerms) -> None:
        self._self_id = self_id
        self._terms = terms
        self._messages: dict[bytes, _Message] = {}  # by digest
        self._wanted: frozenset[bytes] | None = None  # None: the set is not known yet
        self._distrusted: set[PeerId] = set()
        self._lost: set[PeerId] = set()
        self._fetched_from: dict[PeerId, int] = {}
        self._untold: list[bytes] = []
        self._tell_at: float | None = None
        self._effects: list[Effect] = []
        self._failed = self._hedged = 0

    # --- the five methods ------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in one event."""
        match event:
            case events.Publish(announced):
                self._publish(announced)
            case events.Announce(announced):
                self._learn(announced)
            case events.Heard(peer, message, announced):
                self._hear(peer, message, announced)
            case events.Settled(entries):
                self._settle(entries)
            case events.Arrived(peer, digest):
                self._arrive(peer, digest, now)
            case events.NotGiven(peer, digest, is_wrong):
                self._note_failure(peer, digest, now, is_wrong=is_wrong)
            case events.Lost(peer):
                self._lose(peer)
        self._ask(now)

    def poll_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        times = [] if self._tell_at is None else [self._tell_at]
        for message in self._missing():
            times += message.retry_at.values()
            if len(message.asked) == 1:  # a second holder is asked then, if there is one
                times += [since + limits.GATHER_HEDGE_S for since in message.asked.values()]
        return min(times, default=None)

    def handle_deadline(self, now: float) -> None:
        """Tell what has come, and ask others where a holder is slow."""
        if self._tell_at is not None and self._tell_at <= now:
            self._tell()
        for message in self._messages.values():
            due = [peer for peer, at in message.retry_at.items() if at <= now]
            for peer in due:
                del message.retry_at[peer]
        self._hedge(now)
        self._ask(now)

    def statistics(self) -> GatherStatistics:
        """Return a frozen record of counters."""
        held = sum(message.is_held for message in self._messages.values())
        return GatherStatistics(held, len(self._messages), self._failed, self._hedged)

    # --- what the shell asks -----------------------------------------------------------------

    def is_held(self, digest: bytes) -> bool:
        """Whether a message is here whole."""
        message = self._messages.get(digest)
        return message is not None and message.is_held

    def held(self) -> tuple[Announced, ...]:
        """Return what is here whole, one message of each author, in ascending order of theirs."""
        found: dict[PeerId, Announced] = {}
        for message in self._messages.values():
            if message.is_held:
                found.setdefault(message.announced.author, message.announced)
        return tuple(found[author] for author in sorted(found))

    def known(self) -> tuple[Announced, ...]:
        """Return every announcement that was checked."""
        return tuple(message.announced for message in self._messages.values())

    # --- what is known -----------------------------------------------------------------------

    def _learn(self, announced: Announced) -> None:
        """Keep what an author has signed; of one that has signed several the first."""
        if all(each.announced.author != announced.author for each in self._messages.values()):
            self._add(announced)

    def _add(self, announced: Announced) -> _Message:
        message = _Message(announced, holders={announced.author})
        self._messages[announced.digest] = message
        return message

    def _publish(self, announced: Announced) -> None:
        message = self._add(announced)
        message.is_held = True
        self._effects.append(Held(announced.digest))
        have = Have(self._terms.gid, (announced.digest,), announced.signed)
        for peer in self._others():
            self._effects.append(Tell(peer, have))

    def _hear(self, peer: PeerId, message: Have, announced: Announced | None) -> None:
        if peer not in self._terms.members or peer == self._self_id:
            return
        self._lost.discard(peer)
        if announced is not None and announced.author == peer:
            self._learn(announced)
        for digest in message.digests:
            known = self._messages.get(digest)
            if known is not None:
                known.holders.add(peer)

    def _settle(self, entries: tuple[Announced, ...]) -> None:
        self._wanted = frozenset(each.digest for each in entries)
        for digest, message in list(self._messages.items()):
            if digest not in self._wanted and message.announced.author != self._self_id:
                self._cancel(message)
                del self._messages[digest]
                self._effects.append(Forget(digest))
        for announced in entries:
            if announced.digest not in self._messages:
                self._add(announced)

    def _lose(self, peer: PeerId) -> None:
        self._lost.add(peer)
        for message in self._messages.values():
            if message.asked.pop(peer, None) is not None:
                self._effects.append(Cancel(peer, message.announced.digest))

    # --- what comes --------------------------------------------------------------------------

    def _arrive(self, peer: PeerId, digest: bytes, now: float) -> None:
        message = self._messages.get(digest)
        if message is None or message.is_held:
            return
        message.asked.pop(peer, None)
        message.is_held = True
        self._cancel(message)
        self._effects.append(Held(digest))
        if self._terms.size_bytes >= limits.GATHER_SPREAD_BYTES_MIN:
            self._untold.append(digest)
            if self._tell_at is None:
                self._tell_at = now + limits.GATHER_TELL_S

    def _note_failure(self, peer: PeerId, digest: bytes, now: float, *, is_wrong: bool) -> None:
        message = self._messages.get(digest)
        if is_wrong:
            self._distrusted.add(peer)
        if message is None or message.asked.pop(peer, None) is None:
            return
        self._failed += 1
        message.retry_at[peer] = now + limits.GATHER_RETRY_S

    def _cancel(self, message: _Message) -> None:
        for peer in message.asked:
            self._effects.append(Cancel(peer, message.announced.digest))
        message.asked.clear()

    # --- asking ------------------------------------------------------------------------------

    def _missing(self) -> list[_Message]:
        """Return what is to be fetched, the authors behind this node first."""
        found = [
            message
            for digest, message in self._messages.items()
            if not message.is_held and (self._wanted is None or digest in self._wanted)
        ]
        found.sort(key=lambda each: (each.announced.author < self._self_id, each.announced.author))
        return found

    def _ask(self, now: float) -> None:
        missing = self._missing()
        running = sum(bool(message.asked) for message in missing)
        for message in missing:
            if running >= limits.GATHER_FETCHES_MAX:
                return
            if not message.asked and self._fetch(message, now):
                running += 1

    def _hedge(self, now: float) -> None:
        """Ask a second holder for what the first has not given in time."""
        for message in self._missing():
            since = min(message.asked.values(), default=now)
            is_slow = len(message.asked) == 1 and since + limits.GATHER_HEDGE_S <= now
            if not is_slow:
                continue
            if self._fetch(message, now):
                self._hedged += 1
            else:  # look again then
                message.asked = dict.fromkeys(message.asked, now)

    def _fetch(self, message: _Message, now: float) -> bool:
        """Ask the best holder there is, if there is one.

        The member that made the set has all of it: where none is left that is known to have a
        message, any member may have it.
        """
        refused = self._distrusted | self._lost | message.asked.keys() | message.retry_at.keys()
        holders = message.holders - refused - {self._self_id}
        if not holders and self._wanted is not None and not message.asked:
            holders = set(self._terms.members - refused - {self._self_id})
        if not holders:
            return False
        author = message.announced.author
        peer = min(
            holders,
            key=lambda each: (self._fetched_from.get(each, 0), each != author, each),
        )
        self._fetched_from[peer] = self._fetched_from.get(peer, 0) + 1
        message.asked[peer] = now
        self._effects.append(Fetch(peer, message.announced))
        return True

    # --- telling -----------------------------------------------------------------------------

    def _others(self) -> list[PeerId]:
        return sorted(self._terms.members - {self._self_id} - self._lost)

    def _tell(self) -> None:
        have = Have(self._terms.gid, tuple(self._untold))
        self._untold, self._tell_at = [], None
        for peer in self._others():
            self._effects.append(Tell(peer, have))
