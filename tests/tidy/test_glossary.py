"""Words that the glossary of ``docs/development.md`` has replaced do not come back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tidy.test_tidy import TESTS, sources_in, text_of

PLACES = ("README.md", "docs", "proto", "swarmnode")
GLOSSARY = ROOT / "docs" / "development.md"

# The old word -> the glossary's.
OLD = {
    "wish": "intent",
    "wishes": "intents",
    "wished": "posted",
    "loan": "buffer lease",
    "loans": "buffer leases",
    "lender": "lessor",
    "grounds": "composition",
    "door": "listener",
    "doors": "listeners",
    "dealer": "assigner, shard assignment",
    "taker": "intent handler",
    "takers": "intent handlers",
    "lane": "stream, topic",
    "lanes": "streams, topics",
    "finder": "rendezvous",
    "seek": "lookup",
}
# Words for a person whom the reader cannot know: a party of the protocol has a name.
UNNAMED = {
    "whoever": "the peer, node, member or caller that",
    "nobody": "no peer, no node, no member",
    "somebody": "a peer, a node, a member; a person",
    "anybody": "any peer, any node, any member",
    "everybody": "all, every peer, every node, every member",
}
# A path's beginning, and what is allowed in it: with the reason.
ALLOWED: dict[str, tuple[str, ...]] = {
    # Bytes on the wire, and on the worker's socket; the same as a metric's label.
    "": ("no-wish", "drop-wish", 'tag="wish"'),
    # What Python calls it.
    "swarmnode/tooling/house.py": ("A finder",),
    "swarmnode/tasks/installed.py": ("PathFinder",),
    "swarmnode/api/process.py": (".seek(", "SEEK_END"),
    "swarmnode/cli/doctor/support_bundle.py": (".seek(", "SEEK_END"),
    "swarmnode/processes/worker_tools.py": (".seek(",),
    "swarmnode/tensor/snapshot_format.py": (".seek(", "SEEK_END"),
    # Lanes of a SIMD register.
    "swarmnode/tensor/reference_numbers.py": ("lanes", "LANES"),
}
SUFFIXES = {".py", ".md", ".json", ".js", ".html", ".css"}
# Words, and the parts of names: PairWishes, _wish_table, WISHES_MAX.
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def old_words(text: str) -> list[str]:
    """Return the words of a text, and of its names, that have been replaced."""
    return [part for part in PART.findall(text) if part.lower() in OLD]


def unnamed_parties(text: str) -> list[str]:
    """Return the words of a text, and of its names, that leave open which party is meant."""
    return [part for part in PART.findall(text) if part.lower() in UNNAMED]


def without_allowed(path: str, text: str) -> str:
    for beginning, allowed in ALLOWED.items():
        if path.startswith(beginning):
            for each in allowed:
                text = text.replace(each, "")
    return text


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PLACES], cwd=ROOT, capture_output=True, check=True
    )
    return [name for name in listed.stdout.decode().split("\0") if name]


def test_words_that_were_replaced_do_not_come_back() -> None:
    found = []
    for path in tracked_files():
        file = ROOT / path
        if not file.exists():
            continue
        text = file.read_text("utf-8") if file.suffix in SUFFIXES else ""
        for number, line in enumerate([Path(path).stem, *text.split("\n")]):
            found += [
                f"{path}:{number}: {old} is now: {OLD[old.lower()]}"
                for old in old_words(without_allowed(path, line))
            ]
    assert found == []


def test_each_party_is_named() -> None:
    found = []
    for path in tracked_files():
        file = ROOT / path
        if file.suffix not in SUFFIXES or not file.exists():
            continue
        lines = file.read_text("utf-8").split("\n")
        found += [
            f"{path}:{number}: {word}: {UNNAMED[word.lower()]}"
            for number, line in enumerate(lines, 1)
            for word in unnamed_parties(line)
        ]
    assert found == []


@pytest.mark.parametrize("text", ["is told Nobody", "_dial_nobody", "EVERYBODY", "whoever asks"])
def test_an_unnamed_party_is_seen(text: str) -> None:
    assert len(unnamed_parties(text)) == 1


def test_names_of_tests_name_each_party() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources_in(TESTS)
        for name in re.findall(r"^(?:async )?def (test_\w+)", text_of(path), re.MULTILINE)
        if unnamed_parties(name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["a wish of ours", "PairWishes", "WISHES_MAX", "_wish_table", "NoLoan", "to the door"]
)
def test_an_old_word_is_seen(text: str) -> None:
    assert len(old_words(text)) == 1


@pytest.mark.parametrize("text", ["in the plane", "explanation", "indoors", "mistaken", "washed"])
def test_words_that_hold_an_old_one_are_left_alone(text: str) -> None:
    assert old_words(text) == []


def test_what_is_allowed_is_still_there() -> None:
    for beginning, allowed in ALLOWED.items():
        texts = [
            (ROOT / path).read_text("utf-8")
            for path in tracked_files()
            if path.startswith(beginning) and (ROOT / path).suffix in SUFFIXES
        ]
        assert [each for each in allowed if not any(each in text for text in texts)] == []


def test_each_concept_of_the_glossary_has_one_row() -> None:
    section = GLOSSARY.read_text("utf-8").split("## Glossary\n")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.split("\n") if line.startswith("| ")][1:]
    names = [row[1] for row in rows]
    assert len(names) > 25
    assert sorted(set(names)) == sorted(names)
