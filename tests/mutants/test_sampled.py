"""The sampler of ``tests/mutants/sampled.py``: what it changes, which tests it asks."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest

from tests.conftest import ROOT
from tests.mutants.fresh import files_for
from tests.mutants.reach import Reach, block_of, read
from tests.mutants.sampled import (
    Mutant,
    Verdicts,
    changed,
    judge,
    lines_since,
    main,
    sample,
    trials_of,
    try_all,
)
from tests.mutants.trial import swap

PACING = ROOT / "swarmnode" / "protocol" / "pacing.py"
SOURCE = '''
def f(a: int = 1) -> int:
    """Text."""
    if a < 2 and a:
        return a + 1
    else:
        a = 3
    return a
'''


def test_one_place_is_changed_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("def f(a: int = 1) -> int:\n    if a < 2 and a:\n        return a + 1\n")
    _, names, lines = changed(path, -1)
    assert [name.partition(":")[0] for name in names] == [
        *("f logic", "f compare", "f constant", "f result", "f operator", "f constant"),
    ]
    assert lines == [2, 2, 2, 3, 3, 3]
    texts = {ast.unparse(changed(path, wanted)[0]) for wanted in range(len(names))}
    assert len(texts) == len(names)
    assert ast.unparse(changed(path, -1)[0]) not in texts
    assert any("a <= 2" in text for text in texts)


def test_lines_that_are_new_since_a_commit_are_known(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a", *words],
                       check=True)  # fmt: skip

    old, other = tmp_path / "swarmnode" / "old.py", tmp_path / "swarmnode" / "other.py"
    old.parent.mkdir()
    old.write_text("a\nb\nc\nd\n")
    other.write_text("a\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    old.write_text("a\nB\nc\nnew\nnewer\n")
    new = old.with_name("new.py")
    new.write_text("a\nb\n")
    git("add", "-A")
    expected = {*((old, line) for line in (2, 4, 5)), (new, 1), (new, 2)}
    assert lines_since("HEAD", tmp_path) == expected
    with pytest.raises(subprocess.CalledProcessError):
        lines_since("no-such-commit", tmp_path)


def test_a_seed_chooses_the_same_again() -> None:
    four = sample(4, 1, "protocol/pacing")
    assert four == sample(4, 1, "protocol/pacing") == sample(5, 1, "protocol/pacing")[:4]
    assert four != sample(4, 2, "protocol/pacing")


def test_a_module_is_shown_to_the_tests_that_import_it() -> None:
    assert files_for("swarmnode.protocol.pacing")[0] == "tests/unit/protocol/test_pacing.py"


def test_too_few_that_are_killed_fail() -> None:
    assert judge(9, ["one"]) == []
    assert judge(8, ["one"]) == ["expected 90% to be killed, 8 of 9 are"]


@pytest.mark.parametrize(("line", "block"), [(1, 0), (4, 3), (5, 5), (7, 7), (8, 3)])
def test_a_line_belongs_to_its_innermost_block(line: int, block: int) -> None:
    assert block_of(SOURCE, line) == block


def test_tests_that_run_the_block_are_asked_the_quick_ones_first(tmp_path: Path) -> None:
    path = tmp_path / "reach"
    path.write_text(
        '["slow", 9.0, {"swarmnode.protocol.pacing": [7]}]\n'
        '["quick", 0.5, {"swarmnode.protocol.pacing": [7]}]\n'
        '["elsewhere", 0.1, {"swarmnode.protocol.pacing": [8]}]\n'
    )
    reach = read(path)
    block = next(line for line in range(1, 200) if block_of(PACING.read_text(), line))
    reach = Reach(reach.seconds, {("swarmnode.protocol.pacing", block): ["slow", "quick"]})
    mutant = Mutant("name", PACING, 0, block)
    for seconds, chosen in ((1.0, ["quick"]), (0.1, ["quick"]), (10.0, ["quick", "slow"])):
        (one,) = trials_of([mutant], reach, seconds)
        assert one.tests == chosen
    (none,) = trials_of([mutant], Reach({}, {}), 10.0)
    assert not none.tests


def functions_of(path: Path) -> dict[str, FunctionType]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: each for name, each in vars(module).items() if isinstance(each, FunctionType)}


def test_functions_that_are_there_get_other_code(tmp_path: Path) -> None:
    path = tmp_path / "swapped.py"
    path.write_text(SOURCE)
    functions = functions_of(path)
    old = functions["f"]
    assert old(1) == 2
    assert swap([old], path, changed(path, -1)[0]) == 0
    wanted = next(at for at, name in enumerate(changed(path, -1)[1]) if "operator" in name)
    assert swap([old], path, changed(path, wanted)[0]) == 1
    assert old(1) == 0


def test_what_survives_is_named_and_a_verdict_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reach, kept = tmp_path / "reach", tmp_path / "verdicts"
    reach.touch()
    words = ["--count", "2", "--reach", str(reach), "--verdicts", str(kept), "protocol/pacing"]
    asked: list[str] = []

    def attempt(killed: bool) -> Callable[..., None]:
        def give(pending: Sequence[Mutant], found: Verdicts, *_: object) -> None:
            for each in pending:
                asked.append(each.name)
                found.add(each.name, killed, "tests/x.py::test_y", 0.1)

        return give

    assert main(words, lambda *_: None) == 1
    assert "2 of 2 have no verdict yet" in capsys.readouterr().out
    assert main(words, attempt(False)) == 1
    assert capsys.readouterr().out.count("SURVIVED protocol/pacing.py ") == 4
    assert main(words, attempt(True)) == 1  # what is known is not asked for again
    assert len(asked) == 2
    assert main([*words, "--again"], attempt(True)) == 0
    assert "in all: 2 of 2 are killed, and 0 change nothing" in capsys.readouterr().out


def test_what_is_part_of_no_function_is_tried_again_too(tmp_path: Path) -> None:
    reach, kept = tmp_path / "reach", tmp_path / "verdicts"
    reach.touch()
    chosen = "protocol/membership/swim_events.py Tally constant"
    words = ["--reach", f"{reach}", "--verdicts", f"{kept}", chosen]
    assert main(words, partial(try_all, is_killed=lambda *_: False)) == 1

    def is_changed(path: Path, tree: ast.Module, _: object) -> bool:
        return ast.dump(tree) != ast.dump(changed(path, -1)[0])

    attempt = partial(try_all, is_killed=is_changed)
    assert main(words, attempt) == 1, "what is known is not asked for again"
    assert main([*words, "--again"], attempt) == 0


@pytest.mark.slow
def test_it_goes_from_which_test_runs_what_to_verdicts(tmp_path: Path) -> None:
    reach, kept = tmp_path / "reach", tmp_path / "verdicts"
    test = "tests/unit/protocol/test_pacing.py"
    python(
        ["-m", "pytest", "-n", "0", "-p", "tests.mutants.reach", test], SWARMNODE_REACH=f"{reach}"
    )
    words = ["--count", "8", "--reach", f"{reach}", "--verdicts", f"{kept}", "protocol/pacing"]
    said = python(["-m", "tests.mutants.sampled", *words])
    assert said.count("killed   protocol/pacing.py ") >= 7
    assert f"| {test}::test_" in said


def python(words: Sequence[str], **more: str) -> str:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | more,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=300,
    ).stdout
