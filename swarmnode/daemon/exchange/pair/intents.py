"""An intent to meet in a pair: how it waits, how it is cut, and which peers it is offered to.

Of the worker's intents that wait, and of its answers, there is one for a tag and fragment. How
their views are cut into chunks both sides of an exchange know without a word. The peers that an
intent is offered to:

MATCHING: the partner that the round's matching gives, then the next in its order. NEIGHBOUR:
any member, at random. On a graph only neighbours, at random by the rates of their edges.

Partners on expensive ways, through a relay or WebRTC, are drawn as much more rarely, and come last
where the matching's own partner has no time. Both sides know the way, so the graph of all meetings
stays symmetric; and a node that has no other way still meets all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarmnode import limits
from swarmnode.daemon.membership.swarm import Partners
from swarmnode.env import Env
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.records import ViewShape
from swarmnode.limits import CODEC_CHUNK_ELEMS
from swarmnode.net.paths import cost_of
from swarmnode.protocol.gossip import events, matching
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.tensor.codec import Codec, get_codec
from swarmnode.tensor.layout import chunks

if TYPE_CHECKING:
    from swarmnode.strategies.topology import Graph


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

    @property
    def value_bytes(self) -> int:
        """Of each number in the slot."""
        return self.codec.value_bytes


def view_codec(view: ViewShape, usual: Codec) -> Codec:
    """Return the codec of a view. Raises ConfigError: there is none of this name."""
    return get_codec(view.codec) if view.codec else usual


def pair_codecs(intent: PostedIntent, usual: Codec) -> tuple[Codec, ...]:
    """Return the codec of each view that two partners send each other.

    Raises:
        ConfigError: there is none of this name, or it needs error feedback: what its payload
            leaves out would have to reach the same partner with the next one; or it is of
            numbers of another width than the model's.
    """
    codecs = tuple(view_codec(view, usual) for view in intent.views)
    for codec in codecs:
        if codec.needs_error_feedback:
            raise ConfigError(
                f"codec {codec.name} does not stand alone, so random partners cannot use it:"
                " choose RAW32, BF16, Q8B64, Q4B64, E3M0, Q2B64 or T3B320"
            )
    for view, codec in zip(intent.views, codecs, strict=True):
        if codec.value_bytes != view.value_bytes:
            raise ConfigError(
                f"expected a codec of float{8 * view.value_bytes}, as the model is, got"
                f" {codec.name}, which is of float{8 * codec.value_bytes}"
            )
    return codecs


def cut(intent: PostedIntent, codecs: Iterable[Codec]) -> tuple[Piece, ...]:
    """Return the chunks of all views, each view cut on its own.

    Args:
        codecs: one for each view.
    """
    pieces, start = [], 0
    for number, (view, codec) in enumerate(zip(intent.views, codecs, strict=True)):
        for begin, end in chunks(view.numel):
            pieces.append(Piece(start + begin, start + end, codec, number, view.is_scaled))
        start += view.numel
    return tuple(pieces)


def count_pieces(intent: PostedIntent) -> int:
    """Return how many chunks :func:`cut` would make."""
    return sum(-(-view.numel // CODEC_CHUNK_ELEMS) for view in intent.views)


class PairIntents:
    """See the module. Each intent is to be tried once.

    Args:
        codec: of views that name none.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._all: dict[int, PostedIntent] = {}
        self._untried: dict[int, None] = {}  # of the intents, oldest first
        # The last one of each topic, which may have been replaced since.
        self._offered: dict[events.Topic, PostedIntent] = {}

    def refusal(self, intent: PostedIntent) -> str:
        """Return why no pair can serve an intent, or nothing."""
        others = sum(_place(other) != _place(intent) for other in self._all.values())
        if others >= limits.INTENTS_MAX:
            return f"local: {others} intents wait already"
        if not 0 < count_pieces(intent) <= limits.EXCHANGE_CHUNKS_MAX:
            return f"local: expected 1 to {limits.EXCHANGE_CHUNKS_MAX} chunks, got {intent.numel:,}"
        try:
            pair_codecs(intent, self._codec)
        except ConfigError as error:
            return f"local: {error}"
        return ""

    def add(self, intent: PostedIntent) -> None:
        """Keep an intent in place of the one before."""
        for number, other in list(self._all.items()):
            if _place(other) == _place(intent):
                self.remove(number)
        self._all[intent.number] = intent
        if not intent.is_open:
            self._untried[intent.number] = None

    def is_kept(self, number: int) -> bool:
        """Whether what has this number is still there."""
        return number in self._all

    def find(self, number: int) -> PostedIntent:
        """Return what is there, or was offered last, although another has taken its place."""
        if number in self._all:
            return self._all[number]
        return next(intent for intent in self._offered.values() if intent.number == number)

    def remove(self, number: int) -> None:
        """Forget an intent: it is used up, or given up."""
        del self._all[number]
        self._untried.pop(number, None)

    def take_all(self) -> list[PostedIntent]:
        """Forget everything; return the intents among it."""
        intents = [intent for intent in self._all.values() if not intent.is_open]
        self._all.clear()
        self._untried.clear()
        return intents

    def untried(self) -> Iterator[PostedIntent]:
        """Give the intents that were not offered yet, oldest first; each may go meanwhile."""
        for number in list(self._untried):
            yield self._all[number]

    def note_tried(self, intent: PostedIntent) -> None:
        """It is offered now."""
        del self._untried[intent.number]
        self._offered[intent.tag, intent.fragment] = intent

    def pieces(self, intent: PostedIntent) -> tuple[Piece, ...]:
        """Return the chunks of what is sent for an intent that was not refused."""
        return cut(intent, pair_codecs(intent, self._codec))

    def payload_bytes(self, intent: PostedIntent) -> int:
        """Return how much that is on the wire."""
        codecs = pair_codecs(intent, self._codec)
        sizes = zip(intent.views, codecs, strict=True)
        return sum(codec.payload_bytes(view.numel) for view, codec in sizes)


def _place(intent: PostedIntent) -> tuple[str, int, bool]:
    """What an intent has in common with the one that it takes the place of."""
    return intent.tag, intent.fragment, intent.is_open


def for_core(intent: PostedIntent, payload_bytes: int) -> events.PairIntent:
    """Return what the core is to know of an intent, which takes so many bytes on the wire."""
    n_chunks = count_pieces(intent)
    return events.PairIntent(
        number=intent.number,
        tag=intent.tag,
        fragment=intent.fragment,
        round=intent.round,
        n_chunks=n_chunks,
        step=intent.step,
        tokens=intent.tokens,
        weight=intent.weight,
        base_version=intent.base_version,
        round_skew_max=intent.round_skew_max,
        is_open=intent.is_open,
        adds_up=intent.adds_up,
        chunk_s=payload_bytes / n_chunks / limits.EXCHANGE_SLOW_BYTES_PER_S,
    )


_ALL_PAIRS = ("matching", "complete")  # graphs without which the same partners are found


def costs(partners: Partners) -> dict[PeerId, float]:
    """Return the peers with a session that has a channel just now, and what its way costs."""
    return {
        peer: cost_of(session.channel_description)
        for peer, session in partners.sessions.items()
        if not session.is_suspended
    }


class PartnerChoice:
    """Chooses among the peers that a session leads to, those first that let no exchange stall.

    Args:
        topology: the graph over the members that the manifest names; empty: all pairs meet.
        conduct: what is known of how they behave.
    """

    def __init__(
        self, self_id: PeerId, swarm_id: bytes, topology: str, conduct: ConductTable, env: Env
    ) -> None:
        self._self_id = self_id
        self._swarm_id = swarm_id
        self._topology = "" if topology in _ALL_PAIRS else topology
        self._env = env
        self._conduct = conduct
        self._graph: Graph | None = None
        self._graph_of = 0  # how many members it was made for

    def among(
        self, intent: PostedIntent, partners: Partners
    ) -> tuple[tuple[PeerId, ...], dict[PeerId, float]]:
        """Return the members that may be met, and the peers with a session and its way's cost.

        Who rests meets none, but keeps its place in a graph, or each pause would move all others.
        """
        if self._topology or intent.selector == "neighbour":
            return partners.partners(), costs(partners)
        return tuple(sorted({*partners.active(), self._self_id})), costs(partners)

    def candidates(
        self, intent: PostedIntent, members: Sequence[PeerId], reachable: Mapping[PeerId, float]
    ) -> tuple[PeerId, ...]:
        """Return the peers to offer to, the best first.

        Args:
            members: of :meth:`among`, ourselves included, in ascending order.
            reachable: of the same.
        """
        graph = self._graph_over(len(members))
        for allowed in self._by_conduct(intent, reachable):
            if intent.selector == "neighbour":
                found = self._by_rate(graph, members, allowed)
            else:
                found = [peer for peer in self._by_round(intent, graph, members) if peer in allowed]
                found[1:] = sorted(found[1:], key=lambda peer: reachable[peer])
            if found:
                return tuple(found[: limits.EXCHANGE_CANDIDATES_MAX])
        return ()

    def sought(
        self, intent: PostedIntent, members: Sequence[PeerId], reachable: Mapping[PeerId, float]
    ) -> tuple[PeerId, ...]:
        """Return the partners of the round that no session leads to yet, at most SOUGHT_MAX."""
        if all(peer in reachable or peer == self._self_id for peer in members):
            return ()
        ordered = self._by_round(intent, self._graph_over(len(members)), members)
        missing = [peer for peer in ordered[: limits.SOUGHT_MAX] if peer not in reachable]
        return tuple(missing)

    def _by_conduct(
        self, intent: PostedIntent, reachable: Mapping[PeerId, float]
    ) -> Iterator[Mapping[PeerId, float]]:
        """Yield the peers to ask, then those to ask where there is none of the former.

        While one that says nothing is asked, others that offer find us busy. One that is trusted
        less has its turn in some rounds.
        """
        now, conduct = self._env.monotonic(), self._conduct
        quick = {
            peer: cost for peer, cost in reachable.items() if not conduct.is_avoided(peer, now)
        }
        number = intent.round
        yield {p: cost for p, cost in quick.items() if conduct.is_admitted(p, number, now)}
        yield quick
        yield reachable

    def _graph_over(self, n_members: int) -> Graph | None:
        if self._topology and self._graph_of != n_members:
            # numpy comes with it, which no node needs that meets all others.
            from swarmnode.strategies.topology import graph_over

            self._graph, self._graph_of = graph_over(self._topology, n_members), n_members
        return self._graph

    def _by_round(
        self, intent: PostedIntent, graph: Graph | None, members: Sequence[PeerId]
    ) -> tuple[PeerId, ...]:
        salt = matching.salt(self._swarm_id, intent.tag, intent.fragment)
        if graph is None:
            return matching.candidates(
                self._self_id, salt, intent.round, members, limit=len(members)
            )
        edges = ((members[i], members[j]) for i, j in graph.edges)
        return matching.candidates_on_graph(self._self_id, salt, intent.round, edges)

    def _by_rate(
        self, graph: Graph | None, members: Sequence[PeerId], reachable: Mapping[PeerId, float]
    ) -> list[PeerId]:
        if graph is None:
            rates = dict.fromkeys(members, 1.0)
        else:
            neighbours = graph.neighbours(members.index(self._self_id))
            rates = {members[rank]: rate for rank, rate in neighbours.items()}
        rates = {
            peer: rate / reachable[peer]
            for peer, rate in rates.items()
            if peer != self._self_id and peer in reachable
        }
        return _draw(self._env.rng, rates, limits.EXCHANGE_CANDIDATES_MAX)


def _draw(rng: random.Random, rates: Mapping[PeerId, float], count: int) -> list[PeerId]:
    """Draw ``count`` of them one after the other, each by its share of what is left."""
    left = dict(rates)
    drawn: list[PeerId] = []
    while left and len(drawn) < count:
        (peer,) = rng.choices(list(left), list(left.values()))
        drawn.append(peer)
        del left[peer]
    return drawn
