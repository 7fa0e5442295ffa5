"""``swarmnode chaos``: real nodes on this machine among faults, and an audit of what is left."""

from __future__ import annotations

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.options import json_option
from swarmnode.errors import ConfigError
from swarmnode.processes import stopping


@click.command()
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--minutes", type=click.FloatRange(0.5, 7 * 1440), default=5.0, show_default=True)
@click.option("--nodes", type=click.IntRange(2, 64), default=6, show_default=True)
@click.option("--strategy", default="streaming", show_default=True, help="One, or all, in turn.")
@click.option(
    "--other",
    default="",
    metavar="PYTHON",
    help="Of another version, to and from which is updated.",
)
@json_option
def chaos(seed: int, minutes: float, nodes: int, strategy: str, other: str, as_json: bool) -> int:
    """Kill, stop, cut off and starve real nodes by a seeded plan, and check what they promise.

    With root also partitions, broken links, lossy lines, full disks and homes that cannot be
    written. Exits with 1 if anything was half applied, lost although acknowledged, left behind or
    leaked.
    """
    from swarmnode.bench.chaos import findings, run

    stopping.watch()
    chosen = tuple(run.STRATEGIES) if strategy == "all" else (strategy,)
    if minutes * 60 / len(chosen) < run.SECONDS_MIN:
        raise ConfigError(f"--minutes: expected {run.SECONDS_MIN:.0f} s or more for each strategy")
    settings = run.Settings(seed, minutes, nodes, chosen, other)
    found = run.run_chaos(settings, lambda line: click.echo(line, err=True))
    if as_json:
        print_json(found)
    else:
        click.echo(findings.format_outcome(found))
    return 1 if found["violations"] else 0
