"""Which streams there are, and which ids may still come."""

from __future__ import annotations

from collections.abc import Iterator

from swarmnode import limits
from swarmnode.errors import LimitExceeded, RemoteProtocolError
from swarmnode.protocol.session.buffers import BufferPool
from swarmnode.protocol.session.effects import Effect, Removed
from swarmnode.protocol.session.inbox import Inbox
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.session.stream import StreamState
from swarmnode.protocol.uplink import purpose_of
from swarmnode.wire.frames import FrameKind
from swarmnode.wire.session import Priority


class StreamTable:
    """The open streams of both sides; as in HTTP/2, odd ids are the client's."""

    def __init__(self, role: Role, effects: list[Effect]) -> None:
        self.pool = BufferPool()
        self.opened_total = 0
        self._effects = effects
        self._streams: dict[int, StreamState] = {}
        self._next_own_id = 1 if role is Role.CLIENT else 2
        self._next_peer_id = 2 if role is Role.CLIENT else 1
        self._peers = 0
        self._peers_bulk = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[StreamState]:
        return iter(self._streams.values())

    def get(self, stream_id: int) -> StreamState | None:
        """Return the open stream with this id."""
        return self._streams.get(stream_id)

    def add_own(self, service: str, priority: Priority, deadline_ms: int) -> StreamState:
        """Start a stream of ours."""
        stream_id = self._next_own_id
        self._next_own_id += 2
        return self._add(stream_id, service, priority, deadline_ms, is_local=True)

    def add_peers(
        self, stream_id: int, service: str, priority: Priority, deadline_ms: int
    ) -> StreamState:
        """Take in a stream that the peer opened.

        Raises:
            RemoteProtocolError: the id was used before, or is one of ours.
            LimitExceeded: the peer has too many open.
        """
        if stream_id % 2 != self._next_peer_id % 2 or stream_id < self._next_peer_id:
            raise RemoteProtocolError(
                f"OPEN with stream id {stream_id}, expected {self._next_peer_id}"
            )
        is_bulk = priority is Priority.BULK
        if (
            self._peers >= limits.STREAMS_PER_SIDE_MAX
            or self._peers_bulk + is_bulk > limits.BULK_STREAMS_PER_SIDE_MAX
        ):
            raise LimitExceeded(
                f"more than {limits.STREAMS_PER_SIDE_MAX} open streams, or more than "
                f"{limits.BULK_STREAMS_PER_SIDE_MAX} of them bulk"
            )
        self._next_peer_id = stream_id + 2
        self._peers += 1
        self._peers_bulk += is_bulk
        return self._add(stream_id, service, priority, deadline_ms, is_local=False)

    def receiving(self, stream_id: int, kind: FrameKind) -> StreamState:
        """Return the stream that the peer may still send on; RemoteProtocolError if not."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.receive_finished:
            raise RemoteProtocolError(f"{kind.name} for stream {stream_id}, which is not open")
        return stream

    def known(self, stream_id: int, kind: FrameKind) -> StreamState | None:
        """Return the stream; None if it is over, as CREDIT and RESET may cross our END.

        Raises:
            RemoteProtocolError: there never was one.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            is_peers = stream_id % 2 == self._next_peer_id % 2
            if stream_id >= (self._next_peer_id if is_peers else self._next_own_id):
                raise RemoteProtocolError(f"{kind.name} for stream {stream_id}, never opened")
        return stream

    def remove_if_finished(self, stream: StreamState) -> None:
        """Forget a stream once both of its directions are over."""
        if not stream.is_finished or self._streams.pop(stream.stream_id, None) is None:
            return
        if not stream.is_local:
            self._peers -= 1
            self._peers_bulk -= stream.priority is Priority.BULK
        self._effects.append(Removed(stream))

    def _add(
        self, stream_id: int, service: str, priority: Priority, deadline_ms: int, *, is_local: bool
    ) -> StreamState:
        purpose = purpose_of(service, is_bulk=priority is Priority.BULK)
        stream = StreamState(
            stream_id, service, priority, is_local, Inbox(self.pool), purpose, deadline_ms
        )
        self._streams[stream_id] = stream
        self.opened_total += 1
        return stream
