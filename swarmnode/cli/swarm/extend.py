"""``swarmnode extend``: the creator of a swarm moves its target on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import urlencode

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.options import home_option, json_option
from swarmnode.config import Paths, resolve_home
from swarmnode.errors import ConfigError, NotRunning, Refused
from swarmnode.processes.client import ControlClient
from swarmnode.quantities import parse_count


@click.command()
@click.argument("name")
@click.option(
    "--tokens",
    required=True,
    metavar="N",
    help="What all members train together from the beginning on, such as 400M.",
)
@home_option
@json_option
def extend(name: str, tokens: str, home: Path | None, as_json: bool) -> None:
    """Let the swarm NAME train up to another target: further than it has, or its first one.

    The machine that created the swarm has the key for it. The new target is passed on by the
    members; a swarm that was finished goes on, and its learning rate rises once more.
    """
    from swarmnode.daemon.membership.progress import TargetKeeper
    from swarmnode.ipc.lr_schedule import is_decayed
    from swarmnode.protocol.extension import sign_extension
    from swarmnode.protocol.swarm import check_name
    from swarmnode.store.keys import load_or_create_identity
    from swarmnode.store.swarms import read_manifest
    from swarmnode.wire.recipe import Extension

    target = parse_count(tokens)
    paths = Paths(resolve_home(home, os.environ))
    own = paths.swarm(check_name(name))
    manifest = read_manifest(name, paths)
    if not own.swarm_key.exists():
        raise Refused(
            f"expected the key of swarm {name!r} in this home, which only the machine has that"
            " created it: extend it there"
        )
    recipe = manifest.recipe or None
    if recipe is None:
        raise ConfigError(f"swarm {name!r} was created without a recipe: it never ends")
    keeper = TargetKeeper(manifest, own.extension)
    keeper.load()
    before = keeper.horizon
    progress = _progress(paths, name)
    if progress is None:
        resumed = before.target_tokens  # no node to ask: it may be finished
    else:
        # With its first target a larger swarm takes larger steps; they, too, are warmed up to.
        is_first = not before.target_tokens and recipe.members_exponent > 0
        rises = is_first or is_decayed(recipe, progress, before)
        resumed = progress if rises else 0
    if target <= (progress or 0):
        raise Refused(f"expected more than {progress:,} tokens, which the swarm has trained")
    extension = Extension(target_tokens=target, resumed_tokens=min(resumed, target))
    text = sign_extension(extension, load_or_create_identity(own.swarm_key))
    keeper.extend(text)
    is_told = progress is not None
    if is_told:
        ControlClient(paths).post(f"/extend?{urlencode({'signed': text})}")
    if as_json:
        told = {"target_tokens": target, "before": before.target_tokens, "told": is_told}
        print_json({"name": name, **told})
        return
    click.echo(f"swarm {name} trains on, up to {target:,} tokens of all members")
    if not is_told:
        click.echo(f"members hear of it once a node of this home runs: swarmnode join {name}")


def _progress(paths: Paths, name: str) -> int | None:
    """Return how far the swarm is, as this home's node knows; None: none of it runs."""
    with contextlib.suppress(NotRunning):
        status = ControlClient(paths).get("/status")
        if status["swarm"] == name:
            return int(status["swarm_tokens"])
    return None
