"""``swarmnode dashboard``: where the page about the running node is."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.node.control import client_for
from swarmnode.cli.options import home_option, json_option
from swarmnode.errors import SwarmNodeError


@click.command()
@click.option("--open", "in_browser", is_flag=True, help="Open it in the browser of this machine.")
@home_option
@json_option
def dashboard(in_browser: bool, home: Path | None, as_json: bool) -> None:
    """Print where the page about the running node is, or open it.

    The part after # lets each reader pause the node, until the node is started again: do
    not pass it on.
    """
    where = client_for(home).get("/dashboard")
    if not where["url"]:
        raise SwarmNodeError(f"this node serves no dashboard: {where['reason']}")
    address = f"{where['url']}#{where['key']}"
    if in_browser and not webbrowser.open(address):
        raise SwarmNodeError(f"no browser could be started here: open {address} yourself")
    if as_json:
        print_json({"url": address, "opened": in_browser})
    elif not in_browser:
        click.echo(address)
