"""``swarmnode create``: a manifest, a key and a link."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import (
    bootstrap_option,
    check_data,
    codec_option,
    given,
    json_option,
    node_options,
)
from swarmnode.cli.swarm.equip import words as environment_words
from swarmnode.cli.swarm.manifest import write_swarm
from swarmnode.cli.swarm.recipe import (
    lora_settings,
    make_recipe,
    parse_settings,
    recipe_words,
    with_lora_rate,
)
from swarmnode.config import NodeConfig, load_config
from swarmnode.errors import ConfigError, Refused
from swarmnode.memory import MainMemory, main_memory
from swarmnode.processes.worker_tools import model_folder, stream_offline
from swarmnode.quantities import parse_count
from swarmnode.strategies.installed import DEFAULT_STRATEGY
from swarmnode.wire.environment import DataReference, Environment
from swarmnode.wire.recipe import Recipe

# The parameters as they are built, and their copy in one vector; measured: 2.0 times at most.
_BYTES_PER_PARAMETER = 2 * 4
_GB = 1e9
_LARGE_NUMEL = 10_000_000  # building so many takes seconds, on a busy machine a minute
_HUB_TASK = "hub-lm"
_TICK_S = 0.5
_LINE_EVERY_S = 5.0  # where lines stay, in a log
_CLEAR = "\r\x1b[K"
_SHOWN = (
    "task",
    "config",
    "strategy",
    "strategy_version",
    "strategy_settings",
    "topology",
    "codecs",
    "numel",
    "layout_hash",
)


@click.command()
@click.argument("name")
@click.option("--task", help="An installed task, or a preset such as llama-150m.")
@click.option(
    "--model",
    metavar="REPO|FOLDER",
    help="Go on from a model of Hugging Face's hub, NAME[@REVISION] or a copy; task hub-lm.",
)
@click.option(
    "--lora",
    metavar="r=16,...",
    help="Train adapters of that rank for it, and send nothing else; also alpha=, dropout= and"
    " targets=q_proj+v_proj.",
)
@click.option(
    "--strategy",
    default=DEFAULT_STRATEGY,
    show_default=True,
    help="How nodes learn from each other, such as pair-average or diloco.",
)
@click.option(
    "--topology",
    default="matching",
    show_default=True,
    metavar="NAME|FILE",
    help="Which nodes meet: any two (matching), a graph such as ring, or a file of edges.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the task, of the strategy as strategy.KEY=VALUE, or of the recipe as"
    " recipe.KEY=VALUE; may be repeated.",
)
@click.option(
    "--tokens",
    metavar="N",
    help="What all members train together, such as 300M: the learning rate decays towards it, and"
    " then the swarm is finished. Without it there is no end; see `swarmnode extend`.",
)
@click.option(
    "--schedule",
    type=click.Choice(["constant", "cosine", "wsd"]),
    help="Of the learning rate; by default what suits the task.",
)
@codec_option("How values travel: Q8B64, Q4B64, BF16, RAW32, E3M0, Q2B64 or T3B320.")
@click.option(
    "--members",
    type=click.IntRange(1, 4096),
    help="How many will train at most; refused above what the strategy can take.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of text to train on.")
@click.option(
    "--own-data",
    is_flag=True,
    help="Each member is meant to train on data of its own: no member is warned of a difference.",
)
@click.option(
    "--data-from",
    metavar="URL|REPO",
    help="One file at an address, or a data set of Hugging Face's hub, NAME[@REVISION]: members"
    " fetch the same, by its hash.",
)
@click.option(
    "--task-requirement",
    "requirement",
    metavar="DIST==VERSION",
    help="What members install for the task, DIST[EXTRAS]==VERSION [default: the package that has"
    " it here, if an index has that].",
)
@click.option(
    "--index",
    default="",
    metavar="NAME|URL",
    help="Where members get that: a name that pip knows by `pip config set swarmnode.NAME URL`, or"
    " an address [default: what pip is set to].",
)
@click.option("--expires-days", type=click.IntRange(1, 36_500), help="Refuse newcomers after that.")
@click.option("--closed", is_flag=True, help="Only who has an invite may join.")
@bootstrap_option
@node_options
@json_option
def create(
    name: str,
    task: str | None,
    model: str | None,
    lora: str | None,
    strategy: str,
    topology: str,
    settings: tuple[str, ...],
    tokens: str | None,
    schedule: str | None,
    codec: str,
    members: int | None,
    data: Path | None,
    own_data: bool,
    data_from: str | None,
    requirement: str | None,
    index: str,
    expires_days: int | None,
    closed: bool,
    bootstrap: tuple[str, ...],
    listen: str | None,
    advertise: tuple[str, ...],
    home: Path | None,
    as_json: bool,
) -> None:
    """Create the swarm NAME and print the one link that others join with.

    This node then takes part with `swarmnode join NAME`, like every other node; the swarm
    goes on without it.
    """
    from swarmnode.cli.swarm.pins import pin_task, with_data
    from swarmnode.store.training_data import TrainingData, save_training_data

    task = _task_of(task, model)
    _check_words(name, strategy, codec, requirement)
    data_dir = check_data(data, task)
    flags = given(home=home and str(home), listen=listen, advertise=advertise, bootstrap=bootstrap)
    config = load_config(flags, os.environ)
    _check_is_new(name, config)
    chosen: dict[str, Any] = {"strategy": strategy, "codec": codec, "topology": topology}
    chosen["members"] = members or 0
    chosen_recipe = (parse_settings(settings)[2], parse_count(tokens) if tokens else 0, schedule)
    make_recipe({}, *chosen_recipe)  # refused before torch is loaded
    model_dir, named = model_folder(model)
    reference, data_dir = _data_of(name, data_from, data_dir, config, own_data=own_data)
    places: dict[str, Any] = {"data_dir": data_dir, "model_dir": model_dir}
    asked: dict[str, Any] = {"base": lora_settings(lora) | named, "has_own_data": own_data}
    described = _describe(task, settings, **places, **asked, is_quiet=as_json, **chosen)
    recipe = make_recipe(described["recipe"], *chosen_recipe)
    pinned = pin_task(described["task"], requirement, index)
    environment = with_data(pinned.environment, reference)
    save_training_data(name, config.paths, TrainingData(data_dir, own_data, model_dir))
    terms: dict[str, Any] = {"expires_days": expires_days, "is_closed": closed}
    terms |= {"has_own_data": own_data, "recipe": recipe, "environment": environment}
    link, node_id = write_swarm(name, config, codec, described, **terms)
    if as_json:
        facts = {key: described[key] for key in _SHOWN} | {"recipe": msgspec.to_builtins(recipe)}
        facts |= {"admission": "closed" if closed else "open", "codec": codec, "peer": node_id}
        facts |= {"installs": [*environment_words(environment)], "notes": pinned.notes}
        print_json({"link": link, "name": name, **facts})
        return
    _tell(name, link, described, recipe, home=home, is_closed=closed)
    # The link leads to this address, so the node must listen there.
    again = [("--home", str(home or "")), ("--listen", listen or ""), ("--data", data_dir)]
    again += [*(("--advertise", address) for address in advertise), ("--model", model or "")]
    notes = _notes(model, named, data_dir if data else "", own_data=own_data)
    _tell_more(name, again, environment, [*notes, *pinned.notes])
    _say_how_many(described)
    _warn_if_private(link)


def _check_words(name: str, strategy: str, codec: str, requirement: str | None) -> None:
    """Refuse what is no name of the kind, before anything takes time. Raises ConfigError."""
    from swarmnode.cli.swarm.pins import parse_requirement
    from swarmnode.protocol.swarm import check_name
    from swarmnode.strategies.installed import look_at_strategy
    from swarmnode.tensor.codec import get_codec

    check_name(name)
    look_at_strategy(strategy)
    get_codec(codec)
    if requirement:
        parse_requirement(requirement)


def _tell_more(
    name: str, flags: list[tuple[str, str]], environment: Environment | None, notes: list[str]
) -> None:
    click.echo(f"this machine: {shlex.join(['swarmnode', 'join', name, *_given_flags(flags)])}")
    for line in environment_words(environment):
        click.echo(f"others are asked to install: {plain(line)}")
    for note in notes:
        click.echo(note)


def _data_of(
    name: str, data_from: str | None, data_dir: str, config: NodeConfig, *, own_data: bool
) -> tuple[DataReference | None, str]:
    """Return what the manifest says of data, and the folder that has it here."""
    if data_from is None:
        return DataReference("yours") if own_data else None, data_dir
    if data_dir or own_data:
        raise ConfigError("--data-from: members fetch that, so no --data and no --own-data")
    from swarmnode.cli.swarm.pins import data_reference  # of few swarms

    return data_reference(data_from, config.paths.swarm(name))


def _check_is_new(name: str, config: NodeConfig) -> None:
    check_link_can_work(config)
    if config.paths.swarm(name).manifest.exists():
        raise Refused(f"this home has a swarm named {name!r} already: choose another name")


def _task_of(task: str | None, model: str | None) -> str:
    if task is None and model is None:
        raise ConfigError("expected a task to train, --task NAME, or a --model to go on from")
    return task or _HUB_TASK


def _notes(
    model: str | None, named: dict[str, str], data_dir: str, *, own_data: bool
) -> Iterator[str]:
    if model:
        which = "@".join(named.values()) or "FOLDER"
        yield f"note: others need the same model, named with --model {which}: it is not sent"
    if data_dir:
        yield _data_note(own_data=own_data)


def _tell(
    name: str,
    link: str,
    described: dict[str, Any],
    recipe: Recipe,
    *,
    home: Path | None,
    is_closed: bool,
) -> None:
    click.echo(
        f"created swarm {name}: task {described['task']}, {described['numel']:,} parameters,"
        f" strategy {_words(described)}"
    )
    click.echo(f"recipe: {recipe_words(recipe)}")
    click.echo(f"\n  {link}\n")
    if is_closed:
        flags = _given_flags([("--home", str(home or ""))])
        invite = ["swarmnode", "invite", "create", name, *flags]
        click.echo(f"others need an invite, this link alone admits no node: {shlex.join(invite)}")
    else:
        click.echo(f"others: swarmnode join '{link}'")


def _data_note(*, own_data: bool) -> str:
    if own_data:
        return (
            "note: others name their own folder with --data FOLDER; who names none trains on the"
            " task's own data"
        )
    return (
        "note: others need a copy of that folder, named with --data FOLDER; who names none trains"
        " on the task's own data, and its `status` says so"
    )


def _given_flags(flags: list[tuple[str, str]]) -> list[str]:
    return [part for flag, value in flags if value for part in (flag, value)]


def _say_how_many(described: dict[str, Any]) -> None:
    if described["members_max"]:
        click.echo(
            f"note: at most {described['members_max']} members take part in"
            f" {described['strategy']}: later ones train beside;"
            " for more choose one that meets in pairs"
        )


def _warn_if_private(link: str) -> None:
    """A person who passes the link on should not have to find out by others' failures."""
    import ipaddress

    from swarmnode.config import parse_host_port
    from swarmnode.protocol.swarm import parse_link

    hosts = [parse_host_port(hint.address, setting="link").host for hint in parse_link(link).hints]
    private = []
    for host in hosts:
        try:
            private.append(host is not None and ipaddress.ip_address(host).is_private)
        except ValueError:  # a name: it may lead anywhere
            private.append(False)
    if all(private):
        click.echo(
            f"note: {', '.join(map(str, hosts))} can be reached from this network only; for others"
            " create the swarm with --bootstrap PEER@HOST:PORT of any public node, through which"
            " they find it, or forward a port and name it with --advertise PUBLIC_HOST:PORT"
        )


def check_link_can_work(config: NodeConfig) -> None:
    """Refuse a port that will be another one after the next start. Raises ConfigError."""
    if not config.advertise and config.listen_address.port == 0:
        raise ConfigError(
            "--listen: expected a port that stays the same, since the link names it, got 0:"
            " choose one, or name the address with --advertise"
        )


def _describe(
    task: str,
    settings: tuple[str, ...],
    *,
    data_dir: str,
    model_dir: str,
    base: dict[str, Any],
    has_own_data: bool,
    is_quiet: bool,
    **chosen: str | int,
) -> dict[str, Any]:
    """Have torch build the model once, and check whether all that was chosen fits together."""
    from swarmnode.tasks.installed import resolve_preset

    named = task
    task_config, strategy_settings = parse_settings(settings)[:2]
    task, task_config = resolve_preset(task, base | task_config)
    task_config = with_lora_rate(task_config)
    if (model_dir or base) and task != _HUB_TASK:
        raise ConfigError(f"--model and --lora: expected the task {_HUB_TASK}, got {task}")
    arguments = [f"--task={task}", f"--config={json.dumps(task_config)}"]
    arguments += [f"--data-dir={data_dir}", f"--model-dir={model_dir}", "--pin"]
    arguments += [f"--strategy-settings={json.dumps(strategy_settings)}"]
    arguments += [f"--{name}={value}" for name, value in chosen.items()]
    arguments += ["--own-data"] if has_own_data else []
    described: dict[str, Any] = {}
    with Progress(is_quiet=is_quiet) as progress:
        for described in stream_offline("describe", "--progress", *arguments):
            if "progress" in described:
                numel = described.get("numel", 0)
                check_memory_for(named, numel, main_memory())
                progress.show(described["progress"], is_long=numel >= _LARGE_NUMEL)
    return described


def check_memory_for(task: str, numel: int, memory: MainMemory | None) -> None:
    """Refuse to build a model for which the memory will not do; 0: the size is not known.

    Raises:
        Refused: with what is needed and what is there.
    """
    needed_bytes = numel * _BYTES_PER_PARAMETER
    if memory is not None and needed_bytes > memory.available_bytes:
        whose = "this control group (container)" if memory.is_of_group else "this machine"
        raise Refused(
            f"task {task}: building its {numel:,} parameters takes {needed_bytes / _GB:.1f} GB of"
            f" memory, {whose} has {memory.available_bytes / _GB:.1f} GB free: end something else,"
            " choose a smaller model, or create the swarm on a larger machine"
        )


def _words(described: dict[str, Any]) -> str:
    """Return what a strategy does, in a few words."""
    words = [str(described["strategy"])]
    if "every" in described["strategy_settings"]:
        words.append(f"every {described['strategy_settings']['every']} steps")
    topology = described["topology"]
    if topology:
        edges = topology.count("-")
        words.append(f"on a graph of {edges} edges" if edges else f"on the graph {topology}")
    codecs = " and ".join(dict.fromkeys(described["codecs"]))
    return " ".join(words) + (f", codec {codecs}" if codecs else "")


class Progress:
    """Say on standard error what goes on, and for how long. Owns: a thread.

    It is one line on a terminal, now and then one elsewhere.
    """

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._words = ""
        self._says_lines = False  # where it is no terminal: once something long has begun
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def show(self, words: str, *, is_long: bool) -> None:
        """From now on it is doing this; ``is_long``: it is known to take a while."""
        self._words = words
        self._says_lines = self._says_lines or is_long
        if self._is_terminal or is_long:
            self._print()

    def __enter__(self) -> Progress:
        if not self._is_quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._is_quiet:
            return
        self._thread.join()
        if self._is_terminal:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def _tick(self) -> None:
        while not self._is_over.wait(_TICK_S if self._is_terminal else _LINE_EVERY_S):
            self._print()

    def _print(self) -> None:
        if self._is_quiet or not (self._words and (self._is_terminal or self._says_lines)):
            return
        line = f"swarmnode: {self._words}, {time.monotonic() - self._began_s:.0f} s"
        if self._is_terminal:
            print(f"{_CLEAR}{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
