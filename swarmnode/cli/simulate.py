"""``swarmnode simulate``: real protocol cores, thousands of nodes, a modelled network.

With ``--strategy`` a training algorithm instead, in virtual time, in a process that has torch.
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

_NODES = 16  # unless --nodes says otherwise: its own default is of the other simulation
_TOPOLOGIES = ("ring", "torus", "complete", "star", "exponential", "matching", "path", "grid")
_OPTIONS = (
    click.option(
        "--strategy",
        help="Try a training algorithm instead, in virtual time; the options below are for it.",
    ),
    click.option("--task", type=click.Choice(("lsq", "digits")), default="lsq", show_default=True),
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
    click.option("--dirichlet", type=click.FloatRange(0), default=0.0, help="Uneven labels."),
    click.option("--optimizer", type=click.Choice(("sgd", "adam")), help="Of task digits."),
    click.option("--lr", type=click.FloatRange(0), default=0.0, help="Of the local optimizer."),
    click.option("--set", "settings", multiple=True, help="KEY=VALUE of the strategy."),
    codec_option("How payloads travel [default: every number as it is].", default=None),
    click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="A picture."),
)

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
    source = click.get_current_context().get_parameter_source("nodes")
    plot = options.pop("plot")
    run = {name: value for name, value in options.items() if value not in (None, "")}
    run["settings"] = _parse_settings(run.pop("settings"))
    run["nodes"] = _NODES if source is ParameterSource.DEFAULT else nodes
    run["seed"] = seed
    arguments = [json.dumps(run)]
    if plot is not None:
        arguments += ["--plot", str(plot.absolute())]
    figures = run_offline(*arguments, module="swarmnode.testing.lab")
    if as_json:
        print_json(figures)
    else:
        for name, value in figures.items():
            click.echo(f"{name:24}{'-' if value is None else value}")
    return 0


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
    if algorithm["strategy"] is not None:
        return simulate_strategy(nodes, seed, as_json, algorithm)
    from swarmnode.testing.simulate import run_simulation

    result, violations = run_simulation(nodes, profile, seed, members_max=members)
    if as_json:
        print_json(result.as_json())
    else:
        for name, value in result.as_json().items():
            click.echo(f"{name:24}{'-' if value is None else value}")
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
