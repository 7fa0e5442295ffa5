"""How this node is connected just now, in one word, and what is in the way.

=========  =========================================================================
direct     strangers get in here, or members are reached without help
punched    members are reached through NATs, none directly
relayed    members are reached only with the help of relays, or relays are all there is
local      only peers on this machine or on its LAN are reached
alone      no peer is reached
=========  =========================================================================

Facts only: what a person should do about a code stands in ``cli/node/line.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Literal, get_args

import msgspec

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    DialFailed,
    NoNodeKey,
    Overloaded,
    Refused,
    SwarmNodeError,
    TransportError,
    VersionMismatch,
)

State = Literal["direct", "punched", "relayed", "local", "alone"]
STATES: Final[tuple[str, ...]] = get_args(State)
Cause = Literal[
    "",  # it was not tried, or answers
    "no-handshake",  # a connection opens, and what is sent on it never arrives
    "cut-off",  # a connection opens, and is cut when a node speaks
    "not-a-node",  # another program answers
    "other-key",  # another node answers
    "other-version",
    "busy",  # the peer says that it has no room
    "proxy",  # that of this network says no, and it does not go without
    "blocked",  # this machine's own firewall
    "refused",  # the host is there, and no program listens
    "silent",
    "no-name",  # the name of the host cannot be looked up
    "no-route",
]
_CAUSES: Final[tuple[str, ...]] = get_args(Cause)
# Why a node is as it is: a cause that all addresses share, or one of these.
Code = Cause | Literal["no-network", "lost", "none-known", "starting", "no-relay", "relays-full"]
_RANKS: Final = {"direct": 0, "other": 0, "punched-tcp": 1, "rtc": 1, "relay": 2}
_BY_RANK: Final[tuple[State, ...]] = ("direct", "punched", "relayed")


class Bootstrap(msgspec.Struct, frozen=True):
    """An address that this node was given, and what came of it.

    Attributes:
        is_connected: there is a session with the peer.
        cause: why the last try failed, "" if it did not.
        error: the same in words.
    """

    peer: str
    address: str
    is_connected: bool = False
    cause: Cause = ""
    error: str = ""


BOOTSTRAP_STATES: Final = ("connected", "failing", "untried")


def tally(bootstraps: Sequence[Bootstrap]) -> Counter[str]:
    """Return how many addresses are in each of BOOTSTRAP_STATES."""
    return Counter(
        "connected" if each.is_connected else "failing" if each.cause else "untried"
        for each in bootstraps
    )


class Connectivity(msgspec.Struct, frozen=True):
    """The one state. ``code``: what is wrong, "" if nothing; ``why``: the facts in words."""

    state: State
    code: Code
    why: str
    is_alarming: bool = False


@dataclass(frozen=True)
class Way:
    """An open session: by which path, to which host ("" if unknown), and whether to a relay."""

    path: str
    host: str = ""
    is_relay: bool = False

    @property
    def is_local(self) -> bool:
        """Whether it leads to this machine or its LAN; what no address tells is not."""
        try:
            return not ip_address(self.host.partition("%")[0]).is_global
        except ValueError:
            return False


@dataclass(frozen=True, kw_only=True)
class LineFacts:
    """What is known. ``lost``: sessions that have lost their channel, and wait for another."""

    ways: tuple[Way, ...] = ()
    lost: int = 0
    bootstraps: tuple[Bootstrap, ...] = ()
    unreached: int = 0  # peers that were dialled in vain
    has_network: bool = True  # an address of this machine leads elsewhere
    is_reached: str = "unknown"  # by strangers: yes, no
    relays_held: int = 0
    relays_refusing: int = 0
    quiet_s: float = 0.0  # since the last session, or the start


def judge(line: LineFacts) -> Connectivity:
    """Return the state and what is wrong. Cost: O(sessions + bootstraps)."""
    return _connected(line) if line.ways else _alone(line)


def _connected(line: LineFacts) -> Connectivity:
    far = [way for way in line.ways if not way.is_local]
    if not far:
        return Connectivity("local", "", f"{_peers(line)} on this machine or its LAN, none beyond")
    members = [way for way in far if not way.is_relay]
    paths = Counter(way.path for way in line.ways)
    why = f"{_peers(line)}: {', '.join(f'{n} {path}' for path, n in sorted(paths.items()))}"
    rank = min((_RANKS[way.path] for way in members), default=2)
    if line.is_reached == "yes":
        return Connectivity("direct", "", f"{why}; strangers get in")
    if line.is_reached == "no" and not line.relays_held:
        code: Code = "relays-full" if line.relays_refusing else "no-relay"
        why += "; strangers do not get in, and no relay holds a place for this node"
        return Connectivity(_BY_RANK[rank], code, why, is_alarming=bool(line.unreached))
    return Connectivity(_BY_RANK[rank], "", why if members else f"{why}; relays only")


def _alone(line: LineFacts) -> Connectivity:
    tried = [each for each in line.bootstraps if each.cause]
    is_late = line.quiet_s >= limits.ALONE_ALARM_S
    if not line.has_network:
        return Connectivity("alone", "no-network", "this machine has no network", is_late)
    if line.lost:
        why = f"no way any more for {_many(line.lost, 'session', 'sessions')}"
        return Connectivity("alone", "lost", why, True)
    if tried:
        counts = Counter(each.cause for each in tried)
        cause = min(counts, key=lambda each: (-counts[each], _CAUSES.index(each)))
        said = next(each.error for each in tried if each.cause == cause)
        why = f"none of {_addresses(line)} answers as it should: {said}"
        return Connectivity("alone", cause, why, is_late)
    if line.bootstraps or line.unreached:
        peers, addresses = _many(line.unreached, "peer", "peers"), _addresses(line)
        if not is_late:
            whom = addresses if line.bootstraps else peers
            return Connectivity("alone", "starting", f"{whom} to be dialled, and no answer yet")
        whom = peers if line.unreached else addresses
        return Connectivity("alone", "lost", f"no answer from {whom}", True)
    return Connectivity("alone", "none-known", "no address of another peer is known yet")


def _peers(line: LineFacts) -> str:
    return _many(len(line.ways), "peer", "peers")


def _addresses(line: LineFacts) -> str:
    return _many(len(line.bootstraps), "known address", "known addresses")


def _many(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


class Failures:
    """Why addresses could not be used when they were last tried; the oldest are forgotten."""

    def __init__(self) -> None:
        self._by_address: dict[str, tuple[Cause, str]] = {}

    def note(self, address: str, error: SwarmNodeError, *, has_opened: bool) -> None:
        """Keep it. ``has_opened``: a connection was there, and the handshake failed."""
        if isinstance(error, Overloaded) and not has_opened:
            return  # it was not dialled at all
        self._by_address.pop(address, None)
        self._by_address[address] = cause_of(error, has_opened=has_opened), str(error)
        while len(self._by_address) > limits.DIAL_ERRORS_KEPT_MAX:
            del self._by_address[next(iter(self._by_address))]

    def forget(self, address: str) -> None:
        """It works."""
        self._by_address.pop(address, None)

    def of(self, address: str) -> tuple[Cause, str]:
        """Return the cause and the words of an address; both empty: it was not tried, or works."""
        return self._by_address.get(address, ("", ""))


def cause_of(error: SwarmNodeError, *, has_opened: bool) -> Cause:
    """Return why a dial failed."""
    if not has_opened:
        return error.cause if isinstance(error, DialFailed) else "silent"
    match error:
        case DeadlineExceeded():
            return "no-handshake"
        case TransportError():
            return "cut-off"
        case NoNodeKey():
            return "not-a-node"
        case AuthenticationFailed():
            return "other-key"
        case VersionMismatch():
            return "other-version"
        case Refused() | Overloaded():
            return "busy"
    return "not-a-node"
