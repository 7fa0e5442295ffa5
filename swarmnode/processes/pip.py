"""pip, run for a swarm's environment: files whose SHA-256 is known, wheels only, nothing besides.

It is the pip of this Python, or the one that comes with Python where there is none. What it is set
to counts here too: its index, its certificates, its proxies.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from swarmnode.errors import ConfigError, Refused, SwarmNodeError, TransportError
from swarmnode.ipc.spawn import own_paths
from swarmnode.processes.children import child
from swarmnode.tasks.packages import is_package
from swarmnode.wire.environment import PinnedPackage

# `pip config set swarmnode.NAME URL` makes a name known.
_INDEX_SECTION = "swarmnode"
_ALIAS = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_ADDRESS = re.compile(r"https?://[!-~]+")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ALWAYS = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "--retries", "2")
_ONLY_NAMED = ("--no-deps", "--only-binary", ":all:")
_WANTED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+) from \S+")
_EXPECTED = re.compile(r"Expected sha256 (?:or )?([0-9a-f]{64})")
_GOT = re.compile(r"Got\s+([0-9a-f]{64})")
_SAID_CHARACTERS_MAX = 300


def index_address(index: str) -> str:
    """Return the address that an index of a manifest stands for, "" for the one pip is set to.

    Raises:
        ConfigError: it is neither a name nor an address to which a question is safe, or pip does
            not know the name.
    """
    if not index:
        return ""
    if _ADDRESS.fullmatch(index):
        parts = urlsplit(index)
        if parts.scheme == "https" or parts.hostname in _LOOPBACK:
            return index
        raise ConfigError(f"the index {index[:200]}: expected https, as packages are code")
    if not _ALIAS.fullmatch(index):
        raise ConfigError(f"expected an index as a name or https://…, got {index[:80]!r}")
    # Not `config get`: that reads the user's file alone, neither the machine's nor PIP_CONFIG_FILE.
    _, said = _run("config", "list")
    known = {name: value for name, _, value in (line.partition("=") for line in said.splitlines())}
    address = known.get(f"{_INDEX_SECTION}.{index}")
    if address is None:
        raise ConfigError(
            f"pip knows no index {index!r} here: ask the creator of the swarm for its address, then"
            f" pip config set {_INDEX_SECTION}.{index} ADDRESS"
        )
    return index_address(address.strip("'"))


def requirements(packages: Iterable[PinnedPackage]) -> str:
    """Return them as ``pip install --require-hashes`` reads them.

    Raises:
        ConfigError: one of them is no name and version of a package.
    """
    lines = []
    for package in packages:
        if not is_package(package.name, package.version):
            raise ConfigError(
                f"expected a package and its version, the manifest has {package.name[:80]!r} and"
                f" {package.version[:80]!r}"
            )
        hashes = " ".join(f"--hash=sha256:{each.hex()}" for each in package.hashes)
        lines.append(f"{package.name}=={package.version} {hashes}\n")
    return "".join(lines)


def make_venv(folder: Path) -> Path:
    """Make an empty environment and return its Python; after its own packages it has ours.

    Not ``--system-site-packages``: those are the system's, while torch mostly lies in another such
    environment, the one of this process, and is gigabytes to fetch again.

    Raises:
        SwarmNodeError: it cannot be made.
    """
    options = ["--without-pip"] if find_spec("pip") else []
    command = [sys.executable, "-P", "-m", "venv", "--clear", *options, str(folder)]
    status, said = _run_command(command)
    if status != 0:
        raise SwarmNodeError(f"an environment in {folder} cannot be made: {_last(said)}")
    python = folder / "bin" / "python"
    packages = next((folder / "lib").glob("python*/site-packages"))
    lines = [f"import site; site.addsitedir({path!r})\n" for path in own_paths()]
    (packages / "swarmnode-own.pth").write_text("".join(lines))
    return python


def install_exactly(python: Path, packages: Sequence[PinnedPackage], address: str) -> None:
    """Install exactly these files into the environment of ``python``.

    Raises:
        Refused: a file has another hash; it is named.
        TransportError: the index cannot be asked, or has not got one of them.
    """
    wanted = python.parent.parent / "requirements.txt"
    wanted.write_text(requirements(packages))
    # A copy of ours would satisfy pip, whatever its bytes are.
    options = ["--require-hashes", "--ignore-installed", "--no-warn-script-location"]
    status, said = _run(
        *("install", *_ALWAYS, *_ONLY_NAMED, *options, *_index(address), "-r", str(wanted)),
        python=python,
    )
    if status != 0:
        raise _problem(said, packages)


def download(
    folder: Path, named: Sequence[str], address: str, options: Sequence[str] = ()
) -> dict[Path, bytes]:
    """Fetch a wheel of each ``NAME==VERSION``; return the SHA-256 of each file.

    Raises:
        TransportError: the index cannot be asked, or has no wheel of one of them.
    """
    place = ["--dest", str(folder)]
    status, said = _run(
        "download", *_ALWAYS, *_ONLY_NAMED, *options, *place, *_index(address), *named
    )
    if status != 0:
        raise _problem(said, ())
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.glob("*.whl")}


def _index(address: str) -> list[str]:
    return ["--index-url", address] if address else []


def _run(*arguments: str, python: Path | None = None) -> tuple[int, str]:
    """Run pip, for the environment of ``python`` if one is named; return status and output."""
    if find_spec("pip"):
        other = ["--python", str(python)] if python else []
        return _run_command([sys.executable, "-P", "-m", "pip", *other, *arguments])
    if python:  # made with a pip of its own
        return _run_command([str(python), "-P", "-m", "pip", *arguments])
    raise ConfigError("pip is not installed here: python -m ensurepip, then again")


def _run_command(command: Sequence[str]) -> tuple[int, str]:
    try:
        with child(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process:
            said = process.communicate()[0]
    except OSError as error:
        raise SwarmNodeError(f"cannot start {command[0]}: {error.strerror}") from error
    return process.returncode, said


def _problem(said: str, packages: Sequence[PinnedPackage]) -> SwarmNodeError:
    """Say in one line what pip says in many."""
    wanted, got = _WANTED.search(said), _GOT.search(said)
    if "DO NOT MATCH THE HASHES" in said and got:
        expected = _EXPECTED.search(said)
        name = f"{wanted[1]} {wanted[2]}" if wanted else _by_hash(expected, packages)
        return Refused(
            f"package {name} at the index is not the one that the swarm's creator signed: expected"
            f" SHA-256 {expected[1] if expected else 'another one'}, got {got[1]}; nothing of it"
            " was installed: tell the creator"
        )
    return TransportError(f"pip could not get what the swarm needs: {_last(said)}")


def _by_hash(expected: re.Match[str] | None, packages: Sequence[PinnedPackage]) -> str:
    for package in packages:
        if expected and bytes.fromhex(expected[1]) in package.hashes:
            return f"{package.name} {package.version}"
    return "of the swarm"


def _last(said: str) -> str:
    """Return the line that tells most: the last one that pip calls an error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it said nothing"]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines)[-1][:_SAID_CHARACTERS_MAX]
