"""``swarmnode metrics``: what Prometheus would see, printed or written once."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.node.control import client_for
from swarmnode.cli.options import home_option, json_option
from swarmnode.errors import ConfigError

# A peer has 6 s to answer the daemon.
_DEADLINE_S = 10.0
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@home_option
@click.option("--peer", metavar="ID", help="Those of this member, asked over the swarm.")
@click.option("--textfile", type=_FILE, help="Replace this file by them, for node_exporter.")
@click.option("--file-sd", type=_FILE, help="Replace this file by the targets of the swarm.")
@json_option
def metrics(
    home: Path | None, peer: str | None, textfile: Path | None, file_sd: Path | None, as_json: bool
) -> None:
    """Print the metrics of the running node, or write them to files, each as a whole.

    The settings metrics_textfile and metrics_file_sd keep such files up to date.
    """
    client = client_for(home)
    written: dict[str, int] = {}
    if file_sd is not None:
        written[str(file_sd)] = _replace(file_sd, client.get_bytes("/sd"))
    if textfile is not None or file_sd is None:
        route = "/metrics" if peer is None else f"/peers/{quote(peer, safe='')}/metrics"
        page = client.get_bytes(route, deadline_s=_DEADLINE_S)
        if textfile is not None:
            written[str(textfile)] = _replace(textfile, page)
        elif as_json:
            print_json({"text": page.decode()})
        else:
            click.echo(page, nl=False)
    if written and as_json:
        print_json({"written_bytes": written})


def _replace(path: Path, data: bytes) -> int:
    """Write a file that Prometheus and node_exporter, other users, can read; return its size."""
    from swarmnode.store.files import write_atomic

    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no such directory: make it first")
    write_atomic(path, data, mode=0o644)
    return len(data)
