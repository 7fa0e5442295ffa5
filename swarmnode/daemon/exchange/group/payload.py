"""The vector that one node brings to a group mean, in pieces; see ``proto/group.md``.

Views lie one after the other, each cut into codec chunks; a piece is a run of chunks over all of
them. Held in memory: the own payload encoded, the shares of others for the pieces that are made
here, and the sums of one plan. The mean is put together in the lease's room.

Codec calls run inline, a chunk at a time: each takes well under a millisecond.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.group.runs import Payload
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
_RAW = get_codec("RAW32")  # of sums


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

    def of(self, vector: memoryview) -> memoryview:
        """Return its bytes of a whole float32 vector."""
        return vector[self.begin * FLOAT32_BYTES : self.end * FLOAT32_BYTES]


Piece = tuple[Chunk, ...]


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


def cut_pieces(parts: Sequence[Chunk]) -> tuple[Piece, ...]:
    """Return up to GROUP_PIECES runs of as nearly the same length as can be, longer ones first."""
    n_pieces = min(limits.GROUP_PIECES, len(parts))
    pieces, begin = [], 0
    for number in range(n_pieces):
        end = begin + len(parts) // n_pieces + (number < len(parts) % n_pieces)
        pieces.append(tuple(parts[begin:end]))
        begin = end
    return tuple(pieces)


class GroupPayload:
    """The cargo of one run; see ``daemon/exchange/group/runs.py``.

    Args:
        ended: told of the lease, or that there was none, once all is over.
        refused: told of each share or sum that must not count.
    """

    def __init__(
        self,
        intent: PostedIntent,
        pieces: tuple[Piece, ...],
        lessor: Lessor,
        self_id: PeerId,
        ended: Callable[[BufferLease | None, events.Commit | events.Abort], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._intent = intent
        self._pieces = pieces
        self._lessor = lessor
        self._self_id = self_id
        self._ended = ended
        self._refused = refused
        self._lease: BufferLease | None = None
        self._own: list[Payload] = []
        self._own_sizes = Sizes()
        self._loaded = trio.Event()
        self._shares: dict[tuple[PeerId, int], Payload] = {}
        self._plan = b""
        self._sums: dict[int, Payload] = {}

    async def load(self) -> None:
        """Borrow the views and encode them; what the others decode takes their place."""
        self._lease = lease = await self._lessor.borrow(self._intent)
        for piece in self._pieces:
            encoded = []
            for chunk in piece:
                payload = bytearray(chunk.codec.payload_bytes(chunk.numel))
                values = chunk.of(lease.own)
                chunk.codec.encode(values, payload)
                chunk.codec.decode(payload, values)
                if chunk.is_scaled:
                    self._own_sizes.add(chunk.view, values)
                encoded.append(payload)
                await trio.lowlevel.checkpoint()
            self._own.append(encoded)
        self._loaded.set()

    def share(self, piece: int) -> Payload:
        """Return the own chunks of a piece."""
        return self._own[piece]

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        """Read a share or a sum, chunk by chunk.

        Raises:
            Refused: it is implausibly large beside what this node gives, and must not count.
            MalformedMessage, and what streams do.
        """
        await self._loaded.wait()
        received, sizes = [], Sizes()
        for chunk in self._pieces[header.piece]:
            codec = chunk.codec if isinstance(header, wire.Share) else _RAW
            payload = bytearray(codec.payload_bytes(chunk.numel))
            await stream.receive_into(memoryview(payload))
            values = bytearray(chunk.numel * FLOAT32_BYTES)
            codec.decode(payload, values)
            if chunk.is_scaled:
                sizes.add(chunk.view, values)
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

    def use_plan(self, plan: bytes) -> None:
        """Let go of the sums of an earlier plan."""
        if plan != self._plan:
            self._plan = plan
            self._sums.clear()

    def keep_sum(self, piece: int, payload: Payload) -> None:
        """Keep it for the mean."""
        self._sums[piece] = payload

    async def reduce(
        self, plan: bytes, piece: int, contributors: Sequence[PeerId], weights: Sequence[float]
    ) -> None:
        """Make the mean of a piece by weight."""
        from swarmnode.tensor.mean import WeightedMean  # numpy: 25 MB that an idle daemon saves

        made = []
        for number, chunk in enumerate(self._pieces[piece]):
            mean = WeightedMean(chunk.codec, chunk.numel)
            for peer, weight in zip(contributors, weights, strict=True):
                is_own = peer == self._self_id
                share = self._own[piece] if is_own else self._shares[peer, piece]
                mean.add(share[number], weight)
                await trio.lowlevel.checkpoint()
            made.append(mean.result())
        if plan == self._plan:
            self._sums[piece] = made

    def sum(self, piece: int) -> Payload:
        """Return the chunks of a sum."""
        return self._sums[piece]

    async def assemble(self) -> bytes:
        """Decode all sums into the lease's room; return the SHA-256 over them."""
        if self._lease is None:
            raise WorkerError("nothing was lent")
        digest = hashlib.sha256()
        sums = dict(self._sums)
        for number, piece in enumerate(self._pieces):
            for chunk, payload in zip(piece, sums[number], strict=True):
                _RAW.decode(payload, chunk.of(self._lease.room))
                digest.update(payload)
                await trio.lowlevel.checkpoint()
        return digest.digest()

    def committed(self, commit: events.Commit) -> None:
        """Hand the lease on: its room holds the mean."""
        self._ended(self._lease, commit)

    def aborted(self, abort: events.Abort) -> None:
        """Hand the lease on: its room holds nothing of use."""
        self._ended(self._lease, abort)
