"""The worker's wishes for a pair that wait, and its answers: one of each for a tag and fragment."""

from __future__ import annotations

from collections.abc import Iterator

from swarmnode import limits
from swarmnode.daemon.exchange.pair.pieces import Piece, count_pieces, cut, pair_codecs
from swarmnode.errors import ConfigError
from swarmnode.ipc.control import Wish
from swarmnode.protocol.gossip import events
from swarmnode.tensor.codec import Codec


class PairWishes:
    """See the module. Each wish is to be tried once.

    Args:
        codec: of views that name none.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._all: dict[int, Wish] = {}
        self._untried: dict[int, None] = {}  # of the wishes, oldest first

    def refusal(self, wish: Wish) -> str:
        """Return why no pair can serve a wish, or nothing."""
        others = sum(_place(other) != _place(wish) for other in self._all.values())
        if others >= limits.WISHES_MAX:
            return f"local: {others} wishes wait already"
        if not 0 < count_pieces(wish) <= limits.EXCHANGE_CHUNKS_MAX:
            return f"local: expected 1 to {limits.EXCHANGE_CHUNKS_MAX} chunks, got {wish.numel:,}"
        try:
            pair_codecs(wish, self._codec)
        except ConfigError as error:
            return f"local: {error}"
        return ""

    def add(self, wish: Wish) -> None:
        """Keep a wish in place of the one before."""
        for number, other in list(self._all.items()):
            if _place(other) == _place(wish):
                self.remove(number)
        self._all[wish.number] = wish
        if not wish.is_open:
            self._untried[wish.number] = None

    def get(self, number: int) -> Wish | None:
        """Return what has this number and is still there."""
        return self._all.get(number)

    def remove(self, number: int) -> None:
        """Forget a wish: it is used up, or given up."""
        del self._all[number]
        self._untried.pop(number, None)

    def take_all(self) -> list[Wish]:
        """Forget everything; return the wishes among it."""
        wishes = [wish for wish in self._all.values() if not wish.is_open]
        self._all.clear()
        self._untried.clear()
        return wishes

    def untried(self) -> Iterator[Wish]:
        """Give the wishes that were not offered yet, oldest first; each may go meanwhile."""
        for number in list(self._untried):
            yield self._all[number]

    def note_tried(self, wish: Wish) -> None:
        """It is offered now."""
        del self._untried[wish.number]

    def pieces(self, wish: Wish) -> tuple[Piece, ...]:
        """Return the chunks of what is sent for a wish that was not refused."""
        return cut(wish, pair_codecs(wish, self._codec))

    def payload_bytes(self, wish: Wish) -> int:
        """Return how much that is on the wire."""
        codecs = pair_codecs(wish, self._codec)
        sizes = zip(wish.views, codecs, strict=True)
        return sum(codec.payload_bytes(view.numel) for view, codec in sizes)


def _place(wish: Wish) -> tuple[str, int, bool]:
    """What a wish has in common with the one that it takes the place of."""
    return wish.tag, wish.fragment, wish.is_open


def for_core(wish: Wish) -> events.Wish:
    """Return what the core is to know of a wish."""
    return events.Wish(
        number=wish.number,
        tag=wish.tag,
        fragment=wish.fragment,
        round=wish.round,
        n_chunks=count_pieces(wish),
        step=wish.step,
        tokens=wish.tokens,
        weight=wish.weight,
        base_version=wish.base_version,
        round_skew_max=wish.round_skew_max,
        is_open=wish.is_open,
    )
