"""Which service names a node answers, and with what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from swarmnode.errors import InvariantViolation, Refused
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.traffic import Traffic
from swarmnode.wire.session import check_service_name

StreamHandler = Callable[[Session, Stream], Awaitable[None]]
RequestHandler = Callable[[PeerId, bytes], Awaitable[bytes]]
AnswerHandler = Callable[[PeerId, bytes], bytes]


class Services:
    """A registry that all sessions of a node share; so is what they may take of the line.

    A stream handler runs once per stream that a peer opens; when it returns, what it sent
    is delivered and the stream is left. A request handler turns the bytes of a request into
    the bytes of the answer; an answer handler does so without waiting for anything, which spares
    a task. Each may raise: ``Refused`` and other errors of swarmnode
    reach the peer as their one line, ``Overloaded`` as such, anything else as a failure
    without detail.
    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._streams: dict[str, StreamHandler] = {}
        self._requests: dict[str, RequestHandler] = {}
        self._answers: dict[str, AnswerHandler] = {}

    def add_stream(self, service: str, handler: StreamHandler) -> None:
        """Answer streams of ``service``."""
        self._check_new(service)
        self._streams[service] = handler

    def add_request(self, service: str, handler: RequestHandler) -> None:
        """Answer requests to ``service``."""
        self._check_new(service)
        self._requests[service] = handler

    def add_answer(self, service: str, handler: AnswerHandler) -> None:
        """Answer requests to ``service`` from memory, in less than a millisecond."""
        self._check_new(service)
        self._answers[service] = handler

    def stream_handler(self, service: str) -> StreamHandler | None:
        """Return the handler that answers streams of ``service``."""
        return self._streams.get(service)

    def request_handler(self, service: str) -> RequestHandler | None:
        """Return the handler that answers requests to ``service``."""
        return self._requests.get(service)

    def answer_handler(self, service: str) -> AnswerHandler | None:
        """Return the handler that answers requests to ``service`` without waiting."""
        return self._answers.get(service)

    def _check_new(self, service: str) -> None:
        if not check_service_name(service):
            raise InvariantViolation(f"{service!r} is no service name")
        if service in {**self._streams, **self._requests, **self._answers}:
            raise InvariantViolation(f"service {service!r} is registered twice")


class ScopedServices:
    """Services of one swarm on sessions that are for everything: ``state/1@TAG``.

    ``may_use`` tells whether a peer may ask for them at all; others are refused.
    """

    def __init__(
        self, services: Services, tag: str, may_use: Callable[[PeerId], Awaitable[bool]]
    ) -> None:
        self._services = services
        self._tag = tag
        self._may_use = may_use

    def name(self, service: str) -> str:
        """Return what a service of this swarm is called on the wire."""
        return f"{service}@{self._tag}"

    def add_stream(self, service: str, handler: StreamHandler) -> None:
        """Answer streams of ``service`` that members open."""

        async def guarded(session: Session, stream: Stream) -> None:
            await self._check(session.peer)
            await handler(session, stream)

        self._services.add_stream(self.name(service), guarded)

    def add_request(self, service: str, handler: RequestHandler) -> None:
        """Answer requests of members to ``service``."""

        async def guarded(peer: PeerId, payload: bytes) -> bytes:
            await self._check(peer)
            return await handler(peer, payload)

        self._services.add_request(self.name(service), guarded)

    async def _check(self, peer: PeerId) -> None:
        if not await self._may_use(peer):
            raise Refused("members of the swarm only: say hello first (swarm/1)")
