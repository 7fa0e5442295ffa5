"""``swarmnode simulate``: real protocol cores, thousands of nodes, a modelled network.

With ``--strategy`` a training algorithm instead, in virtual time, in a process that has torch;
with ``--attack`` too, one among members that lie.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import swarmnode
from swarmnode.cli.main import print_json
from swarmnode.cli.options import codec_option, json_option
from swarmnode.errors import ConfigError
from swarmnode.processes import stopping
from swarmnode.processes.worker_tools import run_offline

# Unless --nodes, --steps say otherwise: their own defaults are of the other simulations.
_NODES, _NODES_ATTACKED = 16, 20
_STEPS_ATTACKED = 1200
_HONEST_FOR_ATTACKER = 4
_LIST = "list"
_LAB = "swarmnode.testing.lab"
_TOPOLOGIES = ("ring", "torus", "complete", "star", "exponential", "matching", "path", "grid")
_OPTIONS = (
    click.option(
        "--strategy",
        help="Try a training algorithm instead, in virtual time; the options below are for it.",
    ),
    click.option(
        "--task",
        type=click.Choice(("lsq", "digits", "bytes-lm")),
        help="[default: lsq; with --attack, digits]",
    ),
    click.option(
        "--topology", type=click.Choice(_TOPOLOGIES), default="matching", show_default=True
    ),
    click.option("--steps", type=click.IntRange(1, 1_000_000), default=500, show_default=True),
    click.option("--loss", type=click.FloatRange(0, 1), default=0.0, help="Share of exchanges."),
    click.option("--latency", type=click.FloatRange(0), default=0.0, help="In local steps."),
    click.option(
        "--crashes", type=click.IntRange(0), default=0, help="Nodes that are gone for a while."
    ),
    click.option("--partition", is_flag=True, help="Cut the network in two for a while."),
    click.option("--spread", type=click.FloatRange(1), default=1.0, help="Fastest over slowest."),
    click.option(
        "--alpha",
        "--dirichlet",
        "dirichlet",
        type=click.FloatRange(0),
        default=0.0,
        help="Labels by a Dirichlet distribution, the smaller the less even; 0: even.",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(("sgd", "adam")),
        help="Not of task lsq; of bytes-lm not its own.",
    ),
    click.option(
        "--lr",
        type=click.FloatRange(0),
        default=0.0,
        help="Of the local optimizer; 0: that of the task.",
    ),
    click.option("--set", "settings", multiple=True, help="KEY=VALUE of the strategy."),
    codec_option(
        "How payloads travel [default: every number as it is; with --attack, Q8B64].", default=None
    ),
    click.option(
        "--attack",
        metavar="NAME|list",
        help="Let members lie: one attack, or several joined by commas. `list` prints all.",
    ),
    click.option(
        "--attackers", type=click.IntRange(1), help="How many lie [default: a fifth of all]."
    ),
    click.option("--seeds", help="Of an attack: several, joined by commas [default: --seed]."),
    click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="A picture."),
)

_CODEC = "Q8B64"  # of swarms, where their creator says nothing; see --codec of `create`

_PROFILES = ("calm", "churn", "partition", "lossy", "grey")
# Memory: half a gigabyte per thousand nodes; time: minutes per thousand.
_NODES_MAX = 20_000
_MEMBERS_MAX = 4096  # as many as any node keeps track of
_LINES_MAX = 20  # the first ones tell most


def strategy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a run of an algorithm can be told."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def simulate_strategy(nodes: int, seed: int, as_json: bool, options: dict[str, Any]) -> int:
    """Run one algorithm and print its figures; return the exit status.

    Raises:
        ConfigError: no such strategy or setting, or it is not for this task.
    """
    for name in ("attackers", "seeds"):
        if options.pop(name) is not None:
            raise ConfigError(f"--{name}: expected --attack NAME beside it, one of --attack list")
    plot = options.pop("plot")
    del options["attack"]
    run = _algorithm(_NODES if _is_default("nodes") else nodes, options)
    run["seed"] = seed
    arguments = [json.dumps(run)]
    if plot is not None:
        arguments += ["--plot", str(plot.absolute())]
    _print(run_offline(*arguments, module=_LAB), as_json)
    return 0


def simulate_attack(nodes: int, seed: int, as_json: bool, options: dict[str, Any]) -> int:
    """Run one algorithm among members that lie, and print its figures; return the exit status.

    Raises:
        ConfigError: no such attack, strategy or setting, or it is not for this task.
    """
    attack, attackers, seeds = (options.pop(name) for name in ("attack", "attackers", "seeds"))
    if attack == _LIST:
        _print(run_offline("--attack", module=_LAB), as_json)
        return 0
    if options["strategy"] is None:
        raise ConfigError("--attack: expected --strategy beside it, such as pair-average")
    if options.pop("plot") is not None:
        raise ConfigError("--attack: expected no --plot beside it: its runs have one figure each")
    nodes = _NODES_ATTACKED if _is_default("nodes") else nodes
    run: dict[str, Any] = {"task": "digits", "codec": _CODEC} | _algorithm(nodes, options)
    if _is_default("steps"):
        run["steps"] = _STEPS_ATTACKED
    asked = {
        "run": run,
        "attack": attack,
        "attackers": attackers or max(1, nodes // (_HONEST_FOR_ATTACKER + 1)),
        "seeds": [seed] if seeds is None else _parse_seeds(seeds),
    }
    _print(run_offline("--attack", json.dumps(asked), module=_LAB), as_json)
    return 0


def _algorithm(nodes: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a process of the laboratory is told."""
    run = {name: value for name, value in options.items() if value not in (None, "")}
    run["settings"] = _parse_settings(run.pop("settings"))
    return run | {"nodes": nodes}


def _is_default(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.DEFAULT


def _parse_seeds(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ConfigError(f"--seeds: expected whole numbers joined by commas, got {text!r}")
    return [int(word) for word in words]


def _print(figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        for name, value in figures.items():
            click.echo(f"{name:24}{'-' if value is None else value}")


def _parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, is_set, value = setting.partition("=")
        if not (key and is_set):
            raise ConfigError(f"--set: expected KEY=VALUE, got {setting!r}")
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value  # a word
    return parsed


@click.command()
@click.option("--nodes", type=click.IntRange(2, _NODES_MAX), default=100, show_default=True)
@click.option("--profile", type=click.Choice(_PROFILES), default="calm", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True)
@click.option(
    "--members",
    type=click.IntRange(2, _MEMBERS_MAX),
    help="Size of a swarm, at most: time and memory grow with it [default: by the profile].",
)
@strategy_options
@json_option
def simulate(
    nodes: int,
    profile: str,
    seed: int,
    members: int | None,
    as_json: bool,
    **algorithm: Any,
) -> int:
    """Run the protocols of many nodes on a modelled network and check what they promise.

    All nodes share one DHT and are spread over swarms. A fifth of them is behind NATs.
    Equal seeds give equal runs. Exits with 1 if a promise was broken.
    """
    stopping.watch()
    if algorithm["attack"] is not None:
        return simulate_attack(nodes, seed, as_json, algorithm)
    if algorithm["strategy"] is not None:
        return simulate_strategy(nodes, seed, as_json, algorithm)
    from swarmnode.testing.simulate import run_simulation

    result, violations = run_simulation(nodes, profile, seed, members_max=members)
    _print(result.as_json(), as_json)
    again = f"swarmnode simulate --nodes {nodes} --profile {profile} --seed {seed}"
    if members is not None:
        again += f" --members {members}"
    for line in violations[:_LINES_MAX]:
        click.echo(f"{again} ({_code()}): {line}", err=True)
    return 1 if violations else 0


def _code() -> str:
    """Return which code ran: the version, and the commit if it runs from a checkout."""
    version = f"version {swarmnode.__version__}"
    root = Path(swarmnode.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return version
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return version  # git is not there, or does not trust the folder's owner
    return f"{version}, commit {done.stdout.strip()}"
