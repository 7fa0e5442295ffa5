"""Mutants of protocol/, store/ and strategies/, by sample: ``python -m tests.mutants.sampled``.

One comparison, operator, number, call or result is changed in a process of its own, and the tests
that import the module must turn red, within a time limit. Which of all mutants are tried follows
from the seed. It fails if fewer than KILLED_SHARE_MIN of them are killed; those that change nothing
that counts stand in ``EQUIVALENT`` of ``sampled_reasons.py``, with the reason, and are left out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import importlib.util
import io
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

from tests.conftest import ROOT
from tests.mutants.sampled_reasons import EQUIVALENT

KILLED_SHARE_MIN = 0.9
ROOMS = ("protocol", "store", "strategies")
_TESTS = ("unit", "property", "golden", "algorithms", "crash")
# As many test files as run for one mutant: those that look at the module most come first.
_FILES_MAX = 6
_DEADLINE_S = 240

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def _others(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Return what a node may become, each with a word for it."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in _COMPARISONS:
            yield "compare", ast.Compare(left, [_COMPARISONS[type(op)]()], right)
        case ast.BoolOp(op, values):
            yield "logic", ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", operand
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            yield "operator", ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.AugAssign(target, op, value) if type(op) in _OPERATORS:
            yield "operator", ast.AugAssign(target, _OPERATORS[type(op)](), value)
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() | float() as number):
            yield "constant", ast.Constant(number + 1)
        case ast.Return(ast.expr()):
            yield "result", ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call()):
            yield "call", ast.Pass()


class _Change(ast.NodeTransformer):
    """Makes the ``wanted``-th change, and names them all."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.names: list[str] = []
        self._within: list[str] = []
        self._seen: Counter[str] = Counter()

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return node  # words for people, and what is asserted
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self._within.append(node.name)
            node.body = [self._statement(each) for each in node.body]
            self._within.pop()
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = node.value and self._expression(node.value)
            return node
        changed = node
        for word, other in _others(node) if self._within else ():
            if self._is_wanted(node, word):
                changed = ast.copy_location(copy.deepcopy(other), node)
        if changed is not node:
            return changed
        found: ast.AST = self.generic_visit(node)
        return found

    def _statement(self, node: ast.stmt) -> ast.stmt:
        found = self.visit(node)
        assert isinstance(found, ast.stmt)
        return found

    def _expression(self, node: ast.expr) -> ast.expr:
        found = self.visit(node)
        assert isinstance(found, ast.expr)
        return found

    def _is_wanted(self, node: ast.AST, word: str) -> bool:
        name = f"{'.'.join(self._within)} {word}: {ast.unparse(node)[:60]}".replace("\n", " ")
        self._seen[name] += 1
        again = f" #{self._seen[name]}" if self._seen[name] > 1 else ""
        self.names.append(name + again)
        return len(self.names) - 1 == self._wanted


def changed(path: Path, wanted: int) -> tuple[ast.Module, list[str]]:
    change = _Change(wanted)
    tree = ast.parse(path.read_bytes())
    tree.body = [change.visit(each) for each in tree.body]  # type: ignore[misc]
    return ast.fix_missing_locations(tree), change.names


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


# --- which tests look at a module ---------------------------------------------------------------


@functools.cache
def _imported(path: Path) -> Counter[str]:
    """Return how often a file names what it imports of which module."""
    tree = ast.parse(path.read_bytes())
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = (ROOT / (full.replace(".", "/") + ".py")).exists()
                modules[alias.asname or alias.name] = full if is_module else node.module
    named = Counter(modules.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in modules:
            named[modules[node.id]] += 1
    return named


@functools.cache
def files_for(module: str) -> tuple[str, ...]:
    """Return the test files that import a module, or else those of what imports it."""
    files = [
        path for folder in _TESTS for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
    ]
    scores = {path: _imported(path)[module] for path in files}
    # A file's name says what it is about.
    last = module.rpartition(".")[2]
    for path in files:
        if last in path.stem:
            scores[path] += 1000 * bool(scores[path])
    found = sorted((path for path in files if scores[path]), key=lambda path: -scores[path])
    if len(found) < 2:
        users = [
            path
            for path in sorted((ROOT / "swarmnode").rglob("*.py"))
            if _imported(path)[module] and name_of(path) != module
        ]
        for user in users[:4]:
            more = (path for path in files if _imported(path)[name_of(user)])
            found += [path for path in more if path not in found][:3]
    return tuple(str(path.relative_to(ROOT)) for path in found[:_FILES_MAX])


# --- one mutant -----------------------------------------------------------------------------------


class _Loader(SourceLoader):
    def __init__(self, path: Path, code: CodeType) -> None:
        self._path, self._code = path, code

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: str | bytes) -> bytes:
        return self._path.read_bytes()

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class _Finder(MetaPathFinder):
    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._name = name_of(path)
        self._loader = _Loader(path, compile(tree, str(path), "exec"))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self._loader)


def _run_tests(path: Path, tree: ast.Module, files: tuple[str, ...]) -> None:
    import pytest

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_DEADLINE_S)  # one that never ends is killed, too
    os.setsid()
    sys.meta_path.insert(0, _Finder(path, tree))
    words = ["-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    words += ["-W", "ignore:Module already imported"]  # by this process, before the fork
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = pytest.main([*words, *files])
    os._exit(int(code))


def is_killed(path: Path, tree: ast.Module, files: tuple[str, ...]) -> bool:
    child = multiprocessing.get_context("fork").Process(target=_run_tests, args=(path, tree, files))
    child.start()
    child.join()
    return child.exitcode != 0


def mutants(within: str = "") -> list[tuple[str, Path, int]]:
    """Return all there are in paths with this word, each with a name of its own."""
    return [
        (f"{path.relative_to(ROOT / 'swarmnode')} {name}", path, wanted)
        for room in ROOMS
        for path in sorted((ROOT / "swarmnode" / room).rglob("*.py"))
        if within in str(path.relative_to(ROOT / "swarmnode"))
        for wanted, name in enumerate(changed(path, -1)[1])
    ]


def sample(n: int, seed: int, chosen: str = "") -> list[tuple[str, Path, int]]:
    fit = [each for each in mutants(chosen.partition(" ")[0]) if chosen in each[0]]
    return random.Random(seed).sample(fit, min(n, len(fit)))


def judge(killed: int, survived: Sequence[str]) -> list[str]:
    """Return what is wrong with the outcome."""
    counted = [name for name in survived if name not in EQUIVALENT]
    total = killed + len(counted)
    if killed < KILLED_SHARE_MIN * total:
        return [f"expected {KILLED_SHARE_MIN:.0%} to be killed, {killed} of {total} are"]
    return []


def main(
    arguments: Sequence[str],
    try_one: Callable[[Path, ast.Module, tuple[str, ...]], bool] = is_killed,
) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.sampled", description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="I/N: every N-th of them, from the I-th on")
    parser.add_argument("chosen", nargs="?", default="", help="only those in paths with it")
    options = parser.parse_args(arguments)
    first, _, step = options.part.partition("/")
    killed, survived = 0, []
    sound: dict[Path, bool] = {}
    for name, path, wanted in sample(options.count, options.seed, options.chosen)[
        int(first) :: int(step)
    ]:
        files = files_for(name_of(path))
        if path not in sound:
            sound[path] = bool(files) and not try_one(path, changed(path, -1)[0], files)
        if files and not sound[path]:
            print(f"NO VERDICT {name}: {' '.join(files)} fail where nothing is changed")
            continue
        if files and try_one(path, changed(path, wanted)[0], files):
            killed += 1
            print("killed  ", name, flush=True)
        else:
            survived.append(name)
            reason = EQUIVALENT.get(name) or f"by {' '.join(files) or 'no test'}"
            print("SURVIVED", name, "|", reason, flush=True)
    n_equivalent = sum(name in EQUIVALENT for name in survived)
    total = killed + len(survived) - n_equivalent
    print(f"{killed} of {total} are killed, and {n_equivalent} change nothing that counts")
    wrong = judge(killed, survived)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    # What tests stand on is loaded once, and what is mutated is not.
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import trio.testing  # noqa: F401

    assert not [name for name in sys.modules if name.startswith("swarmnode.protocol")]
    sys.exit(main(sys.argv[1:]))
