"""``swarmnode support-bundle``: what a helper needs, and nothing that a helper must not see.

What must not leave the machine is taken out of each text in two ways, because each misses
something: what this node's files hold is looked for as it is, in every spelling that is in use; and
what looks like a secret is one. What stands for an address, a path or a name is the same everywhere
in a bundle, so that the reader still sees which is which.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import io
import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from swarmnode import limits
from swarmnode.cli.doctor.checks import versions
from swarmnode.cli.doctor.command import examine
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.node.control import as_records
from swarmnode.cli.options import given, home_option, json_option
from swarmnode.config import Paths, explain_config, parse_host_port, resolve_home
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.ids import encode_base32
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


_SECRET_BYTES_MIN = 16
_NAME_CHARACTERS_MIN = 3
_KEY_FILES = (
    *("node.key", "dashboard.token"),
    *("swarms/*/swarm.key", "swarms/*/meeting.key", "swarms/*/link"),
)

_LINK = re.compile(r"\bswarm:([a-z0-9][a-z0-9._-]*)\?[^\s\"'<>`\\]+")
# Either may stand in the address of a page, and is quoted there.
_QUOTED_LINK = re.compile(r"\bswarm%3[Aa]([a-z0-9][a-z0-9._-]*)%3[Ff][^\s\"'<>`\\&]+")
_INVITE = re.compile(r"((?:[?&;](?:amp;)?|%3[Ff]|%26)i(?:=|%3[Dd]))[^\s&%\"'<>`\\]+")
# As the places that give them out begin them, so that they are known by their looks.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abpr]-|pypi-|AKIA)[\w-]{16,}"
)
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----", re.DOTALL)
# A quote in a text that is quoted itself, once or more often.
_QUOTE = r"(?:\\*[\"'])?"
_NAMED = re.compile(
    rf"(?i)({_QUOTE}[\w-]*(?:secret|token|password|passwd|api[_-]?key|authorization|seed)[\w-]*"
    rf"{_QUOTE}\s*[:= ]\s*{_QUOTE}(?:bearer |basic )?)"
    r"((?:[^\s\"',;&}\\]|\\(?!\\*[\"'])){8,})"
)
_USER_INFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?=[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:)[0-9a-fA-F:]+(?:[\d.]+)?(?![\w:])"
)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_PEOPLE = re.compile(r"(/home/|/Users/|[A-Za-z]:\\+Users\\+)([^/\\\s\"':,)]+)")


class Redactor:
    """Takes secrets, addresses and names out of texts, the same way in each of them."""

    def __init__(
        self, *, secrets: Iterable[str], paths: dict[str, str], names: dict[str, str]
    ) -> None:
        """Set what is known.

        Args:
            secrets: texts that must not appear.
            paths: a path to what stands for it.
            names: of people, machines and hosts, to what stands for it.
        """
        secrets = [*secrets]
        self._known = dict.fromkeys(secrets, "<secret>")
        self._escaped = [_escaped(text) for text in secrets if "\\" in text]
        # The longest first: a home within a home, a name within a path.
        self._known |= dict(sorted(paths.items(), key=lambda item: -len(item[0])))
        self._names = names
        self._numbers: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return the text without what must not leave."""
        for known, placeholder in self._known.items():
            text = text.replace(known, placeholder)
        for pattern in self._escaped:
            text = pattern.sub("<secret>", text)
        text = _PEM.sub("<secret>", text)
        text = _LINK.sub(lambda match: self._placeholder(f"swarm:{match[1]}?", match[0]), text)
        text = _QUOTED_LINK.sub(lambda m: self._placeholder(f"swarm:{m[1]}?", m[0]), text)
        text = _INVITE.sub(r"\1<secret>", text)
        text = _TOKEN.sub(r"\1<secret>", text)
        text = _NAMED.sub(r"\1<secret>", text)
        text = _USER_INFO.sub(r"\1<secret>@", text)
        text = _PEOPLE.sub(lambda match: match[1] + self._placeholder("user", match[2]), text)
        text = _MAC.sub(lambda match: self._placeholder("mac", match[0]), text)
        for pattern in (_IPV6, _IPV4):
            text = pattern.sub(lambda match: self._address(match[0]), text)
        for name, placeholder in self._names.items():
            text = re.sub(rf"(?<![\w<]){re.escape(name)}(?![\w>])", placeholder, text)
        return text

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text  # a time, a version
        mapped = getattr(address, "ipv4_mapped", None)
        if not (mapped or address).is_global:
            return text  # of no use elsewhere
        return self._placeholder("ip", str(mapped or address))

    def _placeholder(self, kind: str, value: str) -> str:
        """Return what stands for a value: the same for the same one."""
        if value.startswith("<"):
            return value
        prefix, name = (kind, "link") if kind.startswith("swarm:") else ("", kind)
        if (known := self._numbers.get(f"{name} {value}")) is None:
            number = 1 + sum(key.startswith(f"{name} ") for key in self._numbers)
            known = self._numbers[f"{name} {value}"] = f"{prefix}<{name}-{number}>"
        return known


def _escaped(text: str) -> re.Pattern[str]:
    """Return what finds a text with backslashes within texts that are quoted, however often."""
    parts = re.findall(r"\\+|[\"']|[^\\\"']+", text)
    quoted = {"\\": r"\\+", "'": r"\\*'", '"': r'\\*"'}
    return re.compile("".join(quoted.get(part[0], re.escape(part)) for part in parts))


def redactor_for(paths: Paths, hosts: Iterable[str] = ()) -> Redactor:
    """Return a redactor that knows the secrets of a home, its owner and this machine.

    ``hosts``: names of machines in the settings.
    """
    people, machine = _user_name(), socket.gethostname()
    names = {people: "<user>", machine: "<host>", machine.partition(".")[0]: "<host>"}
    for number, host in enumerate(sorted(set(hosts) - names.keys()), 1):
        names[host] = f"<host-{number}>"
    homes = {str(paths.home): "<home>", str(Path.home()): "~"}
    with contextlib.suppress(OSError):
        homes[str(paths.home.resolve())] = "<home>"
    return Redactor(
        secrets=_secrets_of(paths),
        paths={path: name for path, name in homes.items() if len(path) > 1},
        names={
            name: placeholder
            for name, placeholder in names.items()
            if len(name) >= _NAME_CHARACTERS_MIN and name not in ("root", "localhost")
        },
    )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, in a container
        return ""


def _secrets_of(paths: Paths) -> list[str]:
    """Return what the key files and links of a home hold, in every spelling that is in use."""
    found: set[str] = set()
    for pattern in _KEY_FILES:
        for path in paths.home.glob(pattern):
            with contextlib.suppress(OSError):
                found.update(_secrets_in(path.name, path.read_text("utf-8", "replace")))
    return sorted(found, key=len, reverse=True)


def _secrets_in(name: str, text: str) -> Iterable[str]:
    if name == "dashboard.token":
        yield from re.findall(rf"\S{{{_SECRET_BYTES_MIN},}}", text)
        return
    if name == "link":
        yield from (match[0] for match in _LINK.finditer(text))
        yield from re.findall(r"[?&]i=([^&\s]{8,})", text)
        return
    for word in re.findall(r"^seed (\S+)$", text, re.MULTILINE):
        yield word
        with contextlib.suppress(ValueError):
            raw = base64.b32decode(word.upper() + "=" * (-len(word) % 8))
            if len(raw) >= _SECRET_BYTES_MIN:
                spellings: tuple[Callable[[bytes], str], ...] = (
                    bytes.hex,
                    encode_base32,
                    lambda data: base64.b64encode(data).decode().rstrip("="),
                    lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
                    lambda data: repr(data)[2:-1],
                )
                for spell in spellings:
                    yield spell(raw)
                    yield spell(raw).upper()
