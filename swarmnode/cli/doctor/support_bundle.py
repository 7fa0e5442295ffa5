"""``swarmnode support-bundle``: what a helper needs, and nothing that a helper must not see."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from swarmnode import limits
from swarmnode.cli.doctor.checks import versions
from swarmnode.cli.doctor.command import examine
from swarmnode.cli.doctor.redact import redactor_for
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.node.control import as_records
from swarmnode.cli.options import given, home_option, json_option
from swarmnode.config import Paths, explain_config, parse_host_port, resolve_home
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.processes.client import ControlClient
from swarmnode.store.files import write_new

_LOG_BYTES = 256 * limits.KIB
_JOURNAL_LINES = 2000
_FILES_MAX = 5000
_JOURNAL_S = 10.0
_HOST_SETTINGS = ("listen", "advertise", "bootstrap", "metrics")
_README = """\
A support bundle of swarmnode, made {when}.

{contents}

Taken out, and replaced by what stands in <angle brackets>: keys, invites and links, passwords and
tokens, the paths of homes, the names of users and machines, and public IP addresses. The same
thing has the same replacement in all files. Still in it: peer ids, names of swarms, addresses of
private networks, and what the logs say otherwise. Look through it before you send it.
"""


@click.command("support-bundle")
@home_option
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="The zip file to write."
)
@click.option("--torch/--no-torch", "with_torch", default=True, help="Let the doctor try torch.")
@json_option
def support_bundle(home: Path | None, out: Path | None, with_torch: bool, as_json: bool) -> None:
    """Write a zip file for a person who helps you: status, peers, metrics, settings, doctor, logs.

    Secrets, home paths and public addresses are replaced; it is sent nowhere.
    """
    paths = Paths(resolve_home(home, os.environ))
    redact = redactor_for(paths, _hosts(home))
    collected = {name: redact(text) for name, text in _collect(home, paths, with_torch=with_torch)}
    now = time.time()
    contents = "\n".join(f"  {name:<22} {_ABOUT[name.split('/')[0]]}" for name in collected)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    collected = {"README.txt": _README.format(when=when, contents=contents)} | collected
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    path = (out or Path(f"swarmnode-support-{stamp}.zip")).absolute()
    if not write_new(path, _zip(collected)):
        raise ConfigError(f"--out: {path} exists already: name another file")
    if as_json:
        print_json({"path": str(path), "files": sorted(collected)})
        return
    click.echo(f"wrote {plain(str(path))}:\n{contents}")
    click.echo(
        "secrets, home paths, names and public addresses are replaced; look through it first"
    )


_ABOUT = {
    "versions.json": "what runs here",
    "config.json": "the settings, and where each comes from",
    "doctor.json": "what `swarmnode doctor` says",
    "home.json": "names, sizes and modes of the files in the home; nothing that is in them",
    "status.json": "what the node is doing",
    "peers.json": "its peers",
    "metrics.txt": "its metrics",
    "logs": "the end of a log",
}


def _collect(home: Path | None, paths: Paths, *, with_torch: bool) -> Iterator[tuple[str, str]]:
    """Yield names and texts; whatever cannot be had says why in its place."""
    yield "versions.json", _json(versions)
    yield (
        "config.json",
        _json(lambda: as_records(explain_config(given(home=home and str(home)), os.environ))),
    )
    yield (
        "doctor.json",
        _json(lambda: [one._asdict() for one in examine(home, with_torch=with_torch)]),
    )
    yield "home.json", _json(lambda: _listing(paths.home))
    client = ControlClient(paths)
    yield "status.json", _json(lambda: client.get("/status"))
    yield "peers.json", _json(lambda: client.get("/peers"))
    yield "metrics.txt", _text(lambda: _metrics(paths))
    for path in sorted([*paths.home.glob("*.log"), *paths.home.glob("swarms/*/*.log")]):
        name = "-".join(path.relative_to(paths.home).parts)
        yield f"logs/{name}", _text(lambda path=path: _tail(path))  # type: ignore[misc]
    if paths.history.exists():
        yield "logs/exchanges.jsonl", _text(lambda: _tail(paths.history))
    if journal := _text(_journal):
        yield "logs/journal.txt", journal


def _json(ask: Callable[[], Any]) -> str:
    try:
        answer = ask()
    except (SwarmNodeError, OSError) as error:
        answer = {"error": str(error)}
    return json.dumps(answer, indent=1, default=str) + "\n"


def _text(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except (SwarmNodeError, OSError) as error:
        return f"error: {error}\n"


def _metrics(paths: Paths) -> str:
    return ControlClient(paths).get_bytes("/metrics").decode("utf-8", "replace")


def _tail(path: Path) -> str:
    """Return the last whole lines of a file."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text if size <= _LOG_BYTES else text.partition("\n")[2]


def _journal() -> str:
    """Return the last lines of our units, "" where there is no journal of them."""
    if shutil.which("journalctl") is None:
        return ""
    found = ""
    for scope in ([], ["--user"]):
        command = ["journalctl", *scope, "-q", "--no-pager", "-o", "short-iso"]
        command += ["-u", "swarmnode.service", "-u", "swarmnode-worker@*", f"-n{_JOURNAL_LINES}"]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_JOURNAL_S, check=False, text=True
            )
        except subprocess.TimeoutExpired:
            continue
        found += done.stdout
    return found


def _listing(home: Path) -> list[dict[str, Any]]:
    files = []
    for path in sorted(home.rglob("*")):
        status = path.lstat()
        name = str(path.relative_to(home))
        files.append({"name": name, "bytes": status.st_size, "mode": f"{status.st_mode:o}"})
    return files[:_FILES_MAX]


def _hosts(home: Path | None) -> Iterator[str]:
    """Yield the names of machines in the settings: they say who a person is."""
    try:
        settings = explain_config(given(home=home and str(home)), os.environ)
    except ConfigError:
        return
    for setting in settings:
        if setting.name in _HOST_SETTINGS:
            values = setting.value if isinstance(setting.value, tuple) else [setting.value]
            for value in values:
                address = str(value).rpartition("@")[2]
                if ":" in address:
                    host = parse_host_port(address, setting=setting.name).host or ""
                    if any(letter.isalpha() for letter in host) and ":" not in host:
                        yield host


def _zip(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()
