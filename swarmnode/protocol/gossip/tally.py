"""Counters of an exchange core, and the frozen record of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.gossip.outcomes import Outcome
from swarmnode.wire.exchange.gossip import reason_code


@dataclass(frozen=True)
class ExchangeStatistics:
    """Counters since the core was made. Every key is from a closed set."""

    is_busy: bool
    intents: int  # that wait
    # (role, outcome, reason code) of every exchange that ended here; commits have no reason
    finished_total: Mapping[tuple[str, str, str], int]
    # offers that we declined, by reason code
    refused_total: Mapping[str, int]
    # responders that gave up without knowing the initiator's decision
    in_doubt_total: int
    # exchanges of which we learned that they count on one side only
    half_applied_total: int
    crossed_offers_total: int
    chunks_merged_total: int
    # duplicates, and those of no running exchange
    chunks_dropped_total: int
    # messages of exchanges that are over or unknown
    stale_messages_total: int
    outcomes_kept: int


@dataclass
class Tally:
    """The counters while they count."""

    finished: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    in_doubt: int = 0
    half_applied: int = 0
    crossed_offers: int = 0
    chunks_merged: int = 0
    chunks_dropped: int = 0
    stale_messages: int = 0

    def count_finished(self, finished: Finished) -> None:
        code = "" if finished.outcome is Outcome.COMMITTED else reason_code(finished.reason)
        self.finished[finished.role.value, finished.outcome.value, code] += 1
        self.in_doubt += finished.in_doubt

    def statistics(self, *, is_busy: bool, intents: int, outcomes_kept: int) -> ExchangeStatistics:
        """Return the counters together with what the core knows."""
        return ExchangeStatistics(
            is_busy=is_busy,
            intents=intents,
            finished_total=MappingProxyType(dict(self.finished)),
            refused_total=MappingProxyType(dict(self.refused)),
            in_doubt_total=self.in_doubt,
            half_applied_total=self.half_applied,
            crossed_offers_total=self.crossed_offers,
            chunks_merged_total=self.chunks_merged,
            chunks_dropped_total=self.chunks_dropped,
            stale_messages_total=self.stale_messages,
            outcomes_kept=outcomes_kept,
        )
