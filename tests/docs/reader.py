"""A reader of a page: does what it says, word by word, in a machine of its own.

It has an empty home folder, the program and nothing else of ours on its path, and one swarm that
others have made. It types the commands of a page in their order, and stops at the first that fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from swarmnode.cli.main import cli
from swarmnode.config import Paths
from swarmnode.errors import SwarmNodeError
from swarmnode.processes.client import ControlClient
from swarmnode.protocol.swarm import parse_link
from tests.conftest import ROOT
from tests.kits.daemon_kit import environment, free_port, wait_until

DEADLINE_S = 240.0
TAKES_PART = {"training", "serving", "paused", "stopped", "finished"}
_COMMAND = re.compile(
    r"^ {4,}((?:swarmnode|python -m swarmnode\.\w+|sudo|prometheus)\b.*?)(?:  #.*)?$"
)

# What a reader cannot do on any machine, and what does it instead.
ELSEWHERE_TESTED = {
    "swarmnode create NAME --model FOLDER --data TEXTS": "tests/integrations/test_hub.py",
    "swarmnode create NAME --model FOLDER --lora r=16,alpha=32 --data TEXTS": (
        "tests/integrations/test_hub_swarm.py"
    ),
    "swarmnode create NAME --task lora-chat --model FOLDER --data CONVERSATIONS": (
        "tests/integrations/test_hub.py"
    ),
    "swarmnode export DIR --format transformers": "tests/integrations/test_hub_swarm.py",
    "swarmnode export DIR --adapter": "tests/integrations/test_hub_swarm.py",
    "swarmnode export DIR --format gguf": "tests/integrations/test_push.py",
    "swarmnode push OWNER/NAME": "tests/integrations/test_push.py",
    "swarmnode push OWNER/NAME --adapter --private": "tests/integrations/test_push.py",
    "sudo swarmnode service install 'swarm:NAME?k=…&b=…' --system -- --role keeper": (
        "tests/unit/cli/test_service.py"
    ),
    "swarmnode service status": "tests/unit/cli/test_service.py",
    "swarmnode service uninstall": "tests/unit/cli/test_service.py",
    "prometheus --config.file=deploy/prometheus/prometheus.yml": "tests/deploy/test_scrape.py",
}
# On a second machine, as the page says.
ON_ANOTHER_MACHINE = ("swarmnode join 'LINK' --data FOLDER",)
# It watches until a key is pressed.
WITHOUT_A_SCREEN = {"swarmnode top": "swarmnode top --once"}
# One finds what is wrong with this machine, too.
MAY_FIND_FAULTS = ("swarmnode doctor",)


def commands_of(page: str) -> list[str]:
    """Return the commands of a page of docs, in order."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [found[1] for line in lines if (found := _COMMAND.match(line))]


def parse(command: str) -> None:
    """Read a command of ours as the program does, and run nothing. UsageError: it is wrong."""
    rest = shlex.split(command.removeprefix("sudo "))[1:]
    verb: click.Command = cli
    while isinstance(verb, click.Group):
        _, found, rest = verb.resolve_command(click.Context(verb), rest)
        assert found is not None
        verb = found
    context = verb.make_context(verb.name, rest)
    if handed_on := context.params.get("join_options"):
        parse(shlex.join(["swarmnode", "join", "NAME", *handed_on]))


class Reader:
    """Follows commands in ``folder``. Use it in a ``with`` block."""

    def __init__(self, folder: Path, link: str) -> None:
        self.folder = folder
        self.link = link
        self._others = str(parse_link(link).hints[0])
        self._nodes: dict[Path, subprocess.Popen[bytes]] = {}
        self._homes = 0
        self._make_machine()
        self.home = self._new_home()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for node in self._nodes.values():
            node.kill()
            node.wait()

    def follow(self, command: str) -> str:
        """Do what the page says; return what was printed. AssertionError: it is wrong."""
        home = self.home
        if command.startswith("swarmnode create"):  # another way to begin: nothing is there yet
            self.end(self.home)
            home = self.home = self._new_home()
        if command in ON_ANOTHER_MACHINE:
            home = self._new_home()
        typed = self._filled_in(WITHOUT_A_SCREEN.get(command, command))
        if command.startswith("swarmnode join"):
            named = re.search(r"--home (\S+)", command)
            self._take_part(typed, self.folder / named[1] if named else home, command)
            return ""
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=self.folder,
            env=self._environment(home),
            capture_output=True,
            encoding="utf-8",
            timeout=DEADLINE_S,
        )
        codes = (0, 1) if command in MAY_FIND_FAULTS else (0,)
        assert done.returncode in codes, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        made = re.findall(r"swarm:\S+\?k=[^\s']+", done.stdout)
        if command.startswith("swarmnode create") and made:
            self.link = made[-1]
        return done.stdout

    def end(self, home: Path) -> None:
        """Have the node of a home leave, if one runs."""
        node = self._nodes.pop(home, None)
        if node is not None and node.poll() is None:
            node.terminate()
            node.wait(DEADLINE_S)

    # --- a machine ------------------------------------------------------------------------

    def _make_machine(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        browser = programs / "browser"
        browser.write_text('#!/bin/sh\ntest -n "$1"\n')
        browser.chmod(0o755)
        for name, code in (("swarmnode", "-m swarmnode"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {code} "$@"\n')
            program.chmod(0o755)
        texts = self.folder / "texts"
        texts.mkdir()
        for module in ("argparse.py", "ast.py"):
            shutil.copy(Path(os.__file__).with_name(module), texts / f"{module}.txt")

    def _new_home(self) -> Path:
        self._homes += 1
        home = self.folder / f"home{self._homes}"
        home.mkdir()
        (home / "port").write_text(str(free_port()))
        return home

    def _environment(self, home: Path) -> dict[str, str]:
        known = environment(home / "node")
        ours = {
            key: value for key, value in known.items() if key.startswith(("SWARMNODE", "PYTHON"))
        }
        port = home / "port"
        here = f"127.0.0.1:{port.read_text() if port.exists() else 0}"
        return ours | {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(home),
            "BROWSER": f"{self.folder / 'bin' / 'browser'} %s",
            "SWARMNODE_LISTEN": here,
            "SWARMNODE_ADVERTISE": here,
            "SWARMNODE_METRICS": "127.0.0.1:0",
            "SWARMNODE_DASHBOARD": "127.0.0.1:0",
        }

    def _filled_in(self, command: str) -> str:
        """Put what this reader knows in place of what the page leaves open."""
        link = parse_link(self.link)
        known = {
            "swarm:NAME?k=…&b=…": self.link,
            "'LINK'": f"'{self.link}'",
            "sn1…@HOST:PORT": self._others,
            "KEYLETTERS": self.link.partition("?k=")[2][:8],
            "'*:7347'": "127.0.0.1:0",
            "127.0.0.1:7348": "127.0.0.1:0",
            "127.0.0.1:7340": "127.0.0.1:0",
            "FOLDER": str(self.folder / "texts"),
            "DIR": "exported",
        }
        for open_words, word in known.items():
            command = command.replace(open_words, word)
        return re.sub(r"\bNAME\b", link.name, command)

    def _take_part(self, typed: str, home: Path, command: str) -> None:
        self.end(home)
        own = self.folder / "second" if "--home second" in command else home / "node"
        with (self.folder / "node.log").open("ab") as log:
            node = subprocess.Popen(
                ["bash", "-c", f"exec {typed}"],
                cwd=self.folder,
                env=self._environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._nodes[home] = node

        def is_there() -> bool:
            assert node.poll() is None, f"{command}\n{self._log()}"
            return self._status(own).get("state") in TAKES_PART

        wait_until(is_there, f"a node of {command!r}", DEADLINE_S)

    def _status(self, home: Path) -> dict[str, Any]:
        with contextlib.suppress(SwarmNodeError):
            found: dict[str, Any] = ControlClient(Paths(home)).get("/status")
            return found
        return {}

    def _log(self) -> str:
        return (self.folder / "node.log").read_text(errors="replace")[-3000:]


@contextlib.contextmanager
def reading(folder: Path, link: str) -> Iterator[Reader]:
    """Give a reader for a block."""
    with Reader(folder, link) as reader:
        yield reader
