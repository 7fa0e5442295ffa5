"""Options that several verbs share; the names of swarms that the shell completes.

A verb that takes a swarm calls its argument one of ``_ARGUMENTS``; nothing else is needed for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from swarmnode import limits
from swarmnode.config import Paths, resolve_home
from swarmnode.errors import ConfigError
from swarmnode.ipc.names import MERGE_RULES

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
key_option = click.option(
    "--key", help="The swarm's key, or its first 8 letters and more: which of several of one name."
)
home_option = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Everything this node owns [default: $SWARMNODE_HOME or the user's data folder].",
)

_ARGUMENTS = frozenset({"name", "names", "link", "swarm"})
_NEW_NAMES = frozenset({"create"})  # verbs whose name must be none that there is


def merge_option(default: str | None) -> Callable[..., Any]:
    """By which rule models become one; None: they do not, unless asked to."""
    return click.option(
        "--merge",
        type=click.Choice(MERGE_RULES),
        default=default,
        show_default=default is not None,
        help="By which rule: mean, by tokens, for models that never met, or by directions."
        if default
        else "The merged model of all members of the running node's swarm, by this rule.",
    )


def codec_option(text: str, *, default: str | None = "Q8B64") -> Callable[..., Any]:
    """How payloads travel; names of codecs are capitals, and taken in any letters."""
    return click.option(
        "--codec",
        default=default,
        show_default=default is not None,
        callback=lambda _context, _option, name: name and name.upper(),
        help=text,
    )


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Settings of a node that `create` and `join` have in common."""
    for option in (
        click.option("--listen", help="Address for other nodes, HOST:PORT [default: all, 7337]."),
        click.option(
            "--advertise",
            multiple=True,
            help="HOST:PORT under which others reach this node; may be repeated.",
        ),
        home_option,
    ):
        command = option(command)
    return command


bootstrap_option = click.option(
    "--bootstrap",
    multiple=True,
    metavar="PEER@HOST:PORT",
    help="A node of the network to begin with; may be repeated.",
)


def network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where other nodes are looked for."""
    for option in (
        bootstrap_option,
        click.option(
            "--lan/--no-lan",
            default=None,
            help="Look for nodes on the local network, or not [default: --lan].",
        ),
        click.option("--network", help="Name of the network [default: main]."),
    ):
        command = option(command)
    return command


def check_data(data: Path | None, task: str = "") -> str:
    """Return the folder of ``--data`` as the worker wants it; "" is the task's own data.

    Args:
        task: that reads it; "": not known yet.

    Raises:
        ConfigError: there is no such folder.
    """
    if data is None:
        return ""
    if not data.is_dir():
        from swarmnode.tasks.installed import data_of

        raise ConfigError(f"--data: expected a folder of {data_of(task)}, {data} is none")
    return str(data.absolute())


def given(**flags: Any) -> dict[str, Any]:
    """Return the flags that the user gave: the others fall to environment, file, default."""
    return {name: value for name, value in flags.items() if value not in (None, (), "")}


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a volunteer decides first; the other limits are settings in config.toml."""
    for option in (
        click.option(
            "--schedule",
            multiple=True,
            metavar="WHEN",
            help='When to train, such as "mon-fri 22:00-07:00"; may be repeated [default: always].',
        ),
        click.option("--download", metavar="RATE", help='Such as "2 MB/s" [default: no limit].'),
        click.option("--upload", metavar="RATE", help='Such as "500 kB/s" [default: no limit].'),
        click.option(
            "--cpu-percent",
            type=click.IntRange(1, 100),
            help="Of the time of its threads [default: 100].",
        ),
        click.option(
            "--parallel",
            type=click.Choice(["ddp", "fsdp2"]),
            help="What each process of --nproc holds: all of the model, or a part [default: ddp].",
        ),
        click.option(
            "--nproc",
            type=click.IntRange(1, limits.RANKS_MAX),
            help="Processes that train as one node, each on a GPU of its own [default: 1].",
        ),
        click.option(
            "--threads", type=click.IntRange(min=0), help="Of torch [default: all cores but one]."
        ),
    ):
        command = option(command)
    return command


class SwarmName(click.types.StringParamType):
    """Text that the shell completes."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the swarms whose name begins so; files are read only as far as names go."""
        given = ctx.params.get("home")
        directory = Paths(resolve_home(given, os.environ)).swarms
        taken = ctx.params.get(param.name or "") or ()
        found = sorted(path.parent.name for path in directory.glob("*/link"))
        return [
            CompletionItem(name)
            for name in found
            if name.startswith(incomplete) and name not in taken
        ]


def offer_names(command: click.Command, verb: str) -> click.Command:
    """Let every argument of a command, and of those in it, that is a swarm be completed."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            offer_names(inner, f"{verb} {name}")
    if verb not in _NEW_NAMES:
        for param in command.params:
            is_text = isinstance(param.type, click.types.StringParamType)
            if isinstance(param, click.Argument) and param.name in _ARGUMENTS and is_text:
                param.type = SwarmName()
    return command
