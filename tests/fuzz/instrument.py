"""Modules that note which of their blocks have run: what a fuzzer learns from.

Sources are changed as they are imported: at the head of each block, and of each operand of ``and``,
``or`` and a conditional, a byte of ``HITS`` is set, which costs far less than a tracer. To be
installed before the modules are imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

_BLOCKS_MAX = 1 << 16
_NAME = "__hits__"

HITS = bytearray(_BLOCKS_MAX)
# Module and line of each block, by its number.
PLACES: list[tuple[str, int]] = []


class _Marks(ast.NodeTransformer):
    """Puts a mark into each block of the functions of one module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def _number(self, node: ast.AST) -> int:
        PLACES.append((self._module, getattr(node, "lineno", 0)))
        assert len(PLACES) <= _BLOCKS_MAX, f"expected at most {_BLOCKS_MAX} blocks"
        return len(PLACES) - 1

    def _mark(self, body: list[ast.stmt]) -> list[ast.stmt]:
        (mark,) = ast.parse(f"{_NAME}[{self._number(body[0])}] = 1").body
        is_text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        at = 1 if is_text else 0
        return [*body[:at], ast.copy_location(mark, body[0]), *body[at:]]

    def _marked(self, value: ast.expr) -> ast.expr:
        """``value``, and a mark before it: what sets an item is None, and gives way to it."""
        call = f"{_NAME}.__setitem__({self._number(value)}, 1)"
        mark = ast.copy_location(ast.parse(call, mode="eval").body, value)
        return ast.copy_location(ast.BoolOp(ast.Or(), [mark, value]), value)

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = [self.visit(each) for each in node.body]  # no annotation, no default
            node.body = self._mark([each for each in body if isinstance(each, ast.stmt)])
            return node
        self.generic_visit(node)
        if isinstance(node, ast.If | ast.For | ast.While | ast.Try):
            node.body = self._mark(node.body)
            if node.orelse:
                node.orelse = self._mark(node.orelse)
        if isinstance(node, ast.ExceptHandler | ast.match_case):
            node.body = self._mark(node.body)
        if isinstance(node, ast.BoolOp):
            node.values = [node.values[0], *map(self._marked, node.values[1:])]
        if isinstance(node, ast.IfExp):
            node.body, node.orelse = self._marked(node.body), self._marked(node.orelse)
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        marks = _Marks(fullname)
        for each in tree.body:
            if not isinstance(each, ast.If | ast.Try):  # run once, when they are imported
                marks.visit(each)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[_NAME] = HITS
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(fullname == each or fullname.startswith(f"{each}.") for each in self._packages):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def install(*packages: str) -> MetaPathFinder:
    """Mark all modules of these packages that are imported from now on; return what finds them."""
    early = [name for name in sys.modules if name.startswith(packages)]
    assert not early, f"expected to be first, but these are imported: {early[:3]}"
    finder = _Finder(packages)
    sys.meta_path.insert(0, finder)
    return finder


def places(hits: bytes) -> Iterator[tuple[str, int]]:
    """Return module and line of the blocks that have run."""
    return (place for place, hit in zip(PLACES, hits, strict=False) if hit)
