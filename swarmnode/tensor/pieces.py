"""How the payload of a group's mean is cut: into the chunks of its codecs, and into pieces.

Views lie one after the other, each cut into codec chunks. A plan cuts all of it again, into as many
pieces as it has contributors: a piece is a run of parts of chunks, whole blocks of their codecs.
All members, and the laboratory, come to the same cut by themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from swarmnode import limits
from swarmnode.tensor.codec import Codec, get_codec
from swarmnode.tensor.layout import chunks

if TYPE_CHECKING:
    from typing_extensions import Buffer

FLOAT32_BYTES = 4
# Pieces end at multiples of this, or of a larger block: shorter ones are less than their header.
_GRAIN_ELEMS = 256


class Shape(Protocol):
    """A view, as a worker posts it or a strategy has it."""

    @property
    def codec(self) -> str:
        """Its name; empty: the swarm's."""

    @property
    def numel(self) -> int:
        """Elements."""

    @property
    def is_scaled(self) -> bool:
        """Whether its values are of the size of weights or less."""


@dataclass(frozen=True)
class Chunk:
    """Elements ``begin`` to ``end`` (exclusive) of a payload, written by one codec.

    ``view`` is the number of the one that it is of, which begins at ``view_begin`` of the payload;
    ``is_scaled`` as in ``ViewShape``.
    """

    codec: Codec
    begin: int
    end: int
    view: int = 0
    view_begin: int = 0
    is_scaled: bool = True

    @property
    def numel(self) -> int:
        """Elements."""
        return self.end - self.begin

    @property
    def grain_elems(self) -> int:
        """Where it may be cut: at multiples of this."""
        return max(self.codec.block_elems, _GRAIN_ELEMS)

    @property
    def n_grains(self) -> int:
        """How many there are of them."""
        return -(-self.numel // self.grain_elems)

    def of(self, vector: memoryview) -> memoryview:
        """Return its bytes of a whole float32 vector."""
        return vector[self.begin * FLOAT32_BYTES : self.end * FLOAT32_BYTES]


@dataclass(frozen=True)
class Part:
    """Elements ``begin`` to ``end`` (exclusive) of chunk ``number``, counted from its begin."""

    number: int
    chunk: Chunk
    begin: int
    end: int

    @property
    def numel(self) -> int:
        """Elements."""
        return self.end - self.begin

    @property
    def codec(self) -> Codec:
        """That of its chunk."""
        return self.chunk.codec

    @property
    def begin_in_view(self) -> int:
        """Where it begins in its view."""
        return self.chunk.begin - self.chunk.view_begin + self.begin

    def of(self, vector: memoryview) -> memoryview:
        """Return its bytes of a whole float32 vector."""
        return self.chunk.of(vector)[self.begin * FLOAT32_BYTES : self.end * FLOAT32_BYTES]


Piece = tuple[Part, ...]


def cut_chunks(views: Sequence[Shape], codec_name: str) -> tuple[Chunk, ...]:
    """Return the chunks of all views in order; ``codec_name`` is the swarm's.

    Raises ConfigError: a view names no codec.
    """
    found, offset = [], 0
    for number, view in enumerate(views):
        codec = get_codec(view.codec or codec_name)
        for begin, end in chunks(view.numel, limits.CODEC_CHUNK_ELEMS):
            at = offset + begin
            found.append(Chunk(codec, at, offset + end, number, offset, view.is_scaled))
        offset += view.numel
    return tuple(found)


def count_grains(made: Sequence[Chunk]) -> int:
    """Return into how many pieces the chunks can be cut at most."""
    return sum(chunk.n_grains for chunk in made)


def cut_pieces(made: Sequence[Chunk], n_pieces: int) -> tuple[Piece, ...]:
    """Return runs of as nearly the same number of grains as can be.

    ``n_pieces``: 1 to :func:`count_grains`.
    """
    total = count_grains(made)
    ends = [total * number // n_pieces for number in range(1, n_pieces + 1)]
    pieces: list[list[Part]] = [[] for _ in ends]
    number, before = 0, 0  # the piece, and the grains of the chunks so far
    for index, chunk in enumerate(made):
        begin = 0
        while begin < chunk.numel:
            end = min((ends[number] - before) * chunk.grain_elems, chunk.numel)
            if end > begin:
                pieces[number].append(Part(index, chunk, begin, end))
                begin = end
            if begin < chunk.numel:
                number += 1
        before += chunk.n_grains
    return tuple(map(tuple, pieces))


def hash_payload(payload: Iterable[Buffer]) -> bytes:
    """Return the SHA-256 over the parts of a payload in order. Lets go of the GIL."""
    digest = hashlib.sha256()
    for part in payload:
        digest.update(part)
    return digest.digest()


def by_view(piece: Piece) -> Mapping[int, list[Part]]:
    """Return the parts of each view in a piece, in order: they lie one after the other."""
    found: dict[int, list[Part]] = {}
    for part in piece:
        found.setdefault(part.chunk.view, []).append(part)
    return found
