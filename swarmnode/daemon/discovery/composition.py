"""What a node stands on before it knows its swarm: sessions, the DHT, and the LAN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from swarmnode.config import NodeConfig, is_loopback, parse_host_port
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.transport.nat import Nat, NoNat, wants_nat
from swarmnode.daemon.transport.network import Network
from swarmnode.daemon.transport.reach import own_networks
from swarmnode.env import Env
from swarmnode.net.channel import Transport
from swarmnode.net.lan.beacon import LanBeacon, LanPeer, LanSwarm
from swarmnode.net.lan.datagrams import DatagramNet
from swarmnode.net.services import Services
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink, network_id


@dataclass(frozen=True)
class Composition:
    """The parts that serve every swarm alike."""

    identity: Identity
    boot_epoch: int
    network: Network
    services: Services
    discovery: Discovery
    nat: Nat | NoNat
    env: Env


def compose(
    config: NodeConfig, identity: Identity, boot_epoch: int, transport: Transport, env: Env
) -> Composition:
    """Put them together; nothing runs yet."""
    services = Services()
    network = Network(
        identity=identity,
        network_id=network_id(config.network),
        transport=transport,
        services=services,
        env=env,
    )
    discovery = Discovery(
        identity=identity,
        network_id=network_id(config.network),
        boot_epoch=boot_epoch,
        network=network,
        services=services,
        env=env,
        remembered=config.paths.contacts,
        recalls="contacts" in config.rendezvous,
        lan=own_networks() if config.lan else (),
    )
    nat: Nat | NoNat = NoNat()
    if isinstance(transport, TcpTransport) and wants_nat(config):
        nat = Nat(
            config,
            network=network,
            services=services,
            identity=identity,
            transport=transport,
            env=env,
        )
    return Composition(identity, boot_epoch, network, services, discovery, nat, env)


def meets_strangers(config: NodeConfig, transport: Transport) -> bool:
    """Whether nodes elsewhere could be of use, or we to them: see ``net/strangers.py``."""
    if not isinstance(transport, TcpTransport):
        return False
    is_named = config.mainline_nodes or config.dns_seeds or config.entry_nodes
    return bool(is_named) or not is_loopback(config.listen_address.host)


def can_meet(config: NodeConfig, transport: Transport, link: SwarmLink) -> bool:
    """Whether this node has anything to ask them with, or a key that others need for that."""
    ways = config.rendezvous
    return meets_strangers(config, transport) and (
        ("mainline" in ways and bool(find_spec("libtorrent")))
        or ("dns" in ways and bool(config.dns_seeds or link.zones))
        or ("entries" in ways and bool(config.entry_nodes))
        or config.paths.swarm(link.name).meeting_key.exists()
    )


def make_beacon(
    config: NodeConfig,
    composition: Composition,
    *,
    swarms: Callable[[], tuple[LanSwarm, ...]],
    on_peer: Callable[[LanPeer], None],
    net: DatagramNet | None,
) -> LanBeacon:
    """Return what finds nodes on the LAN; a node that it finds may know others in the DHT.

    Args:
        swarms: what to say that we are in.
        on_peer: told of each peer that was found.
        net: what beacons are sent on, if not the real LAN.
    """

    def port() -> int:
        """0 where others on the LAN could not dial us anyway: then we only ask which are there."""
        if is_loopback(config.listen_address.host) or not composition.network.address:
            return 0
        return parse_host_port(composition.network.address, setting="listen").port

    def met(peer: LanPeer) -> None:
        if "%" not in peer.address:  # a link-local address is of use on this machine only
            composition.discovery.discovered(peer.peer, (peer.address,))
        on_peer(peer)

    return LanBeacon(
        identity=composition.identity,
        network_id=network_id(config.network),
        port=port,
        swarms=swarms,
        on_peer=met,
        env=composition.env,
        net=net,
    )
