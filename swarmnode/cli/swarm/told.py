"""What a node that runs here tells its owner: each step and the error that ends it.

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
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from swarmnode.cli.main import plain, say
from swarmnode.config import NodeConfig
from swarmnode.errors import SwarmNodeError
from swarmnode.log_format import event_line

_LOGGER = "swarmnode.cli.swarm.join"


def teller(config: NodeConfig, *, as_json: bool) -> Callable[[str], None]:
    """Return what takes each step."""
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)  # the owner is told, whatever the level of the log
    is_shown = as_json or not config.log_file or sys.stdout.isatty()

    def tell(text: str) -> None:
        if config.log_file:
            logger.info(text)
        # Whether anybody reads it or not: a closed terminal must not end the training.
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
