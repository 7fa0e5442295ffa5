"""Looks at the parts of a node for ``swarmnode netcheck``, and has peers asked about NATs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import trio

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.daemon.nat.nat import Nat, relay_quota
from swarmnode.daemon.status.netcheck import Known, PeerWay
from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.transport.network import Network
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.paths import path_of
from swarmnode.protocol.nat.behaviour import NatBehaviour


async def look(view: NodeView, nat: Nat | None) -> Known:
    """Return what is known, having asked peers about our NAT; takes up to NETCHECK_S."""
    network, own, told = view.network, view.own_addresses(), view.addresses()
    members = view.part.members.live() if view.part is not None else ()
    port = parse_host_port(network.address, setting="listen").port
    if nat is None:
        peers = tuple(_peers(network, {}, members))
        return Known(
            listen=network.address, port=port, has_nat=False, own=own, told=told, peers=peers
        )
    n_servers = min(len(nat.stun_servers()), limits.STUN_SERVERS_MAX)
    behaviour, survey_error = await _survey(nat)
    mapper = nat.mapper
    return Known(
        listen=network.address,
        port=port,
        has_nat=True,
        own=own,
        told=told,
        servers=n_servers,
        behaviour=behaviour,
        survey_error=survey_error,
        reach=nat.reach.reachability,
        wants_mapping=nat.config.port_mapping,
        mapping=mapper.mapping if mapper is not None else None,
        mapping_why=mapper.why if mapper is not None else "",
        router=mapper.external if mapper is not None else "",
        relays=tuple(f"{peer.short}… at {at}" for peer, at in nat.relays.held.items()),
        refusing=tuple(f"{peer.short}…: {why}" for peer, why in nat.holder.refusals().items()),
        quota=relay_quota(nat.config),
        relaying=nat.relay.statistics(),
        peers=tuple(_peers(network, nat.upgrader.whys, members)),
    )


async def _survey(nat: Nat) -> tuple[NatBehaviour | None, str]:
    """Return what our NAT does just now if peers can tell, and what kept us from asking."""
    try:
        with trio.move_on_after(limits.NETCHECK_S):
            return await nat.survey(), ""
    except SwarmNodeError as error:
        return None, str(error)
    return None, f"no end of it within {limits.NETCHECK_S:g} s"


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
        error = network.dial_errors.get(peer)
        if error is not None:
            yield PeerWay(peer=str(peer), short=peer.short, error=str(error))
