"""The control API: HTTP and JSON on a Unix socket that only the owner can open.

==============  =====================================================================
GET /status     :class:`~swarmnode.daemon.status.view.NodeStatus`; ``?mixing=1`` with fresh
                figures of the exchange graph. Answers however many other connections are open
GET /peers      list of :class:`~swarmnode.daemon.status.phases.PeerView`
GET /netcheck   ``?beyond=IPV4`` of a router behind the router: list of
                :class:`~swarmnode.daemon.status.netcheck.Finding`
GET /swarms     ``?names=A,B``: :class:`~swarmnode.daemon.discovery.lookup.Findings`, what LAN and
                DHT know
GET /link       :class:`~swarmnode.daemon.status.owner.FreshLink`, to pass on
GET /overview, /history  what the dashboard shows: ``overview.py``, ``dashboard.py``
GET /dashboard  :class:`~swarmnode.daemon.status.dashboard.Whereabouts`
POST /dashboard  :class:`~swarmnode.daemon.status.dashboard.ShareRequest`; answers the same
GET /metrics, /peers/ID/metrics, /sd, /-/healthy, /-/ready  see ``scrape.py``; also where
                metrics are off on TCP
POST /snapshot  write a snapshot now; ``{"step", "path"}``
POST /finalize  ``?merge=RULE``: :class:`~swarmnode.daemon.collective.finalize.Finalized`
POST /extend    ``?signed=TEXT``: a target that the swarm's key has signed; ``{"target_tokens"}``
GET /limits     :class:`~swarmnode.daemon.status.owner.LimitsView`
POST /pause     ``?for=2h``, or until /resume:
                :class:`~swarmnode.daemon.status.owner.PauseView`, as /resume
POST /finish    complete what runs, then leave; answers at once
POST /leave     leave the swarm and stop; answers at once
==============  =====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from swarmnode import limits
from swarmnode.daemon.status.dashboard import Shown, dashboard_routes, owner_routes
from swarmnode.daemon.status.phases import Member
from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.transport.nat import Nat, NoNat
from swarmnode.env import Env
from swarmnode.ipc.names import MERGE_RULES
from swarmnode.net.lan.beacon import LanBeacon
from swarmnode.net.web.routes import Request, Response, Route, StreamingResponse, json_response

if TYPE_CHECKING:
    from swarmnode.daemon.discovery.lookup import Findings
    from swarmnode.daemon.status.scrape import Metrics

# What Prometheus and orchestrators may see, answered by ``scrape.py``.
_PAGES = ("/metrics", "/peers/{peer}/metrics", "/sd", "/", "/-/healthy", "/-/ready")


class WithMetrics(Protocol):
    """A node that has metrics."""

    @property
    def metrics(self) -> Metrics:
        """What answers who asks for them, loaded with the first question."""


class Controlled(WithMetrics, Shown, Protocol):
    """A node that its owner asks."""

    nat: Nat | NoNat
    beacon: LanBeacon | None

    def stop(self, reason: str) -> None:
        """Leave the swarm and end."""


def control_routes(node: Controlled) -> list[Route]:
    """Return the routes of the Unix socket."""

    async def status(request: Request) -> Response:
        if "mixing" in request.query():
            await node.view.look_at_mixing(node.env.in_thread)
        return json_response(node.view.node_status(node.env.monotonic()))

    async def peers(request: Request) -> Response:  # noqa: ARG001
        return json_response(node.view.peers())

    async def netcheck(request: Request) -> Response:
        # Sentences that a person reads once, when a node is not reached.
        from swarmnode.daemon.status.netcheck import find, look

        beyond = request.query().get("beyond", "")
        return json_response(find(await look(node.view, node.nat, beyond)))

    async def swarms(request: Request) -> Response:
        names = [name for name in request.query().get("names", "").split(",") if name]
        return json_response(await ask_node(node.view, node.beacon, names, node.env))

    async def snapshot(request: Request) -> Response:  # noqa: ARG001
        trainer = node.view.training().trainer
        saved = await trainer.save_snapshot(limits.SNAPSHOT_REQUEST_DEADLINE_S)
        return json_response({"step": saved.step, "path": saved.path})

    async def finalize(request: Request) -> Response:
        rule = request.query().get("merge", MERGE_RULES[0])
        return json_response(await node.view.training().finalizer.finalize(rule))

    async def extend(request: Request) -> Response:
        target = node.view.member().progress.target
        horizon = target.extend(request.query().get("signed", ""))
        return json_response({"target_tokens": horizon.target_tokens})

    async def leave(request: Request) -> Response:  # noqa: ARG001
        node.stop("asked to leave")
        return json_response({"leaving": True})

    return [
        Route("GET", "/status", status, has_own_slot=True),
        Route("GET", "/peers", peers),
        Route("GET", "/netcheck", netcheck, limits.NETCHECK_S + 1),
        Route("GET", "/swarms", swarms, limits.LOOKUP_DHT_S + 1),
        Route("POST", "/snapshot", snapshot, limits.SNAPSHOT_REQUEST_DEADLINE_S + 1),
        Route("POST", "/finalize", finalize, limits.FINALIZE_DEADLINE_S),
        Route("POST", "/extend", extend),
        Route("POST", "/leave", leave),
        *dashboard_routes(node),
        *owner_routes(node),
        *metrics_routes(node),
    ]


def metrics_routes(node: WithMetrics) -> list[Route]:
    """Return the routes that Prometheus may see."""
    return [Route("GET", path, partial(_answer_page, node, path)) for path in _PAGES]


async def _answer_page(
    node: WithMetrics, path: str, request: Request
) -> Response | StreamingResponse:
    return await node.metrics.pages[path](request)


def target_address(host: str | None, port: int) -> str:
    """Return where this machine reaches a listener; ``host`` as in the setting ``metrics``.

    A Prometheus elsewhere replaces ``__address__`` by the name that it knows this node under.
    """
    if host is None or host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def ask_node(
    view: NodeView, lan: LanBeacon | None, names: Iterable[str], env: Env
) -> Findings:
    """Return what a running node knows. Raises ConfigError for too many names."""
    from swarmnode.daemon.discovery import lookup  # where a node runs, few look for other swarms

    node = view.node
    claims = await lookup.find_swarms(lookup.check_names(names), node.discovery, lan, env)
    match view.membership:
        case Member(manifest=own, part=part):
            n_members = len(part.members.live())
            claim = lookup.Claim(
                own.name, own.swarm_key, "home", node.self_id, (), n_members, own.created_at
            )
            claims.insert(0, claim)
    return lookup.Findings(lookup.gather(claims), lookup.searched(node.discovery, lan, env))
