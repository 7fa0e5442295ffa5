"""Switches calls of the stores off, one at a time: ``python -m tests.mutants.disk``.

Each ``fsync``, each move, link and removal of a name, and each checksum in ``swarmnode/store`` is
taken out in a process of its own, where the sample of tests/crash/test_disk.py must find a fault.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib.util
import io
import multiprocessing
import signal
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

_SYNCS = {"fsync", "fdatasync", "sync_directory", "sync"}
_NAMES = {"replace", "hardlink_to", "unlink"}
_DEADLINE_S = 120


class _Off(ast.NodeTransformer):
    """Takes the ``wanted``-th place out, and counts them all."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.places: list[str] = []

    def _is_wanted(self, node: ast.expr, what: str) -> bool:
        self.places.append(f"{node.lineno}: {what} {ast.unparse(node)[:60]}")
        return len(self.places) - 1 == self.wanted

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _SYNCS and self._is_wanted(node, "no sync:"):
            return ast.copy_location(ast.Constant(None), node)
        is_path = len(node.args) + len(node.keywords) <= 1  # a text's replace has two
        if name in _NAMES and is_path and self._is_wanted(node, "no name:"):
            return ast.copy_location(ast.Constant(None), node)
        if name == "crc32" and self._is_wanted(node, "no checksum:"):
            return ast.copy_location(ast.Constant(0), node)
        if name == "write_atomic" and self._is_wanted(node, "in place:"):
            written = ast.Attribute(node.args[0], "write_bytes", ast.Load())
            return ast.copy_location(ast.Call(written, [node.args[1]], []), node)
        return node


def mutated(path: Path, wanted: int) -> tuple[ast.Module, list[str]]:
    off = _Off(wanted)
    tree = ast.fix_missing_locations(off.visit(ast.parse(path.read_bytes())))
    return tree, off.places


def load(path: Path, tree: ast.Module) -> None:
    """Put the mutant where its module would be imported from; nothing has imported it yet."""
    name = f"swarmnode.store.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = types.ModuleType(name)
    module.__spec__, module.__file__ = spec, str(path)
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)


def _campaigns() -> None:
    from tests.crash.disk_stores import STORES
    from tests.crash.test_disk import test_no_damage_gives_a_boot_epoch_twice
    from tests.kits.disk_kit import Campaign

    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as name:
        test_no_damage_gives_a_boot_epoch_twice(Path(name))
    for store in STORES.values():
        with tempfile.TemporaryDirectory(dir=where) as name:
            Campaign(store, Path(name), seed=1).power_failures(60)
    for store in STORES.values():
        with tempfile.TemporaryDirectory(dir=where) as name:
            for code in (errno.EIO, errno.ENOSPC):
                Campaign(store, Path(name), seed=1).every_fault(code, lasts=False, at_most=8)


def _survive(path: Path, tree: ast.Module) -> None:
    signal.alarm(_DEADLINE_S)  # one that never ends is found, too
    with contextlib.redirect_stderr(io.StringIO()):
        load(path, tree)
        _campaigns()


def is_caught(path: Path, tree: ast.Module) -> bool:
    child = multiprocessing.get_context("fork").Process(target=_survive, args=(path, tree))
    child.start()
    child.join()
    return child.exitcode != 0


def mutants() -> Iterator[tuple[str, Path, ast.Module]]:
    for path in sorted((ROOT / "swarmnode" / "store").glob("*.py")):
        for wanted, place in enumerate(mutated(path, -1)[1]):
            yield f"{path.name}:{place}", path, mutated(path, wanted)[0]


def main(chosen: str) -> None:
    whole = ROOT / "swarmnode" / "store" / "blobs.py"
    assert not is_caught(whole, mutated(whole, -1)[0]), "a fault is found where nothing is off"
    caught = total = 0
    for name, path, tree in mutants():
        if chosen in name:
            found = is_caught(path, tree)
            caught, total = caught + found, total + 1
            print("caught  " if found else "SURVIVED", name, flush=True)
    print(f"{caught} of {total} are caught")


if __name__ == "__main__":
    # What the stores stand on is loaded once, and they are not.
    import pytest  # noqa: F401

    import swarmnode.protocol.admission
    import swarmnode.wire.dht  # noqa: F401

    assert "swarmnode.store.files" not in sys.modules
    main(sys.argv[1] if len(sys.argv) > 1 else "")
