"""Which tests reach which block of the code that is mutated, and how long each of them takes.

``SWARMNODE_REACH=FILE pytest -n 0 -p tests.mutants.reach TESTS`` writes it, a line for each test
that passes; a later run adds those that the file does not have yet. Modules note their blocks as
tests/fuzz has them do.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fuzz import instrument

PACKAGES = ("swarmnode.protocol", "swarmnode.store", "swarmnode.strategies")
_VARIABLE = "SWARMNODE_REACH"


class _Recorder:
    def __init__(self, path: Path) -> None:
        instrument.install(*PACKAGES)
        self._path = path
        self._known = {*read(path).seconds} if path.exists() else set()
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if each.nodeid not in self._known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        instrument.HITS[:] = bytes(len(instrument.HITS))
        began_s = time.perf_counter()
        result = yield
        took_s = round(time.perf_counter() - began_s, 3)
        if item.nodeid not in self._failed:
            blocks: defaultdict[str, list[int]] = defaultdict(list)
            for module, line in instrument.places(bytes(instrument.HITS)):
                blocks[module].append(line)
            with self._path.open("a") as file:
                file.write(json.dumps([item.nodeid, took_s, blocks]) + "\n")
        return result


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder(Path(os.environ[_VARIABLE])))


@dataclass(frozen=True)
class Reach:
    """``seconds`` of each test, and the tests of each block, by module and first line."""

    seconds: dict[str, float]
    tests: dict[tuple[str, int], list[str]]

    def of(self, module: str, line: int, source: str) -> list[str]:
        """Return the tests that run the block of a line, the quick ones first."""
        return sorted(self.tests.get((module, block_of(source, line)), ()), key=self.seconds.get)  # type: ignore[arg-type]


def read(path: Path) -> Reach:
    seconds: dict[str, float] = {}
    tests: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for text in path.read_text().splitlines():
        name, took_s, blocks = json.loads(text)
        if name not in seconds:
            seconds[name] = took_s
            for module, lines in blocks.items():
                for line in {*lines}:
                    tests[module, line].append(name)
    return Reach(seconds, dict(tests))


@functools.cache
def _blocks(source: str) -> tuple[tuple[int, int], ...]:
    return tuple((body[0].lineno, body[-1].end_lineno or 0) for body in _bodies(ast.parse(source)))


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        match node:
            case ast.If() | ast.For() | ast.While() | ast.Try():
                yield from (body for body in (node.body, node.orelse) if body)
            case (
                ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ExceptHandler() | ast.match_case()
            ):
                yield node.body


def block_of(source: str, line: int) -> int:
    """Return the first line of the innermost block that has a line, 0 for none."""
    return max((first for first, last in _blocks(source) if first <= line <= last), default=0)
