"""A node that is behind, or on another lineage than most: when it asks, and whom it believes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from swarmnode.strategies.exchanges import Exchange, Intent
from swarmnode.strategies.place import Place, Words, read_place
from swarmnode.strategies.ranges import not_finite, too_large

ANY_LINEAGE = b""  # asked for by who is on the wrong one: also what is less far than its own

_ASKS_MAX = 3  # peers for each round that came to nothing: the answers are whole models
_log = logging.getLogger(__name__)


@dataclass
class CatchUps:
    """Counts what was asked and refused. ``is_stray``: most are on another lineage."""

    is_stray: bool = False
    refused: int = 0  # answers of peers
    _is_behind: bool = False
    _asks_left: int = 0  # for this round, where answers are refused
    _words: Words = field(default_factory=Words)

    def note_missed(self) -> None:
        """Take note that a round came to nothing."""
        self._is_behind, self._asks_left = True, _ASKS_MAX

    def due(self, pull: Callable[[], Intent]) -> list[Intent]:
        """Return what is due after a step: one ``pull`` for a missed round, if all goes well."""
        is_behind, is_stray = self._is_behind, self.is_stray
        self._is_behind = self.is_stray = False
        if is_stray:
            return [replace(pull(), base_version=ANY_LINEAGE)]
        return [pull()] if is_behind else []

    def place_of(self, exchange: Exchange, own_round: int, x: torch.Tensor) -> Place | None:
        """Return where a peer is that has answered, or None: it is refused, ask another."""
        ((peer, received),) = exchange.got.items()
        place = read_place(received.views["place"])
        if isinstance(place, Place):
            vectors = {name: view for name, view in received.views.items() if name != "place"}
            why = (
                self._words.refusal(peer, place, own_round)
                or not_finite(vectors)
                or too_large(vectors, x)
            )
            if not why:
                return place
        else:
            why = place
        self.refused += 1
        self._asks_left -= 1
        self._is_behind = self._is_behind or self._asks_left > 0  # another may be honest
        _log.warning("the answer of %s to a catch-up is refused: %s", peer.hex()[:8], why)
        return None
