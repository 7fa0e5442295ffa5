"""Swarms by name: what the LAN says, and what the DHT has.

The DHT keeps no list of all names: it answers for the names that it is asked for.

A *visitor* is a node of nothing else: it looks around in the network for some seconds, and joins
nothing. It has a key made for this once and no listener, so no peer keeps it in a table, and
nothing of it is left on this disk.

Swarms that nodes say exist, gathered by their keys.

Names, sizes and ages are claims of their authors: a list for people to choose from. What a
swarm is, its manifest proves, which the swarm's key has signed. So of the claims of several
authors the middle one is believed, which is right as long as most of them are; and a swarm has
at least as many members as there are authors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from statistics import median_low
from typing import Literal

import msgspec
import trio

from swarmnode import limits
from swarmnode.config import NodeConfig, is_loopback
from swarmnode.daemon.discovery import rendezvous
from swarmnode.daemon.discovery.composition import compose, make_beacon, meets_strangers
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.discovery.rendezvous import can_be_told, make_strangers
from swarmnode.daemon.transport.network import Network
from swarmnode.env import Env
from swarmnode.errors import ConfigError, ProtocolError, Refused, SwarmNodeError, TransportError
from swarmnode.ids import PeerId, decode_base32, encode_base32
from swarmnode.net.channel import Transport
from swarmnode.net.lan.beacon import LanBeacon
from swarmnode.net.lan.datagrams import DatagramNet
from swarmnode.net.strangers import Sought, Strangers, Told
from swarmnode.protocol.dht.keys import name_key, swarm_key_key
from swarmnode.protocol.dht.records import OpenRecord
from swarmnode.protocol.hosts import is_loopback as ip_is_loopback
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.lan import LanPeer
from swarmnode.protocol.swarm import Hint, SwarmLink, check_name, open_manifest
from swarmnode.store.contacts import load_contacts
from swarmnode.store.swarms import stored_links
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.dht import SwarmRecord
from swarmnode.wire.swarm import Manifest

_EPOCH = 1  # of a visitor: it publishes nothing, so nothing of it has to be newer than anything
_log = get_logger("swarmnode.daemon.discovery")
_Addresses = Mapping[PeerId, tuple[str, ...]]


Via = Literal["home", "lan", "dht", "mainline", "dns"]
_VIAS: tuple[Via, ...] = ("home", "lan", "dht", "mainline", "dns")


@dataclass(frozen=True)
class Claim:
    """One author says that it is in a swarm. Without an author: this home knows the swarm."""

    name: str
    swarm_key: bytes
    via: Via
    author: PeerId | None = None
    addresses: tuple[str, ...] = ()
    members: int | None = None
    created_at: int | None = None  # Unix seconds


class FoundSwarm(msgspec.Struct, frozen=True):
    """A swarm in a list for people; None where no author has said so."""

    name: str
    key: str  # its public key in base32
    members: int | None
    created_at: int | None  # Unix seconds
    via: tuple[Via, ...]
    peers: tuple[str, ...]  # sn1…@HOST:PORT, those to ask first

    def link(self) -> SwarmLink:
        """Return the link to it, with as many peers as fit."""
        key = decode_base32(self.key, what="swarm key")
        link = SwarmLink(self.name, key)
        for hint in map(Hint.parse, self.peers):
            longer = replace(link, hints=(*link.hints, hint))
            if len(str(longer)) <= limits.LINK_CHARACTERS_MAX:
                link = longer
        return link


class Searched(msgspec.Struct, frozen=True):
    """Where was looked, for people who wonder why something was not found."""

    dht_contacts: int
    lan_interfaces: tuple[str, ...] | None  # None: switched off
    lan_peers: int
    elsewhere: str = ""  # in words; "": nowhere else


class Findings(msgspec.Struct, frozen=True):
    """What was found where."""

    swarms: tuple[FoundSwarm, ...]
    searched: Searched


def claims_of_records(name: str, records: Iterable[OpenRecord]) -> list[Claim]:
    """Return what the DHT says about swarms of a name."""
    return [
        Claim(
            name,
            record.swarm_key,
            "dht",
            opened.author,
            record.addresses,
            record.members,
            record.created_at,
        )
        for opened in records
        if isinstance(record := opened.record, SwarmRecord) and record.name == name
    ]


def claims_of_lan(peers: Iterable[LanPeer]) -> list[Claim]:
    """Return what nodes on the LAN say about the swarms that they are in."""
    return [
        Claim(
            swarm.name,
            swarm.swarm_key,
            "lan",
            peer.peer,
            (peer.address,),
            swarm.members,
            swarm.created_at,
        )
        for peer in peers
        for swarm in peer.swarms
    ]


def gather(claims: Iterable[Claim]) -> tuple[FoundSwarm, ...]:
    """Return the swarms that are claimed to exist.

    Those of this home come first, then the largest, the oldest; SWARMS_LISTED_MAX at most.
    """
    by_swarm: dict[tuple[str, bytes], list[Claim]] = {}
    for claim in claims:
        by_swarm.setdefault((claim.name, claim.swarm_key), []).append(claim)
    found = [_found(group) for group in by_swarm.values()]
    return tuple(sorted(found, key=_rank)[: limits.SWARMS_LISTED_MAX])


def merge(home: Iterable[Claim], found: Iterable[FoundSwarm]) -> tuple[FoundSwarm, ...]:
    """Return what was found together with the swarms of this home."""
    by_swarm = {(swarm.name, swarm.key): swarm for swarm in found}
    for own in gather(home):
        there = by_swarm.get((own.name, own.key), own)
        via = tuple(via for via in _VIAS if via in (*own.via, *there.via))
        created_at = own.created_at or there.created_at  # the manifest is no claim
        by_swarm[own.name, own.key] = msgspec.structs.replace(
            there, via=via, created_at=created_at, peers=there.peers or own.peers
        )
    return tuple(sorted(by_swarm.values(), key=_rank))


def _rank(swarm: FoundSwarm) -> tuple[bool, int, float, str, str]:
    age = float("inf") if swarm.created_at is None else swarm.created_at
    return "home" not in swarm.via, -(swarm.members or 0), age, swarm.name, swarm.key


def _found(claims: Sequence[Claim]) -> FoundSwarm:
    authors = {claim.author: claim for claim in reversed(claims) if claim.author is not None}
    members = [claim.members for claim in authors.values() if claim.members is not None]
    ages = [claim.created_at for claim in authors.values() if claim.created_at is not None]
    own = [claim.created_at for claim in claims if claim.author is None and claim.created_at]
    return FoundSwarm(
        name=claims[0].name,
        key=encode_base32(claims[0].swarm_key),
        members=max(median_low(members), len(authors)) if members else None,
        created_at=own[0] if own else median_low(ages) if ages else None,
        via=tuple(via for via in _VIAS if any(claim.via == via for claim in claims)),
        peers=_peers(claims),
    )


def _peers(claims: Sequence[Claim]) -> tuple[str, ...]:
    """Return the peers to ask first: one address of each author, then the second ones."""
    columns = [
        [str(Hint(claim.author, address)) for address in claim.addresses if can_be_told(address)]
        for claim in claims
        if claim.author is not None
    ]
    ranked = sorted(
        ((rank, hint) for column in columns for rank, hint in enumerate(column)), key=itemgetter(0)
    )
    return tuple(dict.fromkeys(hint for _, hint in ranked))[: limits.BOOTSTRAP_HINTS_MAX]


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names without repetition. Raises ConfigError if one is none, or they are too many."""
    unique = tuple(dict.fromkeys(map(check_name, names)))
    if len(unique) > limits.LOOKUP_NAMES_MAX:
        raise ConfigError(
            f"expected at most {limits.LOOKUP_NAMES_MAX} names of swarms, got {len(unique)}"
        )
    return unique


async def find_swarms(
    names: Iterable[str], discovery: Discovery, lan: LanBeacon | None, env: Env
) -> list[Claim]:
    """Return what nodes on the LAN say, and what the DHT has under these names."""
    claims = claims_of_lan(_on_lan(lan, env))

    async def look_up(name: str) -> None:
        try:
            answer = await discovery.get(name_key(name))
        except SwarmNodeError as error:
            _log.warning("name not looked up", name=name, why=str(error))
        else:
            claims.extend(claims_of_records(name, answer.records))

    with trio.move_on_after(limits.LOOKUP_DHT_S):
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(look_up, name)
    return claims


def searched(discovery: Discovery, lan: LanBeacon | None, env: Env) -> Searched:
    """Return where is being looked."""
    return Searched(
        dht_contacts=discovery.core.statistics().contacts,
        lan_interfaces=lan.interfaces if lan is not None else None,
        lan_peers=len(_on_lan(lan, env)),
    )


def _on_lan(lan: LanBeacon | None, env: Env) -> tuple[LanPeer, ...]:
    return () if lan is None else tuple(lan.peers(env.monotonic()))


def in_words(searched: Searched) -> str:
    """Say where was looked."""
    dht = f"in the DHT ({searched.dht_contacts} nodes)"
    more = f"; {searched.elsewhere}" if searched.elsewhere else ""
    if searched.lan_interfaces is None:
        return f"{dht}{more}; the LAN is switched off"
    names = ", ".join(searched.lan_interfaces) or "no interface"
    return f"{dht} and on the LAN ({names}: {searched.lan_peers} nodes){more}"


# --- without a node of one's own ----------------------------------------------------------------


@dataclass
class Visitor:
    """A node that looks around; see :func:`visit`."""

    network: Network
    discovery: Discovery
    env: Env
    lan: LanBeacon | None = None
    known: set[PeerId] = field(default_factory=set)  # nodes that may be asked
    is_here: bool = False  # its network may be on this machine alone
    strangers: Strangers | None = None  # what leads to others where these do not
    claims: list[Claim] = field(default_factory=list)  # what those said
    met: trio.Event = field(default_factory=trio.Event)  # set once one of them has answered
    claimed: trio.Event = field(default_factory=trio.Event)  # and once one has named a swarm

    async def find_swarms(self, names: Iterable[str]) -> Findings:
        """Return the swarms of these names, and all that the LAN knows; takes some seconds.

        Raises:
            ConfigError: too many names.
        """
        names = check_names(names)
        claims: list[Claim] = []
        async with trio.open_nursery() as nursery:
            asking = trio.Event()
            nursery.start_soon(self._ask_strangers, [Sought(name) for name in names], asking)
            await self._look_around()
            claims += await self._ask_network(names)
            if not any(claim.name in names for claim in claims):
                await self._wait_for_strangers(asking)
                claims += self.claims or await self._ask_network(names)
            nursery.cancel_scope.cancel()
        return Findings(gather(claims), self._searched())

    async def _wait_for_strangers(self, asked: trio.Event) -> None:
        """Return when all have answered, or the first and some others have."""
        async with trio.open_nursery() as nursery:

            async def wait_for_first() -> None:
                await self.claimed.wait()
                await trio.sleep(limits.LOOKUP_OTHERS_S)
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_for_first)
            await asked.wait()
            nursery.cancel_scope.cancel()

    async def _ask_network(self, names: tuple[str, ...]) -> list[Claim]:
        can_ask = self.discovery.core.statistics().contacts > 0
        return await find_swarms(names if can_ask else (), self.discovery, self.lan, self.env)

    async def _ask_strangers(self, wanted: Sequence[Sought], asked: trio.Event) -> None:
        """Ask those that no hint leads to about all of these at once."""
        if self.strangers:
            async with trio.open_nursery() as nursery:
                for sought in wanted:
                    nursery.start_soon(self.strangers.look, sought)
        asked.set()

    def told(self, told: Told) -> None:
        """Note who may be asked now, and what was claimed."""
        self.met.set()
        for hint in told.hints:
            if self.is_here and ip_is_loopback(hint.address):
                self.network.trust((hint.address,))
            if addresses := self.discovery.usable((hint.address,)):
                self.known.add(hint.peer)
                self.discovery.discovered(hint.peer, addresses)
                if told.swarm_key and told.via != "entries":
                    said = (told.name, told.swarm_key, told.via, hint.peer, addresses)
                    self.claims.append(Claim(*said, told.members, told.made))
                    self.claimed.set()

    async def fetch_manifest(self, link: SwarmLink) -> Manifest:
        """Return the manifest of a swarm; its peers are asked, then those that DHT and LAN name.

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
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_strangers, [Sought.by(link)], trio.Event())
                await self._look_around()
                others = dict(await self._find_members(link))
                if self.strangers and not others:
                    with trio.move_on_after(limits.LOOKUP_STRANGERS_S):
                        await self.met.wait()
                nursery.cancel_scope.cancel()
            for claim in self.claims:
                if claim.swarm_key == link.swarm_key and claim.author:
                    others.setdefault(claim.author, claim.addresses)
            found = await self._ask_all(link, others, errors)
        if not found:
            raise self._no_manifest(link, errors)
        return found[0]

    def plan(self) -> str:
        """Say which nodes will be asked."""
        asked = [f"{len(self.known)} known nodes"] if self.known else []
        if self.lan is not None:
            asked.append(f"the LAN ({', '.join(self.lan.interfaces) or 'no interface'})")
        return f"asking {' and '.join(asked)}"

    def _searched(self) -> Searched:
        found = searched(self.discovery, self.lan, self.env)
        elsewhere = self.strangers.ways() if self.strangers else ""
        return msgspec.structs.replace(found, elsewhere=elsewhere)

    async def _look_around(self) -> None:
        """Wait until the nodes that can be asked are known."""
        if self.lan is not None:
            await trio.sleep(limits.LOOKUP_LAN_S)
        if self.strangers and not self.known:
            with trio.move_on_after(limits.LOOKUP_ENTRIES_S):
                await self.met.wait()
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
                signed = await rendezvous.request_manifest(session, link.swarm_key)
                manifest = open_manifest(
                    signed, swarm_key=link.swarm_key, now_unix_s=self.env.wall()
                )
                rendezvous.check_names(link, manifest)
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

    def _no_manifest(
        self, link: SwarmLink, errors: Mapping[PeerId, SwarmNodeError]
    ) -> SwarmNodeError:
        for error in errors.values():
            if isinstance(error, Refused | ProtocolError):
                return error
        causes = "; ".join(f"{peer.short}: {error}" for peer, error in list(errors.items())[:3])
        cut = "" if link.hints else " The link names no peer (b=): was it cut at the &, unquoted?"
        return TransportError(
            f"no peer gave the manifest of swarm {link.name!r}: {causes or 'none was found'}"
            f" (looked {in_words(self._searched())}): is one of its members running?{cut}"
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
    if "link" in config.rendezvous:
        hints += [hint for link in stored_links(config.paths) for hint in link.hints]
    composition = compose(config, Identity.generate(), _EPOCH, transport, env)
    visitor = Visitor(composition.network, composition.discovery, env)
    visitor.is_here = is_loopback(config.listen_address.host)
    if "contacts" in config.rendezvous:
        visitor.known.update(PeerId(each.peer) for each in load_contacts(config.paths.contacts))
    if meets_strangers(config, transport):
        visitor.strangers = make_strangers(config, env, visitor.told)

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
