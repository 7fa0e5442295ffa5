"""``swarmnode simulate``: real protocol cores, thousands of nodes, a modelled network."""

from __future__ import annotations

from typing import Any

import click

from swarmnode import __version__
from swarmnode.cli.main import print_json
from swarmnode.cli.options import json_option
from swarmnode.cli.simulate_strategy import simulate_strategy, strategy_options

_PROFILES = ("calm", "churn", "partition", "lossy", "grey")
# Memory: 140 MB per thousand nodes; time: a minute per thousand in calm.
_NODES_MAX = 20_000
_LINES_MAX = 20  # the first ones tell most


@click.command()
@click.option("--nodes", type=click.IntRange(2, _NODES_MAX), default=100, show_default=True)
@click.option("--profile", type=click.Choice(_PROFILES), default="calm", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True)
@strategy_options
@json_option
def simulate(nodes: int, profile: str, seed: int, as_json: bool, **algorithm: Any) -> int:
    """Run the protocols of many nodes on a modelled network and check what they promise.

    Equal seeds give equal runs. Exits with 1 if a promise was broken.
    """
    if algorithm["strategy"] is not None:
        return simulate_strategy(nodes, seed, as_json, algorithm)
    from swarmnode.testing.simulate import run_simulation

    result, violations = run_simulation(nodes, profile, seed)
    if as_json:
        print_json(result.as_json())
    else:
        for name, value in result.as_json().items():
            click.echo(f"{name:24}{'-' if value is None else value}")
    again = f"swarmnode simulate --nodes {nodes} --profile {profile} --seed {seed}"
    for line in violations[:_LINES_MAX]:
        click.echo(f"{again} (version {__version__}): {line}", err=True)
    return 1 if violations else 0
