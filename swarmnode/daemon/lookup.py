"""Swarms by name: what the LAN says, and what the DHT has.

The DHT keeps no list of all names: it answers for the names that it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from swarmnode import limits
from swarmnode.daemon.discovery import Discovery
from swarmnode.daemon.found import (
    Claim,
    Findings,
    Searched,
    claims_of_lan,
    claims_of_records,
    gather,
)
from swarmnode.daemon.status import NodeView
from swarmnode.env import Env
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.net.lan.beacon import LanBeacon
from swarmnode.protocol.dht.keys import name_key
from swarmnode.protocol.swarm import check_name
from swarmnode.telemetry.logs import get_logger

_log = get_logger(__name__)


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
    claims = claims_of_lan(lan.peers(env.monotonic())) if lan is not None else []

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


async def ask_node(
    view: NodeView, lan: LanBeacon | None, names: Iterable[str], env: Env
) -> Findings:
    """Return what a running node knows. Raises ConfigError for too many names."""
    claims = await find_swarms(check_names(names), view.discovery, lan, env)
    if view.manifest is not None and view.part is not None:
        own, members = view.manifest, len(view.part.members.live())
        claims.insert(
            0, Claim(own.name, own.swarm_key, "home", view.self_id, (), members, own.created_at)
        )
    return Findings(gather(claims), searched(view.discovery, lan, env))


def searched(discovery: Discovery, lan: LanBeacon | None, env: Env) -> Searched:
    """Return where is being looked."""
    return Searched(
        dht_contacts=discovery.core.statistics().contacts,
        lan_interfaces=lan.interfaces if lan is not None else None,
        lan_peers=len(lan.peers(env.monotonic())) if lan is not None else 0,
    )


def in_words(searched: Searched) -> str:
    """Say where was looked."""
    dht = f"in the DHT ({searched.dht_contacts} nodes)"
    if searched.lan_interfaces is None:
        return f"{dht}; the LAN is switched off"
    names = ", ".join(searched.lan_interfaces) or "no interface"
    return f"{dht} and on the LAN ({names}: {searched.lan_peers} nodes)"
