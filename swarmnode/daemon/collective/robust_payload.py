"""A payload of a group mean whose pieces are made by a rule that stands up to hostile members.

Each piece is made by two members, see ``protocol/gossip/witnesses.py``. Where two candidates come
of the rule, the worker of the member that makes a piece tries both on the public probe, and a
worker that does not answer in time leaves it at the last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from swarmnode import limits
from swarmnode.daemon.collective.payload import GroupEnded, GroupPayload
from swarmnode.daemon.collective.pieces import Chunk, Part, Piece, by_view
from swarmnode.daemon.collective.runs import Payload
from swarmnode.daemon.worker.leases import ComparingLessor
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.protocol.gossip import group_events as events

if TYPE_CHECKING:
    from swarmnode.strategies.merging.mixing import Rows


def _hashes(sums: Sequence[Payload]) -> list[bytes]:
    return [hashlib.sha256(b"".join(map(memoryview, each))).digest() for each in sums]


class RobustPayload(GroupPayload):
    """The cargo of one run whose intent names a rule. ``in_thread``: as that of ``Env``."""

    def __init__(
        self,
        intent: PostedIntent,
        chunks: tuple[Chunk, ...],
        lessor: ComparingLessor,
        self_id: PeerId,
        ended: GroupEnded,
        refused: Callable[[], None],
        *,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        super().__init__(intent, chunks, lessor, self_id, ended, refused)
        self._comparing = lessor
        self._in_thread = in_thread

    async def _mean_of(
        self,
        plan: bytes,
        piece: Piece,
        shares: Sequence[Payload],
        weights: Sequence[float],
        own: int,
    ) -> Payload:
        # numpy: 25 MB that an idle daemon saves
        from swarmnode.daemon.collective.reduction import encode_parts, reduce_parts

        rule = self._intent.merge
        made: list[bytearray] = []
        for view, parts in by_view(piece).items():
            begin = len(made)  # parts of a view lie one after the other
            of_view = [share[begin : begin + len(parts)] for share in shares]
            found = await self._in_thread(reduce_parts, rule, parts, of_view, weights, own)
            best = len(found) - 1
            if best and view == 0:
                best = await self._compare(plan, parts, found)
            made += await self._in_thread(encode_parts, parts, found[best])
        return made

    async def witness(self, effect: events.Witness) -> tuple[bytes, ...]:
        """Make a piece of another member, each candidate for it; return their hashes."""
        from swarmnode.daemon.collective.reduction import hashes_of  # as above

        shares = self._shares_of(effect.piece, effect.contributors)
        maker = effect.contributors.index(effect.maker)
        piece, rule = self._pieces[effect.piece], self._intent.merge
        found = await self._in_thread(hashes_of, rule, piece, shares, effect.weights, maker)
        return tuple(found)

    async def hashes(self) -> tuple[bytes, ...]:
        """Return the SHA-256 over the payload of each sum, as witnesses make it."""
        sums = [self._sums[number] for number in range(len(self._pieces))]
        return tuple(await self._in_thread(_hashes, sums))

    async def _compare(self, plan: bytes, parts: Sequence[Part], found: Sequence[Rows]) -> int:
        """Return which of two candidates the worker prefers; the last where it cannot say.

        They travel in the lease's room, unless that is filled with the mean already.
        """
        if self._lease is not None and plan == self._plan and not self._is_assembling:
            values = [memoryview(each).cast("B") for each in found]
            with trio.move_on_after(limits.EXCHANGE_VIEW_S):  # it answers between two steps
                return await self._comparing.compare(self._lease, parts[0].begin_in_view, values)
        return len(found) - 1
