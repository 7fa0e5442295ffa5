"""A server without a socket, and routes to ask it for."""

from __future__ import annotations

from collections.abc import Iterable

import h11
import trio
import trio.testing

from swarmnode.errors import Refused
from swarmnode.net.web.http import HttpServer
from swarmnode.net.web.routes import (
    Request,
    Response,
    Route,
    SendChunk,
    StreamingResponse,
    json_response,
)


async def echo(request: Request) -> Response:
    return json_response(
        {
            "method": request.method,
            "parameter": request.parameter,
            "query": request.query(),
            "n_bytes": len(request.body),
        }
    )


async def echo_json(request: Request) -> Response:
    return json_response(request.json(dict[str, int]))


async def broken(request: Request) -> Response:
    raise RuntimeError("a bug")


async def refused(request: Request) -> Response:
    raise Refused("the owner said no")


async def slow(request: Request) -> Response:
    await trio.sleep_forever()
    raise AssertionError


async def split_header(request: Request) -> Response:
    return Response(b"{}", headers=(("x-name", "two\r\nlines"),))


async def ticks(request: Request) -> StreamingResponse:
    async def write(send: SendChunk) -> None:
        for n in range(3):
            await send(b"data: %d\n\n" % n)
            await trio.sleep(1)

    return StreamingResponse(write, "text/event-stream")


ROUTES = (
    Route("GET", "/echo", echo),
    Route("POST", "/echo", echo),
    Route("POST", "/json", echo_json),
    Route("GET", "/peers/{id}", echo),
    Route("GET", "/peers/{id}/metrics", echo),
    Route("GET", "/broken", broken),
    Route("GET", "/refused", refused),
    Route("GET", "/slow", slow, 5.0),
    Route("GET", "/split-header", split_header),
    Route("GET", "/ticks", ticks),
)


def get(path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    """Return the bytes of a request to localhost."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def converse(server: HttpServer, chunks: Iterable[bytes], *, eof: bool = True) -> bytes:
    """Send ``chunks`` one by one and return everything that comes back until the server ends.

    An exception out of the server fails the caller's test.
    """
    client, server_side = trio.testing.memory_stream_pair()
    answer = bytearray()

    async def serve() -> None:
        await server.serve_connection(server_side)
        await trio.aclose_forcefully(server_side)

    async def receive() -> None:
        while data := await client.receive_some():
            answer.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        nursery.start_soon(receive)
        try:
            for chunk in chunks:
                await client.send_all(chunk)
            if eof:
                await client.send_eof()
        except trio.BrokenResourceError:
            pass  # the server has closed already, which is its right
    return bytes(answer)


def parse_answers(raw: bytes, methods: Iterable[str]) -> list[tuple[int, dict[str, str], bytes]]:
    """Return status, headers and body of each answer; fails if they are no proper HTTP."""
    client = h11.Connection(h11.CLIENT)
    client.receive_data(raw)
    client.receive_data(b"")
    answers = []
    for method in methods:
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        body = b""
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif not isinstance(event, h11.InformationalResponse):
                raise AssertionError(event)
        answers.append((status, headers, body))
        if client.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            client.start_next_cycle()
    return answers
