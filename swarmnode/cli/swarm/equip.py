"""What a swarm asks a member to install and to fetch: in words, asked once, then brought about."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from swarmnode.cli.main import plain
from swarmnode.cli.swarm.named import is_interactive
from swarmnode.config import NodeConfig
from swarmnode.errors import ConfigError, Refused
from swarmnode.quantities import show_bytes
from swarmnode.tasks.packages import is_package
from swarmnode.wire.environment import DataReference, Environment
from swarmnode.wire.swarm import Manifest

if TYPE_CHECKING:
    from swarmnode.daemon.worker.briefing import TrainingChoice

_NAMES_SHOWN = 8
_ANSWER_BYTES_MAX = 1024


@dataclass(frozen=True)
class Equipper:
    """Installs for a node what its swarm names, after its owner's yes.

    Args:
        wants: True: yes to all of it, as for fleets; False: nothing is installed and what is here
            counts; None: ask.
        ask: put the question, the one line that is printed last; None: no person is there.
        tell: told each line.
        again: the command that joins, for the advice where no person can be asked.
    """

    config: NodeConfig
    wants: bool | None
    ask: Callable[[str], bool] | None
    tell: Callable[[str], None]
    again: str

    def __call__(self, manifest: Manifest, choice: TrainingChoice) -> TrainingChoice:
        """Return the choice with the Python and the folder of data that the swarm is to have.

        Raises:
            Refused: the owner said no, or cannot be asked.
            SwarmNodeError: something cannot be had.
        """
        from swarmnode.processes.environment import SwarmEnvironment

        named, paths = manifest.environment, self.config.paths.swarm(manifest.name)
        # Where the swarm was made, it was made of what is installed there.
        if not named or self.wants is False or paths.swarm_key.exists():
            return choice
        if choice.data_dir:  # the owner's own folder takes the place of the swarm's data
            named = msgspec.structs.replace(named, data=msgspec.UNSET)
        kept = SwarmEnvironment(named, paths)
        if not (kept.is_agreed and kept.is_made):
            self._check_manager(named)
            if not kept.is_agreed:
                self._agree(manifest, named, kept.folder)
                kept.agree()
            self.tell("fetching what the swarm asks for, each file by its hash")
        python = kept.install()
        return replace(choice, python=python, data_dir=choice.data_dir or kept.fetch_data())

    def _check_manager(self, named: Environment) -> None:
        if named.packages and self.config.worker_socket:
            raise ConfigError(
                "a service manager starts the worker of this node, with the Python that it has:"
                " install the task there and join with --no-install, or leave out worker_socket"
            )

    def _agree(self, manifest: Manifest, named: Environment, folder: Path) -> None:
        for line in question(manifest, named, folder):
            self.tell(line)
        if self.wants:
            return
        if self.ask is None:
            raise Refused(
                f"swarm {manifest.name!r} asks for software or data that this home has not, and no"
                " terminal is there to ask: look at it with `swarmnode trust`, then say yes with:"
                f" {self.again} --yes-install"
            )
        if not self.ask("install that?"):
            raise Refused(
                "nothing was installed; to train with what you have installed yourself, join with"
                " --no-install"
            )


def question(manifest: Manifest, named: Environment, folder: Path) -> Iterator[str]:
    """Say what would be installed, from where and to where."""
    yield f"swarm {manifest.name} asks for this, as its key has signed it:"
    yield from (f"  {line}" for line in words(named))
    if named.packages:
        yield f"  to: {folder}; wheels only, each by its SHA-256; torch stays this machine's own"
        yield "  its code will run here as you: say yes only if you trust those who publish it"


def words(named: Environment | None) -> Iterator[str]:
    """Say what an environment holds, for people."""
    if named is None:
        return
    if named.packages:
        first, *more = [_package(each.name, each.version) for each in named.packages]
        extras = f", with {', '.join(map(ascii, named.extras))}" if named.extras else ""
        yield f"package {first}{extras}"
        if more:
            rest = f" and {len(more) - _NAMES_SHOWN} more" if len(more) > _NAMES_SHOWN else ""
            yield f"what it needs: {', '.join(more[:_NAMES_SHOWN])}{rest}"
        yield f"from: {_index(named.index)}"
    if named.data:
        yield f"data: {data_words(named.data)}"
    needs = []
    needs += [f"{show_bytes(named.memory_bytes)} of memory"] if named.memory_bytes else []
    needs += [f"{show_bytes(named.disk_bytes)} of disk"] if named.disk_bytes else []
    if needs:
        yield f"needs at least: {' and '.join(needs)}, as its creator says"


def data_words(data: DataReference) -> str:
    """Say what data a swarm trains on."""
    if data.kind == "yours":
        return "yours, with --data FOLDER"
    source = plain(data.source[:300])
    sha256 = data.sha256.hex() if data.sha256 else "none"
    proof = f"{show_bytes(data.size_bytes)}, SHA-256 {sha256}"
    if data.kind == "hub":
        # Manifests of before name a commit and no hash.
        more = f", {proof}" if data.sha256 else ""
        return f"{source} of huggingface.co, revision {plain(data.revision)}{more}"
    return f"{source}, {proof}"


def _package(name: str, version: str) -> str:
    return f"{name} {version}" if is_package(name, version) else "(no name of a package)"


def _index(index: str) -> str:
    if not index:
        return "the package index that pip is set to here"
    if ":" in index:
        return f"{plain(index[:300])}, an index that the manifest names"
    return f"the index that pip knows here as {index[:64]!r}"


def make_equipper(
    config: NodeConfig,
    link: str,
    home: Path | None,
    tell: Callable[[str], None],
    *,
    wants: bool | None,
    may_ask: bool,
) -> Equipper:
    """Return what `join` gives its node."""
    again = ["swarmnode", "join", link if "i=" not in link else "LINK"]  # an invite is a secret
    again += ["--home", str(home)] if home else []
    ask = ask_person if may_ask and is_interactive() else None
    return Equipper(config, wants, ask, tell, shlex.join(again))


def ask_person(text: str) -> bool:
    """Ask on the terminal; what is no yes is a no."""
    print(f"swarmnode: {text} [y/N] ", end="", file=sys.stderr, flush=True)
    # Not input(): it holds a lock, for which a node would wait that is stopped meanwhile.
    answer = os.read(sys.stdin.fileno(), _ANSWER_BYTES_MAX)
    return answer.decode(errors="replace").strip().lower() in ("y", "yes")
