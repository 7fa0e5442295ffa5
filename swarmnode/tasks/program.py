"""``program``: what is trained when the nodes of a swarm start no worker of their own.

A program of each owner's brings model, optimizer and data, and trains in a loop of its own, such
as a Trainer of transformers (``swarmnode/integrations``). The manifest says which model that must
be: by the layout of its parameters, and by a hash of the weights that all nodes begin from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from swarmnode.errors import ConfigError
from swarmnode.ipc.control import PROGRAM_TASK
from swarmnode.tasks.base import Task, TaskConfig

if TYPE_CHECKING:
    import torch

Evaluate = Callable[["torch.nn.Module"], float]

_HOW = "see docs/integrations.md"


class Program(Task):
    """A task whose instances know no model; ``evaluate`` is the program's, if it has one."""

    name = PROGRAM_TASK
    version = 1

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """What a program needs to know to be the right one.

        ``about``: what is trained, for people. ``weights``: hex SHA-256 of the flat float32
        parameters that all begin from; empty: any, which each strategy may refuse.
        """

        about: str = ""
        weights: str = ""

    config: Config
    tokens_per_batch = 1

    def __init__(
        self, config: dict[str, Any], *, data_dir: str = "", evaluate: Evaluate | None = None
    ) -> None:
        super().__init__(config, data_dir=data_dir)
        self._evaluate = evaluate

    def build_model(self, seed: int) -> NoReturn:
        del seed
        raise ConfigError(
            "task program: the model of this swarm comes from a program of yours"
            f"{f' ({self.config.about})' if self.config.about else ''}, which trains it; {_HOW}"
        )

    def build_optimizer(self, model: torch.nn.Module) -> NoReturn:  # noqa: ARG002
        self.build_model(0)

    def batches(self, seed: int) -> Iterator[Any]:
        return map(self.build_model, (seed,))  # refuses when the first batch is wanted

    def loss(self, model: torch.nn.Module, batch: Any) -> NoReturn:  # noqa: ARG002
        self.build_model(0)

    def evaluate(self, model: torch.nn.Module) -> float:
        if self._evaluate is None:
            raise ConfigError(
                "task program: expected a loss on a held-out probe, and the program gave no"
                f" `evaluate`; {_HOW}"
            )
        return self._evaluate(model)

    def data_hash(self) -> str:
        return ""
