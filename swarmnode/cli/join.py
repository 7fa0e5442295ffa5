"""``swarmnode join``: a node in the foreground."""

from __future__ import annotations

import os
from pathlib import Path

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.options import given, json_option, node_options
from swarmnode.config import load_config
from swarmnode.errors import ConfigError


@click.command()
@click.argument("link")
@node_options
@click.option("--data", type=click.Path(path_type=Path), help="Folder of text to train on.")
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps [default: auto].")
@click.option("--metrics", help="HOST:PORT for Prometheus, or off [default: 127.0.0.1:7338].")
@click.option("--steps", type=click.IntRange(min=1), help="Stop training after this many steps.")
@json_option
def join(
    link: str,
    listen: str | None,
    advertise: tuple[str, ...],
    home: Path | None,
    data: Path | None,
    device: str | None,
    metrics: str | None,
    steps: int | None,
    as_json: bool,
) -> None:
    """Join a swarm by its LINK (or the NAME of one in this home) and train until Ctrl-C.

    Nothing is executed that came from the network: the link names a task, and that task
    must be installed on this machine.
    """
    from swarmnode.daemon.app import run_daemon
    from swarmnode.daemon.node import TrainingChoice

    if data is not None and not data.is_dir():
        raise ConfigError(f"--data: expected a folder of text files, {data} is none")
    config = load_config(
        given(
            home=home and str(home),
            listen=listen,
            advertise=advertise,
            device=device,
            metrics=metrics,
        ),
        os.environ,
    )
    from swarmnode.store.swarms import resolve_link

    training = TrainingChoice(
        device=config.device,
        threads=config.threads,
        steps_max=steps or 0,
        data_dir=str(data.absolute()) if data is not None else "",
    )

    def on_event(text: str) -> None:
        if as_json:
            print_json({"event": text})
        else:
            click.echo(f"swarmnode: {text}")

    run_daemon(config, resolve_link(link, config.paths), training, on_event=on_event)
