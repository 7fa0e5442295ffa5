"""Many clients of one server: the silent ones keep no other out, and `status` has its own slot."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.net.web.http import HTTP_RECEIVE_DEADLINE_S, HttpServer
from swarmnode.net.web.listen import HTTP_SLOT_WAIT_S, HTTP_WAITING_MAX
from swarmnode.net.web.routes import Request, Response, Route, json_response
from tests.kits.http_kit import get, parse_answers

ALL = limits.HTTP_CONNECTIONS_MAX


class Server:
    """A server with a route that has a slot of its own, one that has none, and one that is slow."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.go_on = trio.Event()
        self.n_asked = 0
        self.server = HttpServer(
            [
                Route("GET", "/status", self.answer, has_own_slot=True),
                Route("GET", "/peers", self.answer),
                Route("GET", "/slow", self.wait, 1000.0),
            ],
            any_host=True,
        )

    async def answer(self, request: Request) -> Response:
        return json_response(request.path)

    async def wait(self, request: Request) -> Response:
        self.n_asked += 1
        await self.go_on.wait()
        return json_response(request.path)

    async def connect(self, raw: bytes = b"", n: int = 1) -> list[trio.abc.HalfCloseableStream]:
        clients = []
        for _ in range(n):
            client, server_side = trio.testing.memory_stream_pair()
            self.nursery.start_soon(self._serve, server_side)
            if raw:
                await client.send_all(raw)
            clients.append(client)
            await trio.testing.wait_all_tasks_blocked()
        return clients

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        await self.server.serve_connection(stream)
        await trio.aclose_forcefully(stream)

    async def ask(self, path: str) -> int:
        """Return the status of an answer on a connection of its own."""
        [client] = await self.connect(get(path))
        try:
            return await status_of(client)
        finally:
            await client.aclose()


async def status_of(client: trio.abc.HalfCloseableStream) -> int:
    [(status, _, _)] = parse_answers(bytes(await client.receive_some()), ["GET"])
    return status


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        yield Server(nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("n", [ALL, ALL + HTTP_WAITING_MAX, 5 * ALL])
async def test_status_answers_at_once_beside_silent_clients(
    n: int, autojump_clock: MockClock
) -> None:
    async with serving() as server:
        await server.connect(n=n)
        for _ in range(3):
            assert await server.ask("/status") == 200
        assert trio.current_time() == 0


async def test_status_answers_at_once_beside_busy_clients(autojump_clock: MockClock) -> None:
    async with serving() as server:
        await server.connect(get("/slow"), ALL)
        assert server.n_asked == ALL
        for _ in range(3):
            assert await server.ask("/status") == 200
        assert trio.current_time() == 0
        server.go_on.set()
        assert await server.ask("/peers") == 200


async def test_slots_of_silent_clients_are_free_within_5_s(autojump_clock: MockClock) -> None:
    async with serving() as server:
        silent = [*await server.connect(n=ALL // 2), *await server.connect(b"GET /pe", ALL // 2)]
        assert await server.ask("/peers") == 200  # waits for one
        assert trio.current_time() <= 5
        assert [bytes(await each.receive_some())[:12] for each in silent] == [
            *[b""] * (ALL // 2),
            *[b"HTTP/1.1 408"] * (ALL // 2),
        ]
        assert trio.current_time() <= 5


async def test_a_client_that_says_its_whole_request_in_time_is_answered(
    autojump_clock: MockClock,
) -> None:
    async with serving() as server:
        slow, *_ = await server.connect(n=ALL)
        waiting, *_ = await server.connect()
        await trio.sleep(HTTP_RECEIVE_DEADLINE_S - 0.1)
        for client in (slow, waiting):
            await client.send_all(get("/peers"))
            assert await status_of(client) == 200


async def test_an_idle_connection_makes_way_for_a_caller(autojump_clock: MockClock) -> None:
    async with serving() as server:
        kept = await server.connect(get("/peers"), ALL)
        assert [await status_of(each) for each in kept] == [200] * ALL
        await server.connect(n=3)  # these have said nothing yet
        for client in kept:
            await client.send_all(get("/status"))
            assert await status_of(client) == 200
        assert await server.ask("/peers") == 200
        assert trio.current_time() == 0
        assert await kept[0].receive_some() == b""  # the one that was idle longest
        await kept[1].send_all(get("/peers"))
        assert await status_of(kept[1]) == 200


async def test_who_finds_no_slot_is_told_so(autojump_clock: MockClock) -> None:
    async with serving() as server:
        await server.connect(get("/slow"), ALL)
        assert await server.ask("/peers") == 503
        assert trio.current_time() == pytest.approx(HTTP_SLOT_WAIT_S)


async def test_the_oldest_in_the_waiting_room_makes_way(autojump_clock: MockClock) -> None:
    async with serving() as server:
        await server.connect(get("/slow"), ALL)
        waiting = await server.connect(n=HTTP_WAITING_MAX)
        [newest] = await server.connect(get("/peers"))
        assert await status_of(waiting[0]) == 503
        assert trio.current_time() == 0
        server.go_on.set()
        assert await status_of(newest) == 200
        await waiting[1].send_all(get("/peers"))
        assert await status_of(waiting[1]) == 200


async def test_two_callers_wait_for_the_one_slot_of_status(autojump_clock: MockClock) -> None:
    go_on = trio.Event()

    async def slow_status(request: Request) -> Response:
        await go_on.wait()
        return json_response(request.path)

    async with serving() as server:
        routes = [
            Route("GET", "/status", slow_status, 100.0, has_own_slot=True),
            Route("GET", "/slow", server.wait, 1000.0),
        ]
        server.server = HttpServer(routes, any_host=True)
        await server.connect(get("/slow"), ALL)
        asking = await server.connect(get("/status"), 2)
        go_on.set()
        assert [await status_of(each) for each in asking] == [200, 200]
        assert trio.current_time() == 0
        assert [await each.receive_some() for each in asking] == [b"", b""]
