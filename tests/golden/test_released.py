"""What a released version has sent is still read, and as it was read then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarmnode import __version__
from tests.golden.messages import load_vectors
from tests.golden.released import FOLDER, OTHERS, differs, digests_of, freeze, read_now

VERSIONS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
MESSAGES = [(version, name) for version, held in VERSIONS.items() for name in held["messages"]]


def test_this_version_is_frozen() -> None:
    assert __version__ in VERSIONS, "run python -m tests.golden.released, and commit the file"


@pytest.mark.parametrize(("version", "name"), MESSAGES)
def test_a_message_of_a_released_version_is_read_as_it_was(version: str, name: str) -> None:
    frozen = VERSIONS[version]["messages"][name]
    data = bytes.fromhex(frozen["bytes"])
    assert load_vectors().get(name) == data, "a vector stays: its example moves to PAST"
    assert differs(frozen["read"], read_now(name, data)) == ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", OTHERS)
def test_the_vectors_of_codecs_and_sessions_stay(version: str, file: str) -> None:
    """Their own tests read all that is in these files."""
    frozen, now = VERSIONS[version][file], digests_of(file)
    assert len(frozen) > 10
    changed = [name for name, digest in frozen.items() if now.get(name) != digest]
    assert not changed, f"{file} is only added to since {version}"


@pytest.mark.parametrize(
    ("frozen", "now", "said"),
    [
        ({"t": "ready", "n": 1}, {"t": "ready", "n": 1, "new": 0}, ""),
        ({"n": 1}, {"n": 2}, "/n: 1 is read as 2"),
        ({"n": 1}, {"n": True}, "/n: 1 is read as True"),
        ({"n": 1, "of": 2}, {"n": 1}, "/of"),
        ({"all": [{"a": 1}, {"a": 2}]}, {"all": [{"a": 1}, {"a": 3}]}, "/all/1/a: 2 is read as 3"),
        ({"all": [1]}, {"all": [1, 2]}, "/all: [1] is read as [1, 2]"),
    ],
)
def test_a_message_may_gain_fields_and_nothing_else(frozen: Any, now: Any, said: str) -> None:
    assert differs(frozen, now) == said


def test_what_is_frozen_is_not_written_again(tmp_path: Any) -> None:
    path = tmp_path / "9.9.9.json"
    assert len(freeze(path)) > 300
    text = path.read_text()
    assert freeze(path) == []
    held = json.loads(text)
    held["messages"]["gossip/commit"]["bytes"] = "00"
    del held["messages"]["gossip/abort"]
    path.write_text(json.dumps(held))
    assert freeze(path) == ["gossip/abort"]
    assert json.loads(path.read_text())["messages"]["gossip/commit"]["bytes"] == "00"
