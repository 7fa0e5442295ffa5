"""Which tasks this machine has, without importing any: names, packages, versions, presets.

The built-in ones, and entry points of the group ``swarmnode.tasks`` of installed packages.
Importing a task imports torch, which takes seconds and may not be installed; and a caller that only
looks at a swarm need not run anything. A preset is a name for a task with settings.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swarmnode import DISTRIBUTION, __version__
from swarmnode.ipc.names import PROGRAM_TASK

ENTRY_POINT_GROUP = "swarmnode.tasks"
# Also when swarmnode runs from a checkout that is not installed.
BUILT_IN = {
    "bytes-lm": "swarmnode.tasks.bytes_lm:BytesLM",
    "digits": "swarmnode.tasks.digits:Digits",
    "hub-lm": "swarmnode.tasks.hub_lm:HubLM",
    "least-squares": "swarmnode.tasks.least_squares:LeastSquares",
    "llama-lm": "swarmnode.tasks.llama_lm:LlamaLM",
    "logistic": "swarmnode.tasks.logistic:Logistic",
    PROGRAM_TASK: "swarmnode.tasks.program:Program",
    "synthetic": "swarmnode.tasks.synthetic:Synthetic",
}
_TABLES = ".csv files whose rows are numbers and a label, the label last and no heading"
_DATA = {
    "bytes-lm": "text files",
    "hub-lm": "text files, .jsonl or .parquet",
    "least-squares": _TABLES,
    "llama-lm": "text files",
    "logistic": f"{_TABLES}, labels 0 and 1",
}


@dataclass(frozen=True)
class InstalledTask:
    """A task of this machine. ``version`` is None where only running the code would tell."""

    package: str  # name and version of what was installed
    target: str  # module:Class
    version: int | None


def installed_tasks() -> dict[str, str]:
    """Return name → ``module:Class`` of every task that is installed."""
    # The first of a name counts, as for modules: a swarm's environment comes before ours.
    entries = reversed(tuple(entry_points(group=ENTRY_POINT_GROUP)))
    found = {entry.name: entry.value for entry in entries}
    return found | BUILT_IN


def data_of(name: str) -> str:
    """Return in words what a folder of data holds for task ``name``; "": it is not known yet."""
    return _DATA.get(name, f"the files that task {name} reads" if name else "the task's files")


def look_at_task(name: str) -> InstalledTask | None:
    """Return what is installed here as task ``name``, None if nothing is."""
    target = installed_tasks().get(name)
    if target is None:
        return None
    package = f"{DISTRIBUTION} {__version__}"
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


@dataclass(frozen=True)
class Preset:
    """Settings of a task; ``about`` is for people."""

    task: str
    about: str
    config: dict[str, Any] = field(default_factory=dict)


PRESETS = {
    "gpt-tiny": Preset("bytes-lm", "0.12 M parameters over bytes: for tests, on any CPU"),
    "gpt-15m": Preset(
        "bytes-lm",
        "15 M parameters over bytes: short stories, on a laptop's GPU",
        {"dim": 320, "layers": 12, "heads": 5, "context": 256, "batch": 16, "lr": 1e-3},
    ),
    # The size, depth and width of the 150 M model in A. Douillard et al., "DiLoCo", 2023 (12
    # layers of 896, 16 heads of 64, 32,000 tokens, context 1,024, AdamW at 4e-4), with the
    # blocks of Llama. 512 sequences a step there are 32 nodes here.
    "llama-150m": Preset(
        "llama-lm",
        "150 M parameters over 32,000 tokens: as in the tables of DiLoCo, on a GPU of 24 GB",
        {
            "vocabulary": 32_000,
            "dim": 896,
            "layers": 12,
            "heads": 16,
            "head_dim": 64,
            "hidden": 2400,
            "context": 1024,
            "batch": 16,
            "lr": 4e-4,
        },
    ),
    # Rank and learning rate as usual since T. Dettmers et al., "QLoRA", 2023, section 4.
    "lora-chat": Preset(
        "hub-lm",
        "adapters for a chat model that --model names, over conversations in .jsonl",
        {
            "lora_rank": 16,
            "bf16": True,
            "checkpointing": True,
            "context": 1024,
            "batch": 4,
            "lr": 2e-4,
            "text_field": "messages",
        },
    ),
}


def resolve_preset(name: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return (task, settings) for the name of a task or a preset; ``config`` comes on top."""
    preset = PRESETS.get(name)
    return (name, config) if preset is None else (preset.task, preset.config | config)
