"""``--data``, ``--no-data`` and ``--own-data`` of `join`: what a node trains on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from swarmnode.cli.options import check_data
from swarmnode.config import NodeConfig
from swarmnode.errors import ConfigError
from swarmnode.store.training_data import TrainingData, load_training_data


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
    ):
        command = option(command)
    return command


def choose_data(
    name: str, config: NodeConfig, data: Path | None, *, no_data: bool, own_data: bool
) -> TrainingData:
    """Return what a node trains on: what is said now, else what its home remembers.

    Raises:
        ConfigError: flags contradict each other, or a folder is not there.
    """
    if data is not None and no_data:
        raise ConfigError("--data and --no-data: expected one of them, got both")
    if data is not None:
        return TrainingData(check_data(data), own_data)
    if no_data:
        return TrainingData("", own_data)
    known = load_training_data(name, config.paths)
    if config.role == "trainer" and known.folder and not Path(known.folder).is_dir():
        raise ConfigError(
            f"this home trains swarm {name!r} on the folder {known.folder}, which is not there:"
            " name the right one with --data FOLDER, or take the task's own data with --no-data"
        )
    return TrainingData(known.folder, own_data or known.is_own)
