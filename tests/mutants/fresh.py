"""Runs test files with a mutant in a process that imports all anew: slower than trial.py."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import io
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from os import _exit as leave
from pathlib import Path
from types import CodeType, ModuleType

from tests.conftest import ROOT

_TESTS = ("unit", "property", "golden", "algorithms", "crash")
# As many test files as run for one mutant: those that look at the module most come first.
_FILES_MAX = 6
_DEADLINE_S = 240


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


def install(path: Path, tree: ast.Module) -> None:
    """Let a module that is not imported yet be a mutant."""
    sys.meta_path.insert(0, _Finder(path, tree))


def _run_tests(path: Path, tree: ast.Module, files: tuple[str, ...]) -> None:
    import pytest

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_DEADLINE_S)  # one that never ends is killed, too
    os.setsid()
    install(path, tree)
    words = ["-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    words += ["-W", "ignore:Module already imported"]  # by this process, before the fork
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = pytest.main([*words, *files])
    leave(int(code))


def is_killed(path: Path, tree: ast.Module, files: tuple[str, ...]) -> bool:
    child = multiprocessing.get_context("fork").Process(target=_run_tests, args=(path, tree, files))
    child.start()
    child.join()
    return child.exitcode != 0
