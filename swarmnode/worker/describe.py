"""What a manifest says about a model and a strategy, once they fit together."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmnode.strategies.fit import check_fit, codecs_sent, members_max, read_topology
from swarmnode.strategies.registry import build_strategy, check_strategy
from swarmnode.worker.prepare import facts_of
from swarmnode.worker.state import TrainState


def describe_state(
    state: TrainState,
    *,
    strategy: str,
    settings: dict[str, Any],
    codec: str,
    topology: str,
    members: int = 0,
) -> dict[str, Any]:
    """Return layout, size and resolved settings of a swarm that would train ``state``.

    Args:
        settings: of the strategy; those that are not given are filled in.
        topology: a name, or a file of edges.
        members: how many are to train at most; 0: nobody has said.

    Raises:
        ConfigError: they do not fit together.
    """
    task = state.task
    graph = read_topology(topology)
    settings = dict(settings)
    if strategy == "pair-average":  # each task knows what suits whole models
        settings.setdefault("every", task.exchange_every_steps)
    check_strategy(strategy, settings, facts_of(task))
    built = build_strategy(strategy, settings, state.arena.flat)
    check_fit(type(built), built.config, codec, graph, members)
    return {
        "task": task.name,
        "version": task.version,
        "config": msgspec.to_builtins(task.config),
        "layout_hash": state.arena.layout.layout_hash.hex(),
        "numel": state.arena.numel,
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "tokens_per_batch": task.tokens_per_batch,
        "eval_every_steps": task.eval_every_steps,
        "exchange_every_steps": task.exchange_every_steps,
        "strategy": built.name,
        "strategy_version": built.version,
        "strategy_settings": msgspec.to_builtins(built.config),
        "topology": graph,
        "members_max": members_max(built.meeting(built.config)),
        "codecs": codecs_sent(built.meeting(built.config), codec),
        "data_hash": task.data_hash(),
    }
