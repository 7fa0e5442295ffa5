"""The vector that one node brings to a group mean, in pieces; see ``proto/group.md``.

Views lie one after the other, each cut into codec chunks. A plan cuts all of it again, into as many
pieces as it has contributors: a piece is a run of parts of chunks, whole blocks of their codecs.
Held in memory: the own payload encoded, the shares of others for the piece that is made here, and
the sums of one plan. Sums travel in the codec of their view too, and all members decode them, also
the one that makes a sum, so that all hold the same bits. The mean is made in the lease's room.

Codec calls run inline, a chunk at a time: each takes well under a millisecond.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from swarmnode import limits
from swarmnode.daemon.collective.runs import Payload
from swarmnode.daemon.worker.leases import BufferLease, Lessor
from swarmnode.errors import MalformedMessage, Refused, WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.tensor.codec import Codec, get_codec
from swarmnode.tensor.layout import chunks
from swarmnode.tensor.magnitude import UNKNOWN, Sizes
from swarmnode.wire.exchange import group as wire

FLOAT32_BYTES = 4
# Pieces end at multiples of this, or of a larger block: shorter ones are less than their header.
_GRAIN_ELEMS = 256


@dataclass(frozen=True)
class Chunk:
    """Elements ``begin`` to ``end`` (exclusive) of a payload, written by one codec.

    ``view`` is the number of the one that it is of, ``is_scaled`` as in ``ViewShape``.
    """

    codec: Codec
    begin: int
    end: int
    view: int = 0
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

    def of(self, vector: memoryview) -> memoryview:
        """Return its bytes of a whole float32 vector."""
        return self.chunk.of(vector)[self.begin * FLOAT32_BYTES : self.end * FLOAT32_BYTES]


Piece = tuple[Part, ...]


def cut_chunks(intent: PostedIntent, codec_name: str) -> tuple[Chunk, ...]:
    """Return the chunks of all views in order; ``codec_name`` is the swarm's.

    Raises ConfigError: a view names no codec.
    """
    found, offset = [], 0
    for number, view in enumerate(intent.views):
        codec = get_codec(view.codec or codec_name)
        for begin, end in chunks(view.numel, limits.CODEC_CHUNK_ELEMS):
            found.append(Chunk(codec, offset + begin, offset + end, number, view.is_scaled))
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


class GroupPayload:
    """The cargo of one run; see ``runs.py``.

    Args:
        ended: told of the lease, or that there was none, once all is over.
        refused: told of each share or sum that must not count.
    """

    def __init__(
        self,
        intent: PostedIntent,
        chunks: tuple[Chunk, ...],
        lessor: Lessor,
        self_id: PeerId,
        ended: Callable[[BufferLease | None, events.Commit | events.Abort], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._intent = intent
        self._chunks = chunks
        self._pieces: tuple[Piece, ...] = ()  # of the plan in use
        self._lessor = lessor
        self._self_id = self_id
        self._ended = ended
        self._refused = refused
        self._lease: BufferLease | None = None
        self._own: list[bytearray] = []  # of each chunk
        self._own_sizes = Sizes()
        self._loaded = trio.Event()
        self._shares: dict[tuple[PeerId, int], Payload] = {}
        self._plan = b""
        self._sums: dict[int, Payload] = {}

    async def load(self) -> float:
        """Borrow the views and encode them; what the others decode takes their place."""
        self._lease = lease = await self._lessor.borrow(self._intent)
        for chunk in self._chunks:
            payload = bytearray(chunk.codec.payload_bytes(chunk.numel))
            values = chunk.of(lease.own)
            chunk.codec.encode(values, payload)
            self._own_sizes.decode(chunk, payload, values)
            self._own.append(payload)
            await trio.lowlevel.checkpoint()
        self._loaded.set()
        return lease.weight

    def share(self, piece: int) -> Payload:
        """Return the own parts of a piece."""
        return [
            part.codec.part(self._own[part.number], part.begin, part.end)
            for part in self._pieces[piece]
        ]

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        """Read a share or a sum, chunk by chunk.

        Raises:
            Refused: it is implausibly large beside what this node gives, and must not count.
            MalformedMessage, and what streams do.
        """
        piece = self._pieces[header.piece]  # of the plan as it is now, which may change meanwhile
        await self._loaded.wait()
        received, sizes = [], Sizes()
        for part in piece:
            payload = bytearray(part.codec.payload_bytes(part.numel))
            await stream.receive_into(memoryview(payload))
            values = bytearray(part.numel * FLOAT32_BYTES)
            sizes.decode(part.chunk, payload, values)
            received.append(payload)
        if await stream.receive():
            raise MalformedMessage("expected the end of a payload, got more bytes")
        why = sizes.refusal(self._own_sizes, self._lease.weights if self._lease else UNKNOWN)
        if why:
            self._refused()
            raise Refused(f"refused: {why}")
        return received

    def keep_share(self, peer: PeerId, piece: int, payload: Payload) -> None:
        """Keep it for the sum."""
        self._shares[peer, piece] = payload

    def use_plan(self, plan: bytes, n_pieces: int) -> None:
        """Cut it anew, and let go of what came for an earlier plan."""
        self._plan, self._pieces = plan, cut_pieces(self._chunks, n_pieces)
        self._shares.clear()
        self._sums.clear()

    def keep_sum(self, piece: int, payload: Payload) -> None:
        """Keep it for the mean."""
        self._sums[piece] = payload

    async def reduce(
        self, plan: bytes, piece: int, contributors: Sequence[PeerId], weights: Sequence[float]
    ) -> None:
        """Make the mean of a piece by weight."""
        from swarmnode.tensor.mean import WeightedMean  # numpy: 25 MB that an idle daemon saves

        if plan != self._plan:
            return
        made = []
        shares = [
            self.share(piece) if peer == self._self_id else self._shares[peer, piece]
            for peer in contributors
        ]
        for number, part in enumerate(self._pieces[piece]):
            mean = WeightedMean(part.codec, part.numel)
            for share, weight in zip(shares, weights, strict=True):
                mean.add(share[number], weight)
                await trio.lowlevel.checkpoint()
            made.append(mean.result())
        if plan == self._plan:
            self._sums[piece] = made

    def sum(self, piece: int) -> Payload:
        """Return the parts of a sum."""
        return self._sums[piece]

    async def assemble(self) -> bytes:
        """Decode all sums into the lease's room; return the SHA-256 over them."""
        if self._lease is None:
            raise WorkerError("nothing was lent")
        digest = hashlib.sha256()
        plan, sums = self._plan, dict(self._sums)
        for number, piece in enumerate(self._pieces):
            for part, payload in zip(piece, sums[number], strict=True):
                part.codec.decode(payload, part.of(self._lease.room))
                digest.update(payload)
                await trio.lowlevel.checkpoint()
                if plan != self._plan:
                    return b""  # another one writes there now
        return digest.digest()

    def committed(self, commit: events.Commit) -> None:
        """Hand the lease on: its room holds the mean."""
        self._ended(self._lease, commit)

    def aborted(self, abort: events.Abort) -> None:
        """Hand the lease on: its room holds nothing of use."""
        self._ended(self._lease, abort)


def transfer_limit_s(numel: int) -> float:
    """Return how long one share or sum may take: a slow step, and all of it at a slow uplink."""
    payload_s = numel * FLOAT32_BYTES / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
    wanted_s = limits.EXCHANGE_TRANSFER_S_MIN + limits.EXCHANGE_VIEW_S + payload_s
    return min(wanted_s, limits.GROUP_TRANSFER_S_MAX)
