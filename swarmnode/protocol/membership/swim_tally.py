"""Counters of a failure detector, and the frozen record of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SwimStatistics:
    """Gauges first, then counters since the core was made."""

    alive: int
    suspect: int
    dead: int
    left: int
    incarnation: int
    health_score: int
    rumours: int
    probes_total: int
    probes_failed_total: int
    suspected_total: int
    died_total: int
    refuted_total: int  # doubts about ourselves
    stalls_total: int
    table_full_total: int


@dataclass
class Tally:
    """The counters while they count."""

    probes: int = 0
    probes_failed: int = 0
    suspected: int = 0
    died: int = 0
    refuted: int = 0
    table_full: int = 0
