"""A payload of a group mean whose pieces are made by a rule that stands up to hostile members.

Each piece is made by two members, see ``protocol/gossip/witnesses.py``. Where two candidates come
of the rule, the worker of the member that makes a piece tries both on the public probe, and a
worker that does not answer in time leaves it at the last one.

Views are looked at one by one: their values have nothing to do with each other. The work is done in
a thread, a slice of all shares at a time: a rule over twenty members takes twenty times as long as
their mean. It imports numpy, which an idle daemon spares: import it where a mean is due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from swarmnode import limits
from swarmnode.daemon.collective.payload import (
    Chunk,
    GroupEnded,
    GroupPayload,
    Part,
    Piece,
    by_view,
)
from swarmnode.daemon.collective.runs import Payload
from swarmnode.daemon.worker.leases import BufferLease, ComparingLessor
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.protocol.gossip import group_events as events
from swarmnode.strategies.merging.mixing import Rows
from swarmnode.strategies.merging.rules import RULES, candidates

# Of GROUP_MEMBERS_MAX shares it takes 16 MiB; a multiple of the blocks of all codecs.
_SLICE_ELEMS = 65_536


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
        match self._lease:
            case BufferLease() as lease if plan == self._plan and not self._is_assembling:
                values = [memoryview(each).cast("B") for each in found]
                with trio.move_on_after(limits.EXCHANGE_VIEW_S):  # it answers between two steps
                    return await self._comparing.compare(lease, parts[0].begin_in_view, values)
        return len(found) - 1


def reduce_parts(
    rule: str,
    parts: Sequence[Part],
    shares: Sequence[Payload],
    weights: Sequence[float],
    own: int,
) -> tuple[Rows, ...]:
    """Return what a rule makes of parts of one view: one candidate or two, float32 [elements].

    Args:
        shares: of each member the payloads of the parts; they have been decoded before.
        weights: of each member, above 0.
        own: the number of this node among the members.
    """
    return candidates(RULES[rule], partial(_slices, parts, shares), weights, own=own)


def encode_parts(parts: Sequence[Part], values: Rows) -> list[bytearray]:
    """Return the payload of each part of what :func:`reduce_parts` gave."""
    payloads, begin = [], 0
    for part in parts:
        payload = bytearray(part.codec.payload_bytes(part.numel))
        part.codec.encode(np.ascontiguousarray(values[begin : begin + part.numel]).data, payload)
        payloads.append(payload)
        begin += part.numel
    return payloads


def hashes_of(
    rule: str, piece: Piece, shares: Sequence[Payload], weights: Sequence[float], own: int
) -> list[bytes]:
    """Return the SHA-256 over the payloads of a piece, for each candidate of its first view."""
    first: list[list[bytearray]] = [[]]
    others: list[bytearray] = []
    begin = 0
    for view, parts in by_view(piece).items():
        of_view = [share[begin : begin + len(parts)] for share in shares]
        found = reduce_parts(rule, parts, of_view, weights, own)
        if view == 0:
            first = [encode_parts(parts, each) for each in found]
        else:
            others += encode_parts(parts, found[-1])
        begin += len(parts)
    return [hashlib.sha256(b"".join([*each, *others])).digest() for each in first]


def _slices(parts: Sequence[Part], shares: Sequence[Payload]) -> Iterator[NDArray[np.float32]]:
    for number, part in enumerate(parts):
        for begin in range(0, part.numel, _SLICE_ELEMS):
            end = min(begin + _SLICE_ELEMS, part.numel)
            rows = np.empty((len(shares), end - begin), np.float32)
            for row, share in zip(rows, shares, strict=True):
                part.codec.decode(part.codec.part(share[number], begin, end), row.data)
            yield rows
