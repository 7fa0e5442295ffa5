"""`.ci/hashes.txt` has all that swarmnode brings, at the versions that the tests run with."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import swarmnode
from tests.conftest import ROOT
from tests.tidy.test_tidy import text_of

HASHES, CONSTRAINTS = ROOT / ".ci" / "hashes.txt", ROOT / ".ci" / "constraints.txt"


def pins_of(text: str) -> dict[str, str]:
    """Return the version of each package that has one."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def brought_by(name: str) -> set[str]:
    """Return what an installed distribution needs without extras, and what those need."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        for text in importlib.metadata.requires(ahead.pop()) or ():
            wanted = Requirement(text)
            needed = canonicalize_name(wanted.name)
            if needed not in found and (wanted.marker is None or wanted.marker.evaluate()):
                found.add(needed)
                ahead.append(needed)
    return found


def test_each_package_that_comes_along_has_its_hashes() -> None:
    hashed = pins_of(text_of(HASHES))
    brought = brought_by(swarmnode.DISTRIBUTION)
    assert len(brought) > 15
    assert brought | {"setuptools"} == hashed.keys(), "write it anew: bash .ci/hash"
    assert {name: importlib.metadata.version(name) for name in brought}.items() <= hashed.items()
    # A package that is not held there would be another one as soon as its next version is out.
    assert hashed.items() <= pins_of(text_of(CONSTRAINTS)).items()


def test_each_has_some_and_they_are_hashes() -> None:
    entries = re.split(r"\n(?=\w)", text_of(HASHES).replace("\\\n", "").strip())[1:]
    hashes = [re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", entry) for entry in entries]
    assert len(entries) == len(pins_of(text_of(HASHES)))
    assert all(each and len(each) == len(set(each)) for each in hashes)
    assert sum(map(len, hashes)) == text_of(HASHES).count("--hash")
