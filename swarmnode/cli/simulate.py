"""``swarmnode simulate``: real protocol cores, thousands of nodes, a modelled network."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import click

import swarmnode
from swarmnode.cli.main import print_json
from swarmnode.cli.options import json_option
from swarmnode.cli.simulate_strategy import simulate_strategy, strategy_options
from swarmnode.processes import stopping

_PROFILES = ("calm", "churn", "partition", "lossy", "grey")
# Memory: half a gigabyte per thousand nodes; time: minutes per thousand.
_NODES_MAX = 20_000
_MEMBERS_MAX = 4096  # as many as any node keeps track of
_LINES_MAX = 20  # the first ones tell most


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
