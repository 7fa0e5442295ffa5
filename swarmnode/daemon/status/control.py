"""The control API: HTTP and JSON on a Unix socket that only the owner can open.

==============  =====================================================================
GET /status     :class:`~swarmnode.daemon.status.view.NodeStatus`; ``?mixing=1`` with fresh
                figures of the exchange graph. Answers however many other connections are open
GET /peers      list of :class:`~swarmnode.daemon.status.phases.PeerView`
GET /netcheck   list of :class:`~swarmnode.daemon.status.netcheck.Finding`
GET /swarms     ``?names=A,B``: :class:`~swarmnode.daemon.discovery.lookup.Findings`, what LAN and
                DHT know
GET /link       :class:`~swarmnode.daemon.status.owner.FreshLink`, to pass on
GET /overview, /history  what the dashboard shows: ``overview.py``, ``dashboard.py``
GET /dashboard  :class:`~swarmnode.daemon.status.dashboard.Whereabouts`
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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.daemon.discovery.lookup import (
    Claim,
    Findings,
    check_names,
    find_swarms,
    gather,
    searched,
)
from swarmnode.daemon.status.dashboard import Shown, dashboard_routes
from swarmnode.daemon.status.netcheck import Known, PeerWay, find
from swarmnode.daemon.status.owner import link_routes, volunteer_routes
from swarmnode.daemon.status.phases import Member
from swarmnode.daemon.status.scrape import Scraped, metrics_routes
from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.transport.nat import Nat, NoNat, relay_quota
from swarmnode.daemon.transport.network import Network
from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import MERGE_RULES
from swarmnode.net.lan.beacon import LanBeacon
from swarmnode.net.paths import path_of
from swarmnode.net.web.routes import Request, Response, Route, json_response


class Controlled(Scraped, Shown, Protocol):
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

    async def netcheck(request: Request) -> Response:  # noqa: ARG001
        return json_response(find(await look(node.view, node.nat)))

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
        *link_routes(node),
        *dashboard_routes(node),
        *volunteer_routes(node),
        *metrics_routes(node),
    ]


async def ask_node(
    view: NodeView, lan: LanBeacon | None, names: Iterable[str], env: Env
) -> Findings:
    """Return what a running node knows. Raises ConfigError for too many names."""
    node = view.node
    claims = await find_swarms(check_names(names), node.discovery, lan, env)
    match view.membership:
        case Member(manifest=own, part=part):
            n_members = len(part.members.live())
            claim = Claim(
                own.name, own.swarm_key, "home", node.self_id, (), n_members, own.created_at
            )
            claims.insert(0, claim)
    return Findings(gather(claims), searched(node.discovery, lan, env))


# --- what is looked at for ``swarmnode netcheck`` ----------------------------------------------


async def look(view: NodeView, nat: Nat | NoNat) -> Known:
    """Return what is known, having asked peers about our NAT; takes up to NETCHECK_S."""
    node, members = view.node, _live(view)
    known = Known(
        listen=node.network.address,
        port=parse_host_port(node.network.address, setting="listen").port,
        has_nat=False,
        own=node.own_addresses(),
        told=node.addresses(),
    )
    whys: Mapping[PeerId, tuple[str, ...]] = {}
    match nat:
        case Nat(upgrader=upgrader):
            known, whys = await _with_nat(known, nat), upgrader.whys
    return replace(known, peers=tuple(_peers(node.network, whys, members)))


def _live(view: NodeView) -> Collection[PeerId]:
    match view.membership:
        case Member(part=part):
            return part.members.live()
    return ()


async def _with_nat(known: Known, nat: Nat) -> Known:
    n_servers = min(len(nat.stun_servers()), limits.STUN_SERVERS_MAX)
    known = await _surveyed(known, nat)
    if nat.mapper is not None:
        mapper = nat.mapper
        known = replace(
            known, mapping=mapper.mapping, mapping_why=mapper.why, router=mapper.external
        )
    return replace(
        known,
        has_nat=True,
        servers=n_servers,
        reach=nat.reach.reachability,
        wants_mapping=nat.config.port_mapping,
        relays=tuple(f"{peer.short}… at {at}" for peer, at in nat.relays.held.items()),
        refusing=tuple(f"{peer.short}…: {why}" for peer, why in nat.holder.refusals().items()),
        quota=relay_quota(nat.config),
        relaying=nat.relay.statistics(),
    )


async def _surveyed(known: Known, nat: Nat) -> Known:
    """Say what our NAT does just now if peers can tell, and what kept us from asking."""
    try:
        with trio.move_on_after(limits.NETCHECK_S):
            behaviour = await nat.survey()
            if behaviour is None:
                return known  # no peer at a public address
            return replace(known, behaviour=behaviour, is_surveyed=True)
    except SwarmNodeError as error:
        return replace(known, survey_error=str(error))
    return replace(known, survey_error=f"no end of it within {limits.NETCHECK_S:g} s")


def _peers(
    network: Network, whys: Mapping[PeerId, tuple[str, ...]], members: Iterable[PeerId]
) -> Iterable[PeerWay]:
    """Yield those with a session, then members that could not be reached, each in id order."""
    for peer, session in sorted(network.sessions.items()):
        way = session.channel_description
        yield PeerWay(
            peer=str(peer),
            short=peer.short,
            path=path_of(way),
            way=way,
            is_dialled=session.outbound,
            whys=whys.get(peer, ()),
        )
    for peer in sorted(set(members) - network.sessions.keys()):
        if peer in network.dial_errors:
            error = str(network.dial_errors[peer])
            yield PeerWay(peer=str(peer), short=peer.short, error=error)
