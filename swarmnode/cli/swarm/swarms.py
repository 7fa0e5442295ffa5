"""``swarmnode swarms``: what this home, the local network and the DHT know."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from swarmnode import limits
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import given, home_option, json_option, network_options
from swarmnode.config import NodeConfig, load_config
from swarmnode.errors import ConfigError

if TYPE_CHECKING:
    from swarmnode.daemon.discovery.lookup import Claim

_ROW = "{:<24} {:<15} {:>9}  {:<16} {}"


@click.command()
@click.argument("names", nargs=-1)
@network_options
@home_option
@json_option
def swarms(
    names: tuple[str, ...],
    bootstrap: tuple[str, ...],
    lan: bool | None,
    network: str | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """List the swarms of this home, of the local network, and those with one of NAMES.

    The DHT has no list of all names, it answers for names only. How many members a swarm has
    and how old it is, is what its members say; `swarmnode trust NAME` shows what is proved.
    """
    flags = given(home=home and str(home), network=network, bootstrap=bootstrap, lan=lan)
    config = load_config(flags, os.environ)
    from swarmnode.cli.swarm.lookup import age, find, members
    from swarmnode.cli.swarm.named import KEY_LETTERS_SHOWN
    from swarmnode.daemon.discovery.lookup import Findings, in_words, merge

    own = _claims_of_home(config)
    # Of a home with very many swarms the first are looked up.
    wanted = list(dict.fromkeys([*names, *(claim.name for claim in own)]))
    wanted = wanted[: max(len(names), limits.LOOKUP_NAMES_MAX)]

    def tell(text: str) -> None:
        if not as_json:
            click.echo(f"swarmnode: {plain(text)}", err=True)

    # A daemon of this home knows nothing of what only these flags name.
    asks_daemon = not (network or bootstrap or lan is not None)
    findings = find(wanted, config, tell, asks_daemon=asks_daemon)
    listed = Findings(merge(own, findings.swarms), findings.searched)
    if as_json:
        print_json(msgspec.to_builtins(listed))
        return
    click.echo(_ROW.format("name", "key", "members", "age", "seen by"))
    now_unix_s = time.time()
    for swarm in listed.swarms:
        key, via = f"{swarm.key[:KEY_LETTERS_SHOWN]}…", ", ".join(swarm.via)
        click.echo(
            _ROW.format(swarm.name, key, members(swarm), age(swarm.created_at, now_unix_s), via)
        )
    click.echo(
        f"looked {in_words(listed.searched)}; the DHT has no list of all names: it was asked for"
        f" {', '.join(wanted) or 'none, `swarmnode swarms NAME` asks for one'}"
    )


def _claims_of_home(config: NodeConfig) -> list[Claim]:
    """Return the swarms of this home; what its manifests say was proved when they came."""
    from swarmnode.daemon.discovery.lookup import Claim
    from swarmnode.store.swarms import read_manifest, stored_links

    claims = []
    for link in stored_links(config.paths):
        created_at = None
        with suppress(ConfigError):  # never fetched, or damaged
            created_at = read_manifest(link.name, config.paths).created_at
        claims.append(Claim(link.name, link.swarm_key, "home", created_at=created_at))
    return claims
