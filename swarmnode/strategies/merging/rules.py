"""The rules by the names that settings have for them, and what comes of payloads by them.

A rule is one module, with a function of its name. It is imported when a swarm has it: a node loads
the rule of its own swarm alone. This one imports numpy, which an idle daemon spares: import it
where a mean is due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from swarmnode.tensor.codec import Codec
from swarmnode.tensor.pieces import Part, Piece, by_view

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from swarmnode.strategies.merging.mixing import MixRule, Rows

    Parts = Callable[[], Iterator[Rows]]

# Of GROUP_MEMBERS_MAX shares it takes 15 MiB; a multiple of the blocks of all codecs, 320 and 4096.
_SLICE_ELEMS = 61_440
_ELSEWHERE = {"mean": "mixing", "nnm-trimmed": "nnm"}  # modules of another name than the rule's

Encoded = Sequence["Buffer"]  # payloads, one for each part


def find_rule(name: str) -> MixRule:
    """Return the rule that a setting names; settings have been checked before."""
    module = _ELSEWHERE.get(name, name).replace("-", "_")
    package = __name__.rpartition(".")[0]
    found: MixRule = getattr(import_module(f"{package}.{module}"), name.replace("-", "_"))
    return found


def candidates(
    rule: MixRule, parts: Parts, weights: Sequence[float], *, own: int = 0, seed: str = ""
) -> tuple[Rows, ...]:
    """Return what a rule makes of vectors: one or two, [numel] in the type of the parts.

    Args:
        parts: yields the vectors part by part, [n, m] each, and anew each time.
        weights: of each vector in a mean, above 0.
        own: the number of the vector that is this node's.
        seed: the same for all who make the same.

    Cost: the parts are gone through twice. Memory: a part, and what comes out.
    """
    # The plain mean of a group does without (WeightedMean).
    from swarmnode.strategies.merging.mixing import Measured, Round

    measured = Measured(len(weights))
    for part in parts():
        measured.add(part)
    mixes = rule(Round(measured.gram(), tuple(weights), own, seed))
    mixed = [[mix.of(part) for mix in mixes] for part in parts()]
    return tuple(np.concatenate(each) for each in zip(*mixed, strict=True))


def reduce_parts(
    rule: str,
    parts: Sequence[Part],
    shares: Sequence[Encoded],
    weights: Sequence[float],
    own: int,
) -> tuple[Rows, ...]:
    """Return what a rule makes of parts of one view: one candidate or two, float32 [elements].

    Args:
        shares: of each member the payloads of the parts; they have been decoded before.
        weights: of each member, above 0.
        own: the number of this node among the members.
    """
    return candidates(find_rule(rule), partial(_slices, parts, shares), weights, own=own)


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
    rule: str, piece: Piece, shares: Sequence[Encoded], weights: Sequence[float], own: int
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


def _slices(parts: Sequence[Part], shares: Sequence[Encoded]) -> Iterator[Rows]:
    for number, part in enumerate(parts):
        for begin in range(0, part.numel, _SLICE_ELEMS):
            end = min(begin + _SLICE_ELEMS, part.numel)
            rows = np.empty((len(shares), end - begin), np.float32)
            for row, share in zip(rows, shares, strict=True):
                part.codec.decode(part.codec.part(share[number], begin, end), row.data)
            yield rows


class WeightedMean:
    """Sums payloads of ``n_elems`` elements in the order in which they are added.

    The same payloads and weights in the same order give the same bits on every machine: each
    element takes one product and one sum in float64, then one division and one rounding to float32,
    which the codec encodes.
    """

    def __init__(self, codec: Codec, n_elems: int) -> None:
        self._codec = codec
        self._sum = np.zeros(n_elems, np.float64)
        self._values = np.empty(n_elems, np.float32)
        self._term = np.empty(n_elems, np.float64)
        self._weight = 0.0

    def add(self, payload: Buffer, weight: float) -> None:
        """Add one payload. ``weight``: above 0. Raises MalformedMessage: it breaks a rule."""
        self._codec.decode(payload, self._values.data)
        np.multiply(self._values, weight, out=self._term, dtype=np.float64)
        self._sum += self._term
        self._weight += weight

    def result(self) -> bytearray:
        """Return the mean as a payload of the codec."""
        np.divide(self._sum, self._weight, out=self._sum)
        self._values[:] = self._sum
        payload = bytearray(self._codec.payload_bytes(self._values.size))
        self._codec.encode(self._values.data, payload)
        return payload
