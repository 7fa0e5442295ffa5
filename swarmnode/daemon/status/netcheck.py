"""What ``swarmnode netcheck`` finds: how this node reaches others and is reached, and what to do.

:func:`look` collects plain values, :func:`find` makes sentences of them; the last ones are about
one peer each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final, Literal

import msgspec
import trio

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.daemon.status.phases import Member
from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.transport.nat import Nat, NoNat, relay_quota
from swarmnode.daemon.transport.network import Network
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.gateway.portmap import Mapping
from swarmnode.net.paths import Path, path_of
from swarmnode.net.relays.address import is_relayed
from swarmnode.net.tcp import format_address, parse_address
from swarmnode.protocol.nat.behaviour import Dependence, NatBehaviour
from swarmnode.protocol.nat.reach import Reachability
from swarmnode.protocol.relay import RelayStatistics
from swarmnode.protocol.relay.accounts import Quota

Verdict = Literal["ok", "warn", "fail", "unknown"]

_CARRIERS: Final = IPv4Network("100.64.0.0/10")  # RFC 6598: between a carrier's NAT and homes
_DEPENDS: Final = (Dependence.ADDRESS, Dependence.PORT)
_KINDS: Final = {
    Dependence.NONE: "full cone",
    Dependence.ADDRESS: "address-restricted",
    Dependence.PORT: "port-restricted",
    Dependence.UNKNOWN: "cone",
}
_LETS_IN: Final = {
    Dependence.NONE: "every host",
    Dependence.ADDRESS: "hosts that were sent something",
    Dependence.PORT: "answers only",
    Dependence.UNKNOWN: "hosts, unknown which",
}
_IPV6_ADVICE: Final = "ask the provider for a public IPv4 address, or for IPv6"

_REFUSING_SHOWN_MAX: Final = 4
_NOT_KNOWN: Final = NatBehaviour(0, None, Dependence.UNKNOWN, Dependence.UNKNOWN, None, None)


class Finding(msgspec.Struct, frozen=True):
    """One line of ``swarmnode netcheck``.

    ``warn``: it works, but not as well as it could; ``fail``: it does not; ``unknown``: no peer
    could tell.
    """

    topic: str
    verdict: Verdict
    text: str
    advice: str = ""
    peer: str = ""  # the one that it is about


@dataclass(frozen=True, kw_only=True)
class PeerWay:
    """One peer: the way of the session with it, or why there is none."""

    peer: str  # its id as text
    short: str
    path: Path | Literal[""] = ""  # "": no session
    way: str = ""
    is_dialled: bool = True  # by us: then the asking for better ways is ours too
    whys: tuple[str, ...] = ()  # why there is no better way, of the last tries
    error: str = ""

    @property
    def is_ipv6(self) -> bool:
        """Whether packets go to an IPv6 address of the peer."""
        return self.path in ("direct", "punched-tcp") and "[" in self.way


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the node knows. Addresses are HOST:PORT.

    Attributes:
        listen: what the listener is bound to.
        has_nat: False if it listens on the loopback interface only.
        own: where it is reached on interfaces of this machine.
        told: what peers are told.
        servers: how many peers were asked what our NAT does.
        is_surveyed: whether any peer could be asked.
        behaviour: what they said.
        survey_error: why nothing could be asked.
        wants_mapping: whether the router may be asked for a port.
        mapping_why: why there is no mapping, and what can be done after the last "; ".
        router: the router's own address, as it says; "" if it does not.
        beyond: a private address behind that router, of another one.
        relays: that hold a place for us, with their addresses.
        refusing: relays that do not, and why.
        quota: what this node gives as a relay.
        relaying: what it gives just now.
    """

    listen: str
    port: int
    has_nat: bool
    own: tuple[str, ...]
    told: tuple[str, ...]
    servers: int = 0
    is_surveyed: bool = False
    behaviour: NatBehaviour = _NOT_KNOWN
    survey_error: str = ""
    reach: Reachability = field(default_factory=Reachability)
    wants_mapping: bool = True
    mapping: Mapping | None = None
    mapping_why: str = ""
    router: str = ""
    beyond: str = ""
    relays: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    quota: Quota = field(default_factory=Quota)
    relaying: RelayStatistics = field(default_factory=partial(RelayStatistics, 0, 0, 0, 0, {}, 0))
    peers: tuple[PeerWay, ...] = ()

    @property
    def own_hosts(self) -> tuple[IPv4Address | IPv6Address, ...]:
        """The addresses of this machine's interfaces."""
        return tuple(ip_address(parse_address(each)[0]) for each in self.own)

    @property
    def public_hosts(self) -> tuple[str, ...]:
        """The public IPv4 addresses of this machine's interfaces: no NAT is before it."""
        return tuple(str(host) for host in self.own_hosts if host.version == 4 and host.is_global)

    @property
    def is_reached(self) -> bool:
        """Whether strangers get through to us, or should, as far as is known."""
        if self.reach.endpoints or self.reach.tentative:
            return True
        return bool(self.public_hosts) and not self.reach.refusals

    @property
    def is_symmetric(self) -> bool:
        """Whether our NAT gives each peer another port."""
        return _is_translated(self) and self.behaviour.mapping in _DEPENDS


def find(known: Known) -> list[Finding]:
    """Return what is to be said, our own network first, then each peer."""
    if not known.has_nat:
        return [_loopback(known), *(_peer(known, peer) for peer in known.peers)]
    line = (_addresses, _nat, _udp, _carrier, _ipv6, _port_mapping, _hairpin, _reachable)
    topics = (*line, _relays, _relaying)
    return [*(topic(known) for topic in topics), *(_peer(known, peer) for peer in known.peers)]


# --- what is looked at ----------------------------------------------------------------------------


async def look(view: NodeView, nat: Nat | NoNat, beyond: str = "") -> Known:
    """Return what is known, having asked peers about our NAT; takes up to NETCHECK_S.

    ``beyond``: see ``Known``; the command line has looked.
    """
    node, members = view.node, _live(view)
    known = Known(
        listen=node.network.address,
        port=parse_host_port(node.network.address, setting="listen").port,
        has_nat=False,
        own=node.own_addresses(),
        told=node.addresses(),
        beyond=beyond,
    )
    whys: dict[PeerId, tuple[str, ...]] = {}
    match nat:
        case Nat(whys=whys):
            known = await _with_nat(known, nat)
    return replace(known, peers=tuple(_peers(node.network, whys, members)))


def _live(view: NodeView) -> Collection[PeerId]:
    match view.membership:
        case Member(part=part):
            return part.members.live()
    return ()


async def _with_nat(known: Known, nat: Nat) -> Known:
    n_servers = min(len(nat.survey_servers()), limits.STUN_SERVERS_MAX)
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
        relays=tuple(f"{peer.short}… at {at}" for peer, at in nat.places.held.items()),
        refusing=tuple(f"{peer.short}…: {why}" for peer, why in nat.places.refusals().items()),
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
    network: Network, whys: dict[PeerId, tuple[str, ...]], members: Iterable[PeerId]
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


# --- our own network ------------------------------------------------------------------------------


def _loopback(known: Known) -> Finding:
    return Finding(
        "addresses",
        "warn",
        f"listens on {known.listen}: only programs on this machine reach this node",
        "to be reached by others let it listen on every interface: `--listen '*:7337'`",
    )


def _addresses(known: Known) -> Finding:
    told = [address for address in known.told if not is_relayed(address)]
    if len(told) < len(known.told):
        told.append(_count(len(known.told) - len(told), "relay"))
    text = f"on this machine {', '.join(known.own)}; peers are told {', '.join(told) or 'none'}"
    return Finding("addresses", "ok", text)


def _nat(known: Known) -> Finding:
    behaviour = known.behaviour
    if not behaviour.answers and known.public_hosts:
        return Finding("nat", "ok", f"none: this machine has the public {known.public_hosts[0]}")
    if not behaviour.answers:
        why = "no answer" if known.is_surveyed else "no peer at a public address could be asked"
        return Finding("nat", "unknown", known.survey_error or why, _lack_of_peers(known))
    seen = "?" if behaviour.public is None else behaviour.public.host
    lets_in = f"lets in {_LETS_IN[behaviour.filtering]}"
    if not _is_translated(known):
        if behaviour.filtering is Dependence.PORT or behaviour.filtering is Dependence.ADDRESS:
            text = f"none, but a firewall: peers see this machine's own {seen}; it {lets_in}"
            return Finding("nat", *_unless_reached(known, text, _open_firewall(known)))
        return Finding("nat", "ok", f"none: peers see this machine's own address {seen}")
    if known.is_symmetric:
        text = f"symmetric: peers see {seen} with another port each; it {lets_in}"
        return Finding("nat", *_unless_reached(known, text, _open_port(known)))
    if behaviour.mapping is Dependence.UNKNOWN:
        text = f"one host only could tell: it sees {seen}; the router {lets_in}"
        return Finding("nat", "unknown", text, "ask again when there are two public peers")
    kind = _KINDS[behaviour.filtering]
    return Finding("nat", "ok", f"{kind}: all peers see {seen} with one port; it {lets_in}")


def _udp(known: Known) -> Finding:
    if known.survey_error:
        return Finding("udp", "fail", f"nothing can be sent: {known.survey_error}", _LET_UDP_OUT)
    if not known.is_surveyed:
        return Finding("udp", "unknown", "no peer at a public address could be asked")
    answers = known.behaviour.answers
    if not answers:
        text = f"blocked: none of {known.servers} peers answers, though TCP gets through to them"
        return Finding("udp", "warn", text, _LET_UDP_OUT)
    return Finding("udp", "ok", f"gets through: answers from {answers} of {known.servers} peers")


_LET_UDP_OUT: Final = (
    "let UDP out in the firewall: it is a way where TCP cannot be punched; all else goes on without"
)


def _carrier(known: Known) -> Finding:
    """The NAT of a provider, in front of the router or instead of it."""
    inner = [str(host) for host in known.own_hosts if host in _CARRIERS]
    seen = _seen_hosts(known)
    if inner:
        text = f"yes: this machine's own address {inner[0]} is one of a provider's NAT"
    elif known.router and not ip_address(known.router).is_global:
        text = f"yes: the router's own address {known.router} is not public"
    elif known.router and seen and known.router not in seen:
        text = f"yes: the router's own address is {known.router}, and peers see {seen[0]}"
    elif known.mapping is None and "no public address" in known.mapping_why:
        text = "perhaps: the router says that it may have no public address itself"
    elif known.router in seen or known.public_hosts:
        return Finding("carrier nat", "ok", "no")
    elif known.beyond:
        text = f"probably: another router, {known.beyond}, is behind this home's own"
    else:
        text = "the router does not say what its own address is"
        if known.router:
            text = f"the router's own address is {known.router}; no peer says where it sees us"
        return Finding("carrier nat", "unknown", text)
    return Finding("carrier nat", *_unless_reached(known, text, _IPV6_ADVICE))


def _ipv6(known: Known) -> Finding:
    own = [str(host) for host in known.own_hosts if host.version == 6 and host.is_global]
    if not own:
        advice = "switch on IPv6 in the router, if the provider has it: it needs no NAT"
        return Finding("ipv6", *_unless_reached(known, "no public address of our own", advice))
    n_peers = sum(peer.is_ipv6 for peer in known.peers)
    return Finding("ipv6", "ok", f"{own[0]}; {_count(n_peers, 'peer')} reached over it")


def _port_mapping(known: Known) -> Finding:
    if known.mapping is not None:
        mapping = known.mapping
        text = f"{mapping.address} leads here, the router says ({mapping.method})"
        is_refused = any(port == mapping.port for port, _ in known.reach.refusals)
        if is_refused and all(port != mapping.port for _, port in known.reach.tentative):
            text += ", but no peer gets in there"
            return Finding("port mapping", "warn", text, _IPV6_ADVICE)
        return Finding("port mapping", "ok", text)
    if known.public_hosts:
        return Finding("port mapping", "ok", "not needed: this machine has a public address")
    if not known.wants_mapping:
        text, advice = "switched off", "set `port_mapping = true`, or forward a port by hand"
    else:
        text, _, advice = known.mapping_why.rpartition("; ")
        text, advice = (text, advice) if text else (advice, "")
        advice = _IPV6_ADVICE if _carrier(known).verdict == "warn" else advice
    return Finding("port mapping", *_unless_reached(known, text, advice))


def _hairpin(known: Known) -> Finding:
    hairpins = known.behaviour.hairpins
    if hairpins is None:
        if known.public_hosts:
            return Finding("hairpin", "ok", "not needed: no NAT")
        return Finding("hairpin", "unknown", "not tried: it takes two public peers, and UDP")
    if hairpins:
        return Finding("hairpin", "ok", "the router sends back what goes to its own outer address")
    text = "no: nodes behind this router meet by the addresses that they have on the LAN"
    return Finding("hairpin", "ok", text)


def _reachable(known: Known) -> Finding:
    reach = known.reach
    if reach.endpoints:
        return Finding("reachable", "ok", f"yes, at {_joined(reach.endpoints)}")
    if reach.tentative:
        text = (
            f"yes, at {_joined(reach.tentative)}, as fewer than {limits.REACH_VOTES} networks say"
        )
        return Finding("reachable", "ok", text)
    if not reach.refusals:
        return Finding("reachable", "unknown", "no peer could tell", _lack_of_peers(known))
    told = "; ".join(f"port {port}: {reason}" for port, reason in reach.refusals)
    advice = _open_firewall(known) if known.public_hosts else _open_port(known)
    return Finding("reachable", "warn", f"no, peers have tried: {told}", advice)


def _relays(known: Known) -> Finding:
    held = ", ".join(known.relays)
    refused = "".join(f"; not {each}" for each in known.refusing[:_REFUSING_SHOWN_MAX])
    if known.relays:
        return Finding("relays", "ok", f"peers reach this node through {held}{refused}")
    if known.is_reached:
        return Finding("relays", "ok", "none needed: this node can be reached directly")
    text = f"none{refused}: no peer that cannot be dialled from here reaches this node"
    is_missed = known.reach.refusals and any(not peer.path for peer in known.peers)
    advice = "let a node at a public address join, best with `--role relay`"
    return Finding("relays", "fail" if is_missed else "warn", text, advice)


def _relaying(known: Known) -> Finding:
    quota, now = known.quota, known.relaying
    if not quota.reservations_max:
        return Finding("relaying", "ok", "switched off")
    rate = quota.bytes_per_s
    at_most = "as fast as the line" if rate is None else f"at most {rate / 1e6:g} MB/s"
    if not known.is_reached:
        return Finding("relaying", "ok", f"on, {at_most}, once this node can be reached")
    text = (
        f"{now.reservations} of {quota.reservations_max} places taken, {now.circuits_open} of"
        f" {quota.circuits_max} connections, {at_most}; {now.relayed_bytes / 1e6:.1f} MB so far"
    )
    short = sum(now.refused_total.get(code, 0) for code in ("full", "quota"))
    if not short:
        return Finding("relaying", "ok", text)
    advice = "to give more use `--role relay`, or a greater `relay_bytes_per_s`"
    return Finding("relaying", "warn", f"{text}; {short} refused for want of room", advice)


# --- peers ----------------------------------------------------------------------------------------


def _peer(known: Known, peer: PeerWay) -> Finding:
    verdict: Verdict = "ok"
    text, advice = f"{peer.short}… {peer.path}: {peer.way}", ""
    if not peer.path:
        verdict, text = "warn", f"{peer.short}… not connected: {peer.error}"
    elif peer.path == "relay":
        verdict = "warn"
        text += f"; not better, as {'; '.join(peer.whys)}" if peer.whys else ""
        text += "" if peer.is_dialled else "; punching is for the other side to begin"
        advice = _advice_for_relayed(known) if peer.whys else _TRYING
    return Finding("peer", verdict, text, advice, peer.peer)


_TRYING: Final = "better ways are being tried: look again in a minute"


def _advice_for_relayed(known: Known) -> str:
    """Say what our side can do; often the other side is the one that can."""
    if known.is_symmetric:
        return _open_port(known)
    if known.is_surveyed and not known.behaviour.answers:
        return _LET_UDP_OUT
    return "its network stands in the way, or both do: an open port on either side helps"


# --- words ----------------------------------------------------------------------------------------


def _is_translated(known: Known) -> bool:
    return bool(known.behaviour.is_translated)


def _unless_reached(known: Known, text: str, advice: str) -> tuple[Verdict, str, str]:
    """Return a warning, but for a node that is reached all the same."""
    return ("ok", text, "") if known.is_reached else ("warn", text, advice)


def _open_port(known: Known) -> str:
    if _carrier(known).verdict == "warn":
        return _IPV6_ADVICE
    return (
        f"switch on UPnP in the router, or forward TCP port {known.port} to this machine there;"
        " until then others are reached by hole punching or relays"
    )


def _open_firewall(known: Known) -> str:
    return f"let TCP port {known.port} in, in the firewall of this machine or of its network"


def _lack_of_peers(known: Known) -> str:
    if known.is_surveyed:
        return ""
    return f"it takes peers at public addresses, {limits.REACH_VOTES} of them in different networks"


def _seen_hosts(known: Known) -> tuple[str, ...]:
    """Return our public IPv4 addresses, as peers see us."""
    public = known.behaviour.public
    hosts = [*known.reach.hosts, *known.reach.guesses, *([public.host] if public else [])]
    return tuple(dict.fromkeys(host for host in hosts if ":" not in host))


def _joined(endpoints: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(format_address(*each) for each in endpoints)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
