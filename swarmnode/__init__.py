"""swarmnode: train a neural network together with strangers, with no server in the middle.

Importing this package is cheap on purpose: the command line answers in
milliseconds, and a node that only relays or watches never loads torch. So the names that
a user's program needs are loaded when they are first used::

    swarmnode.Node              a node of this machine, from Python: docs/python.md
    swarmnode.Task, TaskConfig  a model and its data: docs/task.md
"""

__version__ = "0.1.0"
# What is installed, as pip knows it: on the index the name of this package is another project's.
DISTRIBUTION = "swarmnode-train"

_NAMES = {
    "AsyncNode": "swarmnode.api.node",
    "Node": "swarmnode.api.node",
    "Task": "swarmnode.tasks.base",
    "TaskConfig": "swarmnode.tasks.base",
}


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module 'swarmnode' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
