"""``swarmnode finalize``: one merge of all members' models, and what it is worth."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import click

from swarmnode import limits
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import home_option, json_option, merge_option
from swarmnode.config import Paths, resolve_home
from swarmnode.errors import ConfigError, StorageError
from swarmnode.processes.client import ControlClient

_DIGITS = 16  # of a hash, for people


@click.command()
@merge_option(default="mean")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the merged model goes as safetensors; without it it stays in the home.",
)
@home_option
@json_option
def finalize(merge: str, out: Path | None, home: Path | None, as_json: bool) -> int:
    """Merge the models of all members into one, and say what it is worth.

    Each member gives its model as it is now, and training goes on. All come to the same
    parameters, which their hash proves; running statistics of BatchNorm are measured anew.
    The exit status is 1 if the merged model is worse than this node's own.
    """
    if out is not None and out.exists():
        raise ConfigError(f"--out: {out} is there already: choose another file")
    client = ControlClient(Paths(resolve_home(home, os.environ)))
    found = ask_for_merge(client, merge)
    if out is not None:
        _copy(Path(found["path"]), out)
        found["path"] = str(out.absolute())
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 1 if found["problem"] else 0


def ask_for_merge(client: ControlClient, rule: str) -> dict[str, Any]:
    """Return the fields of ``daemon/exchange/merge/finalize.py``. Raises SwarmNodeError."""
    path = f"/finalize?merge={rule}"
    found: dict[str, Any] = client.post(path, deadline_s=limits.FINALIZE_DEADLINE_S)
    return found


def _copy(source: Path, target: Path) -> None:
    half_done = target.with_name(f"{target.name}.tmp")
    try:
        shutil.copyfile(source, half_done)
        half_done.replace(target)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}; it is in {source}") from error


def _show(found: dict[str, Any]) -> None:
    click.echo(
        f"merged {found['contributors']} models by {found['rule']}:"
        f" {found['agreed']} of {found['members']} members agree on {found['digest'][:_DIGITS]}…"
    )
    loss, own, barrier = (
        "-" if found[name] is None else f"{found[name]:.4f}"
        for name in ("loss", "own_loss", "barrier")
    )
    click.echo(f"held-out loss {loss}, this node's own {own}, barrier {barrier}")
    for peer, why in found["left_out"].items():
        click.echo(f"left out: {peer[:15]}…: {plain(why)}")
    if found["problem"]:
        click.echo(f"WARNING: {found['problem']}")
    click.echo(f"the model is in {found['path']}")
