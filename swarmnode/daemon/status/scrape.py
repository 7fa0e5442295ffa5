"""What Prometheus asks this node for: its own metrics, those of its peers, and a list of these.

=======================  ==========================================================================
GET /metrics             this node, and the swarm as it sees it
GET /peers/ID/metrics    that member, asked over the swarm; 504 if it does not answer in time, so
                         that Prometheus sees it down
GET /sd                  one target for each member, in Prometheus' format for ``http_sd_configs``
GET /                    a page with links
GET /-/healthy, /-/ready  for orchestrators, see below
=======================  ==========================================================================

Every target is this node: no address that a peer says of itself reaches Prometheus, which would
otherwise ask whatever host a stranger names.

What an orchestrator asks: whether the process answers, and whether it does its work.

==================  ========================================================================
GET /-/healthy      200 as long as the node answers: paused, alone or not yet a member
GET /-/ready        200 for a member that trains, or keeps (serves) without a worker; else 503
==================  ========================================================================

Each answers with one line of text. A node that is not ready is not broken, and should not be
restarted for that: it waits for peers, or its owner's rules hold it.

Metrics and targets as files, for setups where Prometheus does not ask this node over HTTP.

``metrics_textfile`` is for the textfile collector of node_exporter, ``metrics_file_sd`` for
``file_sd_configs``. Each is replaced as a whole, so that a reader never sees half of one.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.status.phases import Member
from swarmnode.daemon.status.view import NodeView
from swarmnode.env import Env
from swarmnode.errors import ConfigError, Refused, StorageError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.web.routes import HttpError, Request, Response, Route, json_response
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.store.files import write_atomic
from swarmnode.telemetry.logs import get_logger

if TYPE_CHECKING:
    from swarmnode.daemon.status.readings import ReadingsDesk
    from swarmnode.telemetry.readings import Readings

_log = get_logger("swarmnode.daemon.status")


_TIMEOUT_HEADER = "x-prometheus-scrape-timeout-seconds"


class Scraped(Protocol):
    """A node that has metrics; ``metrics_listener`` is where on TCP, empty: nowhere."""

    env: Env
    view: NodeView
    metrics_listener: str

    @property
    def readings(self) -> ReadingsDesk:
        """What reads them, loaded when it is asked for the first time."""


def metrics_routes(node: Scraped) -> list[Route]:
    """Return the routes that Prometheus may see."""

    async def metrics(request: Request) -> Response:
        await node.readings.refresh(node.env.in_thread)
        return _page(node.readings.read(), request)

    async def peer_metrics(request: Request) -> Response:
        peer = _known_peer(node, request.parameter)
        if peer == node.view.node.self_id:
            return await metrics(request)
        try:
            found = await node.view.member().peer_metrics.fetch(peer, _deadline_s(request))
        except Refused as error:
            raise HttpError(502, f"{peer.short}: {error}") from error
        except SwarmNodeError as error:
            raise HttpError(504, f"{peer.short}: {error}") from error
        return _page(found, request)

    async def targets(request: Request) -> Response:  # noqa: ARG001
        return json_response(sd_targets(node))

    async def landing(request: Request) -> Response:  # noqa: ARG001
        return Response(
            b'<a href="/metrics">metrics of this node</a>, '
            b'<a href="/sd">targets for all of its swarm</a>\n',
            "text/html; charset=utf-8",
        )

    return [
        Route("GET", "/metrics", metrics),
        Route("GET", "/peers/{peer}/metrics", peer_metrics),
        Route("GET", "/sd", targets),
        Route("GET", "/", landing),
        *health_routes(node),
    ]


def sd_targets(node: Scraped) -> list[dict[str, Any]]:
    """Return all members that have not left as targets, those first that we know best.

    Without a listener for metrics there is nothing to point Prometheus at, and no target.
    """
    if not node.metrics_listener:
        return []
    peers = [node.view.node.self_id, *_members(node.view)][: limits.METRICS_TARGETS_MAX]
    shorts = Counter(peer.short for peer in peers)
    return [
        {
            "targets": [node.metrics_listener],
            "labels": {
                "__metrics_path__": f"/peers/{peer}/metrics",
                # Two that begin alike are no accident: neither may pass for the other.
                "instance": peer.short if shorts[peer.short] == 1 else str(peer),
                "swarm": node.view.node.swarm,
            },
        }
        for peer in peers
    ]


def target_address(host: str | None, port: int) -> str:
    """Return where this machine reaches a listener; ``host`` as in the setting ``metrics``.

    A Prometheus elsewhere replaces ``__address__`` by the name that it knows this node under.
    """
    if host is None or host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _members(view: NodeView) -> list[PeerId]:
    """Return the others: those with a session first, then the live, then the dead."""
    match view.membership:
        case Member(part=part):
            return _ranked(part, view.node.self_id)
    return []


def _ranked(part: SwarmPart, self_id: PeerId) -> list[PeerId]:
    members = part.members
    states = members.detector.members()
    known = {peer for peer in {*states, *members.sessions} if peer != self_id}

    def rank(peer: PeerId) -> tuple[bool, bool, PeerId]:
        is_dead = members.detector.state_of(peer) is MemberState.DEAD
        return peer not in members.sessions, is_dead, peer

    left = {peer for peer in known if members.detector.state_of(peer) is MemberState.LEFT}
    return sorted(known - left, key=rank)


def _known_peer(node: Scraped, text: str) -> PeerId:
    try:
        peer = PeerId.parse(text)
    except ConfigError as error:
        raise HttpError(404, f"there is no such peer: {error}") from error
    if peer != node.view.node.self_id and peer not in _members(node.view):
        raise HttpError(404, f"{peer.short} is no member of the swarm, as far as is known here")
    return peer


def _deadline_s(request: Request) -> float:
    """Return how long a peer may take: less than Prometheus waits, as it says."""
    try:
        waits_s = float(request.headers.get(_TIMEOUT_HEADER, ""))
    except ValueError:
        waits_s = math.inf
    share_s = limits.METRICS_SCRAPE_TIME_SHARE * waits_s
    return min(share_s, limits.METRICS_PEER_DEADLINE_S) if share_s > 0 else 0.0


def _page(readings: Readings, request: Request) -> Response:
    from swarmnode.telemetry.exposition import render  # 3 MB, for nodes that are scraped

    content_type, body = render(readings, request.headers.get("accept", ""))
    return Response(body, content_type)


_TEXT = "text/plain; charset=utf-8"
_AT_WORK = ("training", "serving")


def health_routes(node: Scraped) -> list[Route]:
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
    missing = f"{state} ({reason})" if reason else state
    match view.membership:
        case Member():
            return "" if state in _AT_WORK else missing
    return f"no member of the swarm yet, {missing}"


def _line(text: str, status: int) -> Response:
    line = "".join(character if character.isprintable() else " " for character in text)
    return Response(f"{line}\n".encode(), _TEXT, status)


_READABLE = 0o644  # by Prometheus and node_exporter, which are other users


async def keep_metrics_files(node: Scraped, textfile: str, file_sd: str) -> None:
    """Write these files every METRICS_FILE_S until cancelled; an empty path is none."""
    from swarmnode.telemetry.exposition import render  # 3 MB, for nodes that write files

    writer = _Writer(node)
    while True:
        if textfile:
            await node.readings.refresh(node.env.in_thread)
            await writer.write(Path(textfile), render(node.readings.read())[1])
        if file_sd:
            await writer.write(Path(file_sd), msgspec.json.encode(sd_targets(node)) + b"\n")
        await trio.sleep(limits.METRICS_FILE_S)


class _Writer:
    """Writes files; of failures in a row the log has the first."""

    def __init__(self, node: Scraped) -> None:
        self._node = node
        self._failed: set[Path] = set()

    async def write(self, path: Path, data: bytes) -> None:
        try:
            await self._node.env.in_thread(partial(write_atomic, path, data, mode=_READABLE))
        except StorageError as error:
            if path not in self._failed:
                _log.warning("metrics are not written", path=str(path), why=str(error))
            self._failed.add(path)
        else:
            self._failed.discard(path)
