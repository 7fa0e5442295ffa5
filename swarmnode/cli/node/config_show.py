"""``swarmnode config``: what the settings of this node are, and where each comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import given, home_option, json_option
from swarmnode.config import Setting, explain_config


@click.group()
def config() -> None:
    """Look at the settings of a node."""


@config.command()
@home_option
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value comes from.")
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@json_option
def show(home: Path | None, with_origin: bool, changed: bool, as_json: bool) -> None:
    """Show the settings that a node of this home would have, in the words of config.toml.

    A setting that cannot be used is an error that names its line: this checks the file too.
    """
    settings = explain_config(given(home=home and str(home)), os.environ)
    shown = [one for one in settings if not (changed and one.origin == "default")]
    if as_json:
        print_json(as_records(shown))
        return
    for setting in shown:
        line = f"{setting.name} = {toml_value(setting.value)}"
        click.echo(plain(f"{line:<48} # {setting.origin}" if with_origin else line))


def as_records(settings: list[Setting]) -> dict[str, Any]:
    """Return settings as plain data: name to value and origin."""
    return {
        one.name: {"value": msgspec.to_builtins(_plain(one.value)), "origin": one.origin}
        for one in settings
    }


def toml_value(value: Any) -> str:
    """Return a value as TOML has it; of what settings can be, JSON is the same."""
    return msgspec.json.encode(_plain(value)).decode()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
