"""Which tasks this machine has, without importing any: names, packages, versions.

The built-in ones, and entry points of the group ``swarmnode.tasks`` of installed packages.
Importing a task imports torch, which takes seconds and may not be installed; and whoever only
looks at a swarm need not run anything.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from swarmnode import __version__
from swarmnode.ipc.control import PROGRAM_TASK

ENTRY_POINT_GROUP = "swarmnode.tasks"
# Also when swarmnode runs from a checkout that is not installed.
BUILT_IN = {
    "bytes-lm": "swarmnode.tasks.bytes_lm:BytesLM",
    "digits": "swarmnode.tasks.digits:Digits",
    "llama-lm": "swarmnode.tasks.llama_lm:LlamaLM",
    PROGRAM_TASK: "swarmnode.tasks.program:Program",
    "synthetic": "swarmnode.tasks.synthetic:Synthetic",
}


@dataclass(frozen=True)
class InstalledTask:
    """A task of this machine. ``version`` is None where only running the code would tell."""

    package: str  # name and version of what was installed
    target: str  # module:Class
    version: int | None


def installed_tasks() -> dict[str, str]:
    """Return name → ``module:Class`` of every task that is installed."""
    found = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return found | BUILT_IN


def look_at_task(name: str) -> InstalledTask | None:
    """Return what is installed here as task ``name``, None if nothing is."""
    target = installed_tasks().get(name)
    if target is None:
        return None
    package = f"swarmnode {__version__}"
    if name not in BUILT_IN:
        owners = [entry.dist for entry in entry_points(group=ENTRY_POINT_GROUP, name=name)]
        package = next((f"{dist.name} {dist.version}" for dist in owners if dist), "")
    return InstalledTask(package, target, _version_in_source(target))


def _version_in_source(target: str) -> int | None:
    """Read ``version = N`` in the class that ``module:Class`` names."""
    module, _, class_name = target.partition(":")
    path = _source_of(module)
    if path is None:
        return None
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return _literal(node, "version")
    return None


def _source_of(module: str) -> Path | None:
    """Find the file of a module where importing would, but import none of its packages."""
    package, *rest = module.split(".")
    spec = find_spec(package)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, spec.submodule_search_locations)
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _literal(owner: ast.ClassDef, name: str) -> int | None:
    for node in owner.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Constant(value=value)):
                pass
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.Constant(value=value)):
                pass
            case _:
                continue
        if found == name and isinstance(value, int):
            return value
    return None
