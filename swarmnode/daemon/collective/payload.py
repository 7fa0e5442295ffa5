"""The vector that one node brings to a group mean, in pieces; see ``proto/group.md``.

How it is cut into chunks and pieces: ``tensor/pieces.py``.

Held in memory: the own payload encoded, the shares of others for the piece that is made here, and
the sums of one plan. Sums travel in the codec of their view too, and all members decode them, also
the one that makes a sum, so that all hold the same bits. The mean is made in the lease's room.

Codec calls run inline, a chunk at a time: each takes well under a millisecond. Means of more than a
few elements, what rules do, and hashes are done in a thread. None but the codec sees a share
decoded, a tile of it at a time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import trio

from swarmnode import limits
from swarmnode.daemon.collective.runs import Payload
from swarmnode.daemon.worker.leases import BufferLease, ComparingLessor, Lessor
from swarmnode.errors import MalformedMessage, Refused, WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.net.stream import Buffer, Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.tensor.magnitude import UNKNOWN, Sizes
from swarmnode.tensor.pieces import (
    FLOAT32_BYTES,
    Chunk,
    Part,
    Piece,
    by_view,
    cut_pieces,
    hash_payload,
)
from swarmnode.wire.exchange import group as wire

if TYPE_CHECKING:
    from swarmnode.strategies.merging.mixing import Rows

_T = TypeVar("_T")
_LessorT = TypeVar("_LessorT", bound=Lessor)
# So many elements are averaged or hashed in a fifth of a millisecond, with the extension; by a rule
# in one, and the switch to a thread and back costs as much where workers keep all cores busy.
_INLINE_ELEMS = 2**18

GroupEnded = Callable[[BufferLease | None, events.Commit | events.Abort], None]


class _Share(Sequence[Buffer]):
    """The own parts of a piece, each copied when it is wanted.

    What is sent is read again at once, to be encrypted: a copy of one chunk is still in the cache,
    and whole copies for all members are as much memory as the vector takes.
    """

    def __init__(self, chunks: Sequence[Buffer], parts: Sequence[Part]) -> None:
        self._chunks, self._parts = chunks, parts  # of each part its chunk, which is not used anew

    def __len__(self) -> int:
        """How many parts there are."""
        return len(self._parts)

    @overload
    def __getitem__(self, which: int) -> Buffer: ...
    @overload
    def __getitem__(self, which: slice) -> _Share: ...
    def __getitem__(self, which: int | slice) -> Buffer | _Share:
        """Return one part as its payload, or some to be taken later."""
        if isinstance(which, slice):
            return _Share(self._chunks[which], self._parts[which])
        part = self._parts[which]
        return part.codec.part(self._chunks[which], part.begin, part.end)


class GroupPayload(Generic[_LessorT]):
    """The cargo of one run; see ``runs.py``.

    Args:
        ended: told of the lease, or that there was none, once all is over.
        refused: told of each share or sum that must not count.
        ruled: told of the CPU seconds that each use of a rule took here.
        in_thread: as that of ``Env``.
        make_buffer: gives so many writable bytes, fresh or used before.
    """

    def __init__(
        self,
        intent: PostedIntent,
        chunks: tuple[Chunk, ...],
        lessor: _LessorT,
        self_id: PeerId,
        ended: GroupEnded,
        refused: Callable[[], None] = lambda: None,
        ruled: Callable[[float], None] = lambda _seconds: None,
        *,
        in_thread: Callable[..., Awaitable[Any]],
        make_buffer: Callable[[int], bytearray] = bytearray,
    ) -> None:
        self._in_thread = in_thread
        self._make_buffer = make_buffer
        self._intent = intent
        self._chunks = chunks
        self._pieces: tuple[Piece, ...] = ()  # of the plan in use
        self._lessor = lessor
        self._self_id = self_id
        self._ended = ended
        self._refused = refused
        self._ruled = ruled
        self._lease: BufferLease | None = None
        self._own: list[bytearray] = []  # of each chunk
        self._own_sizes = Sizes()
        self._loaded = trio.Event()
        self._shares: dict[tuple[PeerId, int], Payload] = {}
        self._plan = b""
        self._sums: dict[int, Payload] = {}
        self._is_assembling = False  # the lease's room is being filled with a mean

    async def load(self) -> float:
        """Borrow the views and encode them; what the others decode takes their place."""
        self._lease = lease = await self._lessor.borrow(self._intent)
        for chunk in self._chunks:
            payload = self._make_buffer(chunk.codec.payload_bytes(chunk.numel))
            values = chunk.of(lease.own)
            chunk.codec.encode(values, payload)
            self._own_sizes.decode(chunk, payload, values)
            self._own.append(payload)
            await trio.lowlevel.checkpoint()
        self._loaded.set()
        return lease.weight

    def share(self, piece: int) -> Payload:
        """Return the own parts of a piece."""
        if not self._own:
            return ()  # the run is over: it is not sent
        parts = self._pieces[piece]
        return _Share([self._own[part.number] for part in parts], parts)

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        """Read a share or a sum, chunk by chunk.

        Raises:
            Refused: it is implausibly large beside what this node gives, and must not count; but
                for a share of which a rule sees that itself.
            MalformedMessage, and what streams do.
        """
        piece = self._pieces[header.piece]  # of the plan as it is now, which may change meanwhile
        await self._loaded.wait()
        received, sizes = [], Sizes()
        for part in piece:
            payload = self._make_buffer(part.codec.payload_bytes(part.numel))
            await stream.receive_into(memoryview(payload))
            sizes.measure(part.chunk, payload, part.numel)
            received.append(payload)
        if await stream.receive():
            raise MalformedMessage("expected the end of a payload, got more bytes")
        why = sizes.refusal(self._own_sizes, self._lease.weights if self._lease else UNKNOWN)
        if why:
            self._refused()
            if isinstance(header, wire.Sum) or not self._tells_outsized():
                raise Refused(f"refused: {why}")
        return received

    def _tells_outsized(self) -> bool:
        """Whether the mean itself leaves out a share that is far longer than the others."""
        return False

    def keep_share(self, peer: PeerId, piece: int, payload: Payload) -> None:
        """Keep it for the sum."""
        self._shares[peer, piece] = payload

    def use_plan(
        self,
        plan: bytes,
        n_pieces: int,
        contributors: Sequence[PeerId],  # noqa: ARG002
    ) -> None:
        """Cut it anew, and let go of what came for an earlier plan."""
        self._plan, self._pieces = plan, cut_pieces(self._chunks, n_pieces)
        self._is_assembling = False
        self._shares.clear()
        self._sums.clear()

    def keep_sum(self, piece: int, payload: Payload) -> None:
        """Keep it for the mean."""
        self._sums[piece] = payload

    async def reduce(
        self, plan: bytes, piece: int, contributors: Sequence[PeerId], weights: Sequence[float]
    ) -> None:
        """Make the mean of a piece by weight."""
        if plan != self._plan:
            return
        shares = self._shares_of(piece, contributors)
        own = contributors.index(self._self_id)
        made = await self._mean_of(plan, self._pieces[piece], shares, weights, own)
        if plan == self._plan:
            self._sums[piece] = made

    def _shares_of(self, piece: int, contributors: Sequence[PeerId]) -> list[Payload]:
        return [
            self.share(piece) if peer == self._self_id else self._shares[peer, piece]
            for peer in contributors
        ]

    async def _mean_of(
        self,
        plan: bytes,  # noqa: ARG002
        piece: Piece,
        shares: Sequence[Payload],
        weights: Sequence[float],
        own: int,  # noqa: ARG002
    ) -> Payload:
        """Return the mean of a piece of a plan; ``own``: which of the shares is this node's."""
        numel = len(shares) * sum(part.numel for part in piece)
        # Made here, as a pool of buffers is for one thread.
        made = [self._make_buffer(part.codec.payload_bytes(part.numel)) for part in piece]
        await self._call(numel, _encode_means, piece, shares, weights, made)
        return made

    async def _call(self, numel: int, function: Callable[..., _T], *arguments: object) -> _T:
        """Call what goes through so many elements, in a thread if that takes long."""
        if numel <= _INLINE_ELEMS:
            await trio.lowlevel.checkpoint()
            return function(*arguments)
        made: _T = await self._in_thread(function, *arguments)
        return made

    def sum(self, piece: int) -> Payload:
        """Return the parts of a sum."""
        return self._sums[piece]

    async def assemble(self) -> bytes:
        """Decode all sums into the lease's room; return the SHA-256 over them."""
        if self._lease is None:
            raise WorkerError("nothing was lent")
        self._is_assembling = True
        plan, sums = self._plan, [self._sums[number] for number in range(len(self._pieces))]
        of_sums = list(itertools.chain.from_iterable(sums))
        numel = self._intent.numel
        found: list[bytes] = []

        async def hash_all() -> None:
            found.append(await self._call(numel, hash_payload, of_sums))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hash_all)
            for part, payload in zip(itertools.chain(*self._pieces), of_sums, strict=True):
                part.codec.decode(payload, part.of(self._lease.room))
                await trio.lowlevel.checkpoint()
                if plan != self._plan:
                    return b""  # another one writes there now
        return found[0]

    def committed(self, commit: events.Commit) -> None:
        """Hand the lease on: its room holds the mean."""
        self._let_go()
        self._ended(self._lease, commit)

    def aborted(self, abort: events.Abort) -> None:
        """Hand the lease on: its room holds nothing of use."""
        self._let_go()
        self._ended(self._lease, abort)

    def _let_go(self) -> None:
        """Let the next run have the memory, but for what is being sent still."""
        self._own = []
        self._shares.clear()
        self._sums.clear()


class RobustPayload(GroupPayload[ComparingLessor]):
    """The cargo of one run whose intent names a rule.

    Each piece is made by two members, see ``protocol/gossip/witnesses.py``. Where two candidates
    come of the rule, the worker of the member that makes a piece tries both on the public probe,
    and a worker that does not answer in time leaves it at the last one. Views are looked at one by
    one: their values have nothing to do with each other.

    Of four members or more the rule leaves out what is far longer than most shares. A member that
    would refuse such a share by its own scale, where another one takes it, would lose its sender
    alone: then both have rounds of their own, of too few.
    """

    def _tells_outsized(self) -> bool:
        n_contributors_min = len(self._pieces)
        return n_contributors_min >= limits.GROUP_TELLS_FROM

    async def _mean_of(
        self,
        plan: bytes,
        piece: Piece,
        shares: Sequence[Payload],
        weights: Sequence[float],
        own: int,
    ) -> Payload:
        from swarmnode.strategies.merging import rules  # numpy: 25 MB that an idle daemon saves

        rule = self._intent.merge
        made: list[bytearray] = []
        for view, parts in by_view(piece).items():
            begin = len(made)  # parts of a view lie one after the other
            of_view = [share[begin : begin + len(parts)] for share in shares]
            numel = len(shares) * sum(part.numel for part in parts)
            mixes = await self._rule(numel, rules.find_mixes, rule, parts, of_view, weights, own)
            best = len(mixes) - 1
            if best and view == 0:
                values = [
                    await self._rule(numel, rules.mixed_values, mix, parts, of_view)
                    for mix in mixes
                ]
                best = await self._compare(plan, parts, values)
            made += await self._call(numel, rules.encode_parts, mixes[best], parts, of_view)
        return made

    async def witness(self, effect: events.Witness) -> tuple[bytes, ...]:
        """Make a piece of another member, each candidate for it; return their hashes."""
        from swarmnode.strategies.merging import rules  # numpy: 25 MB that an idle daemon saves

        shares = self._shares_of(effect.piece, effect.contributors)
        maker = effect.contributors.index(effect.maker)
        piece, rule = self._pieces[effect.piece], self._intent.merge
        numel = len(shares) * sum(part.numel for part in piece)
        found = await self._rule(numel, rules.hashes_of, rule, piece, shares, effect.weights, maker)
        return tuple(found)

    async def hashes(self) -> tuple[bytes, ...]:
        """Return the SHA-256 over the payload of each sum, as witnesses make it."""
        sums = [self._sums[number] for number in range(len(self._pieces))]
        return tuple(await self._call(self._intent.numel, _hashes, sums))

    async def _rule(self, numel: int, function: Callable[..., _T], *arguments: object) -> _T:
        """Call what a mean without a rule has no need of, and tell what that took."""
        made: _T
        made, seconds = await self._call(numel, _timed, function, *arguments)
        self._ruled(seconds)
        return made

    async def _compare(self, plan: bytes, parts: Sequence[Part], found: Sequence[Rows]) -> int:
        """Return which of two candidates the worker prefers; the last where it cannot say.

        They travel in the lease's room, unless that is filled with the mean already.
        """
        match self._lease:
            case BufferLease() as lease if plan == self._plan and not self._is_assembling:
                values = [each.data.cast("B") for each in found]
                with trio.move_on_after(limits.EXCHANGE_VIEW_S):  # it answers between two steps
                    return await self._lessor.compare(lease, parts[0].begin_in_view, values)
        return len(found) - 1


def _timed(function: Callable[..., _T], *arguments: object) -> tuple[_T, float]:
    """Return also the CPU seconds of this thread: steps of the worker may have taken its core."""
    begin_s = time.thread_time()
    return function(*arguments), time.thread_time() - begin_s


def _encode_means(
    piece: Piece, shares: Sequence[Payload], weights: Sequence[float], made: Sequence[bytearray]
) -> None:
    for number, (part, payload) in enumerate(zip(piece, made, strict=True)):
        of_part = [share[number] for share in shares]
        part.codec.encode_mean(of_part, weights, sum(weights), payload, part.numel)


def _hashes(sums: Sequence[Payload]) -> list[bytes]:
    return [hash_payload(each) for each in sums]


def transfer_limit_s(numel: int) -> float:
    """Return how long one share or sum may take: a slow step, and all of it at a slow uplink."""
    payload_s = numel * FLOAT32_BYTES / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
    wanted_s = limits.EXCHANGE_TRANSFER_S_MIN + limits.EXCHANGE_VIEW_S + payload_s
    return min(wanted_s, limits.GROUP_TRANSFER_S_MAX)
