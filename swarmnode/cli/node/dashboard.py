"""``swarmnode dashboard``: where the page about the running node is, here and for others."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.node.control import client_for
from swarmnode.cli.options import home_option, json_option
from swarmnode.errors import ConfigError, SwarmNodeError


@click.command()
@click.option("--open", "in_browser", is_flag=True, help="Open it in the browser of this machine.")
@click.option(
    "--share",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Show it there too, to readers with the link that is printed; *:PORT is every network."
    " Repeatable. Until the node ends.",
)
@click.option("--unshare", is_flag=True, help="End that, and make all such links worthless.")
@home_option
@json_option
def dashboard(
    in_browser: bool, addresses: tuple[str, ...], unshare: bool, home: Path | None, as_json: bool
) -> None:
    """Print where the page about the running node is, or open it.

    The part after # lets each reader pause the node, until the node is started again: do
    not pass it on. The links of --share only show; they hold until --unshare.
    """
    client = client_for(home)
    if unshare and (addresses or in_browser):
        raise ConfigError("--unshare ends what --share began: give one of them")
    if addresses or unshare:
        shared = client.post("/dashboard", {"addresses": addresses})["shared"]
        _say_shared(shared, as_json=as_json)
        return
    where = client.get("/dashboard")
    if not where["url"] and where["shared"] and not in_browser:
        _say_shared(where["shared"], as_json=as_json)
        return
    if not where["url"]:
        raise SwarmNodeError(f"this node serves no dashboard: {where['reason']}")
    address = f"{where['url']}#{where['key']}"
    if in_browser and not webbrowser.open(address):
        raise SwarmNodeError(f"no browser could be started here: open {address} yourself")
    if as_json:
        print_json({"url": address, "opened": in_browser, "shared": where["shared"]})
    elif not in_browser:
        click.echo("\n".join((address, *where["shared"])))


def _say_shared(links: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"shared": links})
        return
    for link in links:
        click.echo(link)
    click.echo(_WARNING if links else "it is shown on this machine only", err=True)


_WARNING = (
    "each reader with such a link sees the page, and changes nothing; it is plain HTTP, so share it"
    " in networks that you trust. `--unshare` ends it"
)
