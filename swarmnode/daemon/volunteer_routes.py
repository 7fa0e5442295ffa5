"""The routes by which a person pauses, resumes and finishes, and sees what holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmnode.daemon.volunteer_view import limits_view
from swarmnode.errors import ConfigError
from swarmnode.net.web.http import Request, Response, Route, json_response
from swarmnode.quantities import parse_duration_s

if TYPE_CHECKING:
    from swarmnode.daemon.node import Node


class PauseView(msgspec.Struct, frozen=True):
    """What became of a pause: ``why`` names all that holds, "" if nothing does."""

    paused: bool
    why: str
    until_unix_s: float | None


def volunteer_routes(node: Node) -> list[Route]:
    """Return the routes."""

    def now() -> Response:
        verdict = node.volunteer.verdict
        return json_response(
            PauseView(not verdict.may_train, verdict.sentence(), verdict.until_unix_s)
        )

    async def pause(request: Request) -> Response:
        length = request.query().get("for", "")
        try:
            length_s = parse_duration_s(length) if length else None
        except ConfigError as error:
            return json_response({"error": str(error), "exit_code": error.exit_code}, status=400)
        await node.volunteer.pause(length_s)
        return now()

    async def resume(request: Request) -> Response:  # noqa: ARG001
        await node.volunteer.resume()
        return now()

    async def finish(request: Request) -> Response:  # noqa: ARG001
        node.finish()
        return json_response({"finishing": True})

    async def limits(request: Request) -> Response:  # noqa: ARG001
        return json_response(limits_view(node.volunteer, node.view))

    return [
        Route("POST", "/pause", pause),
        Route("POST", "/resume", resume),
        Route("POST", "/finish", finish),
        Route("GET", "/limits", limits),
    ]
