"""Which nodes are on this LAN: when to send beacons, and which of those heard to believe.

A node says that it is here a few times when it starts, then rarely; a node that
hears of it for the first time answers, so that both know each other within a
second. A node that is silent for three beacons is forgotten. A beacon without a port
only asks which nodes are here: its author gets an answer, and cannot be dialled.

A beacon leaves on every interface, so one arrives in several copies: the first is
verified, a copy adds an address to dial. Anything else that is not newer than what
its author said before is a replay. A replay to a node that never heard the author,
or a copy with a forged source, costs one dial of an address that turns out to be
another node: the handshake proves which node answers, a beacon only says where to knock.

Invariants: at most LAN_PEERS_MAX peers, LAN_PEERS_PER_HOST_MAX of them from one
host; no signature is checked beyond the rates in ``limits``; memory does not
grow with the number of senders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import AuthenticationFailed, MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity, verify
from swarmnode.wire.connect.beacon import Beacon, LanSwarm
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

DOMAIN = "lan-beacon/1"
_LINK_LOCAL = ("[fe8", "[fe9", "[fea", "[feb", "169.254.")

BeaconVerdict = Literal[
    "taken", "copy", "own",
    "oversized", "off-link", "too-many", "malformed", "foreign", "replayed", "crowded", "forged",
]  # fmt: skip
_WELCOME: tuple[BeaconVerdict, ...] = ("taken", "copy", "own")


@dataclass(frozen=True)
class LanPeer:
    """A node on this LAN: its beacon was signed by it, its address is only where it came from."""

    peer: PeerId
    address: str  # HOST:PORT to dial
    swarms: tuple[LanSwarm, ...]
    heard_at: float


# --- events and effects -----------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """A datagram came from ``host``, written as in an address: IPv6 in brackets.

    ``is_on_link`` says that the host belongs to a network of one of our interfaces.
    """

    data: bytes
    host: str
    is_on_link: bool


@dataclass(frozen=True)
class LinkAdded:
    """An interface or an address is new: no node on that LAN has heard of us."""


@dataclass(frozen=True)
class Announce:
    """Send :meth:`LanCore.sign` on every interface."""


@dataclass(frozen=True)
class Met:
    """A new peer, a new address of one, or other swarms than it had before."""

    peer: LanPeer


Event = Heard | LinkAdded
Effect = Announce | Met


@dataclass(frozen=True)
class LanStatistics:
    """Gauges first, then counters since the core was made."""

    peers: int
    sent_total: int
    taken_total: int
    copies_total: int
    own_total: int
    refused_total: Mapping[str, int]  # by reason


# --- state ------------------------------------------------------------------------------------


@dataclass
class _Neighbour:
    """The last beacon of a peer, and the hosts that it and the one before it came from."""

    beacon: Beacon
    datagram: bytes
    heard_at: float
    hosts: list[str]
    hosts_before: list[str]

    def is_newer(self, beacon: Beacon) -> bool:
        return (beacon.boot, beacon.sequence) > (self.beacon.boot, self.beacon.sequence)

    def shown(self, peer: PeerId, host: str) -> LanPeer:
        return LanPeer(peer, f"{host}:{self.beacon.port}", self.beacon.swarms, self.heard_at)

    def best_host(self) -> str:
        """Return the first one heard from that means the same to other programs too."""
        return min(self.hosts, key=lambda host: host.startswith(_LINK_LOCAL))


class _Gate:
    """Lets so many datagrams through in each second, of one host and in all."""

    def __init__(self) -> None:
        self._second = 0
        self._admitted: Counter[str] = Counter()  # as many entries as datagrams of one second

    def admits(self, host: str, now: float) -> bool:
        if int(now) != self._second:
            self._second = int(now)
            self._admitted.clear()
        if (
            self._admitted.total() >= limits.LAN_DATAGRAMS_PER_S_MAX
            or self._admitted[host] >= limits.LAN_DATAGRAMS_PER_HOST_PER_S_MAX
        ):
            return False
        self._admitted[host] += 1
        return True


class LanCore:
    """The five methods of a core, :meth:`sign` for the shell and :meth:`peers` for all callers.

    Args:
        identity: signs our beacons.
        network_id: 32 bytes; beacons of other networks are not even verified.
        boot: greater than at our last start, else others take us for a replay until they
            have forgotten that one.
        now: seconds, monotonic; the first beacon is due at once.
    """

    def __init__(
        self, *, identity: Identity, network_id: bytes, boot: int, rng: Rng, now: float
    ) -> None:
        self._identity = identity
        self._network_id = network_id
        self._boot = boot
        self._rng = rng
        self._peers: dict[PeerId, _Neighbour] = {}  # the one silent for longest comes first
        self._gate = _Gate()
        self._verdicts: Counter[BeaconVerdict] = Counter()
        self._effects: list[Effect] = []
        self._sequence = 0
        self._sent: bytes | None = None
        self._announced_at = now  # as it soon will be: the first beacon answers all
        self._answer_at: float | None = None
        self._heard_since = 0
        self._beacon_at = now
        self._hellos_left = limits.LAN_HELLOS

    def handle(self, event: Event, now: float) -> None:
        """Take in a datagram or an interface. Never raises for what others send."""
        match event:
            case Heard():
                self._forget_silent(now)
                self._verdicts[self._judge(event, now)] += 1
            case LinkAdded():
                self._beacon_at = now
                self._hellos_left = limits.LAN_HELLOS

    def poll_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float:
        """Return when the next beacon is due."""
        return self._beacon_at if self._answer_at is None else min(self._beacon_at, self._answer_at)

    def handle_deadline(self, now: float) -> None:
        """Announce us if it is time."""
        if now < self.next_deadline():
            return
        if now >= self._beacon_at:
            self._hellos_left = max(0, self._hellos_left - 1)
            jitter = 1 + limits.LAN_JITTER * self._rng.uniform(-1, 1)
            wait_s = limits.LAN_HELLO_S if self._hellos_left else limits.LAN_BEACON_S * jitter
            self._beacon_at = now + wait_s
        self._answer_at = None
        self._announced_at = now
        self._effects.append(Announce())

    def statistics(self) -> LanStatistics:
        """Return a frozen record of counters."""
        return LanStatistics(
            peers=len(self._peers),
            sent_total=self._sequence,
            taken_total=self._verdicts["taken"],
            copies_total=self._verdicts["copy"],
            own_total=self._verdicts["own"],
            refused_total={
                reason: count for reason, count in self._verdicts.items() if reason not in _WELCOME
            },
        )

    def peers(self, now: float) -> tuple[LanPeer, ...]:
        """Return peers heard of lately that can be dialled, with the address to try first."""
        self._forget_silent(now)
        return tuple(
            known.shown(peer, known.best_host())
            for peer, known in self._peers.items()
            if known.beacon.port
        )

    def sign(self, port: int, swarms: tuple[LanSwarm, ...]) -> bytes:
        """Return the next beacon, one datagram; of many swarms it names the first few.

        With port 0 it asks which nodes are here, and says that we cannot be dialled.
        """
        self._sequence += 1
        beacon = Beacon(
            self._network_id, self._boot, self._sequence, port, swarms[: limits.LAN_SWARMS_MAX]
        )
        body = encode_record(beacon)
        identity = self._identity
        signed = Signed(body, identity.public_key, identity.sign(DOMAIN, body))
        self._sent = encode_record(signed)
        return self._sent

    # --- hearing ------------------------------------------------------------------------------

    def _judge(self, heard: Heard, now: float) -> BeaconVerdict:
        """Take a beacon in, or say why not; what costs most is checked last."""
        if len(heard.data) > limits.LAN_BEACON_BYTES_MAX:
            return "oversized"
        if heard.data == self._sent:
            return "own"
        if not heard.is_on_link:
            return "off-link"
        if not self._gate.admits(heard.host, now):
            return "too-many"
        try:
            signed = decode_record(heard.data, Signed)
            beacon = decode_record(signed.body, Beacon)
        except MalformedMessage:
            return "malformed"
        if beacon.network_id != self._network_id:
            return "foreign"
        if signed.public_key == self._identity.public_key:
            return "own"
        peer = PeerId.from_public_key(signed.public_key)
        known = self._peers.get(peer)
        if known is not None and not known.is_newer(beacon):
            return self._hear_again(peer, known, heard, now)
        if known is None and self._is_crowded(heard.host):
            return "crowded"
        try:
            verify(signed.public_key, DOMAIN, signed.body, signed.signature, what="LAN beacon")
        except AuthenticationFailed:
            return "forged"
        self._take(peer, beacon, heard, now)
        return "taken"

    def _take(self, peer: PeerId, beacon: Beacon, heard: Heard, now: float) -> None:
        known = self._peers.pop(peer, None)
        if known is None:
            self._make_room()
            self._plan_answer(now)
            hosts_before = []
        else:
            self._count_towards_enough()
            hosts_before = known.hosts
        neighbour = _Neighbour(beacon, heard.data, now, [heard.host], hosts_before)
        self._peers[peer] = neighbour
        if beacon.port and (
            known is None
            or (beacon.port, beacon.swarms) != (known.beacon.port, known.beacon.swarms)
            or heard.host not in hosts_before
        ):
            self._effects.append(Met(neighbour.shown(peer, heard.host)))

    def _hear_again(
        self, peer: PeerId, known: _Neighbour, heard: Heard, now: float
    ) -> BeaconVerdict:
        """Tell a copy of the last beacon, which came another way, from a replay."""
        if heard.data != known.datagram or now - known.heard_at > limits.LAN_COPY_S:
            return "replayed"
        if heard.host not in known.hosts and len(known.hosts) < limits.LAN_HOSTS_PER_PEER_MAX:
            known.hosts.append(heard.host)
            if known.beacon.port and heard.host not in known.hosts_before:
                self._effects.append(Met(known.shown(peer, heard.host)))
        return "copy"

    def _is_crowded(self, host: str) -> bool:
        there = sum(host in known.hosts for known in self._peers.values())
        return there >= limits.LAN_PEERS_PER_HOST_MAX

    def _make_room(self) -> None:
        if len(self._peers) >= limits.LAN_PEERS_MAX:
            del self._peers[next(iter(self._peers))]

    def _forget_silent(self, now: float) -> None:
        for peer, known in list(self._peers.items()):
            if now - known.heard_at < limits.LAN_SILENCE_S:
                break
            del self._peers[peer]

    # --- speaking -----------------------------------------------------------------------------

    def _plan_answer(self, now: float) -> None:
        """A newcomer should hear of us soon, but not of all nodes at one moment."""
        if self._answer_at is None:
            soon = now + self._rng.uniform(0, limits.LAN_ANSWER_DELAY_S)
            self._answer_at = max(soon, self._announced_at + limits.LAN_ANSWER_GAP_S)
            self._heard_since = 0

    def _count_towards_enough(self) -> None:
        """A newcomer that has heard of several needs no answer of ours: it was heard by us."""
        self._heard_since += 1
        if self._heard_since >= limits.LAN_ANSWERS_ENOUGH:
            self._answer_at = None
