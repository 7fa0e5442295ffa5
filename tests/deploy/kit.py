"""Where the files are, and the programs that judge them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
PROGRAM_DEADLINE_S = 120.0


def needs(program: str) -> pytest.MarkDecorator:
    """Skip where ``program`` is not installed: CI installs what it needs."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}")


def run(*command: str | Path, **options: Any) -> str:
    """Run a program to its end and return what it printed; fail with that if it fails."""
    done = subprocess.run(
        [str(each) for each in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=PROGRAM_DEADLINE_S,
        stdin=subprocess.DEVNULL,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    printed: str = done.stdout
    return printed


def load(path: Path) -> Any:
    """Return what a YAML file with one document says."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Rule:
    """A recording rule or an alert."""

    name: str
    expr: str
    annotations: dict[str, str]
    labels: dict[str, str]
    is_alert: bool


def rules() -> list[Rule]:
    """Return all rules of the tree, in their order."""
    return [
        Rule(
            rule.get("alert") or rule["record"],
            rule["expr"],
            rule.get("annotations", {}),
            rule.get("labels", {}),
            "alert" in rule,
        )
        for path in RULES
        for group in load(path)["groups"]
        for rule in group["rules"]
    ]


def recorded() -> set[str]:
    """Return the names that recording rules give."""
    return {rule.name for rule in rules() if not rule.is_alert}
