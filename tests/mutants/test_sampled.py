"""The sampler of ``tests/mutants/sampled.py``: what it changes, which tests it asks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mutants.sampled import changed, files_for, judge, main, sample

PACING = ROOT / "swarmnode" / "protocol" / "pacing.py"


def test_one_place_is_changed_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("def f(a: int = 1) -> int:\n    if a < 2 and a:\n        return a + 1\n")
    names = changed(path, -1)[1]
    assert [name.partition(":")[0] for name in names] == [
        *("f logic", "f compare", "f constant", "f result", "f operator", "f constant"),
    ]
    texts = {ast.unparse(changed(path, wanted)[0]) for wanted in range(len(names))}
    assert len(texts) == len(names)
    assert ast.unparse(changed(path, -1)[0]) not in texts
    assert any("a <= 2" in text for text in texts)


def test_a_seed_chooses_the_same_again() -> None:
    assert sample(4, 1, "protocol/pacing") == sample(4, 1, "protocol/pacing")


def test_a_module_is_shown_to_the_tests_that_import_it() -> None:
    assert files_for("swarmnode.protocol.pacing")[0] == "tests/unit/protocol/test_pacing.py"


def test_too_few_that_are_killed_fail() -> None:
    assert judge(9, ["one"]) == []
    assert judge(8, ["one"]) == ["expected 90% to be killed, 8 of 9 are"]


def test_what_survives_is_named_with_the_tests_that_saw_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sound = ast.unparse(ast.parse(PACING.read_bytes()))
    words = ["--count", "2", "protocol/pacing"]
    assert main(words, lambda path, tree, files: ast.unparse(tree) != sound) == 0
    assert "2 of 2 are killed, and 0 change nothing that counts" in capsys.readouterr().out
    assert main(words, lambda path, tree, files: False) == 1
    said = capsys.readouterr().out
    assert said.count("SURVIVED protocol/pacing.py ") == 2
    assert "| by tests/unit/protocol/test_pacing.py" in said
    assert main(words, lambda path, tree, files: True) == 0
    assert capsys.readouterr().out.count("NO VERDICT") == 2
