"""What needs torch but no daemon; the command line runs it as a process of its own.

``python -m swarmnode.worker.offline VERB ...`` with one JSON object per line on standard
output. A failure is ``{"failed": KIND, "message": LINE}`` and the exit status of that kind.

::

    describe --task NAME [--config JSON]       layout, size and resolved settings of a swarm;
                                               refuses what does not fit together; with
                                               --progress, lines ``{"progress": WORDS}`` before
                                               that, one with "numel" (0: not known)
    generate MODEL --prompt TEXT               text written by an export or snapshot
    evaluate MODEL...                          loss of each, of their mean, and their spread
    alone --task NAME --steps N                train one node with no peers, for comparison
    export SNAPSHOT FOLDER                     the weights alone, for other programs
    fetch_model NAME[@REVISION]                a model of the hub, to its cache on this machine
    bench_snapshot --params N ...              steps with and without snapshots
    bench_pauses --params N                    how long steps wait for views and merges
    trial --task NAME ...                      what a step takes here, and what memory
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swarmnode.errors import ConfigError, SpecMismatch
from swarmnode.strategies.installed import DEFAULT_STRATEGY
from swarmnode.tasks.installed import BUILT_IN
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.failures import answer
from swarmnode.worker.runtime import end_with_parent

Json = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    arguments = _parser().parse_args(argv)
    if argv is None:  # a process of its own
        end_with_parent()
    return answer(arguments.verb(arguments))


def describe(arguments: argparse.Namespace) -> Iterator[Json]:
    """Say what a task and a strategy are; this is what a manifest is made from."""
    if arguments.progress:
        yield {"progress": "loading torch"}
    from swarmnode.worker.model.state import build_task
    from swarmnode.worker.tools.describe import build_untrained, describe_state, model_numel

    config = _json_object(arguments.config)
    places = {"data_dir": arguments.data_dir, "model_dir": arguments.model_dir}
    task = build_task(arguments.task, config, **places)
    # Other packages' tasks have settings of their own by these names.
    if arguments.pin and task.name in BUILT_IN:
        from swarmnode.tasks.hub_files import pinned

        base = Path(arguments.model_dir) if arguments.model_dir else None
        task = build_task(task.name, pinned(config, base), **places)
    if arguments.progress:
        numel = model_numel(task)
        size = "" if numel is None else f" of {numel:,} parameters"
        yield {"progress": f"building the model{size}", "numel": numel or 0}
    state = build_untrained(task)
    if arguments.progress:
        yield {"progress": "reading the data"}
    yield describe_state(
        state,
        strategy=arguments.strategy,
        settings=_json_object(arguments.strategy_settings),
        codec=arguments.codec,
        topology=arguments.topology,
        members=arguments.members,
        has_own_data=arguments.own_data,
    )


def generate(arguments: argparse.Namespace) -> Iterator[Json]:
    """Let a model write."""
    import torch

    from swarmnode.worker.snapshots import restore

    path, tensors, about = restore.read_weights(Path(arguments.model))
    state = _state_for(about, arguments)
    restore.load_weights(state.model, state.arena.layout, tensors, about, path)
    state.model.eval()
    with torch.no_grad():
        text = state.task.generate(
            state.model,
            arguments.prompt,
            arguments.length,
            temperature=arguments.temperature,
            seed=arguments.seed,
        )
    yield {"task": about.task, "step": about.step, "text": text}


def evaluate(arguments: argparse.Namespace) -> Iterator[Json]:
    """Compare models: the loss of each, of their uniform mean, and (1/n) Σ‖x_i − x̄‖²."""
    import torch

    from swarmnode.worker.snapshots import restore

    state = None
    losses: list[Json] = []
    vectors: list[torch.Tensor] = []
    for model in arguments.models:
        path, tensors, about = restore.read_weights(Path(model))
        state = state or _state_for(about, arguments)
        restore.load_weights(state.model, state.arena.layout, tensors, about, path)
        losses.append({"path": str(path), "step": about.step, "loss": _number(state.evaluate())})
        vectors.append(state.arena.flat.cpu().clone())
    assert state is not None, "the parser wants at least one model"
    stacked = torch.stack(vectors).double()
    mean = stacked.mean(dim=0)
    state.arena.flat.copy_(mean)  # buffers, which are never averaged, stay those of the last
    yield {
        "task": state.task.name,
        "models": losses,
        "mean_loss": _number(state.evaluate()),
        "consensus_distance": float((stacked - mean).square().sum(dim=1).mean()),
    }


def alone(arguments: argparse.Namespace) -> Iterator[Json]:
    """Train one node without peers, with the seeds and the evaluations of the real loop.

    The loss is of what a swarm of this task without an end would export: where that is a mean over
    the last steps, it is so here.
    """
    import torch

    from swarmnode.worker.model.state import build_state, build_task
    from swarmnode.worker.report import smooth
    from swarmnode.worker.runtime import thread_count

    torch.set_num_threads(thread_count())
    task = build_task(
        arguments.task,
        _json_object(arguments.config),
        arguments.data_dir,
        model_dir=arguments.model_dir,
    )
    averaging = Recipe(ema_share=task.recipe().ema_share)
    state = build_state(
        task, swarm_seed=arguments.swarm_seed, device=arguments.device, recipe=averaging
    )
    batches = state.batches(arguments.shard_seed)
    mean_loss = math.nan
    while state.step < arguments.steps:
        loss = state.take_step(next(batches))
        state.applied.average(state.step, state.tokens)
        if not math.isfinite(loss):
            raise ConfigError(f"the loss was {loss} after step {state.step}; lower the lr")
        mean_loss = smooth(mean_loss, loss)
        if state.step % task.eval_every_steps == 0 or state.step == arguments.steps:
            shown = _number(state.evaluate_at(state.applied.exported))
            yield {"step": state.step, "loss": mean_loss, "eval_loss": shown}


def export(arguments: argparse.Namespace) -> Iterator[Json]:
    """Write the weights of a snapshot as ``model.safetensors``, or as transformers has models."""
    from swarmnode.worker.snapshots import restore
    from swarmnode.worker.tools.describe import build_untrained

    path, tensors, about = restore.read_weights(Path(arguments.snapshot))
    folder = Path(arguments.folder)
    if arguments.format == "swarmnode":
        restore.export_weights(tensors, about, folder)
    else:
        built = build_untrained(_task_of(about, arguments))
        restore.load_weights(built.model, built.arena.layout, tensors, about, path)
        built.save_pretrained(folder, adapter=arguments.format == "adapter")
    yield {
        "path": str(folder),
        "task": about.task,
        "step": about.step,
        "tokens": about.tokens,
        "layout_hash": about.layout_hash,
        "losses": about.losses or [],
        "format": arguments.format,
        "bytes": sum(each.stat().st_size for each in folder.glob("*.safetensors")),
    }


def fetch_model(arguments: argparse.Namespace) -> Iterator[Json]:
    """Bring a model or data of the hub here, but no code and no weights that can hold any."""
    from swarmnode.tasks.hub_files import fetch

    yield fetch(arguments.name, arguments.revision, is_data=arguments.data_set)


def bench_snapshot(arguments: argparse.Namespace) -> Iterator[Json]:
    """Measure steps with and without snapshots."""
    import torch

    from swarmnode.worker.runtime import thread_count
    from swarmnode.worker.tools.bench import bench_snapshots

    torch.set_num_threads(thread_count())
    yield bench_snapshots(
        arguments.params, arguments.optimizer, rounds=arguments.rounds, period_s=arguments.period
    )


def bench_pauses(arguments: argparse.Namespace) -> Iterator[Json]:
    """Measure how long views and merges hold up steps."""
    import torch

    from swarmnode.worker.tools.bench import bench_pauses as measured

    torch.set_num_threads(1)
    yield measured(arguments.params, arguments.exchanges)


def trial(arguments: argparse.Namespace) -> Iterator[Json]:
    """Try a few steps, without a network."""
    from swarmnode.ipc.control import Configure
    from swarmnode.worker.tools.trial import confine, try_steps

    confine(arguments.memory_bytes)
    configure = Configure(
        task=arguments.task,
        task_config=_json_object(arguments.config),
        strategy=arguments.strategy,
        strategy_settings=_json_object(arguments.strategy_settings),
        swarm_seed=0,
        shard_seed=0,
        snapshot_dir="",
        resume=False,
        device=arguments.device,
        data_dir=arguments.data_dir,
        model_dir=arguments.model_dir,
        self_id=bytes(32),
    )
    yield try_steps(configure, steps_s=arguments.seconds)


def _state_for(about: Any, arguments: argparse.Namespace) -> Any:
    """Build the model that a file of weights describes."""
    from swarmnode.worker.model.state import build_state

    return build_state(_task_of(about, arguments), swarm_seed=0, device=arguments.device)


def _task_of(about: Any, arguments: argparse.Namespace) -> Any:
    from swarmnode.worker.model.state import build_task

    task = build_task(
        about.task, about.task_config, arguments.data_dir, model_dir=arguments.model_dir
    )
    if task.version != about.task_version:
        raise SpecMismatch(
            f"task {task.name}: the weights are of version {about.task_version}, version "
            f"{task.version} is installed here"
        )
    return task


def _json_object(text: str) -> Json:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"expected settings as JSON, got {text!r}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"expected settings as a JSON object, got {text!r}")
    return found


def _number(value: float) -> float | None:
    """Return None for what JSON has no word for."""
    return value if math.isfinite(value) else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="swarmnode.worker.offline")
    verbs = parser.add_subparsers(required=True)

    def add(verb: Callable[[argparse.Namespace], Iterator[Json]]) -> argparse.ArgumentParser:
        sub = verbs.add_parser(verb.__name__, help=verb.__doc__)
        sub.set_defaults(verb=verb)
        sub.add_argument("--data-dir", default="")
        sub.add_argument("--model-dir", default="", help="what training goes on from")
        sub.add_argument("--device", default="auto")
        return sub

    for verb in (describe, alone, trial):
        sub = add(verb)
        sub.add_argument("--task", required=True)
        sub.add_argument("--config", default="{}", help="settings of the task, JSON")
        if verb in (describe, trial):
            sub.add_argument("--strategy", default=DEFAULT_STRATEGY)
            sub.add_argument("--strategy-settings", default="{}", help="JSON")
        if verb is trial:
            sub.add_argument("--seconds", type=float, default=1.5)
            sub.add_argument("--memory-bytes", type=int, default=0, help="0: no bound")
        elif verb is describe:
            sub.add_argument("--codec", default="Q8B64")
            sub.add_argument("--progress", action="store_true")
            sub.add_argument("--pin", action="store_true", help="model and data, as they are now")
            sub.add_argument("--topology", default="matching", help="a name, or a file of edges")
            sub.add_argument("--members", type=int, default=0, help="how many train at most")
            sub.add_argument("--own-data", action="store_true", help="each member has its own")
        else:
            sub.add_argument("--steps", type=int, required=True)
            sub.add_argument("--swarm-seed", type=int, default=0)
            sub.add_argument("--shard-seed", type=int, default=0)
    sub = add(generate)
    sub.add_argument("model")
    sub.add_argument("--prompt", default="")
    sub.add_argument("--length", type=int, default=200)
    sub.add_argument("--temperature", type=float, default=0.8)
    sub.add_argument("--seed", type=int, default=0)
    add(evaluate).add_argument("models", nargs="+")
    sub = add(bench_snapshot)
    sub.add_argument("--params", type=int, required=True)
    sub.add_argument("--optimizer", choices=("sgd", "adamw"), required=True)
    sub.add_argument("--rounds", type=int, required=True)
    sub.add_argument("--period", type=float, required=True, help="seconds")
    sub = add(fetch_model)
    sub.add_argument("--data-set", action="store_true", help="and no model")
    sub.add_argument("name")
    sub.add_argument("--revision", default="")
    sub = add(bench_pauses)
    sub.add_argument("--params", type=int, required=True)
    sub.add_argument("--exchanges", type=int, default=3)
    sub = add(export)
    sub.add_argument(
        "--format", choices=("swarmnode", "transformers", "adapter"), default="swarmnode"
    )
    sub.add_argument("snapshot")
    sub.add_argument("folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
