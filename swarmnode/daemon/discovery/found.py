"""Swarms that somebody says exist, gathered by their keys.

Names, sizes and ages are claims of whoever says so: a list for people to choose from. What a
swarm is, its manifest proves, which the swarm's key has signed. So of several authors the
middle one is believed, who is right as long as most of them are; and a swarm has at least as
many members as there are authors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median_low
from typing import Literal

import msgspec

from swarmnode import limits
from swarmnode.config import parse_host_port
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId, decode_base32, encode_base32
from swarmnode.protocol.dht.records import OpenRecord
from swarmnode.protocol.lan import LanPeer
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.wire.dht import SwarmRecord

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
    """A swarm in a list for people; None where nobody has said so."""

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
    ranked = [hint for row in zip_longest(*columns) for hint in row if hint is not None]
    return tuple(dict.fromkeys(ranked))[: limits.BOOTSTRAP_HINTS_MAX]


def can_be_told(address: str) -> bool:
    """Whether an address makes sense in a link: strangers wrote it."""
    with suppress(ConfigError):
        host, port = parse_host_port(address, setting="address")
        # One with a zone is good on this machine only.
        return host is not None and "%" not in host and port > 0
    return False
