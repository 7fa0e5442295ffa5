"""Counters: steps, tokens, bytes, seconds of work; each author counts its own, all are summed.

A peer that starts again writes its old totals into its new life, so only the newest life of
a peer is summed and a restart costs no memory for ever (a grow-only counter by boot epoch
would keep a cell for each). Self-reported: shown, never believed.
"""

from __future__ import annotations

from swarmnode.protocol.crdt.actors import Dot
from swarmnode.protocol.crdt.cells import Cell, Cells


class Counters(Cells[str, int]):
    """name -> the author's own total; a smaller one never takes the place of a greater."""

    _cells_type = list[tuple[str, int, int | None]]

    @classmethod
    def write(cls, dot: Dot, totals: dict[str, int]) -> Counters:
        """Return the delta that sets these totals (not increments: those would count twice)."""
        return cls.delta(dot.actor, dot.sequence, dict(totals))

    def value(self) -> dict[str, int]:
        """Return the sum over all authors."""
        newest: dict[tuple[bytes, str], tuple[int, int]] = {}
        for actor, name, total in self._present():
            key = (actor.peer, name)
            newest[key] = max(newest.get(key, (0, 0)), (actor.epoch, total))
        sums: dict[str, int] = {}
        for (_, name), (_, total) in newest.items():
            sums[name] = sums.get(name, 0) + total
        return sums

    @staticmethod
    def _order(cell: Cell[int]) -> tuple[int, int]:
        return (cell.value or 0, cell.sequence)
