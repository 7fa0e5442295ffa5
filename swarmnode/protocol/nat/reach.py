"""Under which public addresses we can be dialled: what several peers of different networks say.

Peers that we have dialled tell where they see us, and dial us back there if we ask. One of them may
lie or be mistaken; so it counts what REACH_VOTES networks say (/16 of IPv4, /32 of IPv6), and only
peers with public addresses know anything about ours. Less than that is a guess: good enough to
try a hole punch with, not to be told to others.

A dial-back proves something only if we have sent that peer nothing from the port that it dials, for
a NAT lets answers in. So ask those that were dialled from ports of their own, not from the
listening port.

::

    PeerOpened ─> AskWhere ─> Seen ─> AskDialBack, each port ─> DialledBack ──votes──> Changed

The answerer never dials anything but the address it sees, so it cannot be sent to a third one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from swarmnode import limits
from swarmnode.ids import PeerId

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerOpened:
    """A session with a peer that we have dialled at ``host``."""

    peer: PeerId
    host: str


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """There is no session with it any more; what it said still counts for a while."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Seen:
    """Where the peer sees us; None: it did not say."""

    peer: PeerId
    host: str | None


@dataclass(frozen=True, slots=True)
class DialledBack:
    """Whether the peer has reached us at ``host`` and ``port``; None: it did not try."""

    peer: PeerId
    port: int
    host: str
    is_reached: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PortsChanged:
    """On which ports we want to be dialled: the listener's, one that a router maps to it."""

    ports: tuple[int, ...]


Event = PeerOpened | PeerClosed | Seen | DialledBack | PortsChanged

# --- effects ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskWhere:
    """Ask where it sees us; Seen must follow."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class AskDialBack:
    """Ask it to dial us back; DialledBack must follow."""

    peer: PeerId
    port: int


@dataclass(frozen=True, slots=True)
class Reachability:
    """What we know of ourselves.

    Attributes:
        hosts: public addresses of ours that REACH_VOTES networks see; one a family.
        guesses: what fewer of them say.
        endpoints: (host, port) where REACH_VOTES networks have reached us.
        tentative: endpoints that fewer of them have reached: a dial wasted if they lie, no more.
        refusals: ports that were tried and not reached, and what was said about it.
    """

    hosts: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    endpoints: tuple[tuple[str, int], ...] = ()
    tentative: tuple[tuple[str, int], ...] = ()
    refusals: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """We know something else now."""

    reachability: Reachability


Effect = AskWhere | AskDialBack | Changed


@dataclass(frozen=True, slots=True)
class ReachStatistics:
    """Counters and what there is just now."""

    voters: int
    networks: int
    asked_total: int


@dataclass(slots=True)
class _Result:
    host: str
    is_reached: bool
    reason: str
    at: float


@dataclass(slots=True, eq=False)
class _Voter:
    peer: PeerId
    network: str
    heard_at: float  # when it last answered anything, or was met
    due_at: float
    is_open: bool = True
    seen_host: str = ""
    seen_at: float | None = None  # when it last answered that
    results: dict[int, _Result] = field(default_factory=dict)
    is_asked: bool = False  # one question at a time
    pause_s: float = 0.0  # since its last answer that was none; 0: its last was one


def network_of(host: str) -> str | None:
    """Return the network whose owner may be one person; None if ``host`` is not public."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global or address.is_multicast:
        return None
    return f"{address.version}:{address.packed[: 2 if address.version == 4 else 4].hex()}"


class ReachCore:
    """The questions to ask, and what the answers amount to."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._voters: dict[PeerId, _Voter] = {}
        self._ports: tuple[int, ...] = ()
        self._known = Reachability()
        self._asked = 0

    # --- the five methods -----------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in one event."""
        match event:
            case PeerOpened():
                self._on_opened(event, now)
            case PeerClosed(peer=peer):
                self._on_closed(peer)
            case Seen():
                self._on_seen(event, now)
            case DialledBack():
                self._on_dialled_back(event, now)
            case PortsChanged(ports=ports):
                self._on_ports_changed(ports, now)
        self._ask(now)
        self._tell()

    def poll_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        waiting = [each.due_at for each in self._voters.values() if _is_ready(each)]
        ends = [each.heard_at + limits.REACH_VOTE_S for each in self._voters.values()]
        return min(waiting + ends, default=None)

    def handle_deadline(self, now: float) -> None:
        """Ask again; forget what was said too long ago."""
        for voter in list(self._voters.values()):
            if now >= voter.heard_at + limits.REACH_VOTE_S:
                self._forget(voter, now)
        self._ask(now)
        self._tell()

    def statistics(self) -> ReachStatistics:
        """Return counters."""
        networks = {voter.network for voter in self._voters.values()}
        return ReachStatistics(len(self._voters), len(networks), self._asked)

    @property
    def reachability(self) -> Reachability:
        """What the last Changed said."""
        return self._known

    # --- voters ---------------------------------------------------------------------------

    def _on_opened(self, event: PeerOpened, now: float) -> None:
        network = network_of(event.host)
        if network is None:
            return
        known = self._voters.get(event.peer)
        if known is not None and known.network == network:
            known.is_open, known.is_asked = True, False
            return
        self._voters.pop(event.peer, None)
        if len(self._voters) >= limits.REACH_VOTERS_MAX and not self._make_room(network):
            return
        self._voters[event.peer] = _Voter(event.peer, network, heard_at=now, due_at=now)

    def _on_closed(self, peer: PeerId) -> None:
        voter = self._voters.get(peer)
        if voter is not None:
            voter.is_open = voter.is_asked = False

    def _forget(self, voter: _Voter, now: float) -> None:
        """Its words are too old to count."""
        if voter.is_open:
            voter.seen_host, voter.seen_at, voter.heard_at = "", None, now
            voter.results.clear()
        else:
            del self._voters[voter.peer]

    def _make_room(self, network: str) -> bool:
        """Let go of a voter that is gone, or of the second of a network, for one of another."""
        networks = [voter.network for voter in self._voters.values()]
        if network in networks and all(voter.is_open for voter in self._voters.values()):
            return False
        for voter in sorted(self._voters.values(), key=lambda each: (each.is_open, each.heard_at)):
            if not voter.is_open or networks.count(voter.network) > 1:
                del self._voters[voter.peer]
                return True
        return False

    def _on_seen(self, event: Seen, now: float) -> None:
        voter = self._answering(event.peer)
        if voter is None:
            return
        if event.host is None:
            self._pause(voter, now)
            return
        is_public = network_of(event.host) is not None
        voter.seen_host = event.host if is_public else ""
        voter.seen_at = voter.heard_at = voter.due_at = now
        voter.pause_s = 0.0

    def _on_dialled_back(self, event: DialledBack, now: float) -> None:
        voter = self._answering(event.peer)
        if voter is None:
            return
        if event.is_reached is None or network_of(event.host) is None:
            self._pause(voter, now)
            return
        voter.pause_s = 0.0
        voter.heard_at = voter.due_at = now
        if event.port in self._ports:
            voter.results[event.port] = _Result(event.host, event.is_reached, event.reason, now)

    def _on_ports_changed(self, ports: tuple[int, ...], now: float) -> None:
        new = set(ports) - set(self._ports)
        self._ports = ports
        for voter in self._voters.values():
            voter.results = {port: each for port, each in voter.results.items() if port in ports}
            if new and not voter.pause_s:
                voter.due_at = now

    def _answering(self, peer: PeerId) -> _Voter | None:
        """Return the voter whose answer this is, if one was asked for."""
        voter = self._voters.get(peer)
        if voter is None or not voter.is_asked:
            return None
        voter.is_asked = False
        return voter

    def _pause(self, voter: _Voter, now: float) -> None:
        """Ask later: it is busy, or it does not know this question."""
        voter.pause_s = min(limits.REACH_RECHECK_S, 2 * voter.pause_s or limits.REACH_RETRY_S)
        voter.due_at = now + voter.pause_s

    # --- questions ------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        for voter in self._voters.values():
            if _is_ready(voter) and voter.due_at <= now:
                self._ask_one(voter, now)

    def _ask_one(self, voter: _Voter, now: float) -> None:
        """Ask for what is missing or old; otherwise say when that will be."""
        if voter.seen_at is None or now >= voter.seen_at + limits.REACH_RECHECK_S:
            self._send(voter, AskWhere(voter.peer))
            return
        fresh_until = voter.seen_at + limits.REACH_RECHECK_S
        ports = self._ports if voter.seen_host else ()  # it would dial a private address
        for port in ports:
            result = voter.results.get(port)
            if result is None or now >= result.at + limits.REACH_RECHECK_S:
                self._send(voter, AskDialBack(voter.peer, port))
                return
            fresh_until = min(fresh_until, result.at + limits.REACH_RECHECK_S)
        voter.due_at = fresh_until

    def _send(self, voter: _Voter, question: AskWhere | AskDialBack) -> None:
        voter.is_asked = True
        self._asked += 1
        self._effects.append(question)

    # --- what it amounts to -----------------------------------------------------------------

    def _tell(self) -> None:
        known = self._tally()
        if known != self._known:
            self._known = known
            self._effects.append(Changed(known))

    def _tally(self) -> Reachability:
        seen = [(v.seen_host, v.network) for v in self._voters.values() if v.seen_host]
        hosts, guesses = _agreed(seen)
        endpoints: list[tuple[str, int]] = []
        tentative: list[tuple[str, int]] = []
        refusals: list[tuple[int, str]] = []
        for port in self._ports:
            tried = [(v, v.results[port]) for v in self._voters.values() if port in v.results]
            reached = [(result.host, v.network) for v, result in tried if result.is_reached]
            agreed, some = _agreed(reached)
            endpoints += [(host, port) for host in agreed]
            tentative += [(host, port) for host in some]
            refused = [result.reason for _, result in tried if not result.is_reached]
            if refused and not agreed:
                refusals.append((port, refused[-1]))
        return Reachability(hosts, guesses, tuple(endpoints), tuple(tentative), tuple(refusals))


def _is_ready(voter: _Voter) -> bool:
    return voter.is_open and not voter.is_asked


def _agreed(votes: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (hosts that enough networks name, hosts that some do), one a family, each sorted."""
    networks: defaultdict[str, set[str]] = defaultdict(set)
    for host, network in votes:
        networks[host].add(network)
    agreed: dict[int, str] = {}
    guessed: dict[int, str] = {}
    for host in sorted(networks, key=lambda each: (-len(networks[each]), each)):
        version = ip_address(host).version
        enough = len(networks[host]) >= limits.REACH_VOTES
        (agreed if enough else guessed).setdefault(version, host)
    for family in agreed:
        guessed.pop(family, None)
    return tuple(sorted(agreed.values())), tuple(sorted(guessed.values()))
