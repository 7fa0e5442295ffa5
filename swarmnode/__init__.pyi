# What type checkers see of the names that __init__.py loads when they are used.
from swarmnode.api.node import AsyncNode as AsyncNode
from swarmnode.api.node import Node as Node
from swarmnode.tasks.base import Task as Task
from swarmnode.tasks.base import TaskConfig as TaskConfig

__version__: str
DISTRIBUTION: str
