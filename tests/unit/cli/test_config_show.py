"""`swarmnode config show`: what holds, and where it comes from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swarmnode.cli.main import cli
from swarmnode.config import NodeConfig
from swarmnode.errors import ConfigError


def show(home: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["config", "show", "--home", str(home), *options])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.toml").write_text('role = "keeper"\nadvertise = ["a.example:1"]\n')
    monkeypatch.setenv("SWARMNODE_LISTEN", "*:9")
    return tmp_path


def test_every_setting_with_its_origin(home: Path) -> None:
    done = show(home, "--origin")
    lines = dict(line.split(" = ", 1) for line in done.output.splitlines())
    assert list(lines) == list(NodeConfig.__struct_fields__)
    split = {name: line.rpartition(" # ") for name, line in lines.items()}
    assert split["role"][::2] == ('"keeper"'.ljust(len(split["role"][0])), f"{home}/config.toml")
    assert split["listen"][0].strip() == '"*:9"'
    assert split["listen"][2] == "SWARMNODE_LISTEN"
    assert split["home"][2] == "--home"
    assert split["lan"][0].strip() == "true"
    assert split["lan"][2] == "default"


def test_what_it_prints_is_a_config_file(home: Path) -> None:
    done = show(home, "--origin")
    settings = tomllib.loads(done.output)
    assert settings.pop("home") == str(home)
    other = home / "other"
    other.mkdir()
    text = "\n".join(line for line in done.output.splitlines() if not line.startswith("home "))
    (other / "config.toml").write_text(text)
    again = show(other, "--json")
    assert {name: one["value"] for name, one in json.loads(again.output).items()} == {
        **settings,
        "home": str(other),
    }


def test_only_what_was_changed(home: Path) -> None:
    assert set(json.loads(show(home, "--changed", "--json").output)) == {
        "home",
        "role",
        "advertise",
        "listen",
    }


def test_a_wrong_file_is_named(home: Path) -> None:
    (home / "config.toml").write_text("rolle = 1\n")
    done = show(home)
    assert isinstance(done.exception, ConfigError)
    assert "config.toml: unknown setting 'rolle': did you mean 'role'?" in str(done.exception)


def test_the_password_of_a_proxy_is_shown_nowhere(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARMNODE_PROXY", "http://ann:swordfish@proxy.example:3128")
    for options in ((), ("--origin",), ("--json",)):
        shown = show(home, *options).output
        assert "http://***@proxy.example:3128" in shown
        assert "swordfish" not in shown
        assert "ann:" not in shown
    monkeypatch.setenv("SWARMNODE_PROXY", "http://ann:sword/fish@proxy.example:3128")
    done = show(home)
    assert isinstance(done.exception, ConfigError)
    assert "got 'http://***@proxy.example:3128'" in str(done.exception)
    assert "fish" not in done.output + str(done.exception)
