"""``swarmnode link``: the link to a swarm, with peers that are there today."""

from __future__ import annotations

import os
import shlex
import sys
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

# What stands for a bright square is the colour of the letters.
_WHITE_ON_BLACK, _PLAIN = "\033[97;40m", "\033[0m"


class Found(NamedTuple):
    """A link without its invite, and where its peers are from."""

    link: SwarmLink
    is_fresh: bool  # the running node gave it
    is_closed: bool


@click.command()
@click.argument("name", required=False)
@click.option("--qr", "as_qr", is_flag=True, help="Print it as a QR code for a camera, too.")
@home_option
@json_option
def link(name: str | None, as_qr: bool, home: Path | None, as_json: bool) -> None:
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
    if as_qr:
        click.echo(in_squares(text), nl=False)
    for note in _notes(found, home):
        click.echo(f"swarmnode: {plain(note)}", err=True)


def in_squares(text: str) -> str:
    """Return a QR code of half blocks: two rows of squares to a line of the terminal.

    Its colours are set: on a bright terminal it would be a negative, which not all cameras read.

    Raises:
        SwarmNodeError: the library that draws it is not there.
    """
    import io  # with what draws: hardly any link is shown to a camera

    try:
        import segno
    except ModuleNotFoundError as error:
        raise SwarmNodeError(
            "`swarmnode link --qr` draws with segno, which the extra `qr` brings: in the clone run"
            f" {shlex.quote(sys.executable)} -m pip install '.[qr]'"
        ) from error
    # L: a screen is neither dirty nor torn, and the squares of a long link stay large enough.
    code, lines = segno.make_qr(text, error="l"), io.StringIO()
    code.terminal(lines, compact=True)
    return "".join(f"{_WHITE_ON_BLACK}{line}{_PLAIN}\n" for line in lines.getvalue().splitlines())


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
