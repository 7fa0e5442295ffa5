"""``swarmnode generate``: text from an exported model."""

from __future__ import annotations

import math
from pathlib import Path

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.options import json_option
from swarmnode.errors import ConfigError
from swarmnode.processes.worker_tools import model_folder, run_offline

# Lower ones overflow in float32, and the likeliest byte wins with them anyway.
_GREEDY_BELOW = 1e-3
_PROMPT_BYTES_MAX = 64 * 1024  # one argument of a process holds 128 KiB


@click.command()
@click.argument("export_dir", type=click.Path(path_type=Path))
@click.option(
    "--model", metavar="REPO|FOLDER", help="What the swarm went on from, where it did so."
)
@click.option("--prompt", default="The ", show_default=True)
@click.option("--bytes", "n_bytes", type=click.IntRange(1, 100_000), default=200, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0, 100.0), default=0.8, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@json_option
def generate(
    export_dir: Path,
    model: str | None,
    prompt: str,
    n_bytes: int,
    temperature: float,
    seed: int,
    as_json: bool,
) -> None:
    """Generate text from the model in EXPORT_DIR, which `swarmnode export` wrote."""
    if math.isnan(temperature):
        raise ConfigError("--temperature: expected a number from 0 to 100, got nan")
    if len(prompt.encode("utf-8", "replace")) > _PROMPT_BYTES_MAX:
        raise ConfigError(f"--prompt: expected at most {_PROMPT_BYTES_MAX} bytes")
    answer = run_offline(
        "generate",
        f"--prompt={prompt}",
        f"--length={n_bytes}",
        f"--temperature={temperature if temperature > _GREEDY_BELOW else 0}",
        f"--seed={seed}",
        f"--model-dir={model_folder(model)[0]}",
        "--",
        str(export_dir),
    )
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["text"])
