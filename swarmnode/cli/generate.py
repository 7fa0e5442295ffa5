"""``swarmnode generate``: text from an exported model."""

from __future__ import annotations

from pathlib import Path

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.options import json_option
from swarmnode.cli.worker_tools import run_offline


@click.command()
@click.argument("export_dir", type=click.Path(path_type=Path))
@click.option("--prompt", default="The ", show_default=True)
@click.option("--bytes", "n_bytes", type=click.IntRange(1, 100_000), default=200, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0), default=0.8, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def generate(
    export_dir: Path, prompt: str, n_bytes: int, temperature: float, seed: int, as_json: bool
) -> None:
    """Generate text from the model in EXPORT_DIR, which `swarmnode export` wrote."""
    answer = run_offline(
        "generate",
        str(export_dir),
        *("--prompt", prompt),
        *("--length", str(n_bytes)),
        *("--temperature", str(temperature)),
        *("--seed", str(seed)),
    )
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["text"])
