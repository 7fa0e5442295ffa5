"""The list of long tests names tests that are there, and leaves no subject without one."""

from __future__ import annotations

import ast
from functools import cache

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


@pytest.mark.parametrize("path", sorted({name.partition("::")[0] for name in long_tests()}))
def test_a_short_one_of_the_same_file_stays(path: str) -> None:
    whole = {name.partition("::")[2] for name in long_tests()}
    assert {f for f in functions_of(path) if f.startswith("test_")} - whole
