"""``swarmnode join``: a node in the foreground."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from swarmnode.cli.main import plain, say
from swarmnode.cli.options import check_data, given, json_option, node_options
from swarmnode.config import load_config


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
    data_dir = check_data(data)
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
    from swarmnode.daemon.app import run_daemon
    from swarmnode.daemon.node import TrainingChoice
    from swarmnode.store.swarms import resolve_link

    known_link = resolve_link(link, config.paths)
    training = TrainingChoice(
        device=config.device,
        threads=config.threads,
        steps_max=steps or 0,
        data_dir=data_dir,
    )

    def on_event(text: str) -> None:
        # Whether anybody reads it or not: a closed terminal must not end the training.
        say(json.dumps({"event": text}) if as_json else f"swarmnode: {plain(text)}")

    run_daemon(config, known_link, training, on_event=on_event)
