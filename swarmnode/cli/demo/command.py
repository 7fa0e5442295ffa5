"""``swarmnode demo``: a whole swarm on this machine, one node of it killed on the way."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from swarmnode.cli.demo.view import LiveView
from swarmnode.cli.main import print_json
from swarmnode.cli.options import check_data, json_option
from swarmnode.errors import ConfigError, one_error


@click.command()
@click.option("--nodes", type=click.IntRange(2, 16), default=4, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(15.0, 3600.0),
    default=60.0,
    show_default=True,
    help="How long the nodes train together; one node alone afterwards takes about half of it.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of text to train on.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("swarmnode-demo"),
    show_default=True,
    help="Where the exported model and loss.png go.",
)
@click.option("--keep", is_flag=True, help="Keep the nodes' homes, in OUT/homes.")
@json_option
def demo(
    nodes: int, seconds: float, data: Path | None, out: Path, keep: bool, as_json: bool
) -> None:
    """Train a small language model on real text with several nodes on this machine.

    Each node is a daemon and a torch worker of its own, talking over TCP on loopback.
    Midway one node is killed with SIGKILL and started again. At the end there is the
    exported model, some generated text, and loss.png with the loss of every node and of
    one node that trained alone for the same number of steps.
    """
    from swarmnode.cli.demo.report import report
    from swarmnode.cli.demo.run import DemoRun, DemoSettings
    from swarmnode.processes.stopping import run_async

    check_data(data, "bytes-lm")
    if out.exists() and any(out.iterdir()) and not _is_ours(out):
        raise ConfigError(f"--out: {out} is not empty and no demo wrote it: choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    work = out / "homes" if keep else Path(tempfile.mkdtemp(prefix="swarmnode-demo-"))
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    settings = DemoSettings(nodes=nodes, seconds=seconds, data=data, out=out, work=work)
    view = LiveView(to_stderr=as_json)
    run = DemoRun(settings, view)
    try:
        with one_error():
            run_async(run.run)
        figures = report(run, out, view)
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    if as_json:
        print_json(figures)


def _is_ours(out: Path) -> bool:
    """Whether an earlier demo wrote there, be it that it was interrupted."""
    return (out / "loss.png").exists() or (out / "model" / "config.json").exists()
