"""What the shell completes besides verbs and options: names of the swarms of this home.

A verb that takes a swarm calls its argument one of ``_ARGUMENTS``; nothing else is needed.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from swarmnode.config import Paths, resolve_home

_ARGUMENTS = frozenset({"name", "names", "link", "swarm"})
_NEW_NAMES = frozenset({"create"})  # verbs whose name must be none that there is


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
