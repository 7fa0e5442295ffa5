"""The page of a node: its files, what is new, and who may ask what, on loopback and elsewhere.

Every program and every user of this machine can reach a loopback port, and so can every web
page that is open in a browser. Therefore:

- A request must name this machine as its host (``net/web/http.py``): a name that is rebound to
  127.0.0.1 reads nothing.
- Whatever a browser marks as sent by another site gets nothing, not even a place in the queue.
- A change needs the key of this run, in a header. It is told to the owner alone, through the
  control socket; ``swarmnode dashboard`` puts it into the fragment of the address, which a
  browser keeps to itself. Without it the page only shows.
- The page runs no script but its own files and puts no text of peers into HTML.

An owner may share it on addresses that other machines reach (:class:`Shares`). There

- each request needs the token of the home: by a link at first, then in a cookie that no script and
  no other site gets, or as ``Authorization: Bearer``; it is compared in constant time.
- the host must be an address, which no name can be rebound to, or a name that the owner has set.
- the page only shows: what the key opens is not there at all.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
import trio

from swarmnode import limits
from swarmnode.config import HostPort, parse_host_port
from swarmnode.dashboard import PAGE, load_assets
from swarmnode.errors import ConfigError, Overloaded, Refused
from swarmnode.net.lan.interfaces import list_interfaces
from swarmnode.net.web.http import HttpServer
from swarmnode.net.web.listen import open_tcp_listeners
from swarmnode.net.web.routes import (
    Handler,
    HttpError,
    Request,
    Response,
    Route,
    SendChunk,
    StreamingResponse,
)
from swarmnode.store.files import read_file, write_atomic

KEY_HEADER = "x-swarmnode-key"
_READ = ("/overview", "/history")  # of the control API, like the next
_FOR_OWNER = ("/pause", "/resume", "/link")
_SHOWS = ("/", "/swarm", "/static/{name}", "/events", *_READ)  # on other machines, too

_COOKIE_S = 30 * 86_400
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,200}")
# A cookie of the strict kind comes along only once a page of our own asks.
_ENTRY = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>swarmnode</title>\
<link rel="icon" href="/static/icon.svg">\
<meta http-equiv="refresh" content="0;url=/"></head><body><a href="/">The swarm</a></body></html>
"""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)


class Past(Protocol):
    """What the page draws over time."""

    generation: int

    @property
    def newest(self) -> msgspec.Struct | None:
        """The last sample, if there is one."""

    def whole(self) -> msgspec.Struct:
        """Return all samples that are kept."""


class Seen(Protocol):
    """What the page shows."""

    @property
    def history(self) -> Past:
        """The losses so far."""

    def overview(self) -> msgspec.Struct:
        """Return what the node knows now."""


class Page:
    """Answers a browser.

    Args:
        key: of this run, for what only the owner may want.
        asked: what the control socket answers, by path.

    Attributes:
        handlers: by path.
    """

    def __init__(self, seen: Seen, key: str, asked: Mapping[str, Handler]) -> None:
        self._seen = seen
        self._key = key
        self._streams = 0
        self._assets = load_assets()
        self.handlers: dict[str, Handler] = {
            # Also for a person who follows a link from another page.
            "/": partial(self._page, PAGE),
            "/swarm": partial(self._page, "swarm.html"),
            "/static/{name}": _own_page_only(self._static),
            "/events": _own_page_only(self._events),
            **{path: _own_page_only(asked[path]) for path in _READ},
            **{path: self._with_key(asked[path]) for path in _FOR_OWNER},
        }

    async def _page(self, name: str, request: Request) -> Response:  # noqa: ARG002
        return Response(*self._assets[name], headers=_HEADERS)

    async def _static(self, request: Request) -> Response:
        if request.parameter not in self._assets:
            raise HttpError(404, "there is no such file")
        return Response(*self._assets[request.parameter], headers=_HEADERS)

    def _with_key(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response | StreamingResponse:
            given = request.headers.get(KEY_HEADER, "")
            if not hmac.compare_digest(given.encode(), self._key.encode()):
                raise Refused(
                    "this needs the key of this run: open the address that `swarmnode dashboard`"
                    " prints"
                )
            return await handler(request)

        return _own_page_only(guarded)

    async def _events(self, request: Request) -> StreamingResponse:  # noqa: ARG002
        if self._streams >= limits.DASHBOARD_STREAMS_MAX:
            raise Overloaded(f"{limits.DASHBOARD_STREAMS_MAX} pages are open: close one of them")
        return StreamingResponse(self._follow, "text/event-stream")

    async def _follow(self, send: SendChunk) -> None:
        """Tell one page what is new; the server drops a page that stops reading."""
        if self._streams >= limits.DASHBOARD_STREAMS_MAX:  # several asked at once
            return
        self._streams += 1
        history = self._seen.history
        try:
            await send(b"retry: %d\n\n" % (limits.DASHBOARD_RETRY_S * 1000))
            generation, newest = -1, None
            while True:
                if generation != history.generation:
                    generation = history.generation
                    await send(_event("history", history.whole()))
                elif newest is not history.newest:
                    await send(_event("sample", history.newest))
                newest = history.newest
                await send(_event("overview", self._seen.overview()))
                await trio.sleep(limits.DASHBOARD_EVENT_S)
        finally:
            self._streams -= 1


def _event(name: str, value: msgspec.Struct | None) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


def _own_page_only(handler: Handler) -> Handler:
    """Refuse what a browser says was sent by the page of another site, or of another port."""

    async def guarded(request: Request) -> Response | StreamingResponse:
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        site = request.headers.get("sec-fetch-site", "none")
        if origin not in (None, f"http://{host}") or site not in ("same-origin", "none"):
            raise Refused("the dashboard answers only its own page")
        return await handler(request)

    return guarded


# --- on addresses that other machines reach -------------------------------------------------------


class _Listening(NamedTuple):
    """An address at which the page is shared, until ``scope`` is cancelled."""

    scope: trio.CancelScope
    address: HostPort  # with the port that it really has


class Shares:
    """Shows the page on addresses that the owner has chosen, to readers with the token.

    Args:
        page: what is shown; what needs its key is left out.
        token_file: keeps the token, so that a link outlives the node's restarts.
        names: by which hosts the page may be asked for, beside addresses and ``localhost``.
        in_thread: calls what waits for a disk.
        nursery: in which it listens.
    """

    def __init__(
        self,
        page: Page,
        token_file: Path,
        names: Iterable[str],
        in_thread: Callable[..., Awaitable[Any]],
        nursery: trio.Nursery,
    ) -> None:
        self._page = page
        self._token_file = token_file
        self._names = tuple(name.lower() for name in names)
        self._in_thread = in_thread
        self._nursery = nursery
        self._token = ""
        self._cookie = f"swarmnode-{secrets.token_hex(4)}"  # cookies know no ports
        self._open: dict[str, _Listening] = {}

    async def open(self, addresses: Iterable[str]) -> None:
        """Listen there too.

        Raises:
            ConfigError: an address is none of this machine, or taken; the token is too short.
        """
        self._token = self._token or await self._in_thread(_kept_token, self._token_file)
        for text in addresses:
            if text in self._open:
                continue
            if len(self._open) == limits.DASHBOARD_SHARES_MAX:
                raise ConfigError(
                    f"the page is shared at {limits.DASHBOARD_SHARES_MAX} addresses: end that first"
                )
            address = parse_host_port(text, setting="dashboard --share")
            self._open[text] = await self._nursery.start(self._serve, address)

    async def end(self) -> None:
        """Listen nowhere, and make every link that was given away worthless."""
        for listening in self._open.values():
            listening.scope.cancel()
        self._open.clear()
        self._token = await self._in_thread(_new_token, self._token_file)

    def links(self) -> tuple[str, ...]:
        """Return what opens the page elsewhere, for each address that it can be reached at."""
        return tuple(f"{url}?token={self._token}" for url in self.urls())

    def urls(self) -> tuple[str, ...]:
        """Return the same without the token."""
        found = {
            f"http://{f'[{host}]' if ':' in host else host}:{listening.address.port}/": None
            for listening in self._open.values()
            for host in self._hosts(listening.address.host)
        }
        return tuple(found)

    def _hosts(self, host: str | None) -> tuple[str, ...]:
        return (host,) if host is not None else (*self._names, *_own_hosts()) or ("localhost",)

    async def _serve(
        self,
        address: HostPort,
        *,
        task_status: trio.TaskStatus[_Listening] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        server = HttpServer(self.routes(), any_host=True)  # this class knows which
        listeners = await open_tcp_listeners(*address, setting="dashboard --share")
        port = listeners[0].socket.getsockname()[1]
        with trio.CancelScope() as scope:
            task_status.started(_Listening(scope, HostPort(address.host, port)))
            await trio.serve_listeners(server.serve_connection, listeners)

    def routes(self) -> list[Route]:
        """Return what is answered on these addresses."""
        shown = {path: self._guarded(self._page.handlers[path]) for path in _SHOWS}
        shown["/"] = self._entered(shown["/"])
        return [Route("GET", path, handler) for path, handler in shown.items()]

    def _entered(self, handler: Handler) -> Handler:
        """Let a reader in who comes by the link; the cookie is for all that follows."""

        async def guarded(request: Request) -> Response | StreamingResponse:
            self._check_host(request)
            given = request.query().get("token", "")
            if not given:
                return await handler(request)
            self._check_token(given)
            cookie = f"{self._cookie}={given}; HttpOnly; SameSite=Strict; Path=/"
            headers = (*_HEADERS, ("set-cookie", f"{cookie}; Max-Age={_COOKIE_S}"))
            return Response(_ENTRY, "text/html; charset=utf-8", headers=headers)

        return guarded

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response | StreamingResponse:
            self._check_host(request)
            self._check_token(self._given(request))
            return await handler(request)

        return _own_page_only(guarded)

    def _check_host(self, request: Request) -> None:
        """Refuse names that the owner has not set: one of another's may lead here at any time."""
        host = _host_of(request.headers.get("host", ""))
        if host not in ("localhost", *self._names) and not _is_address(host):
            raise Refused(
                "this page answers to addresses, and to the names in the setting dashboard_names"
            )

    def _given(self, request: Request) -> str:
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return bearer.strip()
        pairs = (each.partition("=") for each in request.headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name.strip() == self._cookie), "")

    def _check_token(self, given: str) -> None:
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refused("this needs the whole link that `swarmnode dashboard --share` prints")


def _kept_token(path: Path) -> str:
    """Return the token of the home, a new one at first. Raises ConfigError, StorageError."""
    try:
        text = read_file(path, bytes_max=1000, secret=True).decode(errors="replace").strip()
    except FileNotFoundError:
        return _new_token(path)
    if _TOKEN.fullmatch(text) is None:
        raise ConfigError(f"{path}: expected 20 to 200 letters, digits, - and _: delete it")
    return text


def _new_token(path: Path) -> str:
    token = secrets.token_urlsafe(24)
    write_atomic(path, token.encode())
    return token


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _own_hosts() -> tuple[str, ...]:
    """Return the addresses by which others may reach this machine."""
    try:
        interfaces = list_interfaces()
    except OSError:
        return ()
    own = [one.ip for each in interfaces if not each.is_loopback for one in each.addresses]
    return tuple(str(address) for address in own if not address.is_link_local)
