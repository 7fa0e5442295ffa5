"""Mutants of protocol/, store/ and strategies/, by sample: ``python -m tests.mutants.sampled``.

One comparison, operator, number, call or result is changed in a process of its own, and a test must
turn red, within a time limit: one of those that run the block, as ``--reach`` has it
(``reach.py``). Which of all mutants are tried follows from the seed. Verdicts are kept in a file,
and those that it has are not asked for again. It fails if fewer than KILLED_SHARE_MIN are killed;
those that change nothing that counts stand in ``equivalent.tsv``, with the reason, and are left
out.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import copy
import json
import multiprocessing
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.mutants import fresh, trial
from tests.mutants.reach import Reach, block_of, read
from tests.mutants.sampled_reasons import EQUIVALENT
from tests.mutants.trial import Trial, Verdict

KILLED_SHARE_MIN = 0.9
_PACKAGE = ROOT / "swarmnode"
ROOMS = ("protocol", "store", "strategies")
# A quick test says most of what a slow one of the same block would.
_TESTS_S_MAX = 20.0

_NEW_FILE = re.compile(r"\+\+\+ b/(.+)")
_NEW_LINES = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")

IsKilled = Callable[[Path, ast.Module, tuple[str, ...]], bool]

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
        case ast.Return(ast.Constant(None | False)):
            pass  # None is as good
        case ast.Return(ast.expr()):
            yield "result", ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call()):
            yield "call", ast.Pass()


class _Change(ast.NodeTransformer):
    """Makes the ``wanted``-th change, and names them all."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.names: list[str] = []
        self.lines: list[int] = []
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
        self.lines.append(node.lineno)  # type: ignore[attr-defined]
        return len(self.names) - 1 == self._wanted


def changed(path: Path, wanted: int) -> tuple[ast.Module, list[str], list[int]]:
    """Return the tree with one change, and of all that can be made the names and lines."""
    change = _Change(wanted)
    tree = ast.parse(path.read_bytes())
    tree.body = [change.visit(each) for each in tree.body]  # type: ignore[misc]
    return ast.fix_missing_locations(tree), change.names, change.lines


class Mutant(NamedTuple):
    """``wanted``: the number of its change among those of the file. ``line``: where it is."""

    name: str
    path: Path
    wanted: int
    line: int


def mutants(within: str = "") -> list[Mutant]:
    """Return all there are in paths with this word, each with a name of its own."""
    found = []
    for path in (path for room in ROOMS for path in sorted((_PACKAGE / room).rglob("*.py"))):
        short = str(path.relative_to(_PACKAGE))
        if within in short:
            _, names, lines = changed(path, -1)
            for wanted, (name, line) in enumerate(zip(names, lines, strict=True)):
                found.append(Mutant(f"{short} {name}", path, wanted, line))
    return found


def lines_since(revision: str, root: Path = ROOT) -> set[tuple[Path, int]]:
    """Return the lines that are new since a commit. Raises CalledProcessError: there is no such."""
    told = subprocess.run(
        ["git", "diff", "--unified=0", "--no-ext-diff", revision, "--", _PACKAGE.name],
        cwd=root,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    found: set[tuple[Path, int]] = set()
    path = root
    for line in told.splitlines():
        if match := _NEW_FILE.fullmatch(line):
            path = root / match[1]
        elif match := _NEW_LINES.match(line):
            first, n = int(match[1]), int(match[2] or 1)
            found |= {(path, number) for number in range(first, first + n)}
    return found


def sample(n: int, seed: int, chosen: str = "", since: str = "") -> list[Mutant]:
    fit = [each for each in mutants(chosen.partition(" ")[0]) if chosen in each.name]
    if since:
        new = lines_since(since)
        fit = [each for each in fit if (each.path, each.line) in new]
    # By their names: a change of the code changes little of the sample.
    return sorted(fit, key=lambda each: sha256(f"{seed} {each.name}".encode()).digest())[:n]


class Verdicts:
    """What was found of each mutant, in a file that outlives the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[bool | None, str]] = {}
        self.read()

    def read(self) -> None:
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            name, killed, by, _ = json.loads(line)
            self._known[name] = killed, by

    def __contains__(self, mutant: Mutant) -> bool:
        return self._known.get(mutant.name, (None, ""))[0] is not None

    def has_survived(self, mutant: Mutant) -> bool:
        return self._known.get(mutant.name, (None, ""))[0] is False

    def needs_fresh(self, mutant: Mutant) -> bool:
        return mutant.name in self._known and mutant not in self

    def by(self, mutant: Mutant) -> str:
        return self._known[mutant.name][1]

    def add(self, name: str, killed: bool | None, by: str, took_s: float) -> None:
        self._known[name] = killed, by
        with self._path.open("a") as file:
            file.write(json.dumps([name, killed, by, round(took_s, 2)]) + "\n")
        word = {True: "killed  ", False: "SURVIVED", None: "not yet "}[killed]
        print(word, name, "|", by, flush=True)


def try_fresh(
    mutant: Mutant, verdicts: Verdicts, sound: dict[Path, bool], is_killed: IsKilled
) -> None:
    """Import all anew: for what is part of no function."""
    began_s = time.monotonic()
    files = fresh.files_for(fresh.name_of(mutant.path))
    tree = changed(mutant.path, mutant.wanted)[0]
    killed = bool(files) and is_killed(mutant.path, tree, files)
    if killed and mutant.path not in sound:
        sound[mutant.path] = not is_killed(mutant.path, changed(mutant.path, -1)[0], files)
    if killed and not sound[mutant.path]:
        print(f"NO VERDICT {mutant.name}: of {' '.join(files)} one fails where nothing is changed")
        return
    verdicts.add(mutant.name, killed, " ".join(files) or "no test", time.monotonic() - began_s)


def trials_of(pending: Sequence[Mutant], reach: Reach, tests_s_max: float) -> list[Trial]:
    found = []
    for mutant in pending:
        module, text = fresh.name_of(mutant.path), mutant.path.read_text()
        reaching = reach.of(module, mutant.line, text)
        sums_s = list(accumulate(reach.seconds[test] for test in reaching))
        n = max(1, bisect.bisect(sums_s, tests_s_max))
        tree = changed(mutant.path, mutant.wanted)[0]
        total_s = sums_s[n - 1] if len(sums_s) >= n else 0.0
        found.append(Trial(mutant.name, mutant.path, tree, reaching[:n], total_s))
    return found


def try_all(
    pending: Sequence[Mutant],
    verdicts: Verdicts,
    reach: Reach,
    options: argparse.Namespace,
    is_killed: IsKilled = fresh.is_killed,
) -> None:
    until_s = time.monotonic() + options.seconds

    def is_warm(mutant: Mutant) -> bool:
        is_within = block_of(mutant.path.read_text(), mutant.line) > 0
        return is_within and not verdicts.needs_fresh(mutant)

    def tell(tried: Trial, verdict: Verdict, took_s: float) -> None:
        verdicts.add(tried.name, verdict.killed, verdict.by, took_s)

    if warm := [mutant for mutant in pending if is_warm(mutant)]:
        arguments = trials_of(warm, reach, options.tests_s), tell, until_s
        # What is to be imported anew must not be imported here.
        child = multiprocessing.get_context("fork").Process(target=trial.run, args=arguments)
        child.start()
        child.join()
        verdicts.read()
    sound: dict[Path, bool] = {}
    for mutant in [mutant for mutant in pending if not is_warm(mutant)]:
        if time.monotonic() < until_s:
            try_fresh(mutant, verdicts, sound, is_killed)


def judge(killed: int, survived: Sequence[str]) -> list[str]:
    """Return what is wrong with the outcome."""
    counted = [name for name in survived if name not in EQUIVALENT]
    total = killed + len(counted)
    if killed < KILLED_SHARE_MIN * total:
        return [f"expected {KILLED_SHARE_MIN:.0%} to be killed, {killed} of {total} are"]
    return []


def report(chosen: Sequence[Mutant], verdicts: Verdicts) -> list[str]:
    """Print what is known of a sample; return what is wrong with it."""
    wrong = []
    survived = [each for each in chosen if verdicts.has_survived(each)]
    for each in survived:
        print("SURVIVED", each.name, "|", EQUIVALENT.get(each.name) or f"by {verdicts.by(each)}")
    for room in ("", *ROOMS):
        here = [each for each in chosen if each.name.startswith(room) and each in verdicts]
        lost = [each.name for each in survived if each.name.startswith(room)]
        n_equivalent = sum(name in EQUIVALENT for name in lost)
        killed = len(here) - len(lost)
        print(
            f"{room or 'in all'}: {killed} of {len(here) - n_equivalent} are killed,"
            f" and {n_equivalent} change nothing that counts"
        )
        wrong += judge(killed, lost) if not room else []
    unknown = sum(each not in verdicts for each in chosen)
    return wrong + [f"{unknown} of {len(chosen)} have no verdict yet"] * bool(unknown)


def main(arguments: Sequence[str], attempt: Callable[..., None] = try_all) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.sampled", description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--since", default="", help="only in lines that are new since this commit")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long to go on")
    parser.add_argument("--tests-s", type=float, default=_TESTS_S_MAX, help="of tests, for each")
    parser.add_argument("--reach", type=Path, required=True, help="which test runs what (reach.py)")
    parser.add_argument("--verdicts", type=Path, required=True, help="file to go on from")
    parser.add_argument("--again", action="store_true", help="try what survived again")
    parser.add_argument("chosen", nargs="?", default="", help="only those in paths with it")
    options = parser.parse_args(arguments)
    chosen = sample(options.count, options.seed, options.chosen, options.since)
    verdicts = Verdicts(options.verdicts)
    pending = [
        each
        for each in chosen
        if each not in verdicts
        or (options.again and verdicts.has_survived(each) and each.name not in EQUIVALENT)
    ]
    if pending:
        attempt(pending, verdicts, read(options.reach), options)
    wrong = report(chosen, verdicts)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    # What tests stand on is loaded once, and what is mutated is not.
    import numpy  # noqa: F401
    import torch  # noqa: F401
    import trio.testing  # noqa: F401

    assert not [name for name in sys.modules if name.startswith("swarmnode.protocol")]
    sys.exit(main(sys.argv[1:]))
