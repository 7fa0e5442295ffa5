"""What a member brings to the run of one gathering, and what it takes away.

The run (``daemon/exchange/group/runs.py``) has one piece. Its shares are announcements, a few
hundred bytes; its sum is the set of the round, made by one member of what that member holds by
then, so that everything in it can be had of two. Each fetches what it lacks, and what the run
compares is the SHA-256 over the set and over the bytes of all messages in it::

    load      borrow, encode, sign, offer to all
    reduce    wait for the messages of the contributors, up to a share of the time; make the set
    assemble  check the set, fetch what is missing, hash it all
    committed the messages lie in the lease's room, in the order of the set
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.gather.rounds import Round
from swarmnode.daemon.exchange.group.runs import Payload
from swarmnode.daemon.worker.leases import BufferLease, Lessor
from swarmnode.errors import RemoteProtocolError, WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.gather_set import Announced
from swarmnode.protocol.identity import Signer
from swarmnode.tensor import coded
from swarmnode.tensor.codec import Codec
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.exchange.gather import GatherShare
from swarmnode.wire.packing import decode_record, encode_record

# A set of GATHER_MEMBERS_MAX announcements, each with a key and a signature.
_SET_BYTES_MAX = limits.GATHER_MEMBERS_MAX * limits.KIB
# Of the time that a sum may take: the rest is for those who then fetch what the set names.
_MAKE_SHARE = 0.3

Ended = Callable[[BufferLease | None, tuple[Announced, ...], events.Commit | events.Abort], None]


class GatherCargo:
    """The cargo of one run.

    Args:
        messages: of this run; closed by the one who opened it.
        transfer_s: of the run.
        ended: told of the lease, or that there was none, and of the messages in it.
    """

    def __init__(
        self,
        intent: PostedIntent,
        codec: Codec,
        messages: Round,
        lessor: Lessor,
        signer: Signer,
        transfer_s: float,
        ended: Ended,
    ) -> None:
        self._intent = intent
        self._codec = codec
        self._messages = messages
        self._lessor = lessor
        self._signer = signer
        self._transfer_s = transfer_s
        self._ended = ended
        self._lease: BufferLease | None = None
        self._own: Announced | None = None
        self._plan = b""
        self._set = b""
        self._entries: tuple[Announced, ...] = ()

    async def load(self) -> float:
        """Borrow the view, encode it and offer it; what the others decode takes its place."""
        self._lease = lease = await self._lessor.borrow(self._intent)
        data = bytearray(coded.coded_bytes(self._codec, self._intent.numel))
        for payload, values in coded.parts(self._codec, data, lease.own):
            self._codec.encode(values, payload)
            self._codec.decode(payload, values)
            await trio.lowlevel.checkpoint()
        digest = hashlib.sha256(data).digest()
        self._own = self._messages.terms.announce(self._signer, digest)
        self._messages.publish(self._own, bytes(data))
        return 0.0

    def share(self, piece: int) -> Payload:  # noqa: ARG002
        """Return the announcement of the own message."""
        assert self._own is not None, "after load"
        return [encode_record(GatherShare(self._own.signed))]

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        """Read an announcement or a set. Raises RemoteProtocolError and what streams do."""
        data = await stream.receive_rest(_SET_BYTES_MAX)
        if isinstance(header, wire.Share):
            self._messages.terms.read(decode_record(data, GatherShare).announcement)
        else:
            self._messages.terms.read_set(data, self._messages.known())
        return [data]

    def keep_share(self, peer: PeerId, piece: int, payload: Payload) -> None:  # noqa: ARG002
        """Fetch what it announces."""
        announced = self._messages.terms.read(
            decode_record(bytes(payload[0]), GatherShare).announcement
        )
        if announced.author == peer:
            self._messages.announce(announced)

    def use_plan(self, plan: bytes, n_pieces: int = 1) -> None:  # noqa: ARG002
        """Let go of the set of an earlier plan."""
        if plan != self._plan:
            self._plan, self._set = plan, b""

    def keep_sum(self, piece: int, payload: Payload) -> None:  # noqa: ARG002
        """Keep the set."""
        self._set = bytes(payload[0])

    async def reduce(
        self,
        plan: bytes,
        piece: int,  # noqa: ARG002
        contributors: Sequence[PeerId],
        weights: Sequence[float],  # noqa: ARG002
    ) -> None:
        """Make the set of what is here in time: the rest has as long again as most have taken."""
        wanted = [each for each in self._messages.known() if each.author in contributors]
        began_at = trio.current_time()
        with trio.move_on_after(_MAKE_SHARE * self._transfer_s):
            await self._messages.wait_for(wanted, at_least=len(wanted) // 2 + 1)
            took_s = trio.current_time() - began_at
            with trio.move_on_after(max(took_s, limits.GATHER_GRACE_S)):
                await self._messages.wait_for(wanted)
        if plan == self._plan:
            held = (each for each in self._messages.held() if each.author in contributors)
            self._set = self._messages.terms.make_set(held)

    def sum(self, piece: int) -> Payload:  # noqa: ARG002
        """Return the set."""
        return [self._set]

    async def assemble(self) -> bytes:
        """Fetch all messages of the set; return the SHA-256 over it and them.

        Raises WorkerError: it cannot be right.
        """
        plan, data = self._plan, self._set
        try:
            entries = self._messages.terms.read_set(data, self._messages.known())
        except RemoteProtocolError as error:
            raise WorkerError(str(error)) from error
        own = self._own.digest if self._own is not None else b""
        mine = [each.digest for each in entries if each.author == self._signer.peer_id]
        if mine not in ([], [own]):
            raise WorkerError("the set says something else in this node's name: a key is stolen")
        self._messages.settle(entries)
        await self._messages.wait_for(entries)
        found = hashlib.sha256(data)
        for each in entries:
            found.update(self._messages.data(each.digest))
            await trio.lowlevel.checkpoint()
        if plan == self._plan:  # else what comes of it is not what will be committed
            self._entries = entries
        return found.digest()

    def committed(self, commit: events.Commit) -> None:
        """Hand the lease on: its room holds the messages."""
        if self._lease is not None:
            at = 0
            for each in self._entries:
                data = self._messages.data(each.digest)
                self._lease.room[at : at + len(data)] = data
                at += len(data)
        self._ended(self._lease, self._entries, commit)

    def aborted(self, abort: events.Abort) -> None:
        """Hand the lease on: its room holds nothing of use."""
        self._ended(self._lease, (), abort)
