"""Makes a swarm for a model that a program of yours trains."""

from __future__ import annotations

import os
from typing import Any

import torch

from swarmnode.cli.swarm.create import check_link_can_work
from swarmnode.cli.swarm.manifest import write_swarm
from swarmnode.config import load_config
from swarmnode.errors import Refused
from swarmnode.integrations.agent import weights_hash
from swarmnode.protocol.swarm import check_name
from swarmnode.strategies.installed import DEFAULT_STRATEGY
from swarmnode.tasks.program import Program
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.model.device import Device
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.tools.describe import describe_state


def create_swarm(
    name: str,
    model: torch.nn.Module,
    *,
    about: str = "",
    home: str | os.PathLike[str] | None = None,
    strategy: str = DEFAULT_STRATEGY,
    strategy_settings: dict[str, Any] | None = None,
    codec: str = "Q8B64",
    topology: str = "matching",
    expires_days: int | None = None,
    is_closed: bool = False,
    recipe: Recipe | None = None,
    **settings: Any,
) -> str:
    """Return the link of a new swarm that trains ``model``, beginning from its present weights.

    What `swarmnode create` does for a task. This node takes part with
    ``swarmnode.Node.join(name, home=home)``, like every other node.

    Args:
        about: what is trained, for people: the name of the program and its version, say.
        strategy_settings: those that are not given are the strategy's own.
        recipe: how the learning rate follows the tokens of the whole swarm, and where training
            ends, in place of each program's own scheduler; None: each program has its own.
        settings: of the node, such as ``listen`` and ``advertise``.

    Raises:
        ConfigError: a setting is wrong, or model, strategy and codec do not fit together.
        Refused: this home has a swarm of that name.
    """
    check_name(name)
    codec = codec.upper()  # as --codec takes it
    config = load_config({"home": home and str(home), **settings}, os.environ)
    check_link_can_work(config)
    if config.paths.swarm(name).manifest.exists():
        raise Refused(f"this home has a swarm named {name!r} already: choose another name")
    arena = Arena(model)
    task = Program({"about": about, "weights": weights_hash(arena.flat)})
    optimizer = torch.optim.SGD(model.parameters())  # never steps
    described = describe_state(
        TrainState(task, model, arena, optimizer, Device(arena.flat.device)),
        strategy=strategy,
        settings=strategy_settings or {},
        codec=codec,
        topology=topology,
    )
    link, _ = write_swarm(
        name,
        config,
        codec,
        described,
        expires_days=expires_days,
        is_closed=is_closed,
        recipe=recipe,
    )
    return link
