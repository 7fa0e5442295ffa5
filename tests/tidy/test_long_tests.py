"""The list of long tests names tests that are there, and leaves no subject without one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT, long_tests


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("name", sorted(long_tests()))
def test_it_names_a_test(name: str) -> None:
    path, _, test = name.partition("::")
    assert test.partition("[")[0] in functions_of(path)


@pytest.mark.parametrize(
    "folder", sorted({str(Path(name.partition("::")[0]).parent) for name in long_tests()})
)
def test_short_ones_of_the_same_folder_stay(folder: str) -> None:
    whole = {name.partition("::")[::2] for name in long_tests()}
    for path in (ROOT / folder).glob("test_*.py"):
        name = str(path.relative_to(ROOT))
        if {f for f in functions_of(name) if f.startswith("test_") and (name, f) not in whole}:
            return
    pytest.fail(f"expected a test of {folder} that every run makes, all are in long_tests.txt")
