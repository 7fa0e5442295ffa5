"""``swarmnode join``: a node in the foreground, what it trains on, and what its owner is told.

A node that runs here tells its owner each step and the error that ends it:

================  ===========================================================================
usually           ``swarmnode: TEXT`` on standard output, the error on standard error
``--json``        ``{"event": TEXT}`` on standard output, the error as ``main.py`` has it
``log_format``    with ``json`` events as the log has them, in the same places
``log_file``      there, as events of the log; on standard output only if that is a terminal
================  ===========================================================================
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from swarmnode.cli.main import plain, say
from swarmnode.cli.options import (
    check_data,
    given,
    json_option,
    key_option,
    limit_options,
    network_options,
    node_options,
)
from swarmnode.config import NodeConfig, NodeRole, load_config
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.log_format import event_line
from swarmnode.store.training_data import TrainingData, load_training_data

if TYPE_CHECKING:
    from swarmnode.daemon.app.node import TrainingChoice
    from swarmnode.protocol.swarm import SwarmLink
    from swarmnode.wire.swarm import Manifest

# `join NAME` waits for a node that was just restarted: a service manager takes up to ten seconds,
# a node some more, and a person who sees what is waited for stays so long.
_LOOKUP_WAIT_S = 30.0

_LOGGER = "swarmnode.cli.swarm.join"


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `join` asks about data."""
    for option in (
        click.option(
            "--own-data",
            is_flag=True,
            help="Other data than the creator's is meant: no ALARM about it. Remembered.",
        ),
        click.option(
            "--no-data",
            is_flag=True,
            help="Train on the task's own data again, and forget the folder of --data.",
        ),
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            help="Folder of text to train on [default: the one of last time].",
        ),
        click.option(
            "--model",
            metavar="REPO|FOLDER",
            help="The model that the swarm goes on from, if it does, or a copy of it. Remembered.",
        ),
    ):
        command = option(command)
    return command


def choose_data(
    name: str,
    config: NodeConfig,
    data: Path | None,
    *,
    model: str | None,
    no_data: bool,
    own_data: bool,
) -> TrainingData:
    """Return what a node trains on: what is said now, else what its home remembers.

    Raises:
        ConfigError: flags contradict each other, or a folder is not there.
    """
    if data is not None and no_data:
        raise ConfigError("--data and --no-data: expected one of them, got both")
    known = TrainingData()
    if model is None or (data is None and not no_data):
        known = load_training_data(name, config.paths)
    model_dir = known.model if model is None else _model_folder(model)
    if data is not None:
        return TrainingData(check_data(data), own_data, model_dir)
    if no_data:
        return TrainingData("", own_data, model_dir)
    if config.role == "trainer" and known.folder and not Path(known.folder).is_dir():
        raise ConfigError(
            f"this home trains swarm {name!r} on the folder {known.folder}, which is not there:"
            " name the right one with --data FOLDER, or take the task's own data with --no-data"
        )
    return TrainingData(known.folder, own_data or known.is_own, model_dir)


def _model_folder(model: str) -> str:
    from swarmnode.processes.worker_tools import model_folder  # few swarms go on from a model

    return model_folder(model)[0]


@click.command()
@click.argument("link")
@key_option
@network_options
@node_options
@click.option(
    "--role",
    type=click.Choice(get_args(NodeRole)),
    help="trainer, keeper (has snapshots), relay (connects others), monitor [default: trainer].",
)
@data_options
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps [default: auto].")
@click.option("--metrics", help="HOST:PORT for Prometheus, or off [default: 127.0.0.1:7338].")
@click.option("--dashboard", help="HOST:PORT for the page, or off [default: 127.0.0.1:7339].")
@limit_options
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=_LOOKUP_WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to look for a NAME that no node knows yet: a member may be starting.",
)
@click.option(
    "--yes-install/--no-install",
    "wants",
    default=None,
    help="Install what the swarm names without a question, or nothing [default: ask once].",
)
@click.option("--steps", type=click.IntRange(min=1), help="Stop training after this many steps.")
@json_option
def join(
    link: str,
    key: str | None,
    bootstrap: tuple[str, ...],
    lan: bool | None,
    network: str | None,
    listen: str | None,
    advertise: tuple[str, ...],
    home: Path | None,
    role: str | None,
    data: Path | None,
    model: str | None,
    no_data: bool,
    own_data: bool,
    device: str | None,
    metrics: str | None,
    dashboard: str | None,
    steps: int | None,
    wait_s: float,
    wants: bool | None,
    as_json: bool,
    **allowed: Any,
) -> None:
    """Join a swarm by its LINK or NAME and train until Ctrl-C.

    A name that this home does not know is looked up in the DHT and on the local network; if
    several swarms have it, `--key` says which. No code comes from other nodes: the swarm names a
    task, and that task must be installed on this machine. If the swarm names the packages too, they
    are shown, and installed from a package index after your yes, for this swarm alone.
    """
    if data is not None:
        check_data(data)  # before anything is looked up
    config = load_config(
        given(
            home=home and str(home),
            listen=listen,
            advertise=advertise,
            role=role,
            network=network,
            bootstrap=bootstrap,
            lan=lan,
            device=device,
            metrics=metrics,
            dashboard=dashboard,
            **allowed,
        ),
        os.environ,
    )
    from swarmnode.cli.swarm.join import errors_told, teller
    from swarmnode.telemetry.logs import configure_logging

    configure_logging(config.log_format, config.log_level, log_file=config.log_file)
    with errors_told(config, as_json=as_json):
        on_event = teller(config, as_json=as_json)
        found = _find(link, key, config, on_event, may_ask=not as_json, wait_s=wait_s)
        chosen = choose_data(
            found.name, config, data, model=model, no_data=no_data, own_data=own_data
        )
        equip = partial(_equip, config, link, home, on_event, wants=wants, may_ask=not as_json)
        _train(config, found, chosen, steps or 0, on_event, equip)


def _find(
    link: str,
    key: str | None,
    config: NodeConfig,
    on_event: Callable[[str], None],
    *,
    may_ask: bool,
    wait_s: float,
) -> SwarmLink:
    from swarmnode.cli.swarm.named import is_interactive, known_here

    found = known_here(link, key, config, on_event)
    if found is None:
        from swarmnode.cli.swarm.lookup import look_up  # with most of the network

        may_ask = may_ask and is_interactive()
        # A daemon of this home would not let another one start here: it is not asked.
        found = look_up(
            link, key, config, on_event, may_ask=may_ask, asks_daemon=False, wait_s=wait_s
        )
    _check_has_peer_to_ask(config, has_peers=bool(found.hints or found.zones), name=found.name)
    return found


def _train(
    config: NodeConfig,
    found: SwarmLink,
    chosen: TrainingData,
    steps_max: int,
    on_event: Callable[[str], None],
    equip: Callable[[Manifest, TrainingChoice], TrainingChoice],
) -> None:
    from swarmnode.daemon.app.node import TrainingChoice
    from swarmnode.daemon.app.start import run_daemon

    training = TrainingChoice(
        device=config.device,
        threads=config.threads,
        steps_max=steps_max,
        data_dir=chosen.folder,
        model_dir=chosen.model,
        own_data=chosen.is_own,
        equip=equip,
    )
    run_daemon(config, found, training, on_event=on_event)


def _equip(
    config: NodeConfig,
    link: str,
    home: Path | None,
    on_event: Callable[[str], None],
    manifest: Manifest,
    choice: TrainingChoice,
    *,
    wants: bool | None,
    may_ask: bool,
) -> TrainingChoice:
    from swarmnode.cli.swarm.equip import make_equipper  # for swarms that ask for something

    equip = make_equipper(config, link, home, on_event, wants=wants, may_ask=may_ask)
    return equip(manifest, choice)


def _check_has_peer_to_ask(config: NodeConfig, *, has_peers: bool, name: str) -> None:
    """Say at once what would else come out after a minute: that no peer can be found."""
    from swarmnode.cli.swarm.named import asks_strangers

    has_manifest = config.paths.swarm(name).manifest.exists()
    others = config.lan or config.bootstrap or config.paths.contacts.exists()
    if not (has_peers or has_manifest or others or asks_strangers(config)):
        raise ConfigError(
            f"the link of swarm {name!r} names no peer (b=) to join through, this home knows no"
            " other node, and the LAN is switched off: a shell cuts a link without quotes at the &,"
            " so put the link in single quotes, or name a"
            " node of its network with --bootstrap PEER@HOST:PORT"
        )


def teller(config: NodeConfig, *, as_json: bool) -> Callable[[str], None]:
    """Return what takes each step."""
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)  # the owner is told, whatever the level of the log
    is_shown = as_json or not config.log_file or sys.stdout.isatty()

    def tell(text: str) -> None:
        if config.log_file:
            logger.info(text)
        # Whether it is read or not: a closed terminal must not end the training.
        if is_shown and as_json:
            say(json.dumps({"event": text}))
        elif is_shown and config.log_format == "json":
            say(event_line("json", _LOGGER, logging.INFO, text))
        elif is_shown:
            say(f"swarmnode: {plain(text)}")

    return tell


@contextmanager
def errors_told(config: NodeConfig, *, as_json: bool) -> Iterator[None]:
    """Let the error that ends a node reach its log, in the log's format."""
    try:
        yield
    except SwarmNodeError as error:
        if config.log_file:
            fields = {"exit_code": error.exit_code}
            logging.getLogger(_LOGGER).error(str(error), extra={"fields": fields})
        if as_json or config.log_format == "text":
            raise
        click.echo(event_line("json", _LOGGER, logging.ERROR, str(error)), err=True)
        raise click.exceptions.Exit(error.exit_code) from error
