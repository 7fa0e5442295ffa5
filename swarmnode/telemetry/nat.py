"""What a node knows of its NAT and of its ways to others, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

NatKind = Literal["none", "cone", "symmetric", "udp-blocked", "unknown"]
Reachable = Literal["yes", "no", "unknown"]
Mapper = Literal["pcp", "nat-pmp", "upnp", "none"]
NAT_KINDS: tuple[str, ...] = get_args(NatKind)
REACHABLE: tuple[str, ...] = get_args(Reachable)
MAPPERS: tuple[str, ...] = get_args(Mapper)
WAYS_TRIED = ("direct", "punched-tcp", "rtc", "relay")
RESULTS = ("ok", "failed")


@dataclass(frozen=True, kw_only=True)
class NatSnapshot:
    """Gauges, then counters since the process started.

    Attributes:
        ways_total: attempts to get a channel, by (one of WAYS_TRIED, one of RESULTS).
        resumed_total: sessions that went on over another channel.
        relay_refused_total: what this node refused as a relay, by the reason's code.
    """

    kind: NatKind = "unknown"
    reachable: Reachable = "unknown"
    mapper: Mapper = "none"
    relays_held: int = 0
    relays_refusing: int = 0  # for want of room
    relay_reservations: int = 0
    relay_circuits: int = 0
    ways_total: Mapping[tuple[str, str], int] = field(default_factory=dict)
    resumed_total: int = 0
    relayed_bytes_total: int = 0
    relay_circuits_total: int = 0
    relay_refused_total: Mapping[str, int] = field(default_factory=dict)
