"""The link to our swarm as it is good today: with members as hints that are reached now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest

import msgspec

from swarmnode import limits
from swarmnode.daemon.discovery.lookup import can_be_told
from swarmnode.daemon.status.owner import Owned
from swarmnode.daemon.status.view import NodeView
from swarmnode.errors import NotRunning
from swarmnode.ids import PeerId
from swarmnode.net.relays.address import PREFIX
from swarmnode.net.web.routes import Request, Response, Route, json_response
from swarmnode.protocol.swarm import Hint, SwarmLink


class FreshLink(msgspec.Struct, frozen=True):
    """A link to pass on; never with an invite."""

    link: str
    swarm: str
    closed: bool  # who has no invite is not let in
    hints: tuple[str, ...]


def link_routes(node: Owned) -> list[Route]:
    """Return the route to it."""

    async def link(request: Request) -> Response:  # noqa: ARG001
        return json_response(fresh_link(node.view))

    return [Route("GET", "/link", link)]


def fresh_link(view: NodeView) -> FreshLink:
    """Return the link with this node and those members whom it reaches, as many as fit.

    Raises:
        NotRunning: the node does not know its swarm yet.
    """
    manifest, part = view.manifest, view.part
    if manifest is None or part is None:
        raise NotRunning(f"this node is not in its swarm yet: {view.waiting_for}")
    told = {view.self_id: view.addresses()}
    live = frozenset(part.members.live())
    # Whom we reach directly, others may too; a member behind a relay is reached through the DHT.
    direct = [
        peer
        for peer, session in part.sessions.items()
        if not session.is_suspended and not session.channel_description.startswith(PREFIX)
    ]
    for peer in (*direct, *sorted(live)):
        if peer not in told and peer in live:
            told[peer] = part.peer_report(peer).addresses or part.members.book.addresses_of(peer)
    link = with_hints(SwarmLink(manifest.name, manifest.swarm_key), hints_of(told))
    closed = manifest.admission == "closed"
    return FreshLink(str(link), manifest.name, closed, tuple(map(str, link.hints)))


def hints_of(told: dict[PeerId, tuple[str, ...]]) -> list[Hint]:
    """Return one address of each peer, in the order given, then their second ones."""
    columns = [
        [Hint(peer, address) for address in addresses if can_be_told(address)]
        for peer, addresses in told.items()
    ]
    return [hint for row in zip_longest(*columns) for hint in row if hint is not None]


def with_hints(link: SwarmLink, hints: Iterable[Hint]) -> SwarmLink:
    """Return the link with as many of these hints as a link may have."""
    for hint in dict.fromkeys(hints):
        longer = replace(link, hints=(*link.hints, hint))
        if len(longer.hints) > limits.BOOTSTRAP_HINTS_MAX:
            break
        if len(str(longer)) <= limits.LINK_CHARACTERS_MAX:
            link = longer
    return link
