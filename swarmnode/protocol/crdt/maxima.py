"""Maximum registers: how far the swarm is (step, round), the greatest that any author says.

Kept by author, so that what a banned author said goes with it.
"""

from __future__ import annotations

from swarmnode.protocol.crdt.actors import Dot
from swarmnode.protocol.crdt.cells import Cell, Cells


class Maxima(Cells[str, int]):
    """name -> the greatest that this author has said."""

    _cells_type = list[tuple[str, int, int | None]]

    @classmethod
    def write(cls, dot: Dot, marks: dict[str, int]) -> Maxima:
        """Return the delta of one write."""
        return cls.delta(dot.actor, dot.sequence, dict(marks))

    def value(self) -> dict[str, int]:
        """Return the greatest of all authors."""
        greatest: dict[str, int] = {}
        for _, name, mark in self._present():
            greatest[name] = max(mark, greatest.get(name, 0))
        return greatest

    @staticmethod
    def _order(cell: Cell[int]) -> tuple[int, int]:
        return (cell.value or 0, cell.sequence)
