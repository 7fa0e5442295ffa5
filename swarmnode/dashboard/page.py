"""The page of a node on its loopback port: its files, what is new, and who may ask what.

Every program and every user of this machine can reach a loopback port, and so can every web
page that is open in a browser. Therefore:

- A request must name this machine as its host (``net/web/http.py``): a name that is rebound to
  127.0.0.1 reads nothing.
- Whatever a browser marks as sent by another site gets nothing, not even a place in the queue.
- A change needs the key of this run, in a header. It is told to the owner alone, through the
  control socket; ``swarmnode dashboard`` puts it into the fragment of the address, which a
  browser keeps to itself. Without it the page only shows.
- The page runs no script but its own files and puts no text of peers into HTML.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.dashboard import PAGE, load_assets
from swarmnode.errors import Overloaded, Refused
from swarmnode.net.web.routes import (
    Handler,
    HttpError,
    Request,
    Response,
    SendChunk,
    StreamingResponse,
)

KEY_HEADER = "x-swarmnode-key"
_READ = ("/overview", "/history")  # of the control API, like the next
_FOR_OWNER = ("/pause", "/resume", "/link")

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
            "/": self._page,  # also for a person who follows a link from another page
            "/static/{name}": _own_page_only(self._static),
            "/events": _own_page_only(self._events),
            **{path: _own_page_only(asked[path]) for path in _READ},
            **{path: self._with_key(asked[path]) for path in _FOR_OWNER},
        }

    async def _page(self, request: Request) -> Response:  # noqa: ARG002
        return Response(*self._assets[PAGE], headers=_HEADERS)

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
