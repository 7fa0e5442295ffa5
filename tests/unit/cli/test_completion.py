"""What the shell is told: verbs, and the swarms of this home wherever a verb takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from swarmnode.cli.main import cli
from swarmnode.cli.options import SwarmName
from swarmnode.config import Paths
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.store.swarms import save_link

KEY = Identity.from_seed(b"s" * 32).public_key
Complete = Callable[..., list[str]]


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return what the shell offers after these words; the home has the swarms demo and tiny."""
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("_SWARMNODE_COMPLETE", "bash_complete")
    for name in ("tiny", "demo"):
        save_link(SwarmLink(name, KEY), Paths(tmp_path / "home"))

    def offered(*words: str) -> list[str]:
        *before, incomplete = words
        shell = ShellComplete(cli, {}, "swarmnode", "_SWARMNODE_COMPLETE")
        return [item.value for item in shell.get_completions(before, incomplete)]

    return offered


@pytest.mark.parametrize(
    "words",
    [
        ("join",),
        ("trust",),
        ("swarms",),
        ("invite", "create"),
        ("invite", "list"),
        ("invite", "revoke"),
        ("service", "install"),
    ],
)
def test_a_verb_that_takes_a_swarm_is_offered_those_of_the_home(
    complete: Complete, words: tuple[str, ...]
) -> None:
    assert complete(*words, "") == ["demo", "tiny"]
    assert complete(*words, "t") == ["tiny"]
    assert complete(*words, "x") == []


def test_a_swarm_is_named_once(complete: Complete) -> None:
    assert complete("swarms", "tiny", "") == ["demo"]


def test_another_home_has_others(complete: Complete, tmp_path: Path) -> None:
    save_link(SwarmLink("else", KEY), Paths(tmp_path / "second"))
    assert complete("join", "--home", str(tmp_path / "second"), "") == ["else"]
    assert complete("join", "--home", str(tmp_path / "third"), "") == []


def test_a_new_swarm_has_a_new_name(complete: Complete) -> None:
    assert complete("create", "") == []


def test_verbs_and_options_are_offered_as_before(complete: Complete) -> None:
    assert complete("stat") == ["status"]
    assert "--role" in complete("join", "--r")


def test_a_name_is_any_text(complete: Complete) -> None:
    assert complete("join", "") == ["demo", "tiny"]
    join = cli.get_command(click.Context(cli), "join")
    assert join is not None
    (link,) = [param for param in join.params if isinstance(param.type, SwarmName)]
    assert link.type.convert("swarm:x?k=y", link, None) == "swarm:x?k=y"
