"""Which addresses of an offer may be sent to, and which of our own are worth offering.

ICE sends a check to every address that the other side names. Without these rules a stranger
could scan our LAN with us, or have us knock at the services of another host. What is left to one
is RTC_CANDIDATES_MAX addresses in public networks, a few packets of 120 bytes each.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.wire.connect.nat import RtcCandidate

IpAddress = IPv4Address | IPv6Address
# They carry IPv4 addresses, private ones too, through translators and tunnels: mapped and
# compatible ones, 6to4, Teredo, NAT64.
_EMBEDDING = tuple(map(IPv6Network, ("::/8", "2002::/16", "2001::/32", "64:ff9b::/32")))


def candidate_host(candidate: RtcCandidate) -> str:
    """Return the address as text. Raises MalformedMessage."""
    return str(_parse(candidate))


def make_candidate(kind: str, host: str, port: int) -> RtcCandidate:
    """Build a candidate from the text of an IP address. Raises ValueError for anything else."""
    address = ip_address(host).packed
    return RtcCandidate("srflx" if kind == "srflx" else "host", address, port)


def is_worth_offering(host: str) -> bool:
    """Whether another machine could ever reach this address of ours."""
    address = ip_address(host)
    return not (address.is_loopback or _is_nowhere(address))


def usable_candidates(
    theirs: Sequence[RtcCandidate], ours: Sequence[RtcCandidate]
) -> tuple[RtcCandidate, ...]:
    """Return those of ``theirs`` that may be sent to, in their order, each once.

    Public addresses may. Private ones may only if both sides show the same public address, as
    two do that are behind one NAT; loopback only if we offer loopback ourselves.

    Raises:
        MalformedMessage: an address is none.
    """
    public = {address for address in map(_parse, ours) if address.is_global}
    is_on_loopback = any(_parse(candidate).is_loopback for candidate in ours)
    shares_public = any(_parse(candidate) in public for candidate in theirs)
    usable: dict[RtcCandidate, None] = {}
    for candidate in theirs:
        address = _parse(candidate)
        if address.is_loopback:
            is_allowed = is_on_loopback
        else:
            is_allowed = not _is_nowhere(address) and (address.is_global or shares_public)
        if is_allowed and candidate.port >= limits.RTC_PORT_MIN:
            usable[candidate] = None
    return tuple(usable)


def _parse(candidate: RtcCandidate) -> IpAddress:
    if len(candidate.address) not in (4, 16):
        raise MalformedMessage(
            f"candidate: expected 4 or 16 bytes of address, got {len(candidate.address)}"
        )
    return ip_address(candidate.address)


def _is_nowhere(address: IpAddress) -> bool:
    """Whether no single host of the internet or of a LAN has this address."""
    return (
        address.is_multicast
        or address.is_unspecified
        or address.is_link_local
        or (address.version == 4 and (address.is_reserved or address.packed[0] == 0))
        or (address.version == 6 and any(address in network for network in _EMBEDDING))
    )
