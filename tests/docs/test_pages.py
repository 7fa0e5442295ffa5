"""The pages of the volunteer, the researcher and the operator, followed command by command."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from swarmnode.ids import PeerId
from swarmnode.protocol.swarm import Hint
from tests.conftest import ROOT
from tests.docs.reader import (
    ELSEWHERE_TESTED,
    MAY_FIND_FAULTS,
    ON_ANOTHER_MACHINE,
    WITHOUT_A_SCREEN,
    Reader,
    commands_of,
    parse,
)
from tests.kits.daemon_kit import LOOPBACK, Daemon, make_home, new_swarm

PAGES = ("volunteer.md", "researcher.md", "operator.md")
WORDS_OF_A_PAGE = 500
PAGES_MAX = 5
OF_OURS = ("swarmnode ", "sudo swarmnode ")


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    """The link to a swarm of another's, that trains."""
    swarm = new_swarm()
    make_home(tmp_path / "other", swarm)
    other = Daemon(tmp_path / "other", str(swarm.link()))
    try:
        peer = PeerId.parse(other.wait_training()["peer"])
        yield str(swarm.link(Hint(peer, f"{LOOPBACK}:{other.port}")))
    finally:
        other.kill()


@pytest.mark.slow  # five minutes: fifteen nodes start, one after the other
@pytest.mark.parametrize("page", PAGES)
def test_the_page_can_be_followed(page: str, link: str, tmp_path: Path) -> None:
    with Reader(tmp_path / "reader", link) as reader:
        if page == "operator.md":  # the operator's home knows the swarm already
            reader.follow("swarmnode join 'swarm:NAME?k=…&b=…' --role keeper")
        for command in commands_of(page):
            if command not in ELSEWHERE_TESTED:
                reader.follow(command)


@pytest.mark.slow  # half a minute
def test_a_command_that_does_not_work_is_noticed(link: str, tmp_path: Path) -> None:
    with Reader(tmp_path / "reader", link) as reader:
        reader.follow("swarmnode paths")
        with pytest.raises(AssertionError, match="No such option"):
            reader.follow("swarmnode status --colour")
        with pytest.raises(AssertionError, match="swarmnode status"):
            reader.follow("swarmnode status")  # no node runs
        with pytest.raises(AssertionError, match="--rôle"):
            reader.follow("swarmnode join 'swarm:NAME?k=…&b=…' --rôle keeper")


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_found(page: str) -> None:
    found = commands_of(page)
    assert len(found) >= 12
    assert any(command.startswith("swarmnode join NAME") for command in found)


def test_every_exception_is_a_command_of_the_pages() -> None:
    known = {command for page in PAGES for command in commands_of(page)}
    assert {*ELSEWHERE_TESTED, *ON_ANOTHER_MACHINE, *WITHOUT_A_SCREEN, *MAY_FIND_FAULTS} <= known


def test_what_tests_a_command_instead_gives_its_verb_and_options() -> None:
    for command, path in ELSEWHERE_TESTED.items():
        program, *rest = shlex.split(command.removeprefix("sudo "))
        # Verbs, options, and values that are words; what the page leaves open is in capitals.
        words = [word for word in rest if re.fullmatch(r"(--)?[a-z][a-z-]+", word)]
        if program != "swarmnode":
            words = [program]
        text = (ROOT / path).read_text(encoding="utf-8")
        missing = [word for word in words if f'"{word}"' not in text]
        assert not missing, f"{path} has no test of {command!r}"


# --- what is noticed before the night --------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_the_program_takes(page: str, tmp_path: Path) -> None:
    (tmp_path / "node.zip").touch()  # of the command before
    with contextlib.chdir(tmp_path):
        for command in commands_of(page):
            if command.startswith(OF_OURS):
                parse(command)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("swarmnode jion NAME", "No such command 'jion'"),
        ("swarmnode service remove", "No such command 'remove'"),
        ("swarmnode status --colour", "No such option"),
        ("swarmnode join NAME --role", "requires an argument"),
        ("swarmnode join NAME --role queen", "is not one of"),
        ("swarmnode push", "Missing parameter: repo"),
        ("sudo swarmnode service install NAME -- --rôle keeper", "No such option"),
    ],
)
def test_a_command_that_the_program_refuses_is_noticed(command: str, words: str) -> None:
    with pytest.raises(click.UsageError, match=words):
        parse(command)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_read_in_five(page: str) -> None:
    words = (ROOT / "docs" / page).read_text(encoding="utf-8").split()
    assert len(words) <= PAGES_MAX * WORDS_OF_A_PAGE


# --- the four kinds of pages --------------------------------------------------------------

KINDS = ("tutorial", "how-to", "reference", "explanation")  # of Diátaxis, D. Procida
_KIND_ROW = re.compile(r"^\| (\S+) \| (\[.*) \|$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([\w./-]+\.md)\)")


def kinds_of_pages() -> dict[str, list[str]]:
    """Return which kinds the index says a page is of."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    _, _, section = index.partition("\n## What kind of page\n")
    found: dict[str, list[str]] = {}
    for kind, pages in _KIND_ROW.findall(section.partition("\n## ")[0]):
        for page in _PAGE.findall(pages):
            found.setdefault(page, []).append(kind)
    return found


def test_the_index_says_of_each_page_of_which_one_kind_it_is() -> None:
    found = kinds_of_pages()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    folders = {"decisions/README.md", "../proto/README.md"}
    assert set(found) == pages | folders
    assert {page: kinds for page, kinds in found.items() if len(kinds) != 1} == {}
    assert {kind for (kind,) in found.values()} == set(KINDS)


def test_a_page_that_is_generated_or_explains_gives_no_steps() -> None:
    kinds = {page: kind for page, (kind,) in kinds_of_pages().items()}
    docs = ROOT / "docs"
    generated = {
        page for page in kinds if "<!-- Generated by" in (docs / page).read_text(encoding="utf-8")
    }
    assert generated
    assert {kinds[page] for page in generated} == {"reference"}
    # What is followed from the first command to the last begins where its reader has a link only.
    (tutorial,) = (page for page, kind in kinds.items() if kind == "tutorial")
    assert commands_of(tutorial)[0].startswith("swarmnode ")
    assert tutorial in PAGES  # a test follows it
    for page in (page for page, kind in kinds.items() if kind == "explanation"):
        assert not re.search(r"^\d+\. .*`swarmnode ", (docs / page).read_text(), re.MULTILINE), page
