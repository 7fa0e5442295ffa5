"""Counts the lines that a node runs: ``python -m swarmnode.tooling.runtime_lines``.

Two trainers, a keeper and a relay meet on loopback until an exchange is committed. Each of their
processes notes every module of swarmnode that it imports; a line is a line of the file, with
docstrings, comments and empty ones. What is imported in other circumstances (a WebRTC channel,
another strategy or task) is not counted; the C code of the codecs is, beside.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import trio

import swarmnode
from swarmnode.errors import DeadlineExceeded
from swarmnode.processes import stopping
from swarmnode.processes.node_process import NodeProcess, free_addresses

_PACKAGE = Path(swarmnode.__file__).parent
_ROLES = ("trainer", "trainer", "keeper", "relay")
# As PYTHONPATH has it, Python imports this before anything else. A finder hears of every module
# that is looked for, and what it has written is there when the process is killed, too.
_RECORDER = """\
import json, os, sys

class Recorder:
    def __init__(self):
        name = os.path.join({folder!r}, f"{{os.getpid()}}.imports")
        self.file = open(name, "w", buffering=1)
        self.file.write(json.dumps(sys.orig_argv) + "\\n")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "swarmnode":
            self.file.write(name + "\\n")

sys.meta_path.insert(0, Recorder())
"""
_DEADLINE_S = 300.0  # a machine that is busy with other things loads torch for a minute
_STOP_DEADLINE_S = 20.0
_POLL_S = 0.5


def main() -> None:
    """Run the nodes and print a line for each kind of process, and the sum."""
    seen = _files_by_process()
    for kind, files in sorted(seen.items()):
        print(f"{kind:24} {len(files):4} modules {_lines(files):7,} lines")
    python = set().union(*seen.values())
    native = set((_PACKAGE.parent / "native").rglob("*.[ch]"))
    native = {file for file in native if "tests" not in file.parts}
    print(f"{'a node, in all roles':24} {len(python):4} modules {_lines(python):7,} lines")
    print(f"{'native code':24} {len(native):4} files   {_lines(native):7,} lines")
    whole = set(_PACKAGE.rglob("*.py"))
    print(f"{'the whole package':24} {len(whole):4} modules {_lines(whole):7,} lines")


def count_node_lines() -> int:
    """Return the lines of all modules that a node imports, whatever its role. Runs nodes."""
    return _lines(set().union(*_files_by_process().values()))


def _files_by_process() -> dict[str, set[Path]]:
    with tempfile.TemporaryDirectory(prefix="swarmnode-lines-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_RECORDER.format(folder=name))
        os.environ["PYTHONPATH"] = name
        try:
            stopping.run_async(_run_nodes, folder)
        finally:
            stopping.end_started()
        return dict(_read(folder))


async def _run_nodes(folder: Path) -> None:
    addresses = free_addresses(len(_ROLES))
    nodes = [NodeProcess(folder / f"node{n}", address) for n, address in enumerate(addresses)]
    link = await nodes[0].create("lines", "--task", "bytes-lm", "--set", "strategy.every=16")
    try:
        for node, role in zip(nodes, _ROLES, strict=True):
            await node.start(link, "--role", role)
        await _wait(nodes)
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                await node.interrupt(_STOP_DEADLINE_S)


async def _wait(nodes: list[NodeProcess]) -> None:
    with trio.move_on_after(_DEADLINE_S):
        while not (
            all(node.status.get("peers_connected") for node in nodes)
            and nodes[0].status.get("exchanges_committed")
        ):
            await trio.sleep(_POLL_S)
            for node in nodes:
                await node.poll()
        return
    raise DeadlineExceeded("waiting for an exchange", _DEADLINE_S)


def _read(folder: Path) -> Iterator[tuple[str, set[Path]]]:
    """Yield each kind of process with the files that it, and all of its kind, imported."""
    found: dict[str, set[Path]] = {}
    for noted in folder.glob("*.imports"):
        first, *names = noted.read_text().splitlines()
        command = json.loads(first)
        if "swarmnode.worker.main" in command:
            kind = "worker of a trainer"
        elif "join" in command:
            kind = f"daemon of a {command[command.index('--role') + 1]}"
        else:
            continue  # what made the swarm
        program = command[command.index("-m") + 1]
        names += [program, f"{program}.__main__"]
        files = found.setdefault(kind, set())
        files |= {file for name in names for file in _files(name) if file.exists()}
    yield from found.items()


def _files(name: str) -> tuple[Path, Path]:
    """Return where a module is, as a file or as a package."""
    path = _PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py"), path / "__init__.py"


def _lines(files: set[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


if __name__ == "__main__":
    main()
