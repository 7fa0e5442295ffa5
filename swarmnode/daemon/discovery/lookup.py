"""Swarms by name: what the LAN says, and what the DHT has.

The DHT keeps no list of all names: it answers for the names that it is asked for.

Swarms that nodes say exist, gathered by their keys.

Names, sizes and ages are claims of their authors: a list for people to choose from. What a
swarm is, its manifest proves, which the swarm's key has signed. So of several authors the
middle one is believed, who is right as long as most of them are; and a swarm has at least as
many members as there are authors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import median_low
from typing import Literal

import msgspec
import trio

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.env import Env
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.ids import PeerId, decode_base32, encode_base32
from swarmnode.net.lan.beacon import LanBeacon
from swarmnode.protocol.dht.keys import name_key
from swarmnode.protocol.dht.records import OpenRecord
from swarmnode.protocol.lan import LanPeer
from swarmnode.protocol.swarm import Hint, SwarmLink, check_name
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.dht import SwarmRecord

_log = get_logger("swarmnode.daemon.discovery")


Via = Literal["home", "lan", "dht"]
_VIAS: tuple[Via, ...] = ("home", "lan", "dht")


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
    peers: tuple[str, ...]  # sn1…@HOST:PORT, whom to ask first

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
    """Return whom to ask first: one address of each author, then the second ones."""
    columns = [
        [str(Hint(claim.author, address)) for address in claim.addresses if can_be_told(address)]
        for claim in claims
        if claim.author is not None
    ]
    ranked = sorted(
        ((rank, hint) for column in columns for rank, hint in enumerate(column)), key=itemgetter(0)
    )
    return tuple(dict.fromkeys(hint for _, hint in ranked))[: limits.BOOTSTRAP_HINTS_MAX]


def can_be_told(address: str) -> bool:
    """Whether an address makes sense in a link: strangers wrote it."""
    with suppress(ConfigError):
        host, port = parse_host_port(address, setting="address")
        # One with a zone is good on this machine only.
        return host is not None and "%" not in host and port > 0
    return False


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
    if searched.lan_interfaces is None:
        return f"{dht}; the LAN is switched off"
    names = ", ".join(searched.lan_interfaces) or "no interface"
    return f"{dht} and on the LAN ({names}: {searched.lan_peers} nodes)"
