from __future__ import annotations

import json
import logging

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.errors import InvariantViolation
from swarmnode.net.web.http import (
    HTTP_IDLE_S,
    HTTP_RECEIVE_DEADLINE_S,
    HTTP_SEND_DEADLINE_S,
    HttpServer,
)
from swarmnode.net.web.routes import (
    HTTP_QUERY_FIELDS_MAX,
    Request,
    Response,
    Route,
    SendChunk,
    StreamingResponse,
    json_response,
)
from tests.kits.http_kit import ROUTES, converse, get, parse_answers


@pytest.fixture
def server() -> HttpServer:
    return HttpServer(ROUTES, any_host=False)


async def ask(
    server: HttpServer, raw: bytes, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    answer = await converse(server, [raw])
    return parse_answers(answer, [method])[0]


async def test_exact_path_query_and_json(server: HttpServer, autojump_clock: MockClock) -> None:
    status, headers, body = await ask(server, get("/echo?a=1&b=%20x"))
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["query"] == {"a": "1", "b": " x"}


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/peers/sn1abc", "sn1abc"),
        ("/peers/sn1abc/metrics", "sn1abc"),
        ("/peers/a%2Fb", "a/b"),
        ("/peers/metrics", "metrics"),
    ],
)
async def test_path_parameter(
    server: HttpServer, path: str, parameter: str, autojump_clock: MockClock
) -> None:
    status, _, body = await ask(server, get(path))
    assert status == 200
    assert json.loads(body)["parameter"] == parameter


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", 404),
        ("/peers/", 404),
        ("/peers/a/b", 404),
        ("/peers//metrics", 404),
        ("/echo/", 404),
        ("/peers/%ff", 400),
        ("/echo?" + "&".join(f"a{n}=1" for n in range(HTTP_QUERY_FIELDS_MAX + 1)), 400),
        ("/echo?a=%ff", 400),
        ("http://localhost/echo", 400),
        ("*", 400),
    ],
)
async def test_what_is_not_there(
    server: HttpServer, path: str, expected: int, autojump_clock: MockClock
) -> None:
    status, _, body = await ask(server, get(path))
    assert status == expected
    assert json.loads(body)["exit_code"] == 1


async def test_methods(server: HttpServer, autojump_clock: MockClock) -> None:
    status, headers, _ = await ask(server, get("/json"))
    assert (status, headers["allow"]) == (405, "POST")
    status, headers, _ = await ask(server, get("/peers/x", method="POST", body=b"{}"), "POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    status, _, _ = await ask(server, get("/echo", method="DELETE"), "DELETE")
    assert status == 501


async def test_head_has_the_length_and_no_body(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    _, got_headers, got_body = await ask(server, get("/echo"))
    status, headers, body = await ask(server, get("/echo", method="HEAD"), "HEAD")
    assert (status, body) == (200, b"")
    assert headers["content-length"] == got_headers["content-length"] == str(len(got_body))


async def test_refused_head_has_no_body(
    server: HttpServer, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    raw = b"HEAD /echo HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    status, _, body = await ask(server, raw, "HEAD")
    assert (status, body) == (403, b"")
    assert caplog.records == []


async def test_keep_alive_and_pipelining(server: HttpServer, autojump_clock: MockClock) -> None:
    requests = [get("/echo?n=0"), get("/json", method="POST", body=b"x"), get("/echo?n=2")]
    answers = parse_answers(await converse(server, [b"".join(requests)]), ["GET", "POST", "GET"])
    assert [status for status, _, _ in answers] == [200, 415, 200]
    assert [json.loads(answers[n][2])["query"]["n"] for n in (0, 2)] == ["0", "2"]


async def test_connection_close_is_honoured(server: HttpServer, autojump_clock: MockClock) -> None:
    raw = get("/echo", "Connection: close") + get("/echo")
    answer = await converse(server, [raw], eof=False)
    assert answer.count(b"HTTP/1.1 200") == 1


async def test_http_1_0_without_host(server: HttpServer, autojump_clock: MockClock) -> None:
    answer = await converse(server, [b"GET /echo HTTP/1.0\r\n\r\n"], eof=False)
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json", b'{"a": 1}', 200),
        ("application/json; charset=utf-8", b'{"a": 1}', 200),
        ("text/plain", b'{"a": 1}', 415),
        ("application/json", b'{"a": "x"}', 400),
        ("application/json", b'{"a": ', 400),
        ("application/json", b"\xff\xfe", 400),
        ("application/json", b"[" * 5000, 400),
    ],
)
async def test_json_bodies(
    server: HttpServer, content_type: str, body: bytes, expected: int, autojump_clock: MockClock
) -> None:
    raw = get("/json", f"Content-Type: {content_type}", method="POST", body=body)
    status, _, answer = await ask(server, raw, "POST")
    assert status == expected
    if expected == 200:
        assert json.loads(answer) == {"a": 1}


async def test_expect_100_continue(server: HttpServer, autojump_clock: MockClock) -> None:
    head, _, body = get("/echo", "Expect: 100-continue", method="POST", body=b"12345").partition(
        b"\r\n\r\n"
    )
    answer = await converse(server, [head + b"\r\n\r\n", body])
    assert answer.startswith(b"HTTP/1.1 100")
    assert parse_answers(answer, ["POST"])[0][0] == 200


async def test_chunked_body(server: HttpServer, autojump_clock: MockClock) -> None:
    raw = get("/echo", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n"
    _, _, body = await ask(server, raw, "POST")
    assert json.loads(body)["n_bytes"] == 3


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("localhost:7338", 200),
        ("127.0.0.1:7338", 200),
        ("127.1.2.3", 200),
        ("[::1]:7338", 200),
        ("evil.example", 403),
        ("localhost.evil.example:7338", 403),
        ("192.168.1.2", 403),
        ("", 403),
        ("[", 403),
    ],
)
async def test_host_must_be_this_machine(
    server: HttpServer, host: str, expected: int, autojump_clock: MockClock
) -> None:
    raw = f"GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    assert (await ask(server, raw))[0] == expected
    open_server = HttpServer(ROUTES, any_host=True)
    assert (await ask(open_server, raw))[0] == 200


# Each of these, or a neighbour of it, has stopped a larger server.
HOSTILE = {
    "websocket and a byte": get(
        "/echo",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    )
    + b"\x00",
    "h2c with junk settings": get(
        "/echo", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: !\x80!"
    ),
    "http2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "connect": get("localhost:22", method="CONNECT") + b"SSH-2.0",
    "large header": get("/echo", "X: " + "a" * 2 * limits.HTTP_HEADER_BYTES_MAX),
    "many headers": get("/echo", *(f"X{n}: 1" for n in range(5000))),
    "endless first line": b"GET /" + b"a" * 2 * limits.HTTP_HEADER_BYTES_MAX,
    "negative length": get("/echo", "Content-Length: -1", method="POST"),
    "two lengths": get("/echo", "Content-Length: 1", "Content-Length: 2", method="POST") + b"ab",
    "huge length": get("/echo", "Content-Length: " + "9" * 5000, method="POST"),
    "body too large": get("/echo", f"Content-Length: {10**12}", method="POST"),
    "chunk size is no number": get("/echo", "Transfer-Encoding: chunked", method="POST")
    + b"zz\r\nabc\r\n0\r\n\r\n",
    "chunk longer than said": get("/echo", "Transfer-Encoding: chunked", method="POST")
    + b"1\r\nabc\r\n0\r\n\r\n",
    "chunk size overflows": get("/echo", "Transfer-Encoding: chunked", method="POST")
    + b"f" * 100
    + b"\r\n",
    "endless chunk extension": get("/echo", "Transfer-Encoding: chunked", method="POST")
    + b"1;"
    + b"a" * 2 * limits.HTTP_HEADER_BYTES_MAX,
    "unknown encoding": get("/echo", "Transfer-Encoding: gzip, chunked", method="POST"),
    "two hosts": get("/echo", "Host: localhost"),
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "nul in path": get("/echo\0"),
    "nul in header": get("/echo", "X: \0"),
    "folded first header": b"GET /echo HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "only newlines": b"\r\n" * 20_000,
    "bare body cut off": get("/echo", "Content-Length: 10", method="POST") + b"abc",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("eof", [True, False])
async def test_hostile_bytes_end_in_an_answer_or_a_refusal(
    server: HttpServer,
    name: str,
    eof: bool,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = await converse(server, [HOSTILE[name]], eof=eof)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500" not in answer
    assert caplog.records == []
    assert (await ask(server, get("/echo")))[0] == 200


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("websocket and a byte", 200),
        ("h2c with junk settings", 200),
        ("large header", 431),
        ("negative length", 400),
        ("two lengths", 400),
        ("huge length", 400),
        ("body too large", 413),
        ("chunk size is no number", 400),
        ("unknown encoding", 501),
        ("two hosts", 400),
        ("no host", 400),
        ("connect", 501),
    ],
)
async def test_hostile_bytes_get_the_right_refusal(
    server: HttpServer, name: str, status: int, autojump_clock: MockClock
) -> None:
    answer = await converse(server, [HOSTILE[name]], eof=False)
    assert answer.startswith(b"HTTP/1.1 %d" % status)


async def test_body_larger_than_the_limit_in_chunks(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = get("/echo", "Transfer-Encoding: chunked", method="POST")
    n_chunks = limits.HTTP_BODY_BYTES_MAX // 0x10000 + 1
    answer = await converse(server, [head, *[chunk] * n_chunks])
    assert answer.startswith(b"HTTP/1.1 413")


async def test_slow_loris_is_cut_off(server: HttpServer, autojump_clock: MockClock) -> None:
    client, server_side = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_connection, server_side)
        started_s = trio.current_time()
        nursery.start_soon(_send_slowly, client, b"GET /echo HTTP/1.1\r\n")
        answer = await client.receive_some()
        assert trio.current_time() - started_s <= 5
        nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 408")


async def _send_slowly(stream: trio.abc.SendStream, data: bytes) -> None:
    for byte in data:
        await stream.send_all(bytes([byte]))
        await trio.sleep(1)


async def test_slow_loris_in_the_body_is_cut_off(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    head = get("/echo", "Content-Length: 100", method="POST")
    answer = await converse(server, [head, b"a"], eof=False)
    assert answer.startswith(b"HTTP/1.1 408")
    assert trio.current_time() >= HTTP_RECEIVE_DEADLINE_S


async def test_silent_connection_is_closed_in_silence(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    started_s = trio.current_time()
    assert await converse(server, [], eof=False) == b""
    assert trio.current_time() - started_s <= 5


async def test_idle_connection_is_closed_in_silence(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    started_s = trio.current_time()
    answer = await converse(server, [get("/echo")], eof=False)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1
    assert trio.current_time() - started_s == pytest.approx(HTTP_IDLE_S)


async def test_late_first_byte_gets_the_whole_receive_deadline(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    client, server_side = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_connection, server_side)
        await client.send_all(get("/echo"))
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        await trio.sleep(HTTP_IDLE_S - 1)
        head, tail = get("/echo")[:20], get("/echo")[20:]
        await client.send_all(head)
        await trio.sleep(HTTP_RECEIVE_DEADLINE_S - 1)
        await client.send_all(tail)
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        await client.aclose()


async def test_client_that_stops_reading_is_dropped(autojump_clock: MockClock) -> None:
    async def large(request: Request) -> Response:
        return Response(b"x" * 1000)

    server = HttpServer([Route("GET", "/", large)], any_host=True)
    client_to_server, server_from_client = trio.testing.memory_stream_one_way_pair()
    server_to_client, _unread = trio.testing.lockstep_stream_one_way_pair()
    stream = trio.StapledStream(server_to_client, server_from_client)
    await client_to_server.send_all(get("/"))
    started_s = trio.current_time()
    await server.serve_connection(stream)
    assert trio.current_time() - started_s == pytest.approx(HTTP_SEND_DEADLINE_S)


async def test_handler_deadline(server: HttpServer, autojump_clock: MockClock) -> None:
    status, _, body = await ask(server, get("/slow"))
    assert status == 503
    assert "no answer within 5 s" in json.loads(body)["error"]


async def test_bug_in_a_handler_is_a_500_and_a_log_line(
    server: HttpServer, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    raw = get("/broken") + get("/echo")
    answers = parse_answers(await converse(server, [raw]), ["GET", "GET"])
    assert [status for status, _, _ in answers] == [500, 200]
    assert "a bug" not in answers[0][2].decode()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert vars(record)["fields"] == {"path": "/broken"}


async def test_our_errors_carry_their_exit_code(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    status, _, body = await ask(server, get("/refused"))
    assert status == 403
    assert json.loads(body) == {"error": "the owner said no", "exit_code": 4}


async def test_broken_promise_goes_up(autojump_clock: MockClock) -> None:
    async def handler(request: Request) -> Response:
        raise InvariantViolation("1 != 1")

    server = HttpServer([Route("GET", "/", handler)], any_host=True)
    client, server_side = trio.testing.memory_stream_pair()
    await client.send_all(get("/"))
    with pytest.raises(InvariantViolation):
        await server.serve_connection(server_side)


async def test_header_that_is_no_http_closes_the_connection(
    server: HttpServer, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    assert await converse(server, [get("/split-header")]) == b""
    assert caplog.records[0].getMessage() == "answer cannot be sent"
    assert (await ask(server, get("/echo")))[0] == 200


async def test_stream_comes_in_parts_and_ends_the_connection(
    server: HttpServer, autojump_clock: MockClock
) -> None:
    answer = await converse(server, [get("/ticks")], eof=False)
    status, headers, body = parse_answers(answer, ["GET"])[0]
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert trio.current_time() >= 3


async def test_stream_is_cancelled_when_the_client_goes(autojump_clock: MockClock) -> None:
    cancelled_s = []

    async def watch(request: Request) -> StreamingResponse:
        async def write(send: SendChunk) -> None:
            try:
                await send(b"first")
                await trio.sleep(3600)
            finally:
                cancelled_s.append(trio.current_time())

        return StreamingResponse(write, "text/plain")

    server = HttpServer([Route("GET", "/", watch)], any_host=True)
    client, server_side = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_connection, server_side)
        started_s = trio.current_time()
        await client.send_all(get("/"))
        await trio.sleep(1)
        await client.aclose()
    assert cancelled_s == [pytest.approx(started_s + 1)]


async def test_failing_stream_is_cut_without_its_end(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async def watch(request: Request) -> StreamingResponse:
        async def write(send: SendChunk) -> None:
            await send(b"first")
            raise RuntimeError("a bug")

        return StreamingResponse(write, "text/plain")

    server = HttpServer([Route("GET", "/", watch)], any_host=True)
    answer = await converse(server, [get("/")], eof=False)
    assert b"first" in answer
    assert not answer.endswith(b"0\r\n\r\n")
    assert caplog.records[0].getMessage() == "stream failed"


def test_two_routes_for_one_path_are_a_bug() -> None:
    async def handler(request: Request) -> Response:
        return json_response(None)

    with pytest.raises(AssertionError, match="two routes"):
        HttpServer(
            [Route("GET", "/a/{b}", handler), Route("GET", "/a/{c}", handler)], any_host=True
        )
