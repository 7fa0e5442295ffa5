"""What `create` writes into a manifest for members to install: the packages that have the task.

They are those of the creator's machine, in their versions, and all that they need and swarmnode
with torch does not bring. The hashes are those of the files that the index has: what was built
here is no file that others could get.
"""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from swarmnode import DISTRIBUTION, limits
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.paths import SwarmPaths
from swarmnode.processes import pip
from swarmnode.processes.environment import (
    check_reference,
    describe_url,
    file_name,
)
from swarmnode.processes.worker_tools import run_offline
from swarmnode.tasks.installed import ENTRY_POINT_GROUP
from swarmnode.tasks.packages import is_package, package_of
from swarmnode.wire.environment import DataReference, Environment, PinnedPackage

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[A-Za-z0-9._, -]+)\])?==(?P<version>[^\s;=]+)"
)
_PURE = "-none-any.whl"
# Of a swarmnode that is not installed, but runs from a checkout.
_OURS = (f"{DISTRIBUTION}[torch]", "torch", "numpy", "msgspec", "safetensors")


class Requirement(NamedTuple):
    """The package of a task, as ``--task-requirement`` names it."""

    name: str
    version: str
    extras: tuple[str, ...] = ()


class Pinned(NamedTuple):
    """The part of a manifest, and remarks for its creator."""

    environment: Environment | None
    notes: tuple[str, ...] = ()


def parse_requirement(text: str) -> Requirement:
    """Read ``DIST[EXTRAS]==VERSION``. Raises ConfigError."""
    found = _REQUIREMENT.fullmatch(text)
    if not found or not is_package(found["name"], found["version"]):
        raise ConfigError(f"--task-requirement: expected DIST==VERSION, got {text[:120]!r}")
    extras = [each.strip() for each in (found["extras"] or "").split(",") if each.strip()]
    return Requirement(found["name"], found["version"], tuple(extras))


def pin_task(task: str, requirement: str | None, index: str) -> Pinned:
    """Return the environment for a task; None for one that comes with swarmnode.

    Args:
        requirement: of the creator; None: the package whose entry point has the task.

    Raises:
        ConfigError: the requirement is not what is installed here.
        SwarmNodeError: the index has not got it. Without a requirement that is a remark.
    """
    if requirement is None:
        name, version = package_of(task)
        if not name:
            return Pinned(None)
        wanted = Requirement(name, version)
        if _is_local(name):
            return Pinned(None, (_by_hand(wanted, "it was installed from files of this machine"),))
    else:
        wanted = parse_requirement(requirement)
        _check_has_task(wanted, task)
    try:
        return _pinned(wanted, index)
    except SwarmNodeError as error:
        if requirement is not None:
            raise
        return Pinned(None, (_by_hand(wanted, str(error)),))


def data_reference(text: str, paths: SwarmPaths) -> tuple[DataReference, str]:
    """Return what a manifest says of ``--data-from``, and the folder where the data is now.

    Raises:
        SwarmNodeError: it cannot be had.
    """
    if "://" in text:
        path = paths.directory / "data" / file_name(text)
        return describe_url(text, path), str(path.parent)
    name, _, revision = text.partition("@")
    check_reference(DataReference("hub", name, "0" * 40))
    found = run_offline("fetch_model", "--data-set", f"--revision={revision}", "--", name)
    proof = bytes.fromhex(found["sha256"])
    reference = DataReference("hub", name, found["revision"], proof, found["size_bytes"])
    check_reference(reference)
    return reference, found["folder"]


def _pinned(wanted: Requirement, index: str) -> Pinned:
    address = pip.index_address(index)
    names = list(dict.fromkeys(_needed(wanted)))
    if len(names) > limits.ENVIRONMENT_PACKAGES_MAX:
        raise ConfigError(
            f"{wanted.name} needs {len(names)} packages that swarmnode does not bring, a manifest"
            f" names at most {limits.ENVIRONMENT_PACKAGES_MAX}"
        )
    with tempfile.TemporaryDirectory(prefix="swarmnode-pins-") as folder:
        files = pip.download(
            Path(folder), [f"{name}=={version}" for name, version in names], address
        )
        disk_bytes = sum(_unpacked_bytes(path) for path in files)
        by_name = {_canonical(path.name.split("-")[0]): path for path in files}
        packages = tuple(
            PinnedPackage(name, version, (files[by_name[_canonical(name)]],))
            for name, version in names
        )
        bound = sorted(path.name for path in files if not path.name.endswith(_PURE))
    named = Environment(packages, wanted.extras, index, disk_bytes=disk_bytes)
    notes = [f"note: only machines like this one can install {', '.join(bound)}"] if bound else []
    return Pinned(named, tuple(notes))


def _needed(wanted: Requirement) -> Iterator[tuple[str, str]]:
    """Yield (name, version) of what members install, as it is installed here."""
    ours = {_canonical(name) for text in _OURS for name, _ in _closure(text)}
    for name, version in _closure(_text(wanted)):
        if _canonical(name) not in ours and _canonical(name) != _canonical(DISTRIBUTION):
            yield name, version


def _closure(text: str) -> Iterator[tuple[str, str]]:
    """Yield a requirement and all that it needs, as far as they are installed here."""
    requirement = _requirement_class()
    waiting, seen = [requirement(text)], set()
    while waiting:
        current = waiting.pop(0)
        key = (_canonical(current.name), *sorted(current.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(current.name)
        except PackageNotFoundError:
            continue
        yield found.name, found.version
        for each in map(requirement, found.requires or ()):
            extras = ("", *current.extras)
            if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(each)


def _requirement_class() -> Any:
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return import_module(module).Requirement
        except ImportError:
            continue
    raise ConfigError("pip is not installed here: python -m ensurepip, then again")


def _check_has_task(wanted: Requirement, task: str) -> None:
    owners = [entry.dist for entry in entry_points(group=ENTRY_POINT_GROUP, name=task)]
    for dist in filter(None, owners):
        if _canonical(dist.name) == _canonical(wanted.name) and dist.version == wanted.version:
            return
    here = ", ".join(f"{dist.name}=={dist.version}" for dist in owners if dist) or "swarmnode"
    raise ConfigError(
        f"--task-requirement: expected the package that has task {task!r} here, {here}, got"
        f" {_text(wanted)}: install that first, as the swarm is made of what it builds"
    )


def _is_local(name: str) -> bool:
    """Whether a package came from a folder or an address, and so is at no index as it is here."""
    said = distribution(name).read_text("direct_url.json")
    return bool(said) and "url" in json.loads(said or "{}")


def _by_hand(wanted: Requirement, why: str) -> str:
    return (
        f"note: others install {wanted.name} {wanted.version} by hand before they join: {why}; to"
        f" have `join` do it, --task-requirement {wanted.name}==VERSION once an index has it"
    )


def _text(wanted: Requirement) -> str:
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    return f"{wanted.name}{extras}=={wanted.version}"


def _unpacked_bytes(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return sum(each.file_size for each in archive.infolist())


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def with_data(named: Environment | None, data: DataReference | None) -> Environment | None:
    """Return what goes into the manifest; None if nothing is to be installed or fetched."""
    if data is None or (named is None and data.kind == "yours"):
        return named
    return msgspec.structs.replace(named or Environment(), data=data)
