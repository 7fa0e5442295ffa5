"""What one host, or one network of hosts, may cost a node: dials, connections, members.

:class:`DialBudget` bounds dials. Addresses of members are what others say; a liar names a third
party. However many peers are said to be there, and however often that changes, a host is dialled
at most once in ``DIAL_HOST_INTERVAL_S`` after ``DIAL_HOST_BURST`` dials; a dial at whose end the
peer proves its id was none too many, and is given back. A host is what one machine or one router
is: eight peers behind one router are eight dials, seven of them given back. Loopback is this
machine itself, no third party.

:class:`SharedNetworks` leaves out private addresses of networks that this node is not in: a
stranger could have it knock at the devices of a LAN, or at its own services.

:class:`Places` bounds connections of strangers. There is a number of places for all, and one for
each block of addresses; when all are taken, a stranger from a block that holds fewer than the most
crowded one takes the place of the oldest of that one. So a block can crowd out itself only.

:class:`Identities` bounds the members that one block of addresses can be.

Sources: ITU-T I.371, "Traffic control and congestion control in B-ISDN" (GCRA, as virtual
scheduling); Suter, Lakshman, Stiliadis and Choudhury, "Design considerations for supporting TCP
with per-flow queueing", 1998 (the longest queue is dropped from). Deviation: within a block the
oldest goes, as an honest newcomer needs a place for a few round trips only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import Network, host_of

# Of addresses of peers behind a third one, RELAY@HOST:PORT/TARGET.
RELAYED_PREFIX = "relay:"
_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
# Not ``is_private`` of the standard library, which has documentation and benchmark ranges as well.
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "fc00::/7",
        "fe80::/10",
    )
)
# No host that another node could mean: this network, multicast and above, unspecified.
_NOWHERE = tuple(ipaddress.ip_network(text) for text in ("0.0.0.0/8", "224.0.0.0/3", "ff00::/8"))
# They carry IPv4 addresses, private ones too: mapped and compatible ones, 6to4, Teredo, NAT64.
_EMBEDDING = tuple(
    ipaddress.ip_network(text) for text in ("::/8", "2002::/16", "2001::/32", "64:ff9b::/32")
)
_CARRIERS = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598
# Hints of a link, contacts on disk, and nodes of a LAN: so many are in use at a time.
TRUSTED_ADDRESSES_MAX = 512
# All names of hosts are one: names that lead to one host cost nothing.
_ANY_NAME = "a name"


def ip_of(address: str) -> _Ip | None:
    """Return the IP address of ``HOST:PORT``, an embedded IPv4 one as such; None: it has none."""
    try:
        ip = ipaddress.ip_address(host_of(address))
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def is_loopback(address: str) -> bool:
    """Whether ``HOST:PORT`` is on this machine."""
    ip = ip_of(address)
    return ip is not None and ip.is_loopback


def is_near(ip: _Ip) -> bool:
    """Whether an address is on this machine, in a private network, or none of a host at all."""
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_loopback or _is_in(ip, (*_PRIVATE, *_NOWHERE, _CARRIERS))


def block_of(host: str) -> str:
    """Return the /24 or /48 of ``HOST`` or ``HOST:PORT``, what one owner has; else the text."""
    ip = ip_of(f"[{host}]") or ip_of(host)
    if ip is None:
        return host
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))


def site_of(host: str) -> str:
    """Return what one machine or one router has: an IPv4 address, or the /64 of an IPv6 one."""
    ip = ip_of(f"[{host}]") or ip_of(host)
    if ip is None or ip.version == 4:
        return host if ip is None else str(ip)
    return str(ipaddress.ip_network((ip, 64), strict=False))


def _is_in(ip: _Ip, networks: tuple[Network, ...]) -> bool:
    return any(ip.version == network.version and ip in network for network in networks)


def _budget_name(address: str) -> str | None:
    """Return what the budget of an address is kept under, None where there is none."""
    ip = ip_of(address)
    if ip is not None:
        return None if ip.is_loopback else str(ip)
    # Through a relay it is the relay that is dialled; addresses of a virtual network are no hosts.
    _, _, port = address.rpartition(":")
    return _ANY_NAME if port.isdecimal() else None


class DialBudget:
    """When a host may be dialled; see the module."""

    def __init__(self) -> None:
        # Host -> when what was taken is paid back. Bounded by DIAL_HOSTS_MAX.
        self._paid_at: dict[str, float] = {}

    def wait_s(self, address: str, now: float) -> float:
        """Return after how many seconds a dial is due, 0: now."""
        name = _budget_name(address)
        if name is None:
            return 0.0
        ahead_s = (limits.DIAL_HOST_BURST - 1) * limits.DIAL_HOST_INTERVAL_S
        return max(0.0, self._paid_at.get(name, now) - ahead_s - now)

    def take(self, address: str, now: float) -> None:
        """Count a dial, also one that is only due later."""
        name = _budget_name(address)
        if name is not None:
            self._make_room(name, now)
            paid_at = max(now, self._paid_at.get(name, now))
            self._paid_at[name] = paid_at + limits.DIAL_HOST_INTERVAL_S

    def try_take(self, address: str, now: float) -> bool:
        """Count a dial if one is due now; return whether it is."""
        is_due = self.wait_s(address, now) == 0.0
        if is_due:
            self.take(address, now)
        return is_due

    def give_back(self, address: str) -> None:
        """The last dial was answered by the very peer that was meant."""
        name = _budget_name(address)
        if name is not None and name in self._paid_at:
            self._paid_at[name] -= limits.DIAL_HOST_INTERVAL_S

    def _make_room(self, name: str, now: float) -> None:
        """Forget what is paid back, else the host that will be first."""
        if name in self._paid_at or len(self._paid_at) < limits.DIAL_HOSTS_MAX:
            return
        self._paid_at = {host: at for host, at in self._paid_at.items() if at > now}
        while len(self._paid_at) >= limits.DIAL_HOSTS_MAX:
            del self._paid_at[min(self._paid_at, key=self._paid_at.__getitem__)]


class SharedNetworks:
    """Which addresses that others tell may be dialled; see the module.

    Args:
        own: the networks that this node's interfaces are in; loopback does not count.
        met_at: ``HOST:PORT`` of our listener and of peers that we have a session with: a network
            of several private ranges is one, and so is this machine.
    """

    def __init__(
        self, own: Callable[[], tuple[Network, ...]], met_at: Callable[[], tuple[str, ...]]
    ) -> None:
        self._own = own
        self._met_at = met_at
        self._trusted: dict[str, None] = {}  # the oldest first

    def trust(self, addresses: tuple[str, ...]) -> None:
        """The owner of this node has given these, or they were heard on the LAN."""
        for address in addresses:
            self._trusted.pop(address, None)
            self._trusted[address] = None
        while len(self._trusted) > TRUSTED_ADDRESSES_MAX:
            del self._trusted[next(iter(self._trusted))]

    def usable(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Return those that are public, of a network that we share, or no IP addresses."""
        return tuple(
            address
            for address in addresses
            if address in self._trusted or self._is_usable(_dialled_at(address))
        )

    def _is_usable(self, address: str) -> bool:
        ip = ip_of(address)
        if ip is None:
            return True
        if ip.is_loopback:
            return any(is_loopback(met) for met in self._met_at())
        if _is_in(ip, _NOWHERE) or _is_in(ip, _EMBEDDING):
            return False
        ranges = tuple(each for each in _PRIVATE if _is_in(ip, (each,)))
        return not ranges or _is_in(ip, self._own()) or self._is_met_in(ranges)

    def _is_met_in(self, ranges: tuple[Network, ...]) -> bool:
        return any(_is_in(ip, ranges) for met in self._met_at() if (ip := ip_of(met)))


def _dialled_at(address: str) -> str:
    """Return the HOST:PORT that is connected to: of ``relay:RELAY@HOST:PORT/TARGET`` its own."""
    return address.rpartition("/")[0].partition("@")[2] or address


HolderT = TypeVar("HolderT", bound=Hashable)


class Places(Generic[HolderT]):
    """Places for strangers, shared between the blocks of addresses that they come from.

    Args:
        in_all: places there are.
        per_block: those of one block; the oldest of it makes room.
    """

    def __init__(self, in_all: int, per_block: int) -> None:
        self._in_all = in_all
        self._per_block = per_block
        self._blocks: dict[str, dict[HolderT, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def take(self, block: str, holder: HolderT) -> tuple[bool, HolderT | None]:
        """Give a place to a stranger.

        Returns:
            Whether it has one, and which other stranger has lost its place for that.
        """
        loser: HolderT | None = None
        size = len(self._blocks.get(block, ()))
        if size >= self._per_block:
            loser = self._drop_oldest(block)
        elif len(self) >= self._in_all:
            crowded = max(self._blocks, key=lambda name: len(self._blocks[name]))
            if len(self._blocks[crowded]) <= size + 1:
                return False, None
            loser = self._drop_oldest(crowded)
        self._blocks.setdefault(block, {})[holder] = None
        return True, loser

    def give_back(self, block: str, holder: HolderT) -> None:
        """A stranger needs its place no more; of one that has lost it this says nothing new."""
        if block in self._blocks:
            self._blocks[block].pop(holder, None)
            if not self._blocks[block]:
                del self._blocks[block]

    def _drop_oldest(self, block: str) -> HolderT:
        oldest = next(iter(self._blocks[block]))
        self.give_back(block, oldest)
        return oldest


# --- identities -----------------------------------------------------------------------------------

_WORK_DOMAIN = b"swarmnode/proof-of-work/1\0"
WORK_BYTES = 8


def is_worked(swarm_id: bytes, peer: PeerId, work: bytes) -> bool:
    """Whether these bytes took this peer work, for this swarm. Cost: one hash, a microsecond."""
    if len(work) != WORK_BYTES:
        return False
    digest = hashlib.sha256(_WORK_DOMAIN + swarm_id + peer + work).digest()
    return int.from_bytes(digest, "big") >> (256 - limits.WORK_BITS) == 0


def find_work(swarm_id: bytes, peer: PeerId) -> bytes:
    """Return bytes that :func:`is_worked` accepts. Cost: 2^WORK_BITS hashes on average."""
    start = hashlib.sha256(_WORK_DOMAIN + swarm_id + peer)
    for number in itertools.count():
        work, hashed = number.to_bytes(WORK_BYTES, "big"), start.copy()
        hashed.update(work)
        if int.from_bytes(hashed.digest(), "big") >> (256 - limits.WORK_BITS) == 0:
            return work
    raise AssertionError("numbers end never")


class Identities:
    """How many members of one block of addresses an open swarm lets in.

    A key costs nothing, an address does. Of one block IDENTITIES_FREE_MAX peers are let in as they
    are, which is a household or a small office; IDENTITIES_MAX with a proof of work for each, as in
    Hashcash (Back, "Hashcash: a denial of service counter-measure", 2002), on their key, so that it
    is of use once. One that is not seen any more keeps its place for IDENTITY_KEEP_S: keys cannot
    take turns. Private networks are their owner's, who has other means.
    """

    def __init__(self) -> None:
        # Peers that were let in, from which block and when last; the one seen least lately first.
        self._seen: dict[PeerId, tuple[str, float]] = {}
        self._sizes: Counter[str] = Counter()

    def admit(self, address: str, peer: PeerId, now: float, *, has_worked: bool) -> bool:
        """Whether a peer that is seen at ``HOST:PORT`` is let in.

        What comes through relays is seen nowhere, and has no block: the relay bounds it.
        """
        ip = ip_of(address)
        if ip is None or ip.is_loopback or _is_in(ip, _PRIVATE):
            return True
        self._make_room(now)
        block = block_of(address)
        is_known = peer in self._seen and self._seen[peer][0] == block
        most = limits.IDENTITIES_MAX if has_worked else limits.IDENTITIES_FREE_MAX
        if not is_known and self._sizes[block] >= most:
            return False
        self._forget(peer)
        self._seen[peer] = block, now
        self._sizes[block] += 1
        return True

    def _make_room(self, now: float) -> None:
        """Forget peers not seen for long, and the one seen least lately if they are too many."""
        while self._seen:
            peer, (_, seen_at) = next(iter(self._seen.items()))
            is_full = len(self._seen) >= limits.IDENTITIES_KEPT_MAX
            if now < seen_at + limits.IDENTITY_KEEP_S and not is_full:
                return
            self._forget(peer)

    def _forget(self, peer: PeerId) -> None:
        if peer in self._seen:
            block, _ = self._seen.pop(peer)
            self._sizes[block] -= 1
            if not self._sizes[block]:
                del self._sizes[block]
