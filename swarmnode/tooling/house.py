"""Counts what a newcomer pays for: ``python -m swarmnode.tooling.house``.

Each figure has a target, and a limit that it holds today (``tests/tidy/test_house.py``). A limit
only goes down. With ``--runtime``, nodes are run as well and the lines that they import counted,
which takes a minute.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import trio

import swarmnode
from swarmnode.errors import DeadlineExceeded
from swarmnode.processes import stopping
from swarmnode.processes.node_process import NodeProcess, free_addresses

_PACKAGE = Path(swarmnode.__file__).parent
_DAEMON = "swarmnode.daemon."
# What is read at a glance.
_FOLDER_MODULES_MAX = 25

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


@dataclass(frozen=True)
class Tree:
    """The modules of the package: name to where it lies and what it says."""

    paths: Mapping[str, Path]
    parsed: Mapping[str, ast.Module]

    @classmethod
    def read(cls, package: Path = _PACKAGE) -> Tree:
        """Parse every module of ``package``. Raises OSError, SyntaxError."""
        paths = {_name_of(path, package): path for path in sorted(package.rglob("*.py"))}
        return cls(paths, {name: ast.parse(path.read_bytes()) for name, path in paths.items()})

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """What each module imports of the others, also within functions and for types only."""
        return {
            name: imported_by(tree, self.paths.keys()) - {name}
            for name, tree in self.parsed.items()
        }

    def modules(self, prefix: str = "") -> list[str]:
        """Return the modules below ``prefix`` that are more than the front of a folder."""
        return [
            name
            for name, path in self.paths.items()
            if name.startswith(prefix) and path.name != "__init__.py"
        ]


@dataclass(frozen=True)
class Figure:
    """One of them. ``limit``: of today, never raised. ``target``: where it is to go."""

    name: str
    count: Callable[[Tree], int]
    limit: int
    target: int


def imported_by(tree: ast.Module, modules: Iterable[str]) -> set[str]:
    """Return which of ``modules`` a module imports: ``from a import b`` is a.b, if that is one."""
    known = set(modules)
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(package), level=0, names=aliases):
                for alias in aliases:
                    whole = f"{package}.{alias.name}"
                    found.add(whole if whole in known else package)
            case ast.Import(names=aliases):
                found.update(alias.name for alias in aliases)
    return found & known


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules each of which imports all others of its group, by some way."""
    reached = {name: _reach(name, imports) for name in imports}
    found = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in imports
        if name in reached[name]
    }
    return [list(circle) for circle in sorted(found)]


def with_one_importer(tree: Tree) -> list[tuple[str, str]]:
    """Return the modules that exactly one other imports, each with that one."""
    importers: dict[str, list[str]] = {name: [] for name in tree.modules()}
    for name, imported in tree.imports.items():
        for each in imported & importers.keys():
            importers[each].append(name)
    return [(name, others[0]) for name, others in importers.items() if len(others) == 1]


def none_tests(tree: Tree) -> int:
    """Return how often the daemon asks whether something is there: ``is None``, ``is not None``."""
    return sum(
        isinstance(test, ast.Is | ast.IsNot)
        and isinstance(right, ast.Constant)
        and right.value is None
        for name in tree.paths
        if name.startswith(_DAEMON)
        for node in ast.walk(tree.parsed[name])
        if isinstance(node, ast.Compare)
        for test, right in zip(node.ops, node.comparators, strict=True)
    )


def rooms(tree: Tree) -> Counter[str]:
    """Return the rooms of the daemon with their modules, those of folders within them as well."""
    inside = [name.removeprefix(_DAEMON) for name in tree.modules(_DAEMON)]
    return Counter(name.partition(".")[0] for name in inside if "." in name)


def long_folders(tree: Tree) -> list[Path]:
    """Return the folders that have more modules than are read at a glance."""
    modules = Counter(tree.paths[name].parent for name in tree.modules())
    return [folder for folder, count in modules.items() if count > _FOLDER_MODULES_MAX]


FIGURES = (
    Figure("circles of imports", lambda tree: len(circles(tree.imports)), 0, 0),
    Figure("tests for None in the daemon", none_tests, 145, 150),
    Figure("modules with one importer", lambda tree: len(with_one_importer(tree)), 90, 90),
    Figure("modules of the daemon", lambda tree: len(tree.modules(_DAEMON)), 65, 65),
    Figure("rooms of the daemon", lambda tree: len(rooms(tree)), 10, 10),
    Figure("modules of its largest room", lambda tree: max(rooms(tree).values()), 11, 12),
    Figure(
        f"folders of more than {_FOLDER_MODULES_MAX} modules",
        lambda tree: len(long_folders(tree)),
        0,
        0,
    ),
)
RUNTIME_LINES_TARGET = 56_000


def main(arguments: list[str] | None = None) -> None:
    """Print each figure of the working tree beside its limit and its target."""
    parser = argparse.ArgumentParser(prog="python -m swarmnode.tooling.house", description=__doc__)
    parser.add_argument("--runtime", action="store_true", help="run nodes, and count their lines")
    parser.add_argument("--list", action="store_true", help="name the modules with one importer")
    options = parser.parse_args(arguments)
    tree = Tree.read()
    print(f"{'':32} {'today':>7} {'limit':>7} {'target':>7}")
    for figure in FIGURES:
        print(f"{figure.name:32} {figure.count(tree):7,} {figure.limit:7,} {figure.target:7,}")
    if options.list:
        for name, importer in with_one_importer(tree):
            print(f"  {name} <- {importer}")
    if options.runtime:
        print_node_lines()


def print_node_lines() -> None:
    """Run a trainer, a keeper and a relay, and print a line for each kind of process, and the sum.

    Two trainers, a keeper and a relay meet on loopback until an exchange is committed. Each of
    their processes notes every module of swarmnode that it imports; a line is a line of the file,
    with docstrings, comments and empty ones. What is imported in other circumstances (a WebRTC
    channel, another strategy or task) is not counted; the C code of the codecs is, beside.
    """
    seen = _files_by_process()
    for kind, files in sorted(seen.items()):
        print(f"{kind:24} {len(files):4} modules {_lines(files):7,} lines")
    python = set().union(*seen.values())
    native = set((_PACKAGE.parent / "native").rglob("*.[ch]"))
    native = {file for file in native if "tests" not in file.parts}
    print(
        f"{'a node, in all roles':24} {len(python):4} modules {_lines(python):7,} lines"
        f" (target {RUNTIME_LINES_TARGET:,})"
    )
    print(f"{'native code':24} {len(native):4} files   {_lines(native):7,} lines")
    whole = set(_PACKAGE.rglob("*.py"))
    print(f"{'the whole package':24} {len(whole):4} modules {_lines(whole):7,} lines")


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


def _name_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _reach(begin: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return all that ``begin`` imports, directly or by way of others."""
    found: set[str] = set()
    todo = [*imports[begin]]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += imports[name]
    return found


if __name__ == "__main__":
    main()
