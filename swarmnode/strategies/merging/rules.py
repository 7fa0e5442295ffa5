"""The rules by the names that settings have for them, and what comes of payloads by them.

A rule is one module, with a function of its name. It is imported when a swarm has it: a node loads
the rule of its own swarm alone. This one imports numpy, which an idle daemon spares, and the plain
mean of a group does without: import it where a rule is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from swarmnode import limits
from swarmnode.strategies.merging.mixing import Measured, Round
from swarmnode.tensor.pieces import Part, Piece, by_view, hash_payload

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from swarmnode.strategies.merging.mixing import Mix, MixRule, Rows

    Parts = Callable[[], Iterator[Rows]]

# Of GROUP_MEMBERS_MAX shares it takes 15 MiB; a multiple of the blocks of all codecs, 320 and 4096.
_SLICE_ELEMS = 61_440
OUTSIZED = 100.0  # as pairs refuse a vector beside one's own (tensor/magnitude.py)
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
    measured = Measured(len(weights))
    for part in parts():
        measured.add(part)
    mixes = rule(Round(measured.gram(), tuple(weights), own, seed))
    mixed = [[mix.of(part) for mix in mixes] for part in parts()]
    return tuple(np.concatenate(each) for each in zip(*mixed, strict=True))


def find_mixes(
    rule: str,
    parts: Sequence[Part],
    shares: Sequence[Encoded],
    weights: Sequence[float],
    own: int,
) -> tuple[Mix, ...]:
    """Return what a rule makes of parts of one view: one candidate or two.

    Args:
        shares: of each member the payloads of the parts; they have been checked before.
        weights: of each member, above 0.
        own: the number of this node among the members.
    """
    measured = Measured(len(weights))
    for number, part in enumerate(parts):
        measured.add_payloads(part.codec, [share[number] for share in shares], part.numel)
    return without_outsized(find_rule(rule), Round(measured.gram(), tuple(weights), own))


def without_outsized(rule: MixRule, about: Round) -> tuple[Mix, ...]:
    """Return what a rule makes of the vectors that are no longer than most could be.

    A vector OUTSIZED times as long as the median is no update: clipped, it would still pull in its
    own direction, round after round. All who make the same part leave out the same ones, as it is
    the vectors themselves that say so, and not what each of them has learnt.
    """
    norms = about.norms
    kept = np.flatnonzero(norms <= OUTSIZED * np.sort(norms)[(len(norms) - 1) // 2])
    if about.n < limits.GROUP_TELLS_FROM or len(kept) == about.n:
        return rule(about)
    weights = tuple(about.weights[number] for number in kept)
    own = int(np.searchsorted(kept, about.own)) % len(kept)  # of a liar itself: any
    mixes = rule(Round(about.gram[np.ix_(kept, kept)], weights, own, about.seed))
    found = []
    for mix in mixes:
        coefficients = np.zeros((len(mix.coefficients), about.n))
        coefficients[:, kept] = mix.coefficients
        found.append(replace(mix, coefficients=coefficients))
    return tuple(found)


def mixed_values(mix: Mix, parts: Sequence[Part], shares: Sequence[Encoded]) -> Rows:
    """Return a candidate for parts of one view: float32 [elements]."""
    return np.concatenate([mix.of(rows) for rows in _slices(parts, shares)])


def encode_parts(mix: Mix, parts: Sequence[Part], shares: Sequence[Encoded]) -> list[bytearray]:
    """Return the payload of each part of a candidate."""
    payloads = []
    for number, part in enumerate(parts):
        payload = bytearray(part.codec.payload_bytes(part.numel))
        of_part = [share[number] for share in shares]
        if mix.is_weighted_mean:
            weights, divisor = mix.coefficients[0].tolist(), mix.divisors[0]
            part.codec.encode_mean(of_part, weights, divisor, payload, part.numel)
        else:
            values = mixed_values(mix, [part], [[each] for each in of_part])
            part.codec.encode(values.data, payload)
        payloads.append(payload)
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
        mixes = find_mixes(rule, parts, of_view, weights, own)
        if view == 0:
            first = [encode_parts(mix, parts, of_view) for mix in mixes]
        else:
            others += encode_parts(mixes[-1], parts, of_view)
        begin += len(parts)
    return [hash_payload([*each, *others]) for each in first]


def _slices(parts: Sequence[Part], shares: Sequence[Encoded]) -> Iterator[Rows]:
    for number, part in enumerate(parts):
        for begin in range(0, part.numel, _SLICE_ELEMS):
            end = min(begin + _SLICE_ELEMS, part.numel)
            rows = np.empty((len(shares), end - begin), np.float32)
            for row, share in zip(rows, shares, strict=True):
                part.codec.decode(part.codec.part(share[number], begin, end), row.data)
            yield rows
