"""A strategy is one short file beside its paper, and knows of no other."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest

from swarmnode.strategies.installed import installed_strategies
from tests.conftest import ROOT

FOLDER = ROOT / "swarmnode" / "strategies"
CODE_LINES_MAX = 200
MODULES = sorted(found.target.partition(":")[0] for found in installed_strategies().values())

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def text_of(module: str) -> str:
    return (FOLDER / f"{module.rpartition('.')[2]}.py").read_text(encoding="utf-8")


def code_lines(text: str) -> int:
    """Count the lines that are neither empty, comment nor docstring."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def imported(text: str) -> set[str]:
    return {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    }


def test_code_is_counted_without_words() -> None:
    assert code_lines('"""Two\nlines."""\n\nx = 1  # one\n# none\ny = [\n    2,\n]\n') == 4


@pytest.mark.parametrize("module", MODULES)
def test_a_strategy_is_short(module: str) -> None:
    assert code_lines(text_of(module)) <= CODE_LINES_MAX


@pytest.mark.parametrize("module", MODULES)
def test_a_strategy_imports_from_no_other(module: str) -> None:
    others = imported(text_of(module)) & set(MODULES) - {module}
    assert not others, "what two of them share has a module of its own"
