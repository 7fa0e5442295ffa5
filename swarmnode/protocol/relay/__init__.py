"""Being a relay, and what is said of it: also by nodes that no peer has asked to relay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """Counters and what there is just now."""

    reservations: int
    circuits_open: int
    accounts: int
    circuits_total: int
    refused_total: dict[str, int]
    relayed_bytes: int
