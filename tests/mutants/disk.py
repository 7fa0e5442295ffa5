"""Switches off what the stores do for the disk, one at a time: ``python -m tests.mutants.disk``.

Each ``fsync``, each move, link, cut and removal, each step back and each checksum in
``swarmnode/store``, and in the modules elsewhere that write (``_ELSEWHERE``), is taken out in a
process of its own, or comes too early; the sample of tests/crash/test_disk.py must find a fault
there. With a word, only those whose names have it.

It fails if fewer than CAUGHT_SHARE_MIN of those that break a promise are caught, or one survives
that ``survivors.py`` has no reason for, or one that it names does not.
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
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from pathlib import Path

from tests.conftest import ROOT
from tests.mutants.survivors import HARMLESS, MISSED

# Never lowered.
CAUGHT_SHARE_MIN = 0.95
SURVIVORS = HARMLESS | MISSED
_SYNCS = {"fsync", "fdatasync", "sync_data", "sync_directory", "_sync_directory", "sync"}
_NAMES = {"replace", "hardlink_to", "unlink"}
_CUTS = {"truncate", "ftruncate"}
_HASHES = {"crc32", "leaf_hash", "_checksum"}
_PACKAGE = ROOT / "swarmnode"
_STORE = _PACKAGE / "store"
# What writes by itself, and which of ROOMS shows it.
_ELSEWHERE = {
    _PACKAGE / "worker" / "snapshots" / "tensorfile.py": "snapshots",
    _PACKAGE / "daemon" / "discovery" / "rendezvous.py": "manifest",
    _PACKAGE / "daemon" / "membership" / "progress.py": "target",
    _PACKAGE / "processes" / "environment.py": "environment",
}
_SHOWN_BY = {
    "blobs": ("blobs",),
    "contacts": ("swarms",),
    "invites": ("admission",),
    "journal": ("journal",),
    "keys": ("keys",),
    "swarms": ("swarms",),
    "training_data": ("swarms",),
    "volunteer": ("volunteer",),
}
_FAULTS = 64  # calls that fail, of each kind
_DEATHS = 256  # of a process, before as many calls: what it left matters at a few of them
_DEADLINE_S = 120


class _Off(ast.NodeTransformer):
    """Takes the ``wanted``-th place out, and names them all."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.places: list[str] = []
        self._within: list[str] = []
        self._seen: Counter[str] = Counter()

    def _is_wanted(self, node: ast.AST, what: str) -> bool:
        name = f"{'.'.join(self._within)} {what} {ast.unparse(node)[:40]}"
        self._seen[name] += 1
        again = f" #{self._seen[name]}" if self._seen[name] > 1 else ""
        self.places.append(name + again)
        return len(self.places) - 1 == self.wanted

    def visit(self, node: ast.AST) -> ast.AST:
        is_named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_named:
            self._within.append(node.name)
        found: ast.AST = super().visit(node)
        if isinstance(getattr(found, "body", None), list):
            self._swap(found.body)
        if is_named:
            self._within.pop()
        return found

    def _swap(self, body: list[ast.stmt]) -> None:
        """A move before the data is there, or a folder that is synced before the move."""
        for at, (first, then) in enumerate(pairwise([*body])):
            kinds = {_kind(first), _kind(then)}
            if kinds == {"sync", "name"} and self._is_wanted(then, "too early:"):
                body[at], body[at + 1] = then, first

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = _called(node)
        if name in _SYNCS and self._is_wanted(node, "no sync:"):
            return ast.copy_location(ast.Constant(None), node)
        if _is_name(node) and self._is_wanted(node, "no name:"):
            return ast.copy_location(ast.Constant(None), node)
        if name in _CUTS and self._is_wanted(node, "no cut:"):
            return ast.copy_location(ast.Constant(None), node)
        if name == "crc32" and self._is_wanted(node, "no checksum:"):
            return ast.copy_location(ast.Constant(0), node)
        if name == "undone" and self._is_wanted(node, "not undone:"):
            nothing = ast.parse("__import__('contextlib').nullcontext()", mode="eval").body
            return ast.copy_location(nothing, node)
        if name == "write_atomic" and self._is_wanted(node, "in place:"):
            written = ast.Attribute(node.args[0], "write_bytes", ast.Load())
            return ast.copy_location(ast.Call(written, [node.args[1]], []), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
        is_equality = isinstance(node.ops[0], ast.Eq | ast.NotEq)
        if (
            is_equality
            and any(_called(call) in _HASHES for call in calls)
            and self._is_wanted(node, "not checked:")
        ):
            return ast.copy_location(ast.Constant(isinstance(node.ops[0], ast.Eq)), node)
        return node


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _is_name(node: ast.Call) -> bool:
    return _called(node) in _NAMES and len(node.args) + len(node.keywords) <= 1  # a text's has two


def _kind(node: ast.stmt) -> str:
    match node:
        case ast.Expr(ast.Call() as call):
            return "sync" if _called(call) in _SYNCS else "name" if _is_name(call) else ""
    return ""


def mutated(path: Path, wanted: int) -> tuple[ast.Module, list[str]]:
    off = _Off(wanted)
    tree = ast.fix_missing_locations(off.visit(ast.parse(path.read_bytes())))
    assert isinstance(tree, ast.Module)
    return tree, off.places


def load(path: Path, tree: ast.Module) -> None:
    """Put the mutant where its module would be imported from; nothing has imported it yet."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = types.ModuleType(name)
    module.__spec__, module.__file__ = spec, str(path)
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)


def _campaigns(path: Path) -> None:
    """Run those that show what a module promises; of one that all stand on, all of the stores."""
    from tests.kits.disk_kit import Campaign
    from tests.kits.disk_recorder import DEATH

    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    damages: dict[str, Callable[[Path], None]] = {}
    if path in _ELSEWHERE:
        from tests.crash.disk_rooms import ROOMS

        stores = [ROOMS[_ELSEWHERE[path]]]
    else:
        from tests.crash.disk_stores import DAMAGES, STORES

        names = _SHOWN_BY.get(path.stem, STORES)
        stores = [STORES[name] for name in names]
        damages = {name: DAMAGES[name] for name in names if name in DAMAGES}
    for damage in damages.values():
        with tempfile.TemporaryDirectory(dir=where) as name:
            damage(Path(name))
    for store in stores:
        with tempfile.TemporaryDirectory(dir=where) as name:
            campaign = Campaign(store, Path(name), seed=1)
            campaign.power_failures(60)
            assert not campaign.failures
    for number, store in enumerate(stores):
        with tempfile.TemporaryDirectory(dir=where) as name:
            for code in (errno.EIO, errno.ENOSPC, DEATH):
                at_most = _FAULTS // len(stores)
                if not number:  # its own
                    at_most = _DEATHS if code == DEATH else _FAULTS
                Campaign(store, Path(name), seed=1).every_fault(code, lasts=False, at_most=at_most)


def _survive(path: Path, tree: ast.Module) -> None:
    signal.alarm(_DEADLINE_S)  # one that never ends is found, too
    with contextlib.redirect_stderr(io.StringIO()):
        load(path, tree)
        _campaigns(path)


def is_caught(path: Path, tree: ast.Module) -> bool:
    child = multiprocessing.get_context("fork").Process(target=_survive, args=(path, tree))
    child.start()
    child.join()
    return child.exitcode != 0


def mutants() -> Iterator[tuple[str, Path, ast.Module]]:
    for path in (*sorted(_STORE.glob("*.py")), *_ELSEWHERE):
        for wanted, place in enumerate(mutated(path, -1)[1]):
            yield f"{path.name} {place}", path, mutated(path, wanted)[0]


def judge(caught: Collection[str], survived: Collection[str]) -> list[str]:
    """Return what is wrong, of the names of those that were tried."""
    found = [f"SURVIVED without a reason: {name}" for name in survived if name not in SURVIVORS]
    found += [f"caught, so that no reason is due: {name}" for name in caught if name in SURVIVORS]
    total = len(caught) + sum(name not in HARMLESS for name in survived)
    if len(caught) < CAUGHT_SHARE_MIN * total:
        found.append(f"expected {CAUGHT_SHARE_MIN:.0%} to be caught, {len(caught)} of {total} are")
    return found


def main(chosen: str) -> int:
    whole = (*(_STORE / f"{name}.py" for name in (*_SHOWN_BY, "files")), *_ELSEWHERE)
    for path in whole:
        if not chosen or chosen in path.name:
            fault = is_caught(path, mutated(path, -1)[0])
            assert not fault, f"a fault is found in {path.name} where nothing is off"
    caught, survived = [], []
    for name, path, tree in mutants():
        if chosen in name:
            (caught if is_caught(path, tree) else survived).append(name)
            print("caught  " if name in caught else "SURVIVED", name, flush=True)
    for name in survived:
        print(f"{name}\n    survives: {SURVIVORS.get(name, 'no reason is given')}")
    n_harmless = sum(name in HARMLESS for name in survived)
    total = len(caught) + len(survived) - n_harmless
    print(f"{len(caught)} of {total} are caught, and {n_harmless} break no promise")
    wrong = [] if chosen else judge(caught, survived)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    # What the stores stand on is loaded once, and they are not.
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import trio.testing  # noqa: F401

    import swarmnode.protocol.admission
    import swarmnode.wire.dht  # noqa: F401

    assert "swarmnode.store.files" not in sys.modules
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
