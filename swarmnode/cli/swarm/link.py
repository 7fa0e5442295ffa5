"""``swarmnode link``: the link to a swarm, with peers that are there today."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import home_option, json_option
from swarmnode.config import Paths, resolve_home
from swarmnode.errors import ConfigError, NotRunning, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.processes.client import ControlClient
from swarmnode.protocol.swarm import SwarmLink, parse_link
from swarmnode.store.contacts import load_contacts
from swarmnode.store.swarms import read_manifest, stored_link, stored_links


class Found(NamedTuple):
    """A link without its invite, and where its peers are from."""

    link: SwarmLink
    is_fresh: bool  # the running node gave it
    is_closed: bool


@click.command()
@click.argument("name", required=False)
@home_option
@json_option
def link(name: str | None, home: Path | None, as_json: bool) -> None:
    """Print the link to the swarm NAME, with members as hints that are there now.

    The running node is asked. Without one, the hints are those of the stored link and nodes of
    the last run. NAME may be left out if this home has one swarm, or a node of it runs.
    """
    paths = Paths(resolve_home(home, os.environ))
    found = find_link(name, paths)
    text = str(found.link)
    if as_json:
        print_json(
            {
                "link": text,
                "name": found.link.name,
                "fresh": found.is_fresh,
                "closed": found.is_closed,
                "hints": [str(hint) for hint in found.link.hints],
            }
        )
        return
    click.echo(text)
    for note in _notes(found, home):
        click.echo(f"swarmnode: {plain(note)}", err=True)


def find_link(name: str | None, paths: Paths) -> Found:
    """Return the link to a swarm of this home, as fresh as it can be had.

    Raises:
        ConfigError: this home has no such swarm, or several and none was named.
        SwarmNodeError: a node runs here and refuses.
    """
    if (fresh := _ask_node(name, paths)) is not None:
        return fresh
    stored = _stored(name, paths)
    return Found(_with_contacts(stored, paths), False, _is_closed(stored.name, paths))


def _ask_node(name: str | None, paths: Paths) -> Found | None:
    """Return what the running node says; None without one, or if it is in another swarm."""
    with suppress(NotRunning):
        answer = ControlClient(paths).get("/link")
        fresh = parse_link(answer["link"])
        known = stored_link(name, paths) if name is not None else None
        if name is None or (known is not None and known.swarm_key == fresh.swarm_key):
            return Found(fresh, True, bool(answer["closed"]))
    return None


def _stored(name: str | None, paths: Paths) -> SwarmLink:
    if name is not None:
        found = stored_link(name, paths)
        if found is None:
            raise ConfigError(
                f"this home knows no swarm named {name!r}: `swarmnode swarms` lists those that it"
                " knows"
            )
        return found.public
    links = stored_links(paths)
    if len(links) == 1:
        return links[0].public
    names = ", ".join(each.name for each in links)
    raise ConfigError(
        f"expected the NAME of a swarm, this home has several: {names}"
        if links
        else "this home has no swarm yet: `swarmnode create` or `swarmnode join` makes it know one"
    )


def _with_contacts(link: SwarmLink, paths: Paths) -> SwarmLink:
    """Add nodes of the last run: of whatever swarm, they lead to the DHT that knows the members."""
    from swarmnode.daemon.status.owner import hints_of, with_hints

    contacts = load_contacts(paths.contacts)
    told = {PeerId(each.peer): each.addresses for each in contacts}
    return with_hints(replace(link, hints=()), [*link.hints, *hints_of(told)])


def _is_closed(name: str, paths: Paths) -> bool:
    with suppress(SwarmNodeError):  # never fetched, or damaged
        return read_manifest(name, paths).admission == "closed"
    return False


def _notes(found: Found, home: Path | None) -> list[str]:
    notes = []
    if not found.is_fresh:
        notes.append(
            "no node of this swarm runs here: the peers in the link are those of the stored one and"
            " of the last run, and may be gone"
        )
    if not found.link.hints:
        notes.append("the link names no peer: others find the swarm on the LAN or by the DHT only")
    if found.is_closed:
        flags = ["--home", str(home)] if home else []
        command = shlex.join(["swarmnode", "invite", "create", found.link.name, *flags])
        notes.append(f"this link alone admits no node, the swarm is closed: {command}")
    return notes
