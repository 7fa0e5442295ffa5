"""Names of codecs are capitals; small letters mean the same codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swarmnode.bench import exchange as bench_exchange
from swarmnode.cli import simulate
from swarmnode.cli.main import cli
from swarmnode.config import Paths
from swarmnode.store.swarms import read_manifest
from swarmnode.strategies.registry import find_strategy


def test_bench_exchange_takes_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(*arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        return {"codec": arguments[1]}

    monkeypatch.setattr(bench_exchange, "run_exchange_bench", run)
    arguments = ["bench", "exchange", "--params", "64", "--codec", "q8b64", "--json"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert json.loads(done.output) == {"codec": "Q8B64"}
    assert asked == [(64, "Q8B64", 15)]


def test_create_writes_the_one_name_into_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path))
    sizes = ["--set", "dim=8", "--set", "strategy.delta_codec=e3m0"]
    arguments = ["create", "demo", "--task", "synthetic", "--codec", "q4b64", *sizes]
    at = ["--listen", "127.0.0.1:7441", "--advertise", "127.0.0.1:7441"]
    done = CliRunner().invoke(cli, [*arguments, *at, "--json"], catch_exceptions=False)
    assert json.loads(done.output)["codec"] == "Q4B64"
    manifest = read_manifest("demo", Paths(tmp_path))
    assert manifest.codec == "Q4B64"
    assert manifest.strategy_settings["delta_codec"] == "E3M0"


def test_simulate_takes_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def run(text: str, **options: Any) -> dict[str, Any]:
        del options
        asked.append(json.loads(text))
        return {}

    monkeypatch.setattr(simulate, "run_offline", run)
    arguments = ["simulate", "--strategy", "streaming", "--codec", "bf16", "--json"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert [each["codec"] for each in asked] == ["BF16"]


def test_settings_of_streaming_that_name_codecs() -> None:
    config = find_strategy("streaming").parse({"delta_codec": "q4b64", "weights_codec": "bf16"})
    assert (config.delta_codec, config.weights_codec) == ("Q4B64", "BF16")
