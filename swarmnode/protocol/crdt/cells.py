"""What all types of the shared state have in common: cells that each have one writer.

A type is a join-semilattice (Shapiro, Preguica, Baquero, Zawirski, "Conflict-free replicated
data types", 2011) in delta-state form (Almeida, Shoker, Baquero, "Delta state replicated data
types", 2018): a delta is a small state of the same type, and one ``merge`` joins both. The
state is a table ::

    (actor, key) -> Cell(sequence, value)        value None: removed
    actor        -> floor                        everything of it up to here is merged

A cell belongs to its actor, which alone writes it, so a join takes the further of two cells
of one writer and never has to choose between two people. What a type adds is what *further*
means and what its ``value`` is: see document.py.

The presence question. A cell that is here and not there was either not seen there yet, or
seen and removed there. The floor answers it, as the version vector does in an ORSWOT
(Bieniusa et al., "An optimized conflict-free replicated set", 2012): at or below the other
side's floor it was removed, above it was not seen. Before its floor has passed, a removal is
a cell of its own (a tombstone); :meth:`Cells.settle` raises the floor and drops it. A replica
applies each author's records in order and settles after each, so it never keeps any.

Deviation from an ORSWOT: an actor removes only what it added itself. In a swarm of strangers
no author may remove what another says of itself, and add-wins follows: what one author removes,
another's add of the same element outlives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgpack
import msgspec

from swarmnode.errors import MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Actor

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")
SelfT = TypeVar("SelfT", bound="Cells[Any, Any]")
_ROWS = list[tuple[bytes, int, int, list[Any]]]  # peer, epoch, floor, cells


@dataclass(frozen=True)
class CellStatistics:
    """Sizes of one type's state."""

    actors: int
    cells: int
    removed: int  # tombstones that no floor has passed yet


@dataclass(frozen=True, slots=True)
class Cell(Generic[ValueT]):
    """One write of the cell's owner."""

    sequence: int
    value: ValueT | None

    def order(self) -> tuple[int, bool, Any]:
        """Later wins; of two writes with one sequence, which only a liar makes, the greater."""
        return (self.sequence, self.value is not None, msgpack.packb(_plain(self.value)))


class DeltaState(Protocol):
    """What the shared state needs of a type; one test machine runs all that have it.

    Besides these each type has ``write(dot, …)``, which makes a delta, and most ``value(…)``.
    """

    @classmethod
    def new(cls) -> DeltaState:
        """Return the empty state."""

    def merge(self, other: Any) -> set[Any]:
        """Join a state or a delta of the same type in; return the keys whose cells have changed."""

    def settle(self, actor: Actor, sequence: int) -> None:
        """Everything of ``actor`` up to ``sequence`` is merged: drop its tombstones."""

    def forget(self, actor: Actor) -> set[Any]:
        """Drop all cells of an actor; return their keys. Not a join: see the ledger."""

    def encode(self) -> bytes:
        """Return canonical bytes: equal states have equal ones."""

    def statistics(self) -> CellStatistics:
        """Return sizes."""


class Cells(Generic[KeyT, ValueT]):
    """A table of cells; see the module."""

    _cells_type: ClassVar[Any]  # list[tuple[KeyT, int, ValueT | None]], for decode

    def __init__(self) -> None:
        self._cells: dict[Actor, dict[KeyT, Cell[ValueT]]] = {}
        self._floors: dict[Actor, int] = {}
        self._with_removed: set[Actor] = set()  # those that may have tombstones

    @classmethod
    def new(cls: type[SelfT]) -> SelfT:
        """Return the empty state."""
        return cls()

    @classmethod
    def delta(
        cls: type[SelfT], actor: Actor, sequence: int, values: dict[Any, Any | None]
    ) -> SelfT:
        """Return the state that holds these writes of one dot and nothing else."""
        made = cls()
        if values:
            made._cells[actor] = {key: Cell(sequence, value) for key, value in values.items()}
            if None in values.values():
                made._with_removed.add(actor)
        return made

    def merge(self, other: Cells[KeyT, ValueT]) -> set[KeyT]:
        """Join a state or a delta in; return the keys whose cells have changed."""
        changed: set[KeyT] = set()
        for actor, theirs in other._cells.items():
            changed.update(self._take(actor, theirs))
        for actor, floor in other._floors.items():
            changed |= self._drop_removed(actor, floor, other._cells.get(actor, {}))
            self.settle(actor, floor)
        return changed

    def settle(self, actor: Actor, sequence: int) -> None:
        """Everything of ``actor`` up to ``sequence`` is merged: drop its tombstones."""
        floor = max(sequence, self._floors.get(actor, 0))
        self._floors[actor] = floor
        if actor not in self._with_removed:
            return
        self._with_removed.discard(actor)
        mine = self._cells.get(actor, {})
        gone = [k for k, cell in mine.items() if cell.value is None and cell.sequence <= floor]
        for key in gone:
            del mine[key]
        if not mine:
            self._cells.pop(actor, None)
        elif any(cell.value is None for cell in mine.values()):
            self._with_removed.add(actor)

    def forget(self, actor: Actor) -> set[KeyT]:
        """Drop all cells of an actor and its floor; return the keys."""
        self._floors.pop(actor, None)
        self._with_removed.discard(actor)
        return set(self._cells.pop(actor, {}))

    def encode(self) -> bytes:
        """Return canonical bytes: equal states have equal ones."""
        actors = sorted(self._cells.keys() | self._floors.keys())
        packed: bytes = msgpack.packb([self._row(actor) for actor in actors])
        return packed

    @classmethod
    def decode(cls: type[SelfT], data: bytes) -> SelfT:
        """Read what :meth:`encode` wrote. Raises MalformedMessage."""
        made = cls()
        try:
            plain = msgpack.unpackb(data)
            for peer, epoch, floor, cells in msgspec.convert(plain, _ROWS, builtin_types=(bytes,)):
                actor = Actor(PeerId(peer), epoch)
                if floor:
                    made._floors[actor] = floor
                rows = msgspec.convert(cells, cls._cells_type, builtin_types=(bytes,))
                if rows:
                    made._cells[actor] = {key: Cell(seq, value) for key, seq, value in rows}
                    made._with_removed.add(actor)
        except (msgpack.exceptions.UnpackException, ValueError) as error:
            raise MalformedMessage(f"expected the state of a {cls.__name__}: {error}") from error
        if made.encode() != data:
            raise MalformedMessage(f"the state of a {cls.__name__} is not in canonical form")
        return made

    def statistics(self) -> CellStatistics:
        """Return sizes."""
        cells = [cell for _, _, cell in self._all()]
        removed = sum(cell.value is None for cell in cells)
        return CellStatistics(len(self._floors.keys() | self._cells.keys()), len(cells), removed)

    def of(self, actor: Actor) -> dict[KeyT, ValueT]:
        """Return what one actor says now."""
        cells = self._cells.get(actor, {})
        return {key: cell.value for key, cell in cells.items() if cell.value is not None}

    def _all(self) -> Iterator[tuple[Actor, KeyT, Cell[ValueT]]]:
        for actor, cells in self._cells.items():
            for key, cell in cells.items():
                yield actor, key, cell

    def _present(self) -> Iterator[tuple[Actor, KeyT, ValueT]]:
        for actor, key, cell in self._all():
            if cell.value is not None:
                yield actor, key, cell.value

    @staticmethod
    def _is_further(cell: Cell[ValueT], held: Cell[ValueT]) -> bool:
        """Whether of two cells of one owner the first comes after the second."""
        if cell.sequence != held.sequence:  # nearly always, and an order costs a packing
            return cell.sequence > held.sequence
        return cell.order() > held.order()

    def _take(self, actor: Actor, theirs: dict[KeyT, Cell[ValueT]]) -> set[KeyT]:
        """Join cells in, but for those that our floor says were removed here."""
        floor = self._floors.get(actor, 0)
        mine = self._cells.setdefault(actor, {})
        changed: set[KeyT] = set()
        is_further = self._is_further
        for key, cell in theirs.items():
            held = mine.get(key)
            if held is None:
                if cell.sequence <= floor:
                    continue
            elif not is_further(cell, held):
                continue
            mine[key] = cell
            if cell.value is None:
                self._with_removed.add(actor)
            changed.add(key)
        if not mine:
            del self._cells[actor]
        return changed

    def _drop_removed(
        self, actor: Actor, floor: int, theirs: dict[KeyT, Cell[ValueT]]
    ) -> set[KeyT]:
        """Drop what the other side has seen and no longer has."""
        mine = self._cells.get(actor, {})
        gone = {k for k, cell in mine.items() if cell.sequence <= floor and k not in theirs}
        for key in gone:
            del mine[key]
        if not mine:
            self._cells.pop(actor, None)
        return gone

    def _row(self, actor: Actor) -> list[Any]:
        cells = self._cells.get(actor, {})
        rows = [[key, cell.sequence, _plain(cell.value)] for key, cell in cells.items()]
        rows.sort(key=lambda row: _sortable(row[0]))
        return [actor.peer, actor.epoch, self._floors.get(actor, 0), rows]


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=(bytes,))


_sortable: Callable[[Any], bytes] = msgpack.packb
