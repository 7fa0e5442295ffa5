"""Everything that reaches others through NATs, and lets us be reached: put together, and run.

::

    listener's port ---> port mapping (router) ---+
                                                  +--> reach/1: dialled back? --+-- yes: we relay
    sessions that we have dialled ----------------+                             |   for others
                                                                                +-- no: relays hold
    session through a relay ---> upgrade: direct, TCP punch, WebRTC                 a place for us

A node that listens on the loopback interface only has no NAT before it: none of this runs there.
"""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig, is_loopback, parse_host_port
from swarmnode.daemon.transport.network import Network, remote_address
from swarmnode.daemon.transport.reach import Reach, ReachAnswers
from swarmnode.daemon.transport.signals import Signals
from swarmnode.env import Env
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, Transport
from swarmnode.net.gateway.portmap import Mapping, PortMapper
from swarmnode.net.paths import path_of
from swarmnode.net.relays.address import LEG_SERVICE, RELAY_SERVICE
from swarmnode.net.relays.places import Places
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.stun import StunResponder, add_probe_service, request_probe
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.protocol.hosts import site_of
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat.behaviour import Dependence, NatBehaviour
from swarmnode.protocol.nat.reach import Reachability, network_of
from swarmnode.protocol.relay import RelayStatistics
from swarmnode.telemetry.logs import get_logger
from swarmnode.telemetry.nat import Mapper, NatKind, NatSnapshot, Reachable
from swarmnode.wire.connect.relay import LEG_MAGIC

if TYPE_CHECKING:
    from swarmnode.daemon.transport.relay import RelayService
    from swarmnode.protocol.relay.accounts import Quota

_log = get_logger("swarmnode.daemon.transport")
_MAPPERS: dict[str, Mapper] = {"PCP": "pcp", "NAT-PMP": "nat-pmp", "UPnP": "upnp"}


class NoNat:
    """In place of ``Nat``: no other machine can reach us, nor we it.

    Attributes:
        prefers, on_addresses: as in ``Nat``; neither is called.
    """

    def __init__(self) -> None:
        self.prefers: Callable[[PeerId], bool] = lambda _peer: False
        self.on_addresses: Callable[[], None] = lambda: None

    async def run(
        self,
        bound: str,  # noqa: ARG002
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """There is nothing to look after."""
        task_status.started()
        await trio.lowlevel.checkpoint()

    def addresses(self) -> tuple[str, ...]:
        """Others reach us nowhere besides our own interfaces."""
        return ()

    def snapshot(self) -> NatSnapshot:
        """Return gauges and counters of nothing."""
        return NatSnapshot()


class Nat:
    """See the module.

    Attributes:
        whys: why a peer is only reached through a relay, by peer; for people.
        mapper: the port in the router; None before the node listens, or if that is switched off.
        behaviour: what our NAT does, once it has been asked for.
        prefers: tells whether a peer is a relay by profession.
        on_addresses: told when others can reach us at other addresses.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        network: Network,
        services: Services,
        identity: Identity,
        transport: Transport,
        env: Env,
    ) -> None:
        self.mapper: PortMapper | None = None
        self.behaviour: NatBehaviour | None = None
        self.prefers: Callable[[PeerId], bool] = lambda _peer: False
        self.on_addresses: Callable[[], None] = lambda: None
        self.config = config
        self._network = network
        self._services = services
        self._identity = identity
        self._env = env
        self.whys: dict[PeerId, tuple[str, ...]] = {}
        self._met_relayed = trio.Event()  # a session runs through a relay, or will
        sessions = network.sessions
        self.signals = Signals(
            services, identity, env, sessions=sessions, address_of=remote_address
        )
        ReachAnswers(
            services,
            env,
            sessions=sessions,
            address_of=remote_address,
            probe=network.shake_hands_only,
        )
        self.reach = Reach(env, sessions=sessions, on_change=self._reach_changed)
        self.relay = RelayOnDemand(services, config, self._site_of, sessions=sessions, env=env)
        self.places = Places(
            services,
            network.connect,
            transport.dial,
            self._candidates,
            env,
            own_id=identity.peer_id,
            on_change=self._addresses_changed,
        )
        self._stun = StunResponder(services.traffic.carried)
        ports = limits.RELAY_PORTS if config.role == "relay" else ()
        self._also_listen = tuple(f"*:{port}" for port in ports)
        add_probe_service(services, self._stun, self._host_of)
        network.watchers += [self.reach, self.relay, self]
        network.on_moved = self._look_at
        network.keepers += [lambda peer: peer in self.places.held, self.relay.serves]
        network.circuits = lambda: self.places.circuits
        network.ways.dial_relayed = self.places.dial
        network.listener.uses[LEG_MAGIC] = self.relay.serve_leg
        network.also_listen = self._also_listen
        if config.role == "relay":  # a place is a session
            network.sessions_max += relay_quota(config).reservations_max

    # --- running ----------------------------------------------------------------------------

    async def run(
        self, bound: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Reach and be reached until cancelled; ``bound`` is what the listener is bound to."""
        port = parse_host_port(bound, setting="listen").port
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._better_sessions, port)
            await nursery.start(self.relay.run)
            nursery.start_soon(self.places.run, self._network.listener.accept)
            self.reach.set_ports((port,))
            nursery.start_soon(self.reach.run)
            nursery.start_soon(self._answer_stun, self._stun, f"*:{port}")
            for address in self._also_listen:
                nursery.start_soon(
                    self._answer_stun, StunResponder(self._services.traffic.carried), address
                )
            if self.config.port_mapping:
                self.mapper = PortMapper(port, identity=self._identity, env=self._env)
                nursery.start_soon(self.mapper.run)
                nursery.start_soon(self._follow_mapping, self.mapper, port)
            task_status.started()

    async def _better_sessions(self, port: int) -> None:
        """Wait for the first session through a relay, then look for better ways than those.

        What does so is imported here, between the session's first messages: a peer's invitation
        comes a round trip later at the earliest. One without a session comes through a relay that
        we hold, so that the first place is a reason, too.
        """
        await self._met_relayed.wait()
        from swarmnode.daemon.transport.upgrade import better_sessions

        await better_sessions(
            self._network,
            self.signals,
            own_id=self._identity.peer_id,
            port=port,
            dialled_address=self._dialled_address,
            stun_servers=self.stun_servers,
            whys=self.whys,
            traffic=self._services.traffic,
            env=self._env,
        )

    async def _answer_stun(self, responder: StunResponder, address: str) -> None:
        """Tell others how their NATs translate UDP, on the port of the same number."""
        try:
            await responder.run(address)
        except ConfigError as error:
            _log.warning("no STUN for others there", address=address, why=str(error))

    async def _follow_mapping(self, mapper: PortMapper, port: int) -> None:
        mapping: Mapping | None = None
        while True:
            mapping = await mapper.wait_changed(mapping)
            ports = (port,) if mapping is None else (port, mapping.port)
            self.reach.set_ports(tuple(dict.fromkeys(ports)))
            self._addresses_changed()

    # --- what we are to others --------------------------------------------------------------

    def addresses(self) -> tuple[str, ...]:
        """Return where others reach us besides our own interfaces, the surest first."""
        known = self.reach.reachability
        reached = [format_address(*each) for each in (*known.endpoints, *known.tentative)]
        return tuple(dict.fromkeys((*reached, *self.places.addresses())))

    def snapshot(self) -> NatSnapshot:
        """Return gauges and counters."""
        relay = self.relay.statistics()
        mapping = self.mapper.mapping if self.mapper is not None else None
        return NatSnapshot(
            kind=nat_kind(self.behaviour),
            reachable=self.reachable,
            mapper="none" if mapping is None else _MAPPERS[mapping.method],
            relays_held=len(self.places.held),
            relays_refusing=sum("says full:" in why for why in self.places.refusals().values()),
            relay_reservations=relay.reservations,
            relay_circuits=relay.circuits_open,
            ways_total=dict(self._network.ways.tried),
            resumed_total=self._network.resumed_total,
            relayed_bytes_total=relay.relayed_bytes,
            relay_circuits_total=relay.circuits_total,
            relay_refused_total=relay.refused_total,
        )

    @property
    def reachable(self) -> Reachable:
        """Whether strangers get through to our port, as the peers say that we have asked."""
        known = self.reach.reachability
        if known.endpoints or known.tentative:
            return "yes"
        return "no" if known.refusals else "unknown"

    async def survey(self) -> NatBehaviour | None:
        """Ask peers what our NAT does; None if no peer can tell.

        Raises:
            SwarmNodeError: nothing can be sent at all.
        """
        servers = self.survey_servers()[: limits.STUN_SERVERS_MAX]
        if not servers:
            return None
        from swarmnode.net.nat_survey import survey_nat  # only a person asks, by `netcheck`

        async def ask_probe(index: int, port: int, transaction: bytes) -> None:
            peer, _ = servers[index]
            if peer in self._network.sessions:
                await request_probe(self._network.sessions[peer], port, transaction)

        self.behaviour = await survey_nat([address for _, address in servers], ask_probe)
        return self.behaviour

    # --- peers that we know -------------------------------------------------------------------

    def session_opened(self, session: Session) -> None:
        """Part of ``SessionWatcher``."""
        self.places.look_again()
        self._look_at(session)

    def _look_at(self, session: Session) -> None:
        """It is new, or goes on over another channel."""
        if path_of(session.channel_description) == "relay":
            self._met_relayed.set()

    def session_closed(self, session: Session) -> None:
        """Part of ``SessionWatcher``."""

    def stun_servers(self) -> tuple[str, ...]:
        """Return HOST:PORT of peers that answer STUN."""
        return tuple(address for _, address in self._public_peers())

    def survey_servers(self) -> list[tuple[PeerId, str]]:
        """Return public peers that were dialled over IPv4, which is what NATs translate."""
        return [each for each in self._public_peers() if not each[1].startswith("[")]

    def _public_peers(self) -> list[tuple[PeerId, str]]:
        """Return peers that we have dialled at a public address, and which."""
        found = []
        for peer, session in self._network.sessions.items():
            address = self._dialled_address(peer)
            if address and not session.is_suspended and network_of(parse_address(address)[0]):
                found.append((peer, address))
        return found

    def _candidates(self) -> list[tuple[PeerId, str]]:
        """Return relays that may hold a place for us: none while we are known to be reachable."""
        if self.reach.reachability.endpoints:
            return []
        return sorted(self._public_peers(), key=lambda each: self._relay_rank(each[0]))

    def _relay_rank(self, relay: PeerId) -> tuple[bool, int, bytes]:
        """Those by profession first, then those with most to give, else each node its own order."""
        taken = self.places.loads.get(relay, 0) // limits.RELAY_LOAD_STEP
        return (
            not self.prefers(relay),
            taken,
            hashlib.sha256(self._identity.peer_id + relay).digest(),
        )

    def _dialled_address(self, peer: PeerId) -> str:
        """Return where we have reached a peer directly, "" if we have not."""
        sessions = self._network.sessions
        if peer not in sessions or path_of(sessions[peer].channel_description) != "direct":
            return ""
        session = sessions[peer]
        return remote_address(session) if self._network.was_dialled(session) else ""

    def _host_of(self, peer: PeerId) -> str:
        address = self._network.remote_address_of(peer)
        return parse_address(address)[0] if address else ""

    def _site_of(self, peer: PeerId) -> str:
        return site_of(self._host_of(peer))

    def _reach_changed(self, known: Reachability) -> None:
        _log.info("reachability", endpoints=known.endpoints, some=known.tentative)
        self._addresses_changed()
        self.places.look_again()

    def _addresses_changed(self) -> None:
        if self.places.held:
            self._met_relayed.set()
        self.on_addresses()


class RelayOnDemand:
    """The relay of a node that no peer may ever ask. What relays is loaded when one does."""

    def __init__(
        self,
        services: Services,
        config: NodeConfig,
        host_of: Callable[[PeerId], str],
        *,
        sessions: dict[PeerId, Session],
        env: Env,
    ) -> None:
        self._config, self._host_of, self._sessions, self._env = config, host_of, sessions, env
        # Those of the relay itself: here it is known by the names that peers ask for.
        self._services = Services()
        self._services.traffic = services.traffic
        self._relays: tuple[RelayService, ...] = ()  # one, once it is loaded
        self._is_wanted, self._is_loaded = trio.Event(), trio.Event()
        self._why_not = ""
        services.traffic.on_relaying = self._allow
        services.add_request(RELAY_SERVICE, self._answer)
        services.add_stream(LEG_SERVICE, self._serve_stream)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relay until cancelled, from the first question on."""
        task_status.started()
        await self._is_wanted.wait()
        from swarmnode.daemon.transport.relay import RelayService  # see the class

        relay = RelayService(
            self._services,
            self._env,
            quota=relay_quota(self._config),
            sessions=self._sessions,
            host_of=self._host_of,
        )
        self._services.traffic.on_relaying(self._why_not)
        async with trio.open_nursery() as nursery:
            await nursery.start(relay.run)
            self._relays = (relay,)
            self._is_loaded.set()

    def statistics(self) -> RelayStatistics:
        """Return counters."""
        for relay in self._relays:
            return relay.statistics()
        return RelayStatistics(0, 0, 0, 0, {}, 0)

    def serves(self, peer: PeerId) -> bool:
        """Whether a peer is to be reached through us, so that its session must stay."""
        return any(relay.serves(peer) for relay in self._relays)

    def session_opened(self, session: Session) -> None:
        """Nothing: a peer that wants something asks."""

    def session_closed(self, session: Session) -> None:
        """A peer is gone."""
        for relay in self._relays:
            relay.session_closed(session)

    async def serve_leg(self, channel: Channel, first_bytes: bytes) -> None:
        """Take a connection that begins as a leg does; see ``RelayService``."""
        await (await self._loaded()).serve_leg(channel, first_bytes)

    async def _answer(self, peer: PeerId, payload: bytes) -> bytes:
        return await (await self._loaded()).answer(peer, payload)

    async def _serve_stream(self, session: Session, stream: Stream) -> None:
        await (await self._loaded()).serve_stream(session, stream)

    async def _loaded(self) -> RelayService:
        self._is_wanted.set()
        await self._is_loaded.wait()
        return self._relays[0]

    def _allow(self, why_not: str) -> None:
        self._why_not = why_not


def wants_nat(config: NodeConfig) -> bool:
    """Whether others than this machine can be reached at all from where we listen."""
    return not is_loopback(config.listen_address.host)


def relay_quota(config: NodeConfig) -> Quota:
    """Return what this node gives to others as a relay."""
    from swarmnode.protocol.relay.accounts import Quota, role_quota  # only who relays has one

    chosen = config.relay_bytes_per_s
    if not config.relay:
        return Quota(reservations_max=0, circuits_max=0)
    if config.role != "relay":
        return Quota(bytes_per_s=chosen or limits.RELAY_BYTES_PER_S)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return role_quota(memory_bytes, _open_files_max(), chosen or None)


def _open_files_max() -> int:
    """Return how many descriptors this process may have, once it has asked for all it may have.

    The usual limit, 1,024, is for programs that call select(), which none here does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.RELAY_FILES_MAX
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def nat_kind(behaviour: NatBehaviour | None) -> NatKind:
    """Return the short name of what a NAT does."""
    if behaviour is None:
        return "unknown"
    if not behaviour.answers:
        return "udp-blocked"
    if not behaviour.is_translated:
        return "none"
    kinds: dict[Dependence, NatKind] = {
        Dependence.NONE: "cone",
        Dependence.ADDRESS: "symmetric",
        Dependence.PORT: "symmetric",
    }
    return kinds.get(behaviour.mapping, "unknown")
