"""``swarmnode bench`` finds each bench by its name, and each takes what the verb gives it."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from typing import Any

import pytest
from click.testing import CliRunner

from swarmnode.cli.bench import bench

LINKS = {"link": [], "relay": ["--path", "relay"], "rtc": ["--path", "rtc"]}
VERBS = sorted({*bench.commands} - {"fidelity", "learning", "link"})


@pytest.mark.parametrize("name", [*VERBS, *LINKS])
def test_a_verb_fits_its_bench(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"swarmnode.bench.{name}")
    signature = inspect.signature(getattr(module, f"run_{name}_bench"))

    def bound(*settings: Any, **named: Any) -> dict[str, int]:
        return {"given": len(signature.bind(*settings, **named).arguments)}

    monkeypatch.setattr(module, f"run_{name}_bench", bound)
    monkeypatch.setattr(module, f"format_{name}_bench", json.dumps)
    arguments = ["link", *LINKS[name]] if name in LINKS else [name]
    as_text = CliRunner().invoke(bench, arguments, standalone_mode=False)
    as_json = CliRunner().invoke(bench, [*arguments, "--json"], standalone_mode=False)
    assert as_text.exception is None
    assert json.loads(as_text.output) == json.loads(as_json.output)
