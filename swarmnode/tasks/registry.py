"""Tasks by name: the built-in ones, and what this machine's owner has installed.

Entry points of the group ``swarmnode.tasks`` are read from installed packages only. Naming
tasks needs no torch; loading one may.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import Task

ENTRY_POINT_GROUP = "swarmnode.tasks"
# Also when swarmnode runs from a checkout that is not installed.
_BUILT_IN = {
    "bytes-lm": "swarmnode.tasks.bytes_lm:BytesLM",
    "digits": "swarmnode.tasks.digits:Digits",
    "synthetic": "swarmnode.tasks.synthetic:Synthetic",
}


class UnknownTask(ConfigError):
    """No task of that name is installed here."""


def installed_tasks() -> dict[str, str]:
    """Return name → ``module:Class`` of every task that is installed."""
    found = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return found | _BUILT_IN


def load_task(name: str) -> type[Task]:
    """Return the class of task ``name``.

    Raises:
        UnknownTask: it is not installed.
        ConfigError: what is installed under that name is no Task.
        ImportError: a library that it needs is missing.
    """
    tasks = installed_tasks()
    if name not in tasks:
        raise UnknownTask(
            f"task {name!r} is not installed here; installed: {', '.join(sorted(tasks))}; "
            f"install the package that has it (entry point group {ENTRY_POINT_GROUP})"
        )
    module_name, _, attribute = tasks[name].partition(":")
    task = getattr(import_module(module_name), attribute, None)
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ConfigError(
            f"task {name!r}: expected {tasks[name]} to be a subclass of swarmnode.tasks.base.Task, "
            f"got {task!r}; reinstall the package that has it"
        )
    return task
