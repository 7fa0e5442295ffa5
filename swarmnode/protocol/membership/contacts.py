"""The contact book: where members of our swarm can be dialled, and which to dial next.

The failure detector says which peers are members and which are gone; addresses come from the
link, the LAN, the DHT and the shared state. What is decided here is only with which members a
session should be open, and when to try again::

    known      addresses, not connected: dialled with growing, jittered pauses
    connected  a session is open on which both sides have said that they are of this swarm
    gone       left or dead: dialled now and then, for a long outage ends

A peer of the link is dialled now and then even if it has left. It is where newcomers arrive,
and it may come back knowing no peer: without that, two halves of a swarm that each know only
themselves would never meet.

A peer that is reached through a relay only takes a circuit of it, which another pair lacks then. It
is dialled if there are few sessions; if it was never met and few go through relays, as there may be
a better way; or if an exchange seeks it, in place of one that has had its turn.

Addresses are words of others, and a liar's name a third party. One host is dialled seldom, over all
peers (``protocol/hosts.py``), and a peer that says again and again that it has moved is dialled at
once only now and then: its failures count on.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.ids import PeerId
from swarmnode.protocol.hosts import RELAYED_PREFIX, DialBudget
from swarmnode.protocol.swarm import Hint

# Members whose addresses we keep; the failure detector knows as many.
CONTACTS_MAX = 4096


@dataclass(frozen=True)
class HintsGiven:
    """Addresses from a link."""

    hints: tuple[Hint, ...]


@dataclass(frozen=True)
class AddressesFound:
    """This peer of our swarm is said to be there, or says so itself in the shared state."""

    peer: PeerId
    addresses: tuple[str, ...]
    is_own_word: bool


@dataclass(frozen=True)
class MemberLives:
    """The failure detector has news of this member."""

    peer: PeerId


@dataclass(frozen=True)
class MemberGone:
    """It has left, or is dead."""

    peer: PeerId


@dataclass(frozen=True)
class SessionOpened:
    """A session with this peer is open, and it is of our swarm; dialled there, if it was.

    ``is_relayed``: it goes through a relay.
    """

    peer: PeerId
    dialled: str = ""
    is_relayed: bool = False


@dataclass(frozen=True)
class SessionMoved:
    """It goes on through a relay now, or by a better way."""

    peer: PeerId
    is_relayed: bool


@dataclass(frozen=True)
class Sought:
    """An exchange would take these, the first before the others."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True)
class RelayShare:
    """How many circuits the relays leave us; 0: they do not say."""

    circuits: int


@dataclass(frozen=True)
class SessionClosed:
    """The last session with this peer is gone."""

    peer: PeerId


@dataclass(frozen=True)
class DialEnded:
    """A dial that we asked for is over; on success SessionOpened came before."""

    peer: PeerId


Event = (
    HintsGiven
    | AddressesFound
    | MemberLives
    | MemberGone
    | SessionOpened
    | SessionMoved
    | SessionClosed
    | Sought
    | RelayShare
    | DialEnded
)


@dataclass(frozen=True)
class Dial:
    """Open a session to this peer at one of these addresses, then say DialEnded."""

    peer: PeerId
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Close the session with this peer, if nothing is sent on it just now: its turn is over."""

    peer: PeerId


Effect = Dial | Part


@dataclass(frozen=True)
class ContactStatistics:
    """Counts for metrics."""

    known: int
    connected: int
    gone: int
    dials: int
    dial_failures: int


@dataclass
class Entry:
    """What we know of one peer. Read it, never change it from outside."""

    peer: PeerId
    heard_at: float
    dial_at: float
    addresses: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()  # on the LAN or in the DHT
    hinted: tuple[str, ...] = ()  # of the link
    is_gone: bool = False
    connected: bool = False
    dialling: bool = False
    failures: int = 0
    hastened_at: float = -math.inf  # when it was last dialled for another address
    is_relayed: bool = False  # the session that there is, or was last
    is_met: bool = False
    turn_at: float = -math.inf  # since when it has a circuit, or was let keep it
    sought_until: float = -math.inf

    def all_addresses(self) -> tuple[str, ...]:
        """What it says itself first, then what was heard, then what the link says."""
        every = dict.fromkeys((*self.addresses, *self.heard, *self.hinted))
        return tuple(every)[: limits.CONTACT_ADDRESSES_MAX]

    def needs_relay(self) -> bool:
        """Whether it is reached through relays, as far as we know."""
        addresses = self.all_addresses()
        return self.is_relayed or (
            bool(addresses) and all(each.startswith(RELAYED_PREFIX) for each in addresses)
        )

    def wants_dial(self) -> bool:
        return not (self.connected or self.dialling) and bool(self.all_addresses())


class Circuits:
    """Sessions through relays, and those that are being dialled; at most so many.

    Attributes:
        n_taken: how many there are and will be.
        is_parting: one of them gives way just now.
    """

    def __init__(self, entries: Collection[Entry], circuits_max: int) -> None:
        self.held = [e for e in entries if e.connected and e.is_relayed]
        dialled = (e for e in entries if e.dialling and not e.connected)
        self.n_taken = len(self.held) + sum(e.needs_relay() for e in dialled)
        self.is_parting = False
        self._most = circuits_max

    def has_one_for(self, entry: Entry, now: float) -> bool:
        """Whether a peer that is reached through relays may be dialled now."""
        if entry.sought_until > now:
            return self.n_taken < self._most
        return not entry.is_met and self.n_taken < min(limits.RELAYED_MEETINGS_MAX, self._most)


@dataclass
class ContactBook:
    """Sans-IO core that says which members to dial (see the module's text)."""

    self_id: PeerId
    rng: Rng = field(repr=False)
    entries: dict[PeerId, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._effects: list[Effect] = []
        self._circuits_max = limits.RELAYED_SESSIONS_MAX
        self._budget = DialBudget()
        self._dials = 0
        self._dial_failures = 0
        self._is_changed = True  # since the deadline was computed
        self._deadline: float | None = None

    # --- the five methods ---------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        # News that a member lives comes by the hundred, and changes no plan as a rule.
        self._is_changed = self._is_changed or not isinstance(event, MemberLives)
        match event:
            case HintsGiven(hints):
                for hint in hints:
                    self._take_hint(hint, now)
            case AddressesFound():
                self._take_addresses(event, now)
            case MemberLives(peer):
                self._lives(peer, now)
            case MemberGone(peer):
                self._gone(peer, now)
            case SessionOpened(peer, dialled):
                self._budget.give_back(dialled)
                self._opened(peer, now)
                self._goes(peer, now, is_relayed=event.is_relayed)
            case SessionMoved(peer, is_relayed):
                self._goes(peer, now, is_relayed=is_relayed)
            case SessionClosed(peer):
                self._closed(peer, now)
            case Sought(peers):
                self._note_sought(peers, now)
            case RelayShare(circuits):
                most = limits.RELAYED_SESSIONS_MAX
                self._circuits_max = min(most, circuits) if circuits else most
            case DialEnded(peer):
                self._dial_ended(peer, now)

    def poll_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when a peer is to be dialled. Cost: O(1), and O(n) after a change."""
        if self._is_changed:
            self._is_changed = False
            waiting = (e.dial_at for e in self.entries.values() if e.wants_dial())
            self._deadline = min(waiting, default=None)
        return self._deadline

    def handle_deadline(self, now: float) -> None:
        free = limits.DIALS_CONCURRENT_MAX - sum(e.dialling for e in self.entries.values())
        connected = sum(e.connected for e in self.entries.values())
        due = [e for e in self.entries.values() if e.wants_dial() and e.dial_at <= now]
        due.sort(key=lambda entry: (entry.failures, -entry.heard_at))
        self._is_changed = True
        circuits = Circuits(self.entries.values(), self._circuits_max)
        for entry in due:
            if free <= 0 or connected >= limits.PEERS_CONNECTED_MAX:
                entry.dial_at = now + limits.REDIAL_BACKOFF_S_MIN
                continue
            is_free = entry.hinted or connected < limits.SWARM_LONELY_NEIGHBOURS
            if entry.needs_relay() and not is_free and not circuits.has_one_for(entry, now):
                entry.dial_at = now + limits.RELAYED_LOOK_S
                self._part_for(entry, circuits, now)
                continue
            addresses = self._due_addresses(entry, now)
            if not addresses:
                continue
            free -= 1
            entry.dialling = True
            circuits.n_taken += entry.needs_relay()
            self._dials += 1
            self._effects.append(Dial(entry.peer, addresses))

    def statistics(self) -> ContactStatistics:
        entries = self.entries.values()
        return ContactStatistics(
            known=len(self.entries),
            connected=sum(e.connected for e in entries),
            gone=sum(e.is_gone for e in entries),
            dials=self._dials,
            dial_failures=self._dial_failures,
        )

    # --- what a shell reads -------------------------------------------------------------

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Return where a peer may be dialled, nothing if we do not know."""
        entry = self.entries.get(peer)
        return () if entry is None else entry.all_addresses()

    def needs_relay(self, peer: PeerId) -> bool:
        """Whether a peer without a session is reached through relays only, as far as we know."""
        entry = self.entries.get(peer)
        return entry is not None and not entry.connected and entry.needs_relay()

    def is_sought(self, peer: PeerId, now: float) -> bool:
        """Whether an exchange would take this peer."""
        entry = self.entries.get(peer)
        return entry is not None and entry.sought_until > now

    # --- circuits -----------------------------------------------------------------------

    def _part_for(self, entry: Entry, circuits: Circuits, now: float) -> None:
        """Let one go for a peer that an exchange seeks, if one has had its turn."""
        if entry.sought_until > now and not circuits.is_parting:
            circuits.is_parting = True
            self._part_with_one(circuits.held, limits.RELAYED_TURN_S, now)

    def _part_with_one(self, held: list[Entry], after_s: float, now: float) -> None:
        """Let the one go that was held for longest, and for so long, and is not sought itself."""
        ready = [e for e in held if e.turn_at + after_s <= now and e.sought_until <= now]
        for entry in sorted(ready, key=lambda entry: entry.turn_at)[:1]:
            entry.turn_at = now  # if it is used just now, it stays
            self._effects.append(Part(entry.peer))

    def _goes(self, peer: PeerId, now: float, *, is_relayed: bool) -> None:
        entry = self.entries.get(peer)
        if entry is None:
            return
        if is_relayed and not entry.is_relayed:
            entry.turn_at = now
        entry.is_relayed = is_relayed
        circuits = Circuits(self.entries.values(), self._circuits_max)
        if len(circuits.held) > self._circuits_max:
            self._part_with_one(circuits.held, limits.RELAY_HOLD_S, now)

    def _note_sought(self, peers: tuple[PeerId, ...], now: float) -> None:
        for peer in peers:
            entry = self.entries.get(peer)
            if entry is None:
                continue
            entry.sought_until = now + limits.SOUGHT_S
            if not (entry.failures or entry.connected or entry.is_gone):
                entry.dial_at = min(entry.dial_at, now)

    # --- inside -------------------------------------------------------------------------

    def _due_addresses(self, entry: Entry, now: float) -> tuple[str, ...]:
        """Return those whose hosts may be dialled now; none: it is put off until one may be."""
        every = entry.all_addresses()
        # Of several at one host another one is first each time: the others would never be tried.
        first = entry.failures % len(every)
        due = {
            each for each in (*every[first:], *every[:first]) if self._budget.try_take(each, now)
        }
        if not due:
            wait_s = min(self._budget.wait_s(address, now) for address in every)
            entry.dial_at = now + max(wait_s, limits.REDIAL_BACKOFF_S_MIN)
        return tuple(address for address in every if address in due)

    def _take_hint(self, hint: Hint, now: float) -> None:
        entry = self._entry(hint.peer, now)
        if entry is not None:
            entry.hinted = tuple(dict.fromkeys((*entry.hinted, hint.address)))

    def _take_addresses(self, found: AddressesFound, now: float) -> None:
        entry = self._entry(found.peer, now)
        if entry is None:
            return
        before, addresses = entry.all_addresses(), found.addresses[: limits.CONTACT_ADDRESSES_MAX]
        if found.is_own_word:
            entry.addresses = addresses
        else:
            entry.heard = addresses
        if entry.all_addresses() == before:
            return
        entry.heard_at, entry.is_relayed = now, entry.connected and entry.is_relayed
        is_hasty = now < entry.hastened_at + limits.REDIAL_MOVED_S
        if not (entry.is_gone or entry.dialling or is_hasty):
            entry.dial_at = now  # it has moved, or is new
            entry.hastened_at = now if entry.failures else entry.hastened_at

    def _lives(self, peer: PeerId, now: float) -> None:
        entry = self._entry(peer, now)
        if entry is None:
            return
        was_gone, entry.is_gone, entry.heard_at = entry.is_gone, False, now
        if was_gone and not entry.dialling:
            entry.failures, entry.dial_at, self._is_changed = 0, now, True

    def _gone(self, peer: PeerId, now: float) -> None:
        entry = self.entries.get(peer)
        if entry is None or entry.is_gone:
            return
        entry.is_gone = True
        entry.dial_at = now + self._slow_pause_s(entry)

    def _entry(self, peer: PeerId, now: float) -> Entry | None:
        """Return the entry of a peer, made if there is room for one more."""
        if peer == self.self_id:
            return None
        entry = self.entries.get(peer)
        if entry is None:
            if len(self.entries) >= CONTACTS_MAX and not self._evict():
                return None
            entry = self.entries[peer] = Entry(peer, heard_at=now, dial_at=now)
        return entry

    def _evict(self) -> bool:
        """Make room: the one that has been gone for longest goes."""
        gone = [e for e in self.entries.values() if e.is_gone or e.failures]
        gone = [e for e in gone if not (e.connected or e.dialling or e.hinted)]
        if not gone:
            return False
        del self.entries[min(gone, key=lambda entry: entry.heard_at).peer]
        return True

    def _opened(self, peer: PeerId, now: float) -> None:
        entry = self._entry(peer, now)
        if entry is not None:
            entry.connected, entry.failures, entry.heard_at = True, 0, now
            entry.is_gone, entry.is_met, entry.turn_at = False, True, now

    def _closed(self, peer: PeerId, now: float) -> None:
        entry = self.entries.get(peer)
        if entry is None or not entry.connected:
            return
        entry.connected, entry.heard_at = False, now
        pause_s = self.rng.uniform(0, limits.REDIAL_BACKOFF_S_MIN)
        entry.dial_at = now + (self._slow_pause_s(entry) if entry.is_gone else pause_s)

    def _dial_ended(self, peer: PeerId, now: float) -> None:
        entry = self.entries.get(peer)
        if entry is None:
            return
        entry.dialling = False
        if entry.connected:
            return
        self._dial_failures += 1
        entry.failures += 1
        limit = limits.REDIAL_BACKOFF_S_MIN * 2 ** min(entry.failures, 16)
        limit = min(limit, limits.REDIAL_BACKOFF_S_MAX)
        # Full jitter: nodes that lost one peer together do not come back together.
        pause_s = self.rng.uniform(limits.REDIAL_BACKOFF_S_MIN / 2, limit)
        entry.dial_at = now + (self._slow_pause_s(entry) if entry.is_gone else pause_s)

    def _slow_pause_s(self, entry: Entry) -> float:
        """Peers that seem gone are tried for ever, slowly: a long outage must heal."""
        base_s = limits.HINT_REDIAL_S if entry.hinted else limits.LOST_REDIAL_S
        return base_s * self.rng.uniform(0.75, 1.25)
