"""What the dashboard shows of a swarm, and which callers it answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from swarmnode import limits
from swarmnode.config import HostPort
from swarmnode.daemon.exchange.history import letters_of
from swarmnode.daemon.status.dashboard import Dashboard, Sample, Sharing
from swarmnode.daemon.status.overview import Overview, outlook_of, overview_of
from swarmnode.dashboard.page import KEY_HEADER
from swarmnode.errors import ConfigError
from swarmnode.net.web.http import HTTP_SEND_DEADLINE_S, HttpServer
from swarmnode.testing.swarm import UNIX_START_S, SimNode, SimSwarm, sim_swarm

HOST = "127.0.0.1:7339"


@contextlib.asynccontextmanager
async def three(home: Path, age_s: float = 10.0) -> AsyncIterator[SimSwarm]:
    """Three nodes that have trained and exchanged for a while."""
    async with sim_swarm(home, 3) as swarm:
        await trio.sleep(age_s)
        yield swarm
        await swarm.leave_all()


def overview(node: SimNode) -> Overview:
    now = trio.current_time()
    return overview_of(node.running.view, now, UNIX_START_S + now)


def dashboard_of(node: SimNode) -> Dashboard:
    return Dashboard(node.running, HostPort("127.0.0.1", 7339))


async def ask(
    dashboard: Dashboard, path: str, *, method: str = "GET", host: str = HOST, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of one answer."""
    server = HttpServer(dashboard.routes(), any_host=False)
    return await answered(server, path, method, host, headers)


async def answered(
    server: HttpServer, path: str, method: str, host: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    raw = await request(server, path, method, host, headers)
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), fields, body


async def request(
    server: HttpServer, path: str, method: str, host: str, headers: dict[str, str]
) -> bytes:
    client, server_side = trio.testing.memory_stream_pair()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    received = b""

    async def serve() -> None:
        await server.serve_connection(server_side)
        await server_side.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await client.send_all("\r\n".join([*lines, "", ""]).encode())
        while data := await client.receive_some():
            received += data
    return received


# --- what is shown ------------------------------------------------------------------------


async def test_every_node_sees_every_member(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        for node in swarm.nodes:
            seen = overview(node)
            assert seen.members[0].is_self
            assert seen.members[0].peer == str(node.peer)
            assert {each.peer for each in seen.members} == {str(each.peer) for each in swarm.nodes}
            assert seen.members_known == seen.members_alive == 3
            assert {each.name for each in seen.members} == {letters_of(n.peer) for n in swarm.nodes}
            for other in seen.members[1:]:
                assert (other.role, other.alive, other.state) == ("trainer", "alive", "training")
                assert other.path == "other"  # the simulated network is no kind of its own
                assert other.step > 0
            assert seen.node.state == "training"
            assert seen.node.exchanges_committed > 0
            assert seen.swarm_steps == sum(each.step for each in seen.members) + seen.others_steps


async def test_exchanges_are_edges_between_listed_members(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path, 40) as swarm:
        seen = overview(swarm.nodes[0])
        assert seen.edges
        for edge in seen.edges:
            assert edge.one != edge.other
            assert {edge.one, edge.other} <= {0, 1, 2}
            assert edge.per_hour > 0


async def test_snapshots_name_their_holders(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        names = {letters_of(node.peer) for node in swarm.nodes}
        await swarm.nodes[1].running.view.training().trainer.save_snapshot(30.0)
        await trio.sleep(30)
        seen = overview(swarm.nodes[0])
        assert seen.snapshots
        assert len(seen.snapshots) <= limits.DASHBOARD_SNAPSHOTS_MAX
        for snapshot in seen.snapshots:
            assert snapshot.n_holders == len(snapshot.holders) >= 1
            assert set(snapshot.holders) <= names


async def test_a_dead_member_stays_on_the_list_as_dead(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        await swarm.kill(2)
        await trio.sleep(60)
        seen = overview(swarm.nodes[0])
        assert seen.members_alive == 2
        last = seen.members[-1]
        assert (last.peer, last.alive, last.path) == (str(swarm.nodes[2].peer), "dead", "")


async def test_the_list_of_members_has_an_end(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(tmp_path, 40) as swarm:
        monkeypatch.setattr(limits, "DASHBOARD_MEMBERS_MAX", 2)
        seen = overview(swarm.nodes[0])
        assert len(seen.members) == 2
        assert seen.members[0].is_self
        assert seen.members_known == 3
        assert seen.others_steps > 0
        assert all(max(edge.one, edge.other) < 2 for edge in seen.edges)


async def test_no_addresses_and_no_paths_of_files_are_shown(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm:
        status, _, body = await ask(dashboard_of(swarm.nodes[0]), "/overview")
        assert status == 200
        text = body.decode()
        assert "mem:" not in text
        assert str(swarm.home) not in text


# --- which callers are answered -----------------------------------------------------------


async def test_the_page_forbids_all_that_it_does_not_need(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm:
        dashboard = dashboard_of(swarm.nodes[0])
        status, headers, body = await ask(dashboard, "/")
        assert status == 200
        assert headers["content-type"].startswith("text/html")
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        page = body.decode()
        assert "http://" not in page
        assert "https://" not in page
        assert "<style" not in page
        assert " style=" not in page
        assert all("src=" in part.partition(">")[0] for part in page.split("<script")[1:])


async def test_files_of_the_page_are_served_and_nothing_else(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm:
        dashboard = dashboard_of(swarm.nodes[0])
        status, headers, _ = await ask(dashboard, "/static/app.js")
        assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        for path in (
            "/static/__init__.py",
            "/static/..%2F__init__.py",
            "/static/",
            "/status",
            "/leave",
        ):
            status, _, _ = await ask(dashboard, path)
            assert status in (404, 405), path


FOREIGN: tuple[dict[str, str], ...] = (
    {"host": "rebound.example"},
    {"host": "rebound.example:7339"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://127.0.0.1:8000"},
    {"Origin": "null"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
)


async def test_other_sites_read_nothing(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        dashboard = dashboard_of(swarm.nodes[0])
        for path in ("/overview", "/history", "/events", "/static/app.js"):
            for headers in FOREIGN:
                status, _, body = await ask(dashboard, path, **headers)
                assert status == 403, (path, headers)
                assert set(json.loads(body)) == {"error", "exit_code"}


async def test_a_link_from_another_page_opens_the_page(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        status, _, _ = await ask(dashboard_of(swarm.nodes[0]), "/", Sec_Fetch_Site="cross-site")
        assert status == 200


async def change(dashboard: Dashboard, path: str, key: str, **headers: str) -> tuple[int, Any]:
    headers |= {KEY_HEADER: key, "Content-Length": "0"}
    status, _, body = await ask(dashboard, path, method="POST", **headers)
    return status, json.loads(body)


async def test_only_the_key_of_this_run_pauses(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        node = swarm.nodes[0]
        async with serving(dashboard_of(node)) as (dashboard, key):
            for wrong in ("", "x", key[:-1], key + "x", "é"):
                status, answer = await change(dashboard, "/pause", wrong)
                assert status == 403
                assert "swarmnode dashboard" in answer["error"]
            for origin in ("http://evil.example", "http://localhost:3000", "null"):
                status, _ = await change(dashboard, "/pause", key, Origin=origin)
                assert status == 403
            await trio.sleep(5)
            assert node.status.state == "training"

            status, _ = await change(dashboard, "/pause", key, Origin=f"http://{HOST}")
            assert status == 200
            await trio.sleep(5)
            assert node.status.state == "paused"
            status, _ = await change(dashboard, "/resume", key)
            assert status == 200
            await trio.sleep(5)
            assert node.status.state == "training"


async def test_nothing_else_can_be_changed(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm, serving(dashboard_of(swarm.nodes[0])) as (dashboard, key):
        for path in ("/leave", "/snapshot", "/finalize"):
            status, _ = await change(dashboard, path, key)
            assert status == 404


@contextlib.asynccontextmanager
async def serving(dashboard: Dashboard) -> AsyncIterator[tuple[Dashboard, str]]:
    """Let a dashboard listen on a port of its own, so that it gives out its key."""
    dashboard._address = HostPort("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(dashboard.run, lambda _text: None)
        yield dashboard, dashboard.whereabouts().key
        nursery.cancel_scope.cancel()


# --- the stream ---------------------------------------------------------------------------


class Follower:
    """A page that reads its events, or stops doing so."""

    def __init__(self, server: HttpServer) -> None:
        # Nothing is buffered in between: a page that does not read holds the server's next write.
        self.client, self._server_side = trio.testing.lockstep_stream_pair()
        self._server = server
        self.dropped = trio.Event()
        self.received = b""

    async def open(self, nursery: trio.Nursery) -> int:
        """Return the status of the answer."""

        async def serve() -> None:
            await self._server.serve_connection(self._server_side)
            await trio.aclose_forcefully(self._server_side)
            self.dropped.set()

        nursery.start_soon(serve)
        await self.client.send_all(f"GET /events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        while b"\r\n\r\n" not in self.received:
            self.received += await self.client.receive_some()
        return int(self.received.split()[1])

    async def wait_begun(self) -> None:
        """Return once the first bytes of the stream are here."""
        while b"retry" not in self.received:
            self.received += await self.client.receive_some()

    async def read(self, n_events: int) -> list[tuple[str, Any]]:
        """Return the next events by name."""
        while self.events_raw().count("\ndata: ") < n_events or not self.received.endswith(b"\r\n"):
            self.received += await self.client.receive_some()
        parts = [part for part in self.events_raw().split("\n\n") if part.startswith("event: ")]
        named = (part.split("\n", 1) for part in parts)
        return [(n.removeprefix("event: "), json.loads(d.removeprefix("data: "))) for n, d in named]

    def events_raw(self) -> str:
        """Return the body without the sizes of its chunks."""
        rest = self.received.partition(b"\r\n\r\n")[2]
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            n_bytes = int(size, 16)
            if len(rest) < n_bytes:
                break
            body, rest = body + rest[:n_bytes], rest[n_bytes + 2 :]
        return body.decode()


async def test_events_begin_with_the_history_and_go_on(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        async with serving(dashboard_of(swarm.nodes[0])) as (dashboard, _):
            await trio.sleep(20)
            async with trio.open_nursery() as nursery:
                page = Follower(HttpServer(dashboard.routes(), any_host=False))
                assert await page.open(nursery) == 200
                events = await page.read(12)
                await page.client.aclose()
        names = [name for name, _ in events]
        assert names[:2] == ["history", "overview"]
        assert set(names[2:]) == {"overview", "sample"}
        history = events[0][1]["samples"]
        assert len(history) >= 5
        for sample in (*history, *(data for name, data in events if name == "sample")):
            assert sample["swarm"] > 0
            assert sample["members"] == 3
            assert set(sample["peers"]) == {letters_of(node.peer) for node in swarm.nodes[1:]}
        uptimes = [data["node"]["uptime_s"] for name, data in events if name == "overview"]
        assert uptimes == sorted(uptimes)
        assert uptimes[-1] - uptimes[0] >= 4


async def test_pages_that_stop_reading_make_room(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        server = HttpServer(dashboard_of(swarm.nodes[0]).routes(), any_host=False)
        async with trio.open_nursery() as nursery:
            stalled = [Follower(server) for _ in range(limits.DASHBOARD_STREAMS_MAX)]
            for page in stalled:
                assert await page.open(nursery) == 200
                await page.wait_begun()
            assert await Follower(server).open(nursery) == 503
            with trio.fail_after(HTTP_SEND_DEADLINE_S + limits.DASHBOARD_EVENT_S + 1):
                for page in stalled:
                    await page.dropped.wait()
            again = Follower(server)
            assert await again.open(nursery) == 200
            nursery.cancel_scope.cancel()


async def test_a_port_that_is_taken_stops_only_the_page(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm:
        said: list[str] = []
        async with serving(dashboard_of(swarm.nodes[0])) as (dashboard, _):
            port = int(dashboard.whereabouts().url.rsplit(":", 1)[1].strip("/"))
            second = Dashboard(swarm.nodes[1].running, HostPort("127.0.0.1", port))
            async with trio.open_nursery() as nursery:
                await nursery.start(second.run, said.append)
                where = second.whereabouts()
                nursery.cancel_scope.cancel()
        assert (where.url, where.key) == ("", "")
        assert "another program uses it" in where.reason
        assert said == [f"no dashboard: {where.reason}"]


async def test_a_node_without_a_dashboard_says_so(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        where = swarm.nodes[0].running.dashboard.whereabouts()
        assert (where.url, where.key) == ("", "")
        assert where.reason == "the setting dashboard is off"


async def test_the_link_for_others_is_for_the_owner(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        dashboard = dashboard_of(swarm.nodes[0])
        status, _, _ = await ask(dashboard, "/link")
        assert status == 403
        status, _, body = await ask(dashboard, "/link", **{KEY_HEADER: dashboard._key})
        assert status == 200
        assert json.loads(body)["link"].startswith("swarm:sim?k=")
        assert b"./share.js" in (await ask(dashboard, "/static/app.js"))[2]
        assert (await ask(dashboard, "/static/share.js"))[0] == 200


# --- on other machines ----------------------------------------------------------------------------

ELSEWHERE = "192.0.2.7:7340"


class Shared:
    """A page that is shared, and a reader of it."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard

    @property
    def links(self) -> tuple[str, ...]:
        return self.dashboard.whereabouts().shared

    @property
    def token(self) -> str:
        return self.links[0].partition("?token=")[2]

    async def get(
        self, path: str, host: str = ELSEWHERE, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        server = HttpServer(self.dashboard.shares.routes(), any_host=True)
        return await answered(server, path, method, host, headers)


@contextlib.asynccontextmanager
async def sharing(node: SimNode, folder: Path) -> AsyncIterator[Shared]:
    settings = Sharing(("127.0.0.1:0",), ("Box.Test",), folder / "dashboard.token")
    dashboard = Dashboard(node.running, HostPort("127.0.0.1", 0), settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(dashboard.run, lambda _text: None)
        yield Shared(dashboard)
        nursery.cancel_scope.cancel()


async def test_a_reader_needs_the_link_once_and_then_its_cookie(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm, sharing(swarm.nodes[0], tmp_path) as page:
        token = page.token
        assert len(token) >= 20
        status, headers, body = await page.get(f"/?token={token}", Sec_Fetch_Site="cross-site")
        assert status == 200
        assert token.encode() not in body
        cookie, *flags = (part.strip() for part in headers["set-cookie"].split(";"))
        assert {"httponly", "samesite=strict", "path=/"} <= set(flags)
        # Names and values of headers are in lower case here, and the token is not.
        named = f"{cookie.partition('=')[0]}={token}"
        for path in ("/", "/swarm", "/overview", "/history", "/static/app.js", "/static/swarm.js"):
            assert (await page.get(path))[0] == 403, path
            assert (await page.get(path, Cookie=f"other=1; {named}"))[0] == 200, path
            assert (await page.get(path, Authorization=f"Bearer {token}"))[0] == 200, path


async def test_wrong_tokens_get_nothing(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm, sharing(swarm.nodes[0], tmp_path) as page:
        token = page.token
        _, headers, _ = await page.get(f"/?token={token}")
        name = headers["set-cookie"].partition("=")[0]
        for wrong in ("", "x", token[:-1], token + "x", token.swapcase(), "é"):
            assert (await page.get(f"/overview?token={wrong.encode('ascii', 'ignore').decode()}"))[
                0
            ] == 403
            assert (await page.get("/overview", Cookie=f"{name}={wrong}"))[0] == 403
            assert (await page.get("/overview", Authorization=f"Bearer {wrong}"))[0] == 403
        status, headers, _ = await page.get("/?token=wrong")
        assert status == 403
        assert "set-cookie" not in headers


async def test_names_that_others_can_lead_here_are_refused(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm, sharing(swarm.nodes[0], tmp_path) as page:
        bearer = f"Bearer {page.token}"
        for host in ("evil.example", "evil.example:7340", "192.0.2.7.evil.example", "[bad", "a@b"):
            for path in ("/overview", "/", f"/?token={page.token}"):
                assert (await page.get(path, host, Authorization=bearer))[0] == 403, (host, path)
        for host in ("192.0.2.7", "[2001:db8::1]:7340", "localhost:7340", "box.test", "BOX.test:1"):
            assert (await page.get("/overview", host, Authorization=bearer))[0] == 200, host


async def test_other_sites_read_nothing_of_a_shared_page(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm, sharing(swarm.nodes[0], tmp_path) as page:
        bearer = f"Bearer {page.token}"
        for foreign in FOREIGN[2:]:
            for path in ("/overview", "/history", "/events", "/static/app.js", "/swarm"):
                assert (await page.get(path, Authorization=bearer, **foreign))[0] == 403, path


async def test_a_shared_page_only_shows(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm, sharing(swarm.nodes[0], tmp_path) as page:
        key = page.dashboard.whereabouts().key
        assert key
        headers = {KEY_HEADER: key, "Authorization": f"Bearer {page.token}"}
        for path in ("/pause", "/resume", "/link", "/dashboard", "/leave", "/status", "/limits"):
            for method in ("GET", "POST"):
                status, _, _ = await page.get(path, method=method, **headers)
                assert status in (404, 405), path
        assert swarm.nodes[0].status.state == "training"


async def test_a_page_that_is_off_here_can_still_be_shared(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with three(tmp_path) as swarm, trio.open_nursery() as nursery:
        settings = Sharing((), (), tmp_path / "dashboard.token")
        dashboard = Dashboard(swarm.nodes[0].running, None, settings)
        await nursery.start(dashboard.run, lambda _text: None)
        await trio.testing.wait_all_tasks_blocked()
        await dashboard.share(("127.0.0.1:0",))
        page = Shared(dashboard)
        assert (await page.get("/overview"))[0] == 403
        assert (await page.get("/overview", Authorization=f"Bearer {page.token}"))[0] == 200
        assert not dashboard.whereabouts().url
        nursery.cancel_scope.cancel()


async def test_links_hold_until_the_owner_ends_them(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm:
        async with sharing(swarm.nodes[0], tmp_path) as page:
            first = page.token
            assert page.links[0].startswith("http://127.0.0.1:")
        kept = tmp_path / "dashboard.token"
        assert kept.stat().st_mode & 0o777 == 0o600
        async with sharing(swarm.nodes[0], tmp_path) as page:
            assert page.token == first
            await page.dashboard.share(("127.0.0.1:0", "localhost:0"))
            assert len(page.links) == 2
            port = int(page.links[0].partition("?")[0].rstrip("/").rpartition(":")[2])
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            await page.dashboard.share(())
            await trio.testing.wait_all_tasks_blocked()
            assert page.links == ()
            with pytest.raises(OSError, match="all attempts"):
                await trio.open_tcp_stream("127.0.0.1", port)
            assert (await page.get("/overview", Authorization=f"Bearer {first}"))[0] == 403
            await page.dashboard.share(("127.0.0.1:0",))
            assert page.token != first


async def test_a_token_that_others_could_read_or_guess_is_refused(
    tmp_path: Path, autojump_clock: Any
) -> None:
    kept = tmp_path / "dashboard.token"
    async with three(tmp_path) as swarm:
        for content, mode in (("short", 0o600), ("x" * 30, 0o644), ("", 0o600)):
            kept.write_text(content)
            kept.chmod(mode)
            async with sharing(swarm.nodes[0], tmp_path) as page:
                assert page.links == ()
                with pytest.raises(ConfigError):
                    await page.dashboard.share(("127.0.0.1:0",))


async def test_no_more_addresses_than_the_bound(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm, sharing(swarm.nodes[0], tmp_path) as page:
        with pytest.raises(ConfigError, match="end that first"):
            await page.dashboard.share(tuple(f"127.0.0.{n}:0" for n in range(2, 12)))
        assert len(page.links) == limits.DASHBOARD_SHARES_MAX


# --- the swarm as a whole -------------------------------------------------------------------------


def moments(*said: tuple[float, int, int]) -> list[Sample]:
    return [Sample(at, 0, members, None, None, {}, tokens) for at, members, tokens in said]


def test_the_end_follows_from_the_rate() -> None:
    past = moments((0.0, 1, 0), (100.0, 4, 1000), (200.0, 3, 2000))
    seen = outlook_of(past, 2000, 5000, 200.0)
    assert seen.tokens_per_day == 10 * 86_400
    assert seen.members_max == 4
    assert seen.end_unix_s == 500.0


def test_only_the_last_day_counts() -> None:
    past = moments((0.0, 1, 10), (100_000.0, 1, 1000), (100_010.0, 1, 1100))
    assert outlook_of(past, 1100, 0, 100_010.0).tokens_per_day == 10 * 86_400


def test_an_end_that_is_not_known_or_reached_is_said_so() -> None:
    still = moments((0.0, 2, 500), (60.0, 2, 500))
    assert outlook_of(still, 500, 900, 60.0).end_unix_s is None
    assert outlook_of(still, 900, 900, 60.0).end_unix_s == 60.0
    assert outlook_of(still, 500, 0, 60.0).end_unix_s is None
    assert outlook_of([], 0, 900, 60.0).tokens_per_day is None
    fewer = moments((0.0, 2, 500), (60.0, 1, 300))
    assert outlook_of(fewer, 300, 900, 60.0).tokens_per_day == 0.0


async def test_a_real_swarm_has_a_rate(tmp_path: Path, autojump_clock: Any) -> None:
    async with three(tmp_path) as swarm, sharing(swarm.nodes[0], tmp_path) as page:
        await trio.sleep(30)
        seen = page.dashboard.overview()
        assert seen.outlook is not None
        assert seen.outlook.members_max == 3
        assert seen.outlook.tokens_per_day is not None
        assert seen.outlook.tokens_per_day > 0
        assert seen.outlook.end_unix_s is None
        assert set(seen.node.line_sent_bytes) == set(seen.node.line_received_bytes)
        assert "exchange" in seen.node.line_sent_bytes
