"""A part of a group's mean by a rule that stands up to hostile members; see strategies/merging.

Views are looked at one by one: their values have nothing to do with each other. The work is done in
a thread, a slice of all shares at a time: a rule over twenty members takes twenty times as long as
their mean. It imports numpy, which an idle daemon spares: import it where a mean is due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swarmnode.daemon.collective.pieces import Part, Piece, by_view
from swarmnode.daemon.collective.runs import Payload
from swarmnode.strategies.merging.mixing import Rows
from swarmnode.strategies.merging.rules import RULES, candidates

# Of GROUP_MEMBERS_MAX shares it takes 16 MiB; a multiple of the blocks of all codecs.
_SLICE_ELEMS = 65_536


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
