"""Registers that their author alone writes: state, loss, speed.

The last write wins, and last is by the author's own sequence: with one writer there is no
race that a wall clock would have to decide.
"""

from __future__ import annotations

from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Dot
from swarmnode.protocol.crdt.cells import Cells

RegisterContent = float | str


class Registers(Cells[str, RegisterContent]):
    """name -> what its author last said."""

    _cells_type = list[tuple[str, int, RegisterContent | None]]

    @classmethod
    def write(cls, dot: Dot, contents: dict[str, RegisterContent]) -> Registers:
        """Return the delta of one write."""
        return cls.delta(dot.actor, dot.sequence, dict(contents))

    def value(self) -> dict[PeerId, dict[str, RegisterContent]]:
        """Return who says what, of each peer's newest life."""
        newest = {actor.peer: actor for actor in sorted(self._cells)}
        return {peer: self.of(actor) for peer, actor in newest.items()}
