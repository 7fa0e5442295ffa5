"""A small HTTP/1.1 server on h11 and Trio, for the control socket, metrics and the dashboard.

It is small so that its behaviour under hostile input can be known: whatever bytes arrive, a
connection ends in an answer, a refusal, or a closed socket, and never in an exception out of
:func:`serve_http`. (Larger servers end their nursery on a malformed upgrade request.)

One connection::

    accepted --whole request--> answering --> idle --first byte--> receiving --> answering ...
      | HTTP_RECEIVE_DEADLINE_S   |             | HTTP_IDLE_S        | HTTP_RECEIVE_DEADLINE_S
      v closed; 408 if it began   |             v closed             v 408, closed
                                  +- the route's deadline, then HTTP_SEND_DEADLINE_S a write

How many there are at once, and which makes way for which, is in ``net/web/listen.py``.
Pipelined requests wait in h11's buffer, which is bounded, and are answered in order. No
upgrade is ever accepted. On TCP a request must name this machine as its host, so that a web
page whose name suddenly resolves to 127.0.0.1 reads nothing here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import h11
import trio
import trio.abc

from swarmnode import limits
from swarmnode.config import HostPort, is_loopback
from swarmnode.net.web.listen import (
    Busy,
    ConnectionSlot,
    Cut,
    Slots,
    open_tcp_listeners,
    unix_listener,
)
from swarmnode.net.web.routes import (
    HttpError,
    Request,
    Response,
    Route,
    Router,
    StreamingResponse,
    error_response,
    run_stream,
)

# From connecting, and later from the first byte of a request, to its last: clients connect when
# they have something to ask. A silent one is gone within 5 s, also where the machine is busy.
HTTP_RECEIVE_DEADLINE_S = 4.5
# One write: a client that reads nothing for this long is gone.
HTTP_SEND_DEADLINE_S = 10.0
# Longer than the usual scrape interval of 60 s, so that a scraper keeps its connection.
HTTP_IDLE_S = 75.0
# After a refusal, read this long and this much so that the refusal is not lost in a reset.
_HTTP_LINGER_S = 1.0
_HTTP_RECEIVE_CHUNK_BYTES = 16 * limits.KIB

_METHODS = {"GET": "GET", "HEAD": "GET", "POST": "POST"}
_log = logging.getLogger(__name__)
_ALWAYS = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))


async def serve_http(
    endpoint: Path | HostPort,
    routes: Iterable[Route],
    *,
    setting: str = "metrics",
    any_host: bool = False,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve ``routes`` until cancelled; started with the open listeners.

    Args:
        endpoint: Path of a Unix socket, or a TCP address (port 0 picks a free one).
        routes: No two with the same method and path.
        setting: The setting that an error about a TCP address names.
        any_host: Serve TCP requests whatever their Host header, for an address that other
            machines are meant to reach.

    Raises:
        ConfigError: The endpoint cannot be listened on; the message says why.
        Refused: Another process listens on this Unix socket.
    """
    if isinstance(endpoint, Path):
        server = HttpServer(routes, any_host=True)
        with unix_listener(endpoint) as listener:
            task_status.started([listener])
            await trio.serve_listeners(server.serve_connection, [listener])
    else:
        server = HttpServer(routes, any_host=any_host)
        listeners = await open_tcp_listeners(*endpoint, setting=setting)
        task_status.started(listeners)
        await trio.serve_listeners(server.serve_connection, listeners)


class HttpServer:
    """Serves connections that a listener accepts."""

    def __init__(self, routes: Iterable[Route], *, any_host: bool) -> None:
        self._router = Router(routes)
        self._any_host = any_host
        self._slots = Slots()

    async def serve_connection(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Answer requests until one side ends it. Checkpoint: yes. Does not close ``stream``."""
        place = self._slots.enter()
        try:
            await _Connection(stream, self._router, place, any_host=self._any_host).run()
        finally:
            place.leave()


class _Gone(Exception):
    """The client closed, broke or stopped reading the connection: nothing is left to say."""


class _Connection:
    """One client, one h11 state machine."""

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        router: Router,
        place: ConnectionSlot,
        *,
        any_host: bool,
    ) -> None:
        self._stream = stream
        self._router = router
        self._place = place
        self._is_first = True  # no request of it has been answered yet
        self._has_begun = False  # something came
        self._any_host = any_host
        self._is_head = False  # the request being answered wants no body
        self._h11 = h11.Connection(
            h11.SERVER, max_incomplete_event_size=limits.HTTP_HEADER_BYTES_MAX
        )

    async def run(self) -> None:
        """Answer one request after the other."""
        try:
            while await self._serve_one():
                self._h11.start_next_cycle()
                self._is_first = False
            self._place.leave()
            await self._linger()
        except _Gone:
            return
        except h11.LocalProtocolError:  # a header or body of a handler that HTTP does not allow
            _log.exception("answer cannot be sent")

    async def _serve_one(self) -> bool:
        """Answer one request; return whether another may follow."""
        try:
            request = await self._next_request()
        except h11.RemoteProtocolError as error:
            refusal = error_response(error.error_status_hint, f"malformed request: {error}")
            await self._send_response(refusal, close=True)
            return False
        except HttpError as error:
            await self._send_response(error_response(error.status, str(error)), close=True)
            return False
        answer = await self._router.answer(request)
        if isinstance(answer, StreamingResponse):
            await self._send_stream(answer)
        else:
            await self._send_response(answer, close=self._place.is_for_one)
        return self._h11.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    # --- receiving -----------------------------------------------------------------------

    async def _next_request(self) -> Request:
        """Return the next request once there is a slot to answer it.

        Raises:
            h11.RemoteProtocolError: The bytes are no HTTP.
            HttpError: They are, and are refused.
            _Gone: No further request came.
        """
        self._is_head = False
        if self._place.has_slot:
            return await self._receive_request()
        try:
            with self._place.waiting():
                request = await self._receive_request()
                await self._place.wait_slot(self._router.own_slot(request))
            return request
        except Busy as error:
            message = f"{limits.HTTP_CONNECTIONS_MAX} connections are open: try again later"
            raise HttpError(503, message) from error

    async def _receive_request(self) -> Request:
        # The first one is on its way; a later one may be pipelined behind the one before.
        if not (self._is_first or self._h11.trailing_data[0]):
            await self._wait_first_byte()
        with trio.move_on_after(HTTP_RECEIVE_DEADLINE_S):
            head = await self._next_event()
            if isinstance(head, h11.ConnectionClosed):
                raise _Gone
            assert isinstance(head, h11.Request), head
            return await self._read_request(head)
        if not self._has_begun:
            raise _Gone
        raise HttpError(408, f"no whole request came within {HTTP_RECEIVE_DEADLINE_S:g} s")

    async def _wait_first_byte(self) -> None:
        try:
            with trio.move_on_after(HTTP_IDLE_S), self._place.idle():
                await self._receive_data()
                return
        except Cut as error:
            raise _Gone from error
        raise _Gone

    async def _next_event(self) -> h11.Event:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                assert isinstance(event, h11.Event), event  # PAUSED: we never ask that early
                return event
            await self._receive_data()

    async def _read_request(self, head: h11.Request) -> Request:
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        method, target = head.method.decode("ascii"), head.target.decode("ascii")
        self._is_head = method == "HEAD"
        self._check_head(method, target, headers)
        body = bytearray()
        if self._h11.they_are_waiting_for_100_continue:
            await self._send(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            _check_body_size(len(body))
        path, _, query_text = target.partition("?")
        return Request(_METHODS[method], path, query_text, headers, bytes(body))

    def _check_head(self, method: str, target: str, headers: dict[str, str]) -> None:
        if method not in _METHODS:
            raise HttpError(501, f"expected GET, HEAD or POST, got {method[:20]}")
        if not target.startswith("/"):
            raise HttpError(400, "expected a path that starts with '/'")
        if not self._any_host and not is_loopback(_host_of(headers.get("host", "localhost"))):
            raise HttpError(403, "this address answers only as localhost or 127.0.0.1")
        # h11 has checked that it is a number, and the only one.
        _check_body_size(int(headers.get("content-length", "0")))

    async def _receive_data(self) -> None:
        try:
            data = await self._stream.receive_some(_HTTP_RECEIVE_CHUNK_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _Gone from error
        self._has_begun = True
        self._h11.receive_data(bytes(data))

    # --- sending -------------------------------------------------------------------------

    async def _send_response(self, response: Response, *, close: bool = False) -> None:
        head = _head(response.content_type, response.headers, close=close)
        head.append(("content-length", str(len(response.body))))
        data = self._h11.send(h11.Response(status_code=response.status, headers=head)) or b""
        if not self._is_head:
            data += self._h11.send(h11.Data(data=response.body)) or b""
        data += self._h11.send(h11.EndOfMessage()) or b""
        await self._send(data)

    async def _send_stream(self, response: StreamingResponse) -> None:
        """Let the handler write while watching whether the client is still there."""
        head = _head(response.content_type, (), close=True)
        await self._send(self._h11.send(h11.Response(status_code=200, headers=head)))
        if self._is_head or await self._write_stream(response):
            await self._send(self._h11.send(h11.EndOfMessage()))
        else:
            raise _Gone

    async def _write_stream(self, response: StreamingResponse) -> bool:
        """Return whether the handler came to its own end."""
        finished = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_gone, nursery.cancel_scope)

            async def send_chunk(data: bytes) -> None:
                try:
                    await self._send(self._h11.send(h11.Data(data=data)))
                except _Gone:  # ends the handler as a cancellation, which it need not know
                    nursery.cancel_scope.cancel()
                    await trio.lowlevel.checkpoint()

            finished = await run_stream(response, send_chunk)
            nursery.cancel_scope.cancel()
        return finished

    async def _cancel_when_gone(self, scope: trio.CancelScope) -> None:
        """Read and drop what the client sends after its last request on this connection."""
        try:
            while await self._stream.receive_some(_HTTP_RECEIVE_CHUNK_BYTES):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    async def _send(self, data: bytes | None) -> None:
        if not data:
            return
        try:
            with trio.fail_after(HTTP_SEND_DEADLINE_S):
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise _Gone from error

    async def _linger(self) -> None:
        """Close our side and wait a moment: closing on unread bytes would reset the answer."""
        with trio.move_on_after(_HTTP_LINGER_S):
            try:
                await self._stream.send_eof()
                n_left = limits.HTTP_LINGER_BYTES_MAX
                while n_left > 0:
                    data = await self._stream.receive_some(_HTTP_RECEIVE_CHUNK_BYTES)
                    if not data:
                        return
                    n_left -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return


def _head(
    content_type: str, headers: Iterable[tuple[str, str]], *, close: bool
) -> list[tuple[str, str]]:
    head = [("content-type", content_type), *_ALWAYS, *headers]
    if close:
        head.append(("connection", "close"))
    return head


def _host_of(header: str) -> str:
    """Return the name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _check_body_size(n_bytes: int) -> None:
    if n_bytes > limits.HTTP_BODY_BYTES_MAX:
        raise HttpError(413, f"a body has at most {limits.HTTP_BODY_BYTES_MAX} bytes")
