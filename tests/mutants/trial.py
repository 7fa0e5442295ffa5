"""Runs tests with a mutant in the place of its function, each in a process of its own.

What is tested is imported once, and the tests are collected once; a process is then forked for
each mutant, where functions get other code. What is no function's, as a default of a dataclass,
cannot be put in the place of what was imported: it has no verdict here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import _exit as leave
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import hypothesis
import pytest

from tests.mutants import fresh

_BYTES_MAX = 8 << 30  # one that fills all memory is killed, too
_PASSED, _FAILED, _NOT_SWAPPED = 0, 1, 2
_CACHE = type(functools.lru_cache(len))


@dataclass(frozen=True)
class Trial:
    name: str
    path: Path
    tree: ast.Module
    tests: Sequence[str]
    seconds: float  # that the tests take where nothing is changed


@dataclass(frozen=True)
class Verdict:
    """``killed``: None without a verdict. ``by``: the test that turned red, or what was tried."""

    killed: bool | None
    by: str


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_of(each)


def swap(functions: Sequence[FunctionType], path: Path, tree: ast.Module) -> int:
    """Give functions the code that they have in a tree; return how many are others than before."""
    found: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
    for code in codes_of(compile(tree, str(path), "exec", dont_inherit=True)):
        found[code.co_qualname, code.co_firstlineno].append(code)
    swapped = 0
    for function in functions:
        old = function.__code__
        match found[old.co_qualname, old.co_firstlineno]:
            case [new] if new != old:
                function.__code__ = new
                swapped += 1
    return swapped


class Trials:
    """A plugin of pytest that tries mutants instead of running the tests once."""

    def __init__(
        self, trials: Sequence[Trial], tell: Callable[[Trial, Verdict, float], None], until_s: float
    ) -> None:
        self._trials, self._tell, self._until_s = trials, tell, until_s
        self._sound: dict[str, bool] = {}
        self._functions: Mapping[str, Sequence[FunctionType]] = {}
        self._caches: Sequence[Any] = ()

    def pytest_sessionstart(self) -> None:  # after those of conftest.py
        # What fails is not cut down, and not kept for other mutants.
        hypothesis.settings.register_profile(
            "mutants",
            parent=hypothesis.settings.get_profile("swarmnode"),
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._functions, self._caches = _what_there_is()
        for trial in self._trials:
            began_s = time.monotonic()
            if began_s > self._until_s:
                break
            chosen = [items[name] for name in trial.tests if name in items]
            self._tell(trial, self._verdict(session, trial, chosen), time.monotonic() - began_s)
        return True

    def _verdict(self, session: pytest.Session, trial: Trial, items: list[pytest.Item]) -> Verdict:
        while items:
            code, failed = self._run(session, trial, items)
            if code == _NOT_SWAPPED:
                return Verdict(None, "is part of no function")
            if code == _PASSED:
                return Verdict(False, f"{len(items)} tests")
            if not failed:
                return Verdict(True, "ends without an answer, or not at all")
            if self._is_sound(session, failed, items):
                return Verdict(True, failed)
            items = [item for item in items if item.nodeid != failed]
        return Verdict(False, "no test")

    def _is_sound(self, session: pytest.Session, name: str, items: Sequence[pytest.Item]) -> bool:
        """Whether a test passes where nothing is changed."""
        if name not in self._sound:
            (item,) = (each for each in items if each.nodeid == name)
            self._sound[name] = self._run(session, None, [item])[0] == _PASSED
        return self._sound[name]

    def _run(
        self, session: pytest.Session, trial: Trial | None, items: Sequence[pytest.Item]
    ) -> tuple[int, str]:
        """Return how a process of its own ended, and which test failed there."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.close(reading)
                self._child(session, trial, items, writing)
            leave(_FAILED)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what a test left behind
        with os.fdopen(reading, "rb") as pipe:
            return os.waitstatus_to_exitcode(status), pipe.read().decode()

    def _child(
        self, session: pytest.Session, trial: Trial | None, items: Sequence[pytest.Item], pipe: int
    ) -> None:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # One that never ends is killed: by what it computes, however busy the machine is, or, where
        # it waits instead, by the clock.
        usual_s = int(trial.seconds if trial else 20)
        resource.setrlimit(resource.RLIMIT_CPU, (5 + 4 * usual_s, resource.RLIM_INFINITY))
        signal.alarm(60 + 10 * usual_s)
        resource.setrlimit(resource.RLIMIT_DATA, (_BYTES_MAX, _BYTES_MAX))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if trial:
            if fresh.name_of(trial.path) not in sys.modules:
                fresh.install(trial.path, trial.tree)
            elif not swap(self._functions.get(str(trial.path), ()), trial.path, trial.tree):
                leave(_NOT_SWAPPED)
            for cache in self._caches:  # what it holds was found before the change
                cache.cache_clear()
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os.write(pipe, item.nodeid.encode())
                leave(_FAILED)
        leave(_PASSED)


def _what_there_is() -> tuple[Mapping[str, Sequence[FunctionType]], Sequence[Any]]:
    """Return all functions, by the file that they are of, and the caches of those of ours."""
    gc.unfreeze()
    functions: defaultdict[str, list[FunctionType]] = defaultdict(list)
    caches = []
    for each in gc.get_objects():
        if type(each) is FunctionType:
            functions[each.__code__.co_filename].append(each)
        elif type(each) is _CACHE and each.__module__.startswith("swarmnode."):
            caches.append(each)
    gc.collect()
    gc.freeze()  # else each process copies all of it when it collects
    return functions, caches


def run(
    trials: Sequence[Trial],
    tell: Callable[[Trial, Verdict, float], None],
    until_s: float,
) -> None:
    """Try mutants until a time of ``time.monotonic``."""
    files = sorted({name.partition("::")[0] for trial in trials for name in trial.tests})
    words = ["-n", "0", "-q", "-s", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    words += ["-W", "ignore:Module already imported", "--hypothesis-seed=0", "-m", ""]
    pytest.main([*words, *files], plugins=[Trials(trials, tell, until_s)])
