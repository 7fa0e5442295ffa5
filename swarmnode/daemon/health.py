"""What an orchestrator asks: whether the process answers, and whether it does its work.

==================  ========================================================================
GET /-/healthy      200 as long as the node answers: paused, alone or not yet a member
GET /-/ready        200 for a member that trains, or keeps (serves) without a worker; else 503
==================  ========================================================================

Each answers with one line of text. A node that is not ready is not broken, and nobody should
restart it for that: it waits for peers, or its owner's rules hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmnode.net.web.http import Request, Response, Route

if TYPE_CHECKING:
    from swarmnode.daemon.node import Node
    from swarmnode.daemon.status import NodeView

_TEXT = "text/plain; charset=utf-8"
_AT_WORK = ("training", "serving")


def health_routes(node: Node) -> list[Route]:
    """Return the routes."""

    async def healthy(request: Request) -> Response:  # noqa: ARG001
        return _line("healthy", 200)

    async def ready(request: Request) -> Response:  # noqa: ARG001
        why_not = why_not_ready(node.view)
        state, _ = node.view.state()
        return _line(f"not ready: {why_not}", 503) if why_not else _line(f"ready: {state}", 200)

    return [Route("GET", "/-/healthy", healthy), Route("GET", "/-/ready", ready)]


def why_not_ready(view: NodeView) -> str:
    """Return in a few words what is missing; "" for a member at work."""
    state, reason = view.state()
    if state in _AT_WORK and view.part is not None:
        return ""
    member = "" if view.part is not None else "no member of the swarm yet, "
    return f"{member}{state} ({reason})" if reason else f"{member}{state}"


def _line(text: str, status: int) -> Response:
    line = "".join(character if character.isprintable() else " " for character in text)
    return Response(f"{line}\n".encode(), _TEXT, status)
