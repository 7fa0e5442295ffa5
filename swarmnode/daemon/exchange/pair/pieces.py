"""How the views of a wish are cut into chunks: both sides of an exchange know it without a word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarmnode.errors import ConfigError
from swarmnode.ipc.control import ViewShape, Wish
from swarmnode.limits import CODEC_CHUNK_ELEMS
from swarmnode.tensor.codec import Codec, get_codec
from swarmnode.tensor.layout import chunks


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk: elements ``begin`` to ``end`` (exclusive) of the views, one after the other.

    ``view`` is the number of the one that it is of, ``is_scaled`` as in ``ViewShape``.
    """

    begin: int
    end: int
    codec: Codec
    view: int = 0
    is_scaled: bool = True

    @property
    def payload_bytes(self) -> int:
        """What it takes on the wire."""
        return self.codec.payload_bytes(self.end - self.begin)


def view_codec(view: ViewShape, usual: Codec) -> Codec:
    """Return the codec of a view. Raises ConfigError: there is none of this name."""
    return get_codec(view.codec) if view.codec else usual


def pair_codecs(wish: Wish, usual: Codec) -> tuple[Codec, ...]:
    """Return the codec of each view that two partners send each other.

    Raises:
        ConfigError: there is none of this name, or it needs error feedback: what its payload
            leaves out would have to reach the same partner with the next one.
    """
    codecs = tuple(view_codec(view, usual) for view in wish.views)
    for codec in codecs:
        if codec.needs_error_feedback:
            raise ConfigError(
                f"codec {codec.name} does not stand alone, so random partners cannot use it:"
                " choose RAW32, BF16, Q8B64, Q4B64 or E3M0"
            )
    return codecs


def cut(wish: Wish, codecs: Iterable[Codec]) -> tuple[Piece, ...]:
    """Return the chunks of all views, each view cut on its own.

    Args:
        codecs: one for each view.
    """
    pieces, start = [], 0
    for number, (view, codec) in enumerate(zip(wish.views, codecs, strict=True)):
        for begin, end in chunks(view.numel):
            pieces.append(Piece(start + begin, start + end, codec, number, view.is_scaled))
        start += view.numel
    return tuple(pieces)


def count_pieces(wish: Wish) -> int:
    """Return how many chunks :func:`cut` would make."""
    return sum(-(-view.numel // CODEC_CHUNK_ELEMS) for view in wish.views)
