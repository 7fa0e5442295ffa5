"""``swarmnode export`` and ``finalize``: the trained model, and the merge of all members'."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from swarmnode import __version__, limits
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.model.card import LOSS_PICTURE, loss_picture, model_card
from swarmnode.cli.options import home_option, json_option, merge_option
from swarmnode.cli.swarm.recipe import horizon_of, recipe_words
from swarmnode.config import Paths, resolve_home
from swarmnode.errors import ConfigError, CorruptRecord, NotRunning, StorageError, WorkerError
from swarmnode.ids import encode_base32
from swarmnode.processes.client import ControlClient
from swarmnode.processes.worker_tools import run_offline
from swarmnode.store.files import read_file, write_atomic
from swarmnode.store.swarms import read_manifest
from swarmnode.store.training_data import load_training_data
from swarmnode.wire.swarm import Manifest

_SNAPSHOT_DEADLINE_S = 130.0
FORMATS = ("swarmnode", "transformers", "gguf")
_ADAPTER, _GGUF = "adapter", "gguf"
_GGUF_MODULE = "swarmnode.worker.tools.gguf"
_MERGE_FACTS = ("rule", "digest", "agreed", "members", "contributors", "own_loss")
FACTS_BYTES_MAX = 1024 * 1024

_DIGITS = 16  # of a hash, for people


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--swarm", "swarm_name", help="Which swarm, if this home knows several.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="For `generate` and Python here; for from_pretrained of transformers, with the tokenizer;"
    " or one file for llama.cpp.",
)
@click.option("--adapter", is_flag=True, help="The adapters of --lora alone, for peft.")
@merge_option(default=None)
@home_option
@json_option
def export(
    directory: Path,
    swarm_name: str | None,
    kind: str,
    adapter: bool,
    merge: str | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Write the trained model to DIRECTORY: model.safetensors, config.json and README.md.

    A running node writes a snapshot first; without one, the last snapshot is taken. With
    `--merge` it is the model that `swarmnode finalize` makes of those of all members.
    """
    paths = Paths(resolve_home(home, os.environ))
    name = chosen_swarm(paths, swarm_name)
    kind = kind_of(kind, is_adapter=adapter)
    facts = export_model(paths, name, directory, merge=merge, kind=kind)
    if as_json:
        print_json(facts)
        return
    click.echo(
        f"exported step {facts['step']:,} of swarm {name} to {directory}:"
        f" {facts['bytes'] / 1e6:.1f} MB, see {directory / 'README.md'}"
    )


def chosen_swarm(paths: Paths, name: str | None) -> str:
    """Return the swarm that is meant: by ``name``, as its node runs, or as it is the only one.

    Raises:
        ConfigError: there is none, or more than one.
    """
    return name or _running_swarm(paths) or _only_swarm(paths)


def kind_of(chosen: str, *, is_adapter: bool) -> str:
    """Return what --format and --adapter say together."""
    return _ADAPTER if is_adapter else chosen


def export_model(
    paths: Paths,
    name: str,
    directory: Path,
    *,
    merge: str | None = None,
    kind: str = FORMATS[0],
    place: str = "DIRECTORY",
) -> dict[str, Any]:
    """Write the export; return the facts that are in it, and ``bytes``.

    Args:
        merge: by which rule all members' models are merged for it; None: this node's own.
        kind: one of FORMATS, or "adapter".
        place: by which name the card has it.

    Raises:
        ConfigError: ``directory`` holds what is no earlier export of this swarm, or there is
            no snapshot of it yet.
        WorkerError: the merged model is worse than this node's own.
        SwarmNodeError: the running node could not save, or the disk does not let us write.
    """
    manifest = read_manifest(name, paths)
    _check_directory(directory, name, kind)
    merged = None if merge is None else _merged(name, paths, merge)
    source, status, peers = _snapshot(name, paths)
    if merged is not None:
        source = merged["path"]
    written = _write(name, paths, source, directory, kind)
    facts = _facts(manifest, paths, written, status, peers)
    if merged is not None:
        facts["loss_held_out"] = merged["loss"]
        facts["merge"] = {key: merged[key] for key in _MERGE_FACTS}
    texts = {facts_file(kind): json.dumps(facts, indent=2) + "\n"}
    texts["README.md"] = model_card(facts, place)
    if len(facts["losses"]) > 1:
        texts[LOSS_PICTURE] = loss_picture(facts["losses"])
    for file_name, text in texts.items():
        write_atomic(directory / file_name, text.encode(), mode=0o644)
    return {**facts, "bytes": written["bytes"], "export_dir": str(directory)}


def _write(name: str, paths: Paths, source: str, directory: Path, kind: str) -> dict[str, Any]:
    """Write the weights, and what of other programs' files there is. Raises SwarmNodeError."""
    arguments: list[str] = []
    if kind != FORMATS[0]:  # tokenizer and base are where this home trains from
        known = load_training_data(name, paths)
        arguments += [f"--data-dir={known.folder}", f"--model-dir={known.model}"]
    if kind != _GGUF:
        return run_offline("export", f"--format={kind}", *arguments, "--", source, str(directory))
    with tempfile.TemporaryDirectory(dir=directory) as between:
        folder = ("--format=transformers", *arguments, "--", source, between)
        written = run_offline("export", *folder)
        made = run_offline("--", between, str(directory / "model.gguf"), module=_GGUF_MODULE)
    return written | made | {"format": kind}


def facts_file(kind: str) -> str:
    """Return where the facts are: config.json of others is not ours to define."""
    return "config.json" if kind == FORMATS[0] else "swarmnode.json"


def _snapshot(name: str, paths: Paths) -> tuple[str, dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the newest snapshot, and status and peers of the node if it runs."""
    client = ControlClient(paths)
    with contextlib.suppress(NotRunning):
        if client.get("/status")["swarm"] == name:
            source = client.post("/snapshot", deadline_s=_SNAPSHOT_DEADLINE_S)["path"]
            return source, client.get("/status"), client.get("/peers")
    snapshots = paths.swarm(name).snapshots
    if not snapshots.is_dir() or not any(snapshots.iterdir()):
        raise ConfigError(
            f"swarm {name!r} has no snapshot in {paths.home} yet: train first with"
            f" `swarmnode join {name}`"
        )
    return str(snapshots), None, []


def _merged(name: str, paths: Paths, rule: str) -> dict[str, Any]:
    """Have the running node merge all members' models. Raises SwarmNodeError."""
    client = ControlClient(paths)
    running = client.get("/status")["swarm"]
    if running != name:
        raise ConfigError(f"--merge: the node that runs here is in the swarm {running!r}")
    found = ask_for_merge(client, rule)
    if found["problem"]:
        raise WorkerError(found["problem"])
    return found


def _check_directory(directory: Path, name: str, kind: str) -> None:
    """Refuse to write over anything but an earlier export of a swarm of this name, alike."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = not any(directory.iterdir())
    except OSError as error:
        raise StorageError(f"cannot write to the folder {directory}: {error.strerror}") from error
    if is_empty:
        return
    with contextlib.suppress(FileNotFoundError, CorruptRecord):
        facts = read_file(directory / facts_file(kind), bytes_max=FACTS_BYTES_MAX)
        if is_earlier(facts, name, kind):
            return
    raise ConfigError(
        f"expected a new folder, an empty one or an earlier export of {name!r} in the same format,"
        f" {directory} holds other files: choose another"
    )


def is_earlier(facts: bytes, name: str, kind: str) -> bool:
    """Return whether this file of facts is that of an export of a swarm of this name, alike."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        found = json.loads(facts)
        return bool(found["swarm"] == name and found.get("format", FORMATS[0]) == kind)
    return False


def _facts(
    manifest: Manifest,
    paths: Paths,
    written: dict[str, Any],
    status: dict[str, Any] | None,
    peers: list[dict[str, Any]],
) -> dict[str, Any]:
    contributors = [
        {**_who(peer["peer"], peer["name"]), "steps": peer["step"], "tokens": peer["tokens"]}
        for peer in peers
        if peer["tokens"]
    ]
    own = _who("this node", "")
    if status is not None:
        own = _who(status["peer"], status["node_name"])
    contributors.insert(0, {**own, "steps": written["step"], "tokens": written["tokens"]})
    return {
        "swarm": manifest.name,
        "swarm_key": encode_base32(manifest.swarm_key),
        "task": manifest.task,
        "task_version": manifest.task_version,
        "task_config": manifest.task_config,
        "layout_hash": written["layout_hash"],
        "parameters": manifest.numel,
        "strategy": manifest.strategy,
        "strategy_settings": manifest.strategy_settings,
        "codec": manifest.codec,
        "recipe": recipe_words(manifest.recipe or None, horizon_of(manifest, paths)),
        "seed": manifest.seed,
        "data_hash": manifest.data_hash.hex(),
        "step": written["step"],
        "tokens_total": sum(one["tokens"] for one in contributors),
        "contributors": contributors,
        "exchanges": status["exchanges_committed"] if status is not None else None,
        "loss_held_out": status["eval_loss"] if status is not None else None,
        "merge": None,
        "losses": written["losses"],
        "format": written["format"],
        "loss_swarm": status["swarm_loss"] if status is not None else None,
        "exported_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "swarmnode_version": __version__,
    }


def _who(peer: str, name: str) -> dict[str, Any]:
    return {"peer": peer, "name": name}


def _running_swarm(paths: Paths) -> str | None:
    try:
        return str(ControlClient(paths).get("/status")["swarm"])
    except NotRunning:
        return None


def _only_swarm(paths: Paths) -> str:
    folder = paths.swarms
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        raise ConfigError(f"no swarm has been joined from the home {paths.home}")
    if len(names) > 1:
        raise ConfigError(f"this home knows several swarms: add --swarm {'|'.join(names)}")
    return names[0]


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
        copy_model(Path(found["path"]), out)
        found["path"] = str(out.absolute())
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 1 if found["problem"] else 0


def ask_for_merge(client: ControlClient, rule: str) -> dict[str, Any]:
    """Return the fields of ``daemon/collective/finalize.py``. Raises SwarmNodeError."""
    path = f"/finalize?merge={rule}"
    found: dict[str, Any] = client.post(path, deadline_s=limits.FINALIZE_DEADLINE_S)
    return found


def copy_model(source: Path, target: Path) -> None:
    """Copy a file by way of a new one, which no link that lies there leads elsewhere.

    Raises StorageError: it cannot be written; ``target`` is as it was.
    """
    half_done = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with source.open("rb") as model, half_done.open("xb") as copy:
            shutil.copyfileobj(model, copy)
        half_done.replace(target)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}; it is in {source}") from error
    finally:
        with contextlib.suppress(OSError):
            half_done.unlink(missing_ok=True)


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
