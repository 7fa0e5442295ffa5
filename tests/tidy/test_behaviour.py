"""Tests ask what the product does: how often they reach into it, or change it, only goes down.

A test that reads a private name, or puts another attribute in the place of the product's, breaks
when the code is arranged anew, though nothing has changed for its users. Constructor
arguments, a subclass of a public class, and the virtual clock say the same. A bound that is made
smaller is counted apart: it is how a bound is tested without filling gigabytes.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import ROOT
from tests.tidy.test_tidy import TESTS, sources_in, text_of, tree_of

# Of today. A limit is lowered whenever it can be, and never raised.
LIMITS = {"private names": 201, "patched bounds": 69, "other patches": 148}
FILES_WITH_PRIVATE_NAMES_MAX = 67
_OWN = {"self", "cls"}


def private_names(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that read a private name of an object, or import one."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner)) if owner in _OWN:
                continue  # its own; a subclass that overrides one names it elsewhere
            case ast.Attribute(attr=name) if is_private(name):
                yield node.lineno
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("swarmnode"):
                yield from (node.lineno for each in names if is_private(each.name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def patches(tree: ast.Module, *, of_bounds: bool) -> Iterator[int]:
    """Yield the lines that put another value in the place of a bound, or of anything else."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="monkeypatch" | "patch"), attr="setattr"),
                args=[target, *rest],
            ) if is_bound(target, rest) == of_bounds:
                yield node.lineno


def is_bound(target: ast.expr, rest: list[ast.expr]) -> bool:
    """Whether it is a constant of the product: of ``limits``, or written out as a string."""
    match target, rest:
        case ast.Name(id="limits"), _:
            return True
        case ast.Constant(value=str(path)), _:
            return path.rpartition(".")[2].isupper()
        case _, [ast.Constant(value=str(name)), *_]:
            return name.isupper()
    return False


KINDS: dict[str, Callable[[ast.Module], Iterator[int]]] = {
    "private names": private_names,
    "patched bounds": lambda tree: patches(tree, of_bounds=True),
    "other patches": lambda tree: patches(tree, of_bounds=False),
}


# What a file has in which one of a kind may be: to parse all of them takes ten seconds.
PRIVATE = re.compile(
    r"(?<!\bself)(?<!\bcls)\s*\._(?!_)"  # of another object
    r"|^\s*from swarmnode\b.*\b_[a-zA-Z]"
    r"|^\s+_\w+( as \w+)?,",  # imported, on a line of its own
    re.MULTILINE,
)
HINTS = {
    "private names": PRIVATE,
    "patched bounds": re.compile(r"\bsetattr\b"),
    "other patches": re.compile(r"\bsetattr\b"),
}


@functools.cache
def found_in_tests(kind: str) -> Counter[str]:
    """Return how many there are of a kind in each file."""
    return Counter(
        {
            str(path.relative_to(ROOT)): n_found
            for path in sources_in(TESTS)
            if HINTS[kind].search(text_of(path)) and (n_found := len([*KINDS[kind](tree_of(path))]))
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_count_passes_its_limit(kind: str) -> None:
    found = found_in_tests(kind)
    most = ", ".join(f"{path} {n_found}" for path, n_found in found.most_common(5))
    assert found.total() <= LIMITS[kind], f"most of the {kind} are in {most}"


def test_few_files_know_private_names() -> None:
    assert len(found_in_tests("private names")) <= FILES_WITH_PRIVATE_NAMES_MAX


def test_what_is_counted() -> None:
    text = """
from swarmnode.names import _hidden, shown
def test(monkeypatch):
    assert node._core.size == shown(self._mine, node.__class__)
    monkeypatch.setattr(limits, "PEERS_MAX", 2)
    monkeypatch.setattr("swarmnode.store.journal.BYTES_MIN", 2)
    monkeypatch.setattr(module, "_BYTES", 2)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
"""
    tree = ast.parse(text)
    assert [*private_names(tree)] == [2, 4]
    assert [*patches(tree, of_bounds=True)] == [5, 6, 7]
    assert [*patches(tree, of_bounds=False)] == [8]


@pytest.mark.parametrize(
    "text",
    [
        "assert node._core.size",
        "x = (\n    self.node\n    ._core\n)",
        "self.node._core",
        "cls.node()._core",
        "myself._core",
        "from swarmnode.names import shown, _hidden as hidden",
        "from swarmnode.names import (\n    shown,\n    _hidden,\n)",
    ],
)
def test_what_is_private_is_looked_for(text: str) -> None:
    assert [*private_names(ast.parse(text))]
    assert HINTS["private names"].search(text)


def test_what_is_its_own_is_not() -> None:
    assert not HINTS["private names"].search("self._core = cls._of(self.__class__, node.__doc__)")
