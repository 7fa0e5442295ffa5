"""The peer book: who is in the swarm, whom to dial, with whom to exchange lists.

A plain signed peer list is all the membership there is so far: each peer signs
one record of itself, everybody passes on what they know. A record is replaced
by a newer one of the same author, ordered by (boot epoch, sequence), and is
forgotten when nothing newer was heard for ``PEER_RECORD_TTL_S``.

A peer is one of::

    hinted     an address from a link, no record yet
    known      a record, not connected: dialled with growing, jittered pauses
    connected  a session is open
    left       its newest record says so: not dialled, not a partner
    expired    silent for too long: no partner; dialled now and then, for a long outage ends

A peer of the link is dialled now and then even if it has left or expired. It is where newcomers
arrive, and it may come back knowing nobody: without that, two halves of a swarm that each know
only themselves would never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from swarmnode import limits
from swarmnode.errors import ConfigError, LimitExceeded, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity, verify
from swarmnode.protocol.swarm import Hint
from swarmnode.wire.membership import PeerRecord
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

_DOMAIN = "peer-record/1"
_T = TypeVar("_T")


class Chance(Protocol):
    """The part of ``random.Random`` that the book uses."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number in [a, b]."""

    def choice(self, seq: Sequence[_T], /) -> _T:
        """Return one of ``seq``."""


def sign_peer_record(record: PeerRecord, identity: Identity) -> Signed:
    """Sign what we say of ourselves."""
    body = encode_record(record)
    if len(body) > limits.PEER_RECORD_BYTES_MAX:
        raise ConfigError(
            f"what this node says of itself has {len(body)} bytes, at most"
            f" {limits.PEER_RECORD_BYTES_MAX} are passed on: advertise fewer or shorter addresses"
        )
    return Signed(body, identity.public_key, identity.sign(_DOMAIN, body))


@dataclass(frozen=True)
class HintsGiven:
    """Addresses from a link."""

    hints: tuple[Hint, ...]


@dataclass(frozen=True)
class RecordsReceived:
    """A list that a peer sent."""

    records: tuple[Signed, ...]


@dataclass(frozen=True)
class SessionOpened:
    """A session with this peer is open; we dialled it, or it dialled us."""

    peer: PeerId


@dataclass(frozen=True)
class SessionClosed:
    """The last session with this peer is gone."""

    peer: PeerId


@dataclass(frozen=True)
class DialEnded:
    """A dial that we asked for is over; on success SessionOpened came before."""

    peer: PeerId


Event = HintsGiven | RecordsReceived | SessionOpened | SessionClosed | DialEnded


@dataclass(frozen=True)
class Dial:
    """Open a session to this peer at one of these addresses, then say DialEnded."""

    peer: PeerId
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class ExchangeLists:
    """Send this connected peer our list and take in its answer."""

    peer: PeerId


Effect = Dial | ExchangeLists


@dataclass(frozen=True)
class PeerBookStatistics:
    """Counts for metrics."""

    known: int
    connected: int
    left: int
    dials: int
    dial_failures: int
    records_rejected: int


@dataclass
class PeerEntry:
    """What we know of one peer. Read it, never change it from outside."""

    peer: PeerId
    addresses: tuple[str, ...] = ()
    record: PeerRecord | None = None
    signed: Signed | None = None
    is_hint: bool = False  # the link names it
    heard_at: float = 0.0
    connected: bool = False
    dialling: bool = False
    failures: int = 0
    dial_at: float = 0.0

    def has_left(self) -> bool:
        return self.record is not None and self.record.status.state == "left"

    def is_expired(self, now: float) -> bool:
        return not self.connected and now - self.heard_at > limits.PEER_RECORD_TTL_S

    def may_train(self, now: float) -> bool:
        """Connected, or heard of lately; and it has not said that it does not train."""
        if self.record is None:
            return self.connected  # authenticated, its record is on the way
        idle = self.record.status.state in ("left", "failed", "stopped")
        return not idle and not self.is_expired(now)

    def is_gone(self, now: float) -> bool:
        return self.has_left() or (self.record is not None and self.is_expired(now))

    def wants_dial(self) -> bool:
        return (
            bool(self.addresses)
            and not self.connected
            and not self.dialling
            and (self.is_hint or not self.has_left())
        )


@dataclass
class PeerBook:
    """Sans-IO core of the peer list (see the module's text)."""

    self_id: PeerId
    network_id: bytes
    rng: Chance = field(repr=False)
    entries: dict[PeerId, PeerEntry] = field(default_factory=dict)
    own: Signed | None = None

    def __post_init__(self) -> None:
        self._effects: list[Effect] = []
        self._gossip_at: float | None = None
        self._dials = 0
        self._dial_failures = 0
        self._rejected = 0

    # --- the five methods ---------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        match event:
            case HintsGiven(hints):
                for hint in hints:
                    self._take_hint(hint, now)
            case RecordsReceived(records):
                for signed in records:
                    self._take_record(signed, now)
            case SessionOpened(peer):
                self._opened(peer, now)
            case SessionClosed(peer):
                self._closed(peer, now)
            case DialEnded(peer):
                self._dial_ended(peer, now)

    def poll_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        times = [e.dial_at for e in self.entries.values() if e.wants_dial()]
        if self._gossip_at is not None:
            times.append(self._gossip_at)
        return min(times, default=None)

    def handle_deadline(self, now: float) -> None:
        if self._gossip_at is not None and now >= self._gossip_at:
            self._gossip(now)
        free = limits.DIALS_CONCURRENT_MAX - sum(e.dialling for e in self.entries.values())
        connected = sum(e.connected for e in self.entries.values())
        due = [e for e in self.entries.values() if e.wants_dial() and e.dial_at <= now]
        due.sort(key=lambda entry: (entry.failures, -entry.heard_at))
        for entry in due:
            if free <= 0 or connected >= limits.PEERS_CONNECTED_MAX:
                entry.dial_at = now + limits.REDIAL_BACKOFF_S_MIN
                continue
            free -= 1
            entry.dialling = True
            self._dials += 1
            self._effects.append(Dial(entry.peer, entry.addresses))

    def statistics(self) -> PeerBookStatistics:
        entries = self.entries.values()
        return PeerBookStatistics(
            known=len(self.entries),
            connected=sum(e.connected for e in entries),
            left=sum(e.has_left() for e in entries),
            dials=self._dials,
            dial_failures=self._dial_failures,
            records_rejected=self._rejected,
        )

    # --- what a shell reads -------------------------------------------------------------

    def list_for_peers(self, now: float) -> tuple[Signed, ...]:
        """Our own record first, then what we hold of others that is not expired."""
        others = [
            e.signed
            for e in self.entries.values()
            if e.signed is not None and not e.is_expired(now)
        ]
        own = [self.own] if self.own is not None else []
        return tuple((own + others)[: limits.PEERS_KNOWN_MAX])

    def members(self, now: float) -> tuple[PeerId, ...]:
        """Everybody who may train now, ourselves included, in id order."""
        others = [e.peer for e in self.entries.values() if e.may_train(now)]
        return tuple(sorted([*others, self.self_id]))

    # --- inside -------------------------------------------------------------------------

    def _take_hint(self, hint: Hint, now: float) -> None:
        if hint.peer == self.self_id:
            return
        entry = self._entry(hint.peer, now)
        if entry is None:
            return
        entry.is_hint = True
        if entry.record is None:
            entry.addresses = tuple(dict.fromkeys((*entry.addresses, hint.address)))[:8]

    def _take_record(self, signed: Signed, now: float) -> None:
        peer = PeerId.from_public_key(signed.public_key)
        if peer == self.self_id:
            return
        try:
            if len(signed.body) > limits.PEER_RECORD_BYTES_MAX:
                raise LimitExceeded(f"a peer record of {len(signed.body)} bytes")
            record = decode_record(signed.body, PeerRecord)
            held = self.entries.get(peer)
            if held is not None and held.record is not None and not _is_newer(record, held.record):
                return
            verify(signed.public_key, _DOMAIN, signed.body, signed.signature, what="peer record")
            if record.public_key != signed.public_key or record.network_id != self.network_id:
                self._rejected += 1
                return
        except RemoteProtocolError:
            # One bad record says nothing about the rest of the list: its sender may only
            # have passed it on.
            self._rejected += 1
            return
        entry = self._entry(peer, now)
        if entry is None:
            return
        restarted = entry.record is None or record.boot_epoch > entry.record.boot_epoch
        entry.record, entry.signed, entry.heard_at = record, signed, now
        if record.addresses:
            entry.addresses = record.addresses
        if restarted and not entry.dialling:
            entry.failures, entry.dial_at = 0, now
        if entry.has_left():
            entry.dial_at = now + self._slow_pause_s(entry)

    def _entry(self, peer: PeerId, now: float) -> PeerEntry | None:
        """Return the entry of a peer, made if there is room for one more."""
        entry = self.entries.get(peer)
        if entry is None:
            if len(self.entries) >= limits.PEERS_KNOWN_MAX - 1 and not self._evict(now):
                return None
            entry = self.entries[peer] = PeerEntry(peer, heard_at=now, dial_at=now)
        return entry

    def _evict(self, now: float) -> bool:
        gone = [e for e in self.entries.values() if e.is_expired(now) or e.has_left()]
        gone = [e for e in gone if not (e.connected or e.dialling or e.is_hint)]
        if not gone:
            return False
        del self.entries[min(gone, key=lambda entry: entry.heard_at).peer]
        return True

    def _opened(self, peer: PeerId, now: float) -> None:
        entry = self._entry(peer, now)
        if entry is None:
            return
        entry.connected, entry.failures, entry.heard_at = True, 0, now
        self._effects.append(ExchangeLists(peer))
        if self._gossip_at is None:
            self._gossip_at = now + self._interval()

    def _closed(self, peer: PeerId, now: float) -> None:
        entry = self.entries.get(peer)
        if entry is None or not entry.connected:
            return
        entry.connected, entry.heard_at = False, now
        pause_s = self.rng.uniform(0, limits.REDIAL_BACKOFF_S_MIN)
        entry.dial_at = now + (self._slow_pause_s(entry) if entry.has_left() else pause_s)

    def _dial_ended(self, peer: PeerId, now: float) -> None:
        entry = self.entries.get(peer)
        if entry is None:
            return
        entry.dialling = False
        if not entry.connected:
            self._dial_failures += 1
            entry.failures += 1
            limit = limits.REDIAL_BACKOFF_S_MIN * 2 ** min(entry.failures, 16)
            limit = min(limit, limits.REDIAL_BACKOFF_S_MAX)
            # Full jitter: nodes that lost one peer together do not come back together.
            pause_s = self.rng.uniform(limits.REDIAL_BACKOFF_S_MIN / 2, limit)
            entry.dial_at = now + (self._slow_pause_s(entry) if entry.is_gone(now) else pause_s)

    def _gossip(self, now: float) -> None:
        connected = sorted(e.peer for e in self.entries.values() if e.connected)
        if connected:
            self._effects.append(ExchangeLists(self.rng.choice(connected)))
        self._gossip_at = now + self._interval()

    def _slow_pause_s(self, entry: PeerEntry) -> float:
        """Peers that seem gone are tried for ever, slowly: a long outage must heal."""
        base_s = limits.HINT_REDIAL_S if entry.is_hint else limits.LOST_REDIAL_S
        return base_s * self.rng.uniform(0.75, 1.25)

    def _interval(self) -> float:
        return limits.PEER_GOSSIP_INTERVAL_S * self.rng.uniform(0.75, 1.25)


def _is_newer(record: PeerRecord, held: PeerRecord) -> bool:
    return (record.boot_epoch, record.sequence) > (held.boot_epoch, held.sequence)
