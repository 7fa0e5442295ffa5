"""The asyncio side of WebRTC: all connections of a node, in one loop.

Beside the guards, nothing else imports aiortc.

One connection gathers, connects, moves messages, closes::

    Gather -> Gathered -> Connect -> Opened -> Send, Grant ... Received, Credited, Drained
    anything -> Failed or Ended -> Close -> Gone

ICE, DTLS, SCTP and the data channel are put together here one by one, so no SDP text is
ever written or read. The offerer leads the checks and is the DTLS server; the channel is
number 0 on both sides, agreed beforehand, so that a peer cannot open others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from aioice.candidate import candidate_priority
from aiortc import (
    RTCCertificate,
    RTCDataChannel,
    RTCDataChannelParameters,
    RTCDtlsFingerprint,
    RTCDtlsParameters,
    RTCDtlsTransport,
    RTCIceCandidate,
    RTCIceGatherer,
    RTCIceParameters,
    RTCIceTransport,
    RTCSctpCapabilities,
)

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage
from swarmnode.net.rtc.bridge import (
    Carried,
    Close,
    Command,
    Connect,
    Credited,
    Drained,
    Ended,
    Event,
    Failed,
    Gather,
    Gathered,
    Gone,
    Grant,
    Opened,
    Received,
    Send,
    Stop,
)
from swarmnode.net.rtc.guards import GuardedConnection, GuardedSctp
from swarmnode.protocol.nat.candidates import candidate_host, make_candidate
from swarmnode.protocol.nat.rtc_flow import (
    END,
    ReadWindow,
    SendWindow,
    decode_credit,
    encode_credit,
)
from swarmnode.protocol.uplink import on_the_wire
from swarmnode.wire.connect.nat import RtcCandidate, RtcDescription

_SCTP_PORT = 5000
_COMPONENT = 1
_DIGEST = "sha-256"
_STALL_CHECKS = 8  # within RTC_STALLED_S
_DATAGRAM_HEADER_BYTES = 28  # IPv4 and UDP
_TELL_BYTES = 4 * limits.KIB  # what datagrams take is told in sums of this

_log = logging.getLogger("swarmnode.rtc")


class _Broken(Exception):
    """Why this connection cannot go on."""


class Link:
    """Owns everything of one connection; :meth:`run` is its task."""

    def __init__(self, order: Gather, emit: Callable[[Event], None]) -> None:
        self._id = order.link
        self._emit = emit
        self._read_window = ReadWindow()
        self._send_window = SendWindow()
        self._posted_bytes = 0
        self._taken_bytes = 0  # of messages that came
        self._carried_bytes = [0, 0]  # by datagrams, sent and received
        self._told_bytes = [0, 0]
        self._remote: asyncio.Future[RtcDescription] = asyncio.Future()
        self._changed = asyncio.Event()
        self._reason = ""  # set: broken
        self._is_open = False
        self._is_ended = False
        self._is_closing = False
        self._opening: asyncio.Task[None] | None = None
        self._connection = GuardedConnection(
            hosts=order.hosts,
            servers=order.servers,
            is_offerer=order.is_offerer,
            on_datagram=self._note_datagram,
        )
        gatherer = RTCIceGatherer(iceServers=[])
        gatherer._connection = self._connection  # before any task has seen the other one
        self._gathering = asyncio.create_task(gatherer.gather())
        self._ice = RTCIceTransport(gatherer)
        self._certificate = RTCCertificate.generateCertificate()
        self._dtls = RTCDtlsTransport(self._ice, [self._certificate])
        self._dtls._set_role("server" if order.is_offerer else "client")
        self._sctp = GuardedSctp(
            self._dtls, on_progress=self._note_progress, on_offence=self._break
        )
        parameters = RTCDataChannelParameters(label="swarmnode", negotiated=True, id=0)
        self._channel = RTCDataChannel(self._sctp, parameters)
        self._channel.bufferedAmountLowThreshold = limits.RTC_SEND_BUFFER_BYTES // 2
        self._channel.on("open", self._note_open)
        self._channel.on("close", self._note_closed)
        self._channel.on("message", self._take)
        self._channel.on("bufferedamountlow", self._report_drained)
        self._dtls.on("statechange", self._note_dtls)

    # --- commands ---------------------------------------------------------------------------

    def connect(self, remote: RtcDescription) -> None:
        """Go on with the author of this."""
        if not self._remote.done():
            self._remote.set_result(remote)

    def send(self, data: bytes) -> None:
        """Send a binary message."""
        self._send_window.sent(len(data))
        self._posted_bytes += len(data)
        if self._channel.readyState == "open":
            self._channel.send(data)
            if self._channel.bufferedAmount <= self._channel.bufferedAmountLowThreshold:
                self._report_drained()

    def grant(self, total: int) -> None:
        """Send a credit."""
        self._read_window.granted(total)
        if self._channel.readyState == "open":
            self._channel.send(encode_credit(total))

    def close(self) -> None:
        """End :meth:`run` as soon as what is queued has gone out."""
        if self._is_closing:
            return
        self._is_closing = True
        self._changed.set()
        if not self._is_open and self._opening is not None:
            self._opening.cancel()

    # --- the task ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Live from gathering to closed sockets."""
        try:
            if not self._is_closing:
                self._opening = asyncio.create_task(self._open())
                await self._opening
                await self._watch()
                await self._say_goodbye()
        except _Broken as broken:
            if not self._is_ended:  # then it was over already
                self._emit(Failed(self._id, str(broken)))
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
        except Exception as error:  # noqa: BLE001 -- whatever a peer provokes ends this one only
            self._emit(Failed(self._id, f"{type(error).__name__}: {error}"))
        finally:
            await self._shut()
            self._tell_carried(least_bytes=1)
            self._emit(Gone(self._id))

    async def _open(self) -> None:
        # Not cancelled half-way: sockets would be left that no task knows.
        await asyncio.shield(self._gathering)
        if not self._connection.local_candidates:
            raise _Broken("this machine has no address to offer")
        self._emit(Gathered(self._id, self._describe()))
        try:
            async with asyncio.timeout(limits.RTC_ANSWER_S):
                remote = await self._remote
        except TimeoutError:
            raise _Broken(f"no answer to the offer within {limits.RTC_ANSWER_S:g} s") from None
        try:
            async with asyncio.timeout(limits.RTC_CONNECT_S):
                await self._connect(remote)
        except TimeoutError:
            raise _Broken(
                f"not open within {limits.RTC_CONNECT_S:g} s "
                f"(ICE {self._ice.state}, DTLS {self._dtls.state})"
            ) from None
        self._emit(Opened(self._id, self._connection._nominated[_COMPONENT].remote_addr))

    async def _connect(self, remote: RtcDescription) -> None:
        for candidate in remote.candidates:
            await self._ice.addRemoteCandidate(_ice_candidate(candidate))
        await self._ice.addRemoteCandidate(None)
        await self._ice.start(
            RTCIceParameters(usernameFragment=remote.user, password=remote.password)
        )
        if self._ice.state != "completed":
            raise _Broken("no pair of addresses lets checks through")
        digest = remote.fingerprint.hex(":").upper()
        await self._dtls.start(RTCDtlsParameters([RTCDtlsFingerprint(_DIGEST, digest)]))
        if self._dtls.state != "connected":
            raise _Broken("no DTLS with the certificate that was described")
        await self._sctp.start(RTCSctpCapabilities(limits.RTC_MESSAGE_BYTES_MAX), _SCTP_PORT)
        while not self._is_open:
            await self._wait_changed()

    async def _watch(self) -> None:
        """Return when we close; raise when nothing we sent is acknowledged any more.

        Checks are counted, not seconds: a pause of the whole process is no silence of the peer.
        """
        without_progress = 0
        acknowledged = self._sctp.acknowledged
        while not self._is_closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.RTC_STALLED_S / _STALL_CHECKS):
                    await self._wait_changed()
            before, acknowledged = acknowledged, self._sctp.acknowledged
            is_stalled = self._sctp.is_unacknowledged and acknowledged == before
            without_progress = without_progress + 1 if is_stalled else 0
            if without_progress > _STALL_CHECKS:
                raise _Broken(
                    f"no byte acknowledged for {limits.RTC_STALLED_S:g} s with data queued"
                )

    async def _say_goodbye(self) -> None:
        """Let what is queued go out, the end of the stream behind it."""
        if self._channel.readyState == "open":
            self._channel.send(END)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.RTC_LINGER_S):
                while self._sctp.is_unacknowledged:
                    await self._wait_changed()

    async def _wait_changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()
        if self._reason:
            raise _Broken(self._reason)

    async def _shut(self) -> None:
        """Close all layers, whatever one of them says."""
        for finish in (
            self._finish_gathering,
            self._sctp.stop,
            self._dtls.stop,
            self._ice.stop,
        ):
            try:
                async with asyncio.timeout(limits.RTC_SHUT_S):
                    await finish()
            except Exception as error:  # noqa: BLE001 -- the layers below are closed all the same
                _log.debug("closing a connection: %s: %s", type(error).__name__, error)

    async def _finish_gathering(self) -> None:
        await self._gathering

    # --- from aiortc: must not raise ----------------------------------------------------------

    def _note_open(self) -> None:
        self._is_open = True
        self._changed.set()

    def _note_closed(self) -> None:
        self._break("the other side is gone without a goodbye")

    def _note_dtls(self) -> None:
        if self._dtls.state in ("closed", "failed") and self._is_open:
            is_silent = self._ice.state == "failed"
            self._break(
                "the other side no longer answers"
                if is_silent
                else "the other side is gone without a goodbye"
            )

    def _note_progress(self) -> None:
        if self._is_closing:
            self._changed.set()

    def _take(self, message: bytes | str) -> None:
        if self._reason:
            return
        try:
            if self._is_ended:
                raise LimitExceeded("data channel: a message after the end")
            if isinstance(message, str):
                self._take_control(decode_credit(message))
            else:
                self._taken_bytes += len(message)
                self._read_window.received(len(message))
                self._emit(Received(self._id, message))
        except (LimitExceeded, MalformedMessage) as error:
            self._break(str(error))

    def _take_control(self, credit: int | None) -> None:
        if credit is None:
            self._is_ended = True
            self._emit(Ended(self._id))
        else:
            self._send_window.credited(credit)
            self._emit(Credited(self._id, credit))

    def _note_datagram(self, sent_bytes: int, received_bytes: int) -> None:
        for way, n_bytes in enumerate((sent_bytes, received_bytes)):
            self._carried_bytes[way] += n_bytes + _DATAGRAM_HEADER_BYTES * bool(n_bytes)
        self._tell_carried(_TELL_BYTES)

    def _tell_carried(self, least_bytes: int) -> None:
        """Say what sessions do not count: they know their messages, as if TCP carried them."""
        known = (on_the_wire(self._posted_bytes), on_the_wire(self._taken_bytes))
        new = [
            max(0, carried - own - told)
            for carried, own, told in zip(self._carried_bytes, known, self._told_bytes, strict=True)
        ]
        if sum(new) >= least_bytes:
            self._told_bytes = [told + n for told, n in zip(self._told_bytes, new, strict=True)]
            self._emit(Carried(*new))

    def _report_drained(self) -> None:
        self._emit(Drained(self._id, max(0, self._posted_bytes - self._channel.bufferedAmount)))

    def _break(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason
            self._changed.set()

    # --- descriptions ---------------------------------------------------------------------------

    def _describe(self) -> RtcDescription:
        """Return our own description, with at most RTC_CANDIDATES_MAX candidates."""
        digests = {each.algorithm: each.value for each in self._certificate.getFingerprints()}
        candidates = [
            make_candidate(each.type, each.host, each.port)
            for each in self._connection.local_candidates
        ]
        return RtcDescription(
            user=self._connection.local_username,
            password=self._connection.local_password,
            fingerprint=bytes.fromhex(digests[_DIGEST].replace(":", "")),
            candidates=tuple(candidates[: limits.RTC_CANDIDATES_MAX]),
        )


def _ice_candidate(candidate: RtcCandidate) -> RTCIceCandidate:
    """Translate; what only a peer could use, such as its own priorities, is made up here."""
    return RTCIceCandidate(
        component=_COMPONENT,
        foundation=candidate.kind,
        ip=candidate_host(candidate),
        port=candidate.port,
        priority=candidate_priority(_COMPONENT, candidate.kind),
        protocol="udp",
        type=candidate.kind,
    )


class Hub:
    """Carries out commands; a command for a connection that is gone does nothing."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._links: dict[int, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = asyncio.Event()
        # They speak of every check and every lost race, as loudly as strangers like.
        for name in ("aioice", "aiortc"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def handle(self, command: Command) -> None:
        """Carry out a command."""
        if isinstance(command, Stop):
            self._is_stopping.set()
            return
        if isinstance(command, Gather):
            self._start(command)
            return
        link = self._links.get(command.link)
        if link is None:
            return
        match command:
            case Send(data=data):
                link.send(data)
            case Grant(total=total):
                link.grant(total)
            case Connect(remote=remote):
                link.connect(remote)
            case Close():
                link.close()

    async def serve(self) -> None:
        """Run until told to stop, then close every connection."""
        asyncio.get_running_loop().set_exception_handler(_note_exception)
        await self._is_stopping.wait()
        for link in self._links.values():
            link.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limits.RTC_STOP_S)

    def _start(self, order: Gather) -> None:
        link = self._links[order.link] = Link(order, self._emit)
        task = asyncio.create_task(self._run(order.link, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, number: int, link: Link) -> None:
        try:
            await link.run()
        finally:
            del self._links[number]


def _note_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A background task of aiortc lost a race, such as sending after the end: no harm done."""
    _log.debug("asyncio: %s: %r", context["message"], context.get("exception"))
