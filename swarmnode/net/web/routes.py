"""What a request is, what answers it, and what an answer is. No sockets here.

A handler is ``async (Request) -> Response | StreamingResponse``. It may raise any
:class:`SwarmNodeError`: the client then gets ``{"error": one line, "exit_code": n}``, which the
command line turns back into the same kind of error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
import trio

from swarmnode.errors import (
    ConfigError,
    DeadlineExceeded,
    InvariantViolation,
    Overloaded,
    Refused,
    SwarmNodeError,
)

# A route asks for two or three.
HTTP_QUERY_FIELDS_MAX = 32
# A handler reads memory; verbs that wait for a snapshot bring their own deadline.
_HTTP_HANDLER_DEADLINE_S = 10.0

JSON = "application/json"
HttpMethod = Literal["GET", "POST"]
RecordT = TypeVar("RecordT")
SendChunk = Callable[[bytes], Awaitable[None]]

_log = logging.getLogger(__name__)
_STATUS: tuple[tuple[type[SwarmNodeError], int], ...] = (
    (ConfigError, 400),
    (Refused, 403),
    (Overloaded, 503),
    (DeadlineExceeded, 503),
)


class HttpError(Exception):
    """A request that gets a refusal instead of an answer."""

    def __init__(self, status: int, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow


@dataclass(frozen=True)
class Request:
    """One request, received whole. HEAD comes to handlers as GET."""

    method: str
    path: str
    query_text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""
    parameter: str = ""  # what stood for {…} in the path of the route

    def query(self) -> dict[str, str]:
        """Return the fields after the question mark. Raises HttpError 400."""
        try:
            fields = parse_qsl(
                self.query_text,
                keep_blank_values=True,
                errors="strict",
                max_num_fields=HTTP_QUERY_FIELDS_MAX,
            )
        except ValueError as error:
            raise HttpError(400, f"expected NAME=VALUE fields in the query: {error}") from error
        return dict(fields)

    def json(self, record_type: type[RecordT]) -> RecordT:
        """Return the body as ``record_type``.

        Raises:
            HttpError: 415 unless the content type says JSON, which a form on a foreign web page
                cannot; 400 if the body is none or has another shape.
        """
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HttpError(415, f"expected a body of content-type {JSON}")
        try:
            return msgspec.json.decode(self.body, type=record_type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, f"the body is not what was expected: {error}") from error


@dataclass(frozen=True)
class Response:
    """An answer that is there at once."""

    body: bytes = b""
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StreamingResponse:
    """An answer that is written bit by bit until ``write`` returns or the client is gone.

    ``write`` is cancelled when the client closes its side; the connection ends with it.
    """

    write: Callable[[SendChunk], Awaitable[None]]
    content_type: str


Handler = Callable[[Request], Awaitable[Response | StreamingResponse]]


class Route(NamedTuple):
    """What answers a path. The path may hold one ``{name}``, which stands for one segment."""

    method: HttpMethod
    path: str
    handler: Handler
    deadline_s: float = _HTTP_HANDLER_DEADLINE_S
    has_own_slot: bool = False  # one request for it is answered though all slots are taken


def json_response(value: Any, status: int = 200) -> Response:
    """Return ``value`` (a record or plain Python) as JSON with a newline at the end."""
    return Response(msgspec.json.encode(value) + b"\n", status=status)


def error_response(status: int, message: str, exit_code: int = 1, *, allow: str = "") -> Response:
    """Return the one form that every refusal has."""
    answer = json_response({"error": message, "exit_code": exit_code}, status)
    headers = (("allow", allow),) if allow else ()
    return Response(answer.body, status=status, headers=headers)


async def run_stream(response: StreamingResponse, send_chunk: SendChunk) -> bool:
    """Let a handler write its answer; return False, with a line in the log, if it failed."""
    try:
        await response.write(send_chunk)
    except InvariantViolation:
        raise
    except Exception:  # noqa: BLE001 -- supervised: a handler's bug must not end the node
        _log.exception("stream failed", extra={"fields": {"content_type": response.content_type}})
        return False
    return True


class Router:
    """Finds the route of a request and runs its handler inside the route's deadline."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[str, str, dict[str, Route]]] = []
        for route in routes:
            self._add(route)

    async def answer(self, request: Request) -> Response | StreamingResponse:
        """Return what the client gets. Raises nothing that a client could provoke."""
        try:
            route, parameter = self._find(request.method, request.path)
            with trio.move_on_after(route.deadline_s):
                return await route.handler(replace(request, parameter=parameter))
            message = f"{request.path}: no answer within {route.deadline_s:g} s, try again later"
            return error_response(503, message)
        except HttpError as error:
            return error_response(error.status, str(error), allow=error.allow)
        except SwarmNodeError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
            return error_response(status, str(error), error.exit_code)
        except InvariantViolation:
            raise
        except Exception:  # noqa: BLE001 -- supervised: a handler's bug must not end the node
            _log.exception("handler failed", extra={"fields": {"path": request.path}})
            return error_response(500, f"{request.path}: internal error, see the daemon's log")

    def own_slot(self, request: Request) -> str:
        """Return the path of the route if a slot is kept for it, else ""."""
        route = self._exact.get(request.path, {}).get(request.method)
        return route.path if route is not None and route.has_own_slot else ""

    def _add(self, route: Route) -> None:
        prefix, brace, rest = route.path.partition("{")
        if not brace:
            methods = self._exact.setdefault(route.path, {})
        else:
            suffix = rest.partition("}")[2]
            methods = self._pattern_methods(prefix, suffix)
        assert route.method not in methods, f"two routes for {route.method} {route.path}"
        methods[route.method] = route

    def _pattern_methods(self, prefix: str, suffix: str) -> dict[str, Route]:
        for known_prefix, known_suffix, methods in self._patterns:
            if (known_prefix, known_suffix) == (prefix, suffix):
                return methods
        added: dict[str, Route] = {}
        self._patterns.append((prefix, suffix, added))
        return added

    def _find(self, method: str, path: str) -> tuple[Route, str]:
        methods, parameter = self._match(path)
        if method not in methods:
            allow = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            raise HttpError(405, f"{path}: expected {allow}, got {method[:20]}", allow=allow)
        return methods[method], parameter

    def _match(self, path: str) -> tuple[Mapping[str, Route], str]:
        if path in self._exact:
            return self._exact[path], ""
        for prefix, suffix, methods in self._patterns:
            middle = path[len(prefix) : len(path) - len(suffix)]
            if middle and "/" not in middle and path == prefix + middle + suffix:
                return methods, _decoded(middle)
        raise HttpError(404, f"there is nothing at {path[:200]}")


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise HttpError(400, "expected UTF-8 in the path") from error
