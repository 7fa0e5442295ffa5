"""The package that has a task: named in a manifest by its creator, told to people who lack it.

What a manifest says comes from a stranger and ends in a command that people paste, so only what is
a name and a version by the rules of Python packages is ever printed. Nothing is installed by us.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points

from swarmnode import DISTRIBUTION, limits
from swarmnode.tasks.installed import BUILT_IN, ENTRY_POINT_GROUP

# PEP 508 and PEP 503: what a package may be called.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NUMBER = r"(?:0|[1-9][0-9]*)"
# PEP 440, in its canonical form, with a local version as builds of torch have one.
_VERSION = re.compile(
    rf"(?:[1-9][0-9]*!)?{_NUMBER}(?:\.{_NUMBER})*(?:(?:a|b|rc){_NUMBER})?(?:\.post{_NUMBER})?"
    rf"(?:\.dev{_NUMBER})?(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?"
)
# The second was ours, and is another project's on the package index.
_OURS = (DISTRIBUTION, "swarmnode")


def package_of(task: str) -> tuple[str, str]:
    """Return name and version of the package that has a task here.

    Two empty texts for those that come with swarmnode: ``min_version`` says which one has them.
    """
    if task in BUILT_IN:
        return "", ""
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=task):
        if entry.dist is not None and is_package(entry.dist.name, entry.dist.version):
            return entry.dist.name, entry.dist.version
    return "", ""


def is_package(name: str, version: str) -> bool:
    """Whether these are a name and a version by PEP 503 and PEP 440."""
    return (
        len(name) <= limits.PACKAGE_NAME_CHARACTERS_MAX
        and len(version) <= limits.PACKAGE_VERSION_CHARACTERS_MAX
        and _NAME.fullmatch(name) is not None
        and _VERSION.fullmatch(version) is not None
    )


def how_to_get(name: str, version: str) -> str:
    """Say where to get a task, by what its swarm's manifest says; "" if that is no package."""
    if not is_package(name, version):
        return ""
    if re.sub(r"[-_.]+", "-", name).lower() in _OURS:
        return (
            f"swarmnode {version} has it: git pull in the clone of swarmnode, then the same pip"
            " install again there"
        )
    return (
        f"its creator has it from the package {name} {version}: links come from strangers, so check"
        f" first who publishes that package, then pip install '{name}=={version}', or a copy that"
        " the creator gives you"
    )
