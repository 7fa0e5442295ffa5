"""aioice and aiortc with the bounds that they lack, towards peers and towards strangers.

What they would do without: answer strangers with more bytes than these sent, check every
address that spoofed packets come from, keep what is not read, reassemble without end, and
spend seconds on one forged acknowledgement. Written against aioice 0.13 and aiortc 1.16; a
test reaches every override through the real libraries.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, NoReturn, cast

from aioice import Candidate, Connection
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import StunProtocol
from aioice.stun import Class, Message, Method, TransactionError
from aiortc import RTCDtlsTransport, RTCSctpTransport
from aiortc.rtcsctptransport import (
    SCTP_DATA_UNORDERED,
    SCTP_TSN_MODULO,
    DataChunk,
    ForwardTsnChunk,
    SackChunk,
)
from aiortc.utils import uint32_gt

from swarmnode import limits
from swarmnode.protocol.nat.stun import QUESTION_FILLER

# Reflexive addresses: a peer across an ocean answers in 0.3 s, a lost question is asked again.
RTC_GATHER_S = 1.5
# Of the kernel, which takes twice this: a window in packets of 1200 bytes takes twice its bytes.
_RTC_SOCKET_BUFFER_BYTES = limits.RTC_WINDOW_BYTES
# Datagrams that were not read yet: one flight of DTLS; any machine may send to an open port.
RTC_DATAGRAMS_WAITING_MAX = 64

_STREAM_ID = 0
_UNAUTHENTICATED = (400, 401)
_Address = tuple[str, int]


class GuardedConnection(Connection):
    """ICE over sockets on ``hosts``, with reflexive candidates from peers.

    ``on_datagram`` hears of the bytes of each datagram: those that were sent, those that came.
    """

    def __init__(
        self,
        *,
        hosts: tuple[str, ...],
        servers: tuple[_Address, ...],
        is_offerer: bool,
        on_datagram: Callable[[int, int], None],
    ) -> None:
        super().__init__(ice_controlling=is_offerer)
        self._hosts = list(hosts)
        self._servers = servers
        self._on_datagram = on_datagram

    async def get_component_candidates(
        self,
        component: int,
        addresses: list[str],  # noqa: ARG002 -- all of this machine, loopback excepted
        timeout: int = 5,
    ) -> list[Candidate]:
        """Open sockets on our hosts, then ask the servers."""
        candidates = await super().get_component_candidates(component, self._hosts, timeout)
        for protocol in self._protocols:
            # Up to what the system allows. With too little the sender's first bursts are lost.
            sock = protocol.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RTC_SOCKET_BUFFER_BYTES)
            _count(protocol, self._on_datagram)
        tasks = [
            asyncio.create_task(_first_reflexive(protocol, self._servers))
            for protocol in self._protocols
            if self._servers and ":" not in protocol.local_candidate.host
        ]
        if tasks:
            done, late = await asyncio.wait(tasks, timeout=RTC_GATHER_S)
            for task in late:
                task.cancel()
            candidates += [found for task in done if (found := task.result()) is not None]
        return candidates

    def check_incoming(self, message: Message, addr: _Address, protocol: StunProtocol) -> None:
        """Check back, but not to one more address for every spoofed source."""
        known = {(each.host, each.port) for each in self.remote_candidates}
        if addr in known or len(known) < limits.RTC_REMOTE_ADDRESSES_MAX:
            super().check_incoming(message, addr, protocol)

    def respond_error(
        self,
        request: Message,
        addr: _Address,
        protocol: StunProtocol,
        error_code: tuple[int, str],
    ) -> None:
        """Tell a peer, not a stranger: its source may be forged, and the answer is longer."""
        if error_code[0] not in _UNAUTHENTICATED:
            super().respond_error(request, addr, protocol, error_code)

    def data_received(self, data: bytes, component: int) -> None:
        """Keep a few datagrams until they are read; any machine can send some."""
        is_plausible = len(data) <= limits.RTC_DATAGRAM_BYTES_MAX
        if is_plausible and self._queue.qsize() < RTC_DATAGRAMS_WAITING_MAX:
            super().data_received(data, component)


def _count(protocol: StunProtocol, on_datagram: Callable[[int, int], None]) -> None:
    """Let every datagram be counted: checks, handshakes, data, and what acknowledges it."""
    send, receive = protocol.transport.sendto, protocol.datagram_received

    def sendto(data: bytes, addr: _Address | None = None) -> None:
        on_datagram(len(data), 0)
        send(data, addr)

    def datagram_received(data: bytes, addr: tuple[Any, ...]) -> None:
        on_datagram(0, len(data))
        receive(data, addr)

    counted = {"sendto": sendto}
    protocol.transport = cast("asyncio.DatagramTransport", _Counted(protocol.transport, counted))
    vars(protocol)["datagram_received"] = datagram_received


class _Counted:
    """A transport of which some methods are others: asyncio's own takes no attributes."""

    def __init__(self, inner: asyncio.DatagramTransport, others: dict[str, Any]) -> None:
        self._inner = inner
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def _first_reflexive(
    protocol: StunProtocol, servers: tuple[_Address, ...]
) -> Candidate | None:
    """Return what the first server to answer has seen, or None if that is our own address."""
    asking = [asyncio.create_task(_ask(protocol, server)) for server in servers]
    local = protocol.local_candidate
    try:
        for answer in asyncio.as_completed(asking):
            seen = await answer
            if seen is None:
                continue
            if seen == (local.host, local.port):
                return None
            return Candidate(
                foundation=candidate_foundation("srflx", "udp", local.host),
                component=local.component,
                transport=local.transport,
                priority=candidate_priority(local.component, "srflx"),
                host=seen[0],
                port=seen[1],
                type="srflx",
                related_address=local.host,
                related_port=local.port,
            )
        return None
    finally:
        for task in asking:
            task.cancel()


async def _ask(protocol: StunProtocol, server: _Address) -> _Address | None:
    # Filled up, because our peers never answer with more bytes than they were asked with.
    question = Message(Method.BINDING, Class.REQUEST, attributes={"SOFTWARE": QUESTION_FILLER})
    try:
        answer, _ = await protocol.request(question, server)
    except TransactionError:
        return None
    seen: _Address | None = answer.attributes.get("XOR-MAPPED-ADDRESS")
    return seen


class GuardedSctp(RTCSctpTransport):
    """SCTP for one ordered stream.

    Args:
        on_progress: called when the other side has acknowledged something new.
        on_offence: called once with what the other side did; the association ends with it.
    """

    def __init__(
        self,
        transport: RTCDtlsTransport,
        *,
        on_progress: Callable[[], None],
        on_offence: Callable[[str], None],
    ) -> None:
        super().__init__(transport)
        self._local_partial_reliability = False  # nothing is ever given up here
        self._on_progress = on_progress
        self._on_offence = on_offence

    @property
    def is_unacknowledged(self) -> bool:
        """Whether anything waits to be sent or to be acknowledged."""
        return bool(self._sent_queue or self._outbound_queue or self._data_channel_queue)

    @property
    def acknowledged(self) -> int:
        """The last number that the other side acknowledged: it moves with every progress."""
        return self._last_sacked_tsn

    async def _receive_data_chunk(self, chunk: DataChunk) -> None:
        if chunk.stream_id != _STREAM_ID or chunk.flags & SCTP_DATA_UNORDERED:
            self._refuse("data outside of the one ordered stream")
        waiting = self._get_inbound_stream(_STREAM_ID).reassembly
        if len(waiting) >= limits.RTC_CHUNKS_WAITING_MAX or self._advertised_rwnd < 0:
            self._refuse("more unfinished messages than the window allows")
        await super()._receive_data_chunk(chunk)

    async def _receive_forward_tsn_chunk(self, chunk: ForwardTsnChunk) -> None:  # noqa: ARG002
        self._refuse("it gave up on data of a reliable channel")

    async def _receive_sack_chunk(self, chunk: SackChunk) -> None:
        before = self._last_sacked_tsn
        if not uint32_gt(before, chunk.cumulative_tsn):  # an overtaken one is ignored anyway
            unacknowledged = (self._local_tsn - chunk.cumulative_tsn) % SCTP_TSN_MODULO
            in_gaps = sum(end - start + 1 for start, end in chunk.gaps)
            if max(unacknowledged, in_gaps) > limits.RTC_CHUNKS_WAITING_MAX:
                self._refuse("it acknowledged what was never sent")
        await super()._receive_sack_chunk(chunk)
        if self._last_sacked_tsn != before:
            self._on_progress()

    def _refuse(self, offence: str) -> NoReturn:
        """End the association; the DTLS pump takes this error as the end of the connection."""
        self._on_offence(offence)
        raise ConnectionError(offence)
