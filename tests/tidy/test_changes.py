"""A change that users notice has a fragment, in the form that a release collects."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

FRAGMENTS = sorted((ROOT / "docs" / "changes").iterdir())
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
KINDS = {kind["directory"] for kind in SETTINGS["type"]}


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_one_paragraph_of_a_known_kind(path: Path) -> None:
    named = re.fullmatch(r"(\+[a-z0-9-]+|\d+)\.([a-z]+)\.md", path.name)
    assert named is not None, f"expected +NAME.KIND.md, got {path.name}"
    assert named[2] in KINDS
    text = path.read_text()
    assert re.fullmatch(r"[^\n]+[.)]\n", text), f"{path.name}: expected one sentence on one line"


def test_a_release_collects_them_where_the_page_says() -> None:
    page = ROOT / SETTINGS["filename"]
    assert "<!-- towncrier release notes start -->" in page.read_text()
    assert FRAGMENTS[0].parent == ROOT / SETTINGS["directory"]
