"""Counters of the shared state's core, and the frozen record of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swarmnode.protocol.crdt.cells import CellStatistics


@dataclass(frozen=True)
class StateStatistics:
    """Sizes now, and counts since the core was made. Every key is from a closed set."""

    authors: int
    bans: int
    held_bytes: int
    neighbours: int
    types: Mapping[str, CellStatistics]
    # what became of the records received, by verdict
    records_total: Mapping[str, int]
    own_sequence: int
    # messages sent, by their tag
    messages_total: Mapping[str, int]
    records_sent_total: int
    # the median of the neighbours' wall clocks minus ours; None: none has said
    clock_skew_s: float | None
