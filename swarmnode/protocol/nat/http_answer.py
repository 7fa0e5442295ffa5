"""The little of HTTP/1.1 that a router's UPnP needs: one request, one answer, then the end.

Also reads the head of an SSDP answer, which has the same form. Bodies come with a length, in
chunks, or end with the connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage

# Routers send about ten.
_PORTMAP_HTTP_HEADERS_MAX = 64

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}):[ \t]*([^\r\n\0]*?)[ \t]*")
_LENGTH = re.compile(r"[0-9]{1,9}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,7})[ \t]*(?:;.*)?")
_CHUNK_LINE_BYTES_MAX = 256  # with its end

Body = Literal["length", "chunks", "rest"]


@dataclass(frozen=True)
class HttpAnswer:
    """A whole answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def parse_head(data: bytes) -> HttpAnswer:
    """Read a status line and headers, without the empty line. Raises MalformedMessage."""
    first, *lines = data.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise MalformedMessage(f"HTTP: expected a status line, got {first[:40]!r}")
    if len(lines) > _PORTMAP_HTTP_HEADERS_MAX:
        raise LimitExceeded(f"HTTP: {len(lines)} headers")
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise MalformedMessage(f"HTTP: expected a header, got {line[:40]!r}")
        headers.setdefault(match[1].decode("ascii").lower(), match[2].decode("latin-1"))
    return HttpAnswer(int(status[1]), headers)


@dataclass
class AnswerReader:
    """Puts an answer together from pieces.

    Holds at most PORTMAP_HTTP_HEAD_BYTES_MAX and PORTMAP_HTTP_BODY_BYTES_MAX, and one piece.
    """

    _rest: bytes = b""
    _head: HttpAnswer | None = None
    _kind: Body = "rest"
    _wanted: int = 0  # bytes of the body, or of the current chunk with its end
    _body: bytearray = field(default_factory=bytearray)

    def feed(self, piece: bytes) -> HttpAnswer | None:
        """Take in what came; an empty piece is the end of the connection.

        Returns the answer once it is whole; nothing may be fed after that.

        Raises:
            MalformedMessage: it is no answer, or it ended too early.
            LimitExceeded: it is larger than any router's.
        """
        self._rest += piece
        if self._head is None and not self._read_head():
            if not piece or len(self._rest) > limits.PORTMAP_HTTP_HEAD_BYTES_MAX:
                raise MalformedMessage(f"HTTP: no whole head in {len(self._rest)} bytes")
            return None
        is_whole = self._read_chunks() if self._kind == "chunks" else self._read_plain(not piece)
        if is_whole:
            assert self._head is not None
            return HttpAnswer(self._head.status, self._head.headers, bytes(self._body))
        if not piece:
            raise MalformedMessage(f"HTTP: the answer ended after {len(self._body)} bytes of body")
        return None

    def _read_head(self) -> bool:
        head, end, rest = self._rest.partition(b"\r\n\r\n")
        if not end:
            return False
        self._head, self._rest = parse_head(head), rest
        if "chunked" in self._head.headers.get("transfer-encoding", "").lower():
            self._kind = "chunks"
        elif (length := self._head.headers.get("content-length")) is not None:
            if not _LENGTH.fullmatch(length):
                raise MalformedMessage(f"HTTP: expected a length, got {length[:40]!r}")
            self._kind, self._wanted = "length", int(length)
            self._check_room(self._wanted)
        return True

    def _read_plain(self, is_end: bool) -> bool:
        """Whether the body is whole: by its length, or because nothing follows."""
        self._check_room(len(self._rest))
        self._body += self._rest
        self._rest = b""
        if self._kind == "rest":
            return is_end
        del self._body[self._wanted :]
        return len(self._body) == self._wanted

    def _read_chunks(self) -> bool:
        """Whether the last chunk was read; what may follow it is of no interest."""
        while True:
            if self._wanted == 0:
                line, end, _ = self._rest[:_CHUNK_LINE_BYTES_MAX].partition(b"\r\n")
                if not end and len(line) < _CHUNK_LINE_BYTES_MAX:
                    return False
                match = _CHUNK.fullmatch(line)
                if match is None or not end:
                    raise MalformedMessage(f"HTTP: expected a chunk, got {line[:40]!r}")
                self._rest, size = self._rest[len(line + end) :], int(match[1], 16)
                if size == 0:
                    return True
                self._check_room(size)
                self._wanted = size + 2
            if len(self._rest) < self._wanted:
                return False
            chunk, self._rest = self._rest[: self._wanted], self._rest[self._wanted :]
            if not chunk.endswith(b"\r\n"):
                raise MalformedMessage("HTTP: a chunk is longer than it says")
            self._body += chunk[:-2]
            self._wanted = 0

    def _check_room(self, n_bytes: int) -> None:
        if len(self._body) + n_bytes > limits.PORTMAP_HTTP_BODY_BYTES_MAX:
            raise LimitExceeded(
                f"HTTP: a body of more than {limits.PORTMAP_HTTP_BODY_BYTES_MAX} bytes"
            )


def encode_http_request(
    method: str, host: str, target: str, *, body: bytes = b"", headers: Mapping[str, str]
) -> bytes:
    """Return a request that wants the connection closed after it.

    Target and header values are ours or were checked by ``igd.RouterUrl``: no line ends.
    """
    lines = {
        "Host": host,
        "User-Agent": "swarmnode UPnP/1.1",
        "Connection": "close",
        **headers,
        **({"Content-Length": str(len(body))} if body else {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body
