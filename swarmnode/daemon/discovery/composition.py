"""What a node stands on before it knows its swarm: sessions, the DHT, and the LAN.

A *visitor* is a node of nothing else: it looks around in the network for some seconds, and joins
nothing. It has a key made for this once and no listener, so no peer keeps it in a table, and
nothing of it is left on this disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig, is_loopback, parse_host_port
from swarmnode.daemon.discovery import lookup
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.discovery.lookup import Findings, Searched, gather
from swarmnode.daemon.discovery.rendezvous import check_names, request_manifest
from swarmnode.daemon.transport.nat import Nat, NoNat, wants_nat
from swarmnode.daemon.transport.network import Network
from swarmnode.daemon.transport.reach import own_networks
from swarmnode.env import Env
from swarmnode.errors import ProtocolError, Refused, SwarmNodeError, TransportError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Transport
from swarmnode.net.lan.beacon import LanBeacon, LanPeer, LanSwarm
from swarmnode.net.lan.datagrams import DatagramNet
from swarmnode.net.services import Services
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.dht.keys import swarm_key_key
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink, network_id, open_manifest
from swarmnode.store.contacts import load_contacts
from swarmnode.store.swarms import stored_links
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

_EPOCH = 1  # of a visitor: it publishes nothing, so nothing of it has to be newer than anything
_log = get_logger("swarmnode.daemon.discovery")
_Addresses = Mapping[PeerId, tuple[str, ...]]


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
        """0 where others on the LAN could not dial us anyway: then we only ask who is there."""
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


@dataclass
class Visitor:
    """A node that looks around; see :func:`visit`."""

    network: Network
    discovery: Discovery
    env: Env
    lan: LanBeacon | None = None
    known: set[PeerId] = field(default_factory=set)  # who may be asked

    async def find_swarms(self, names: Iterable[str]) -> Findings:
        """Return the swarms of these names, and all that the LAN knows; takes some seconds.

        Raises:
            ConfigError: too many names.
        """
        names = lookup.check_names(names)
        await self._look_around()
        can_ask = self.discovery.core.statistics().contacts > 0
        claims = await lookup.find_swarms(
            names if can_ask else (), self.discovery, self.lan, self.env
        )
        return Findings(gather(claims), self._searched())

    async def fetch_manifest(self, link: SwarmLink) -> Manifest:
        """Return the manifest of a swarm; its peers are asked, then whom DHT and LAN name.

        Raises:
            Refused, ProtocolError: what a peer gave has expired, or is forged.
            TransportError: no peer had it in time; the message says which were asked.
        """
        errors: dict[PeerId, SwarmNodeError] = {}
        hints: dict[PeerId, tuple[str, ...]] = {}
        for hint in link.hints:
            hints[hint.peer] = (*hints.get(hint.peer, ()), hint.address)
        found = await self._ask_all(link, hints, errors)
        if not found:
            await self._look_around()
            others = await self._find_members(link)
            found = await self._ask_all(link, others, errors)
        if not found:
            raise self._nobody(link, errors)
        return found[0]

    def plan(self) -> str:
        """Say who will be asked."""
        asked = [f"{len(self.known)} known nodes"] if self.known else []
        if self.lan is not None:
            asked.append(f"the LAN ({', '.join(self.lan.interfaces) or 'no interface'})")
        return f"asking {' and '.join(asked)}"

    def _searched(self) -> Searched:
        return lookup.searched(self.discovery, self.lan, self.env)

    async def _look_around(self) -> None:
        """Wait until those who can be asked are known."""
        if self.lan is not None:
            await trio.sleep(limits.LOOKUP_LAN_S)
        if self.known:
            with trio.move_on_after(limits.LOOKUP_BOOTSTRAP_S):
                await self.discovery.bootstrapped.wait()

    async def _find_members(self, link: SwarmLink) -> _Addresses:
        found: dict[PeerId, tuple[str, ...]] = {}
        if self.lan is not None:
            for peer in self.lan.peers(self.env.monotonic()):
                if any(swarm.swarm_key == link.swarm_key for swarm in peer.swarms):
                    found[peer.peer] = (peer.address,)
        with trio.move_on_after(limits.LOOKUP_DHT_S):
            try:
                answer = await self.discovery.get(swarm_key_key(link.swarm_key))
            except SwarmNodeError as error:
                _log.warning("members not looked up", why=str(error))
            else:
                for opened in answer.records:
                    found.setdefault(opened.author, opened.record.addresses)
        return found

    async def _ask_all(
        self, link: SwarmLink, candidates: _Addresses, errors: dict[PeerId, SwarmNodeError]
    ) -> list[Manifest]:
        """Return the manifests that count and came first, none if no peer gives one in time."""
        found: list[Manifest] = []

        async def ask(peer: PeerId, addresses: tuple[str, ...]) -> None:
            try:
                session = await self.network.connect(peer, addresses)
                signed = await request_manifest(session, link.swarm_key)
                manifest = open_manifest(
                    signed, swarm_key=link.swarm_key, now_unix_s=self.env.wall()
                )
                check_names(link, manifest)
            except SwarmNodeError as error:
                errors[peer] = error
            else:
                found.append(manifest)
                nursery.cancel_scope.cancel()

        with trio.move_on_after(limits.LOOKUP_MANIFEST_S):
            async with trio.open_nursery() as nursery:
                for peer, addresses in candidates.items():
                    nursery.start_soon(ask, peer, addresses)
        return found

    def _nobody(self, link: SwarmLink, errors: Mapping[PeerId, SwarmNodeError]) -> SwarmNodeError:
        for error in errors.values():
            if isinstance(error, Refused | ProtocolError):
                return error
        causes = "; ".join(f"{peer.short}: {error}" for peer, error in list(errors.items())[:3])
        cut = "" if link.hints else " The link names no peer (b=): was it cut at the &, unquoted?"
        return TransportError(
            f"nobody gave the manifest of swarm {link.name!r}: {causes or 'nobody was found'}"
            f" (looked {lookup.in_words(self._searched())}): is one of its members running?{cut}"
        )


@asynccontextmanager
async def visit(
    config: NodeConfig,
    *,
    transport: Transport,
    env: Env,
    also: Iterable[Hint] = (),
    lan_net: DatagramNet | None = None,
    on_event: Callable[[str], None] = lambda _text: None,
) -> AsyncIterator[Visitor]:
    """Be in the network for a moment, without a listener and under a key made for this.

    Nodes of the setting ``bootstrap``, of links in this home and of earlier runs are asked.

    Args:
        also: other nodes to ask.
        lan_net: what beacons are sent on, if not the real LAN.
        on_event: told where is looked.

    Raises:
        ConfigError: the setting ``bootstrap`` names something else than nodes.
    """
    hints = [*map(Hint.parse, config.bootstrap), *also]
    hints += [hint for link in stored_links(config.paths) for hint in link.hints]
    composition = compose(config, Identity.generate(), _EPOCH, transport, env)
    visitor = Visitor(composition.network, composition.discovery, env)
    visitor.known.update(PeerId(each.peer) for each in load_contacts(config.paths.contacts))

    def met(peer: LanPeer) -> None:
        visitor.known.add(peer.peer)

    async with trio.open_nursery() as nursery:
        await nursery.start(composition.network.run, "")
        await nursery.start(composition.discovery.run)
        for hint in hints:
            visitor.known.add(hint.peer)
            composition.discovery.discovered(hint.peer, (hint.address,))
        if config.lan:
            visitor.lan = make_beacon(
                config, composition, swarms=lambda: (), on_peer=met, net=lan_net
            )
            await nursery.start(visitor.lan.run)
        if visitor.known or visitor.lan:
            on_event(visitor.plan())
        yield visitor
        with trio.move_on_after(limits.GOODBYE_DEADLINE_S):
            await composition.network.close("only looking around")
        nursery.cancel_scope.cancel()
