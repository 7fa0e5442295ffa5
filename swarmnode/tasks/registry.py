"""Tasks by name: loads what ``installed`` finds. Loading one may need torch."""

from __future__ import annotations

from importlib import import_module

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import Task
from swarmnode.tasks.installed import ENTRY_POINT_GROUP, installed_tasks

_ANY_SOURCE = f"install the package that has it (entry point group {ENTRY_POINT_GROUP})"


class UnknownTask(ConfigError):
    """No task of that name is installed here."""


def load_task(name: str, *, source: str = "") -> type[Task]:
    """Return the class of task ``name``.

    Args:
        source: where to get it, for the message to a person who lacks it.

    Raises:
        UnknownTask: it is not installed.
        ConfigError: what is installed under that name is no Task.
        ImportError: a library that it needs is missing.
    """
    tasks = installed_tasks()
    if name not in tasks:
        raise UnknownTask(
            f"task {name!r} is not installed here; installed: {', '.join(sorted(tasks))}; "
            f"{source or _ANY_SOURCE}"
        )
    module_name, _, attribute = tasks[name].partition(":")
    task = getattr(import_module(module_name), attribute, None)
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ConfigError(
            f"task {name!r}: expected {tasks[name]} to be a subclass of swarmnode.tasks.base.Task, "
            f"got {task!r}; reinstall the package that has it"
        )
    return task
