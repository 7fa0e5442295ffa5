"""``swarmnode bench``: figures of this machine, each beside its baseline from the same run."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import click

from swarmnode import limits
from swarmnode.cli.main import print_json
from swarmnode.cli.options import check_data, codec_option, json_option
from swarmnode.errors import ConfigError
from swarmnode.processes import stopping

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@click.group()
def bench() -> None:
    """Measure codecs, links, exchanges, snapshots or whole swarms here, and what papers claim."""
    stopping.watch()


@bench.command()
@click.option("--size", default="256M", show_default=True, help="Bytes of float32, such as 64M.")
@json_option
def codec(size: str, as_json: bool) -> None:
    """Encode, decode and merge on one thread, against memcpy of the same array."""
    _report("codec", _bytes(size), as_json=as_json)


@bench.command()
@click.option(
    "--path", type=click.Choice(["tcp", "relay", "rtc"]), default="tcp", show_default=True
)
@json_option
def link(path: str, as_json: bool) -> None:
    """A secure session between two processes: over TCP against plain TCP and trio.SSLStream,
    through a relay against the session over TCP, over WebRTC against bare aiortc.
    """
    _report("link" if path == "tcp" else path, as_json=as_json)


@bench.command()
@click.option("--peers", type=click.IntRange(1, 200), default=50, show_default=True)
@json_option
def metrics(peers: int, as_json: bool) -> None:
    """One page for Prometheus, of a node that knows so many peers."""
    _report("metrics", peers, as_json=as_json)


@bench.command()
@click.option("--params", type=click.IntRange(1), default=50_000_000, show_default=True)
@codec_option("How values travel: Q8B64, Q4B64, BF16, RAW32, E3M0, Q2B64 or T3B320.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=15, show_default=True)
@json_option
def exchange(params: int, codec: str, repeats: int, as_json: bool) -> None:
    """One whole exchange between two daemons, and where its time goes."""
    _report("exchange", params, codec, repeats, as_json=as_json)


@bench.command()
@click.option(
    "--params",
    type=click.IntRange(1),
    multiple=True,
    default=(10_000_000, 50_000_000, 200_000_000, 500_000_000),
    show_default=True,
    help="A size; may be repeated.",
)
@codec_option("How values travel: Q8B64, Q4B64, BF16, RAW32, E3M0, Q2B64 or T3B320.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True)
@json_option
def sizes(params: tuple[int, ...], codec: str, repeats: int, as_json: bool) -> None:
    """One exchange at several sizes of the model: time, CPU, bytes, pauses and memory."""
    _report("sizes", params, codec, repeats, as_json=as_json)


@bench.command()
@click.option("--members", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--params", type=click.IntRange(1), default=50_000_000, show_default=True)
@codec_option("How values travel: Q8B64, Q4B64, BF16, RAW32, E3M0, Q2B64 or T3B320.")
@click.option(
    "--merge", type=click.Choice(["mean", "sybil-mean"]), default="mean", show_default=True
)
@click.option("--repeats", type=click.IntRange(1, 1000), default=9, show_default=True)
@json_option
def group(members: int, params: int, codec: str, merge: str, repeats: int, as_json: bool) -> None:
    """A mean over several daemons, against an all-reduce of float32 by gloo between the same."""
    _report("group", members, params, codec, merge, repeats, as_json=as_json)


@bench.command()
@click.option("--size", default="200000000", show_default=True, help="Bytes, such as 64M.")
@click.option("--rounds", type=click.IntRange(1, 100), default=7, show_default=True)
@json_option
def blob(size: str, rounds: int, as_json: bool) -> None:
    """A snapshot from three holders, against a plain copy of the same file."""
    _report("blob", size_bytes=_bytes(size), rounds=rounds, as_json=as_json)


@bench.command()
@click.option("--params", type=click.IntRange(1), default=50_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--period",
    type=click.FloatRange(0.1, limits.SNAPSHOT_PERIOD_S_MAX),
    default=limits.SNAPSHOT_PERIOD_S_MIN,
    show_default=True,
    help="Seconds from one snapshot to the next; the default is the shortest that there is.",
)
@json_option
def snapshot(params: int, rounds: int, period: float, as_json: bool) -> None:
    """Steps while snapshots are written, against the same steps without."""
    _report("snapshot", params, rounds, period, as_json=as_json)


@bench.command()
@click.option("--seconds", type=click.FloatRange(2.0, 600.0), default=10.0, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=1, show_default=True)
@click.option("--every", type=click.IntRange(1), default=16, show_default=True)
@click.option(
    "--params", type=click.IntRange(0), default=0, help="Of a linear model; 0: a small GPT."
)
@json_option
def step(seconds: float, rounds: int, every: int, params: int, as_json: bool) -> None:
    """Steps of two training nodes with exchanges, against the same two without, and how long
    views and merges held up a step.
    """
    _report("step", seconds, rounds, every, params, as_json=as_json)


@bench.command()
@click.option("--params", type=click.IntRange(1), default=10_000_000, show_default=True)
@click.option("--strategy", default="streaming", show_default=True, help="That two nodes train by.")
@json_option
def memory(params: int, strategy: str, as_json: bool) -> None:
    """What a worker with Adam and its daemon hold in memory, in times of the model."""
    _report("memory", params, strategy, as_json=as_json)


@bench.command()
@click.option("--nodes", type=click.IntRange(4, 256), default=32, show_default=True)
@json_option
def swarm(nodes: int, as_json: bool) -> None:
    """Real daemons that find each other: DHT times, memory, CPU, and how soon one joins."""
    _report("swarm", n_nodes=nodes, as_json=as_json)


@bench.command()
@click.option("--members", type=click.IntRange(1, 1000), default=100, show_default=True)
@json_option
def state(members: int, as_json: bool) -> None:
    """What a newcomer fetches of the shared state: compressed, against the plain encoding."""
    _report("state", members, as_json=as_json)


@bench.command()
@click.option("--only", multiple=True, metavar="NAME", help="One experiment; may be repeated.")
@click.option(
    "--write",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write anew, with its pictures: docs/fidelity.md.",
)
@click.option("--quick", is_flag=True, help="Runs too short to judge by: see that all works.")
@json_option
def fidelity(only: tuple[str, ...], page: Path | None, quick: bool, as_json: bool) -> int:
    """What the papers claim of the algorithms, tried on them as they are here.

    Exits with 1 if a figure is not as expected.
    """
    from swarmnode.bench.fidelity import run as bench_fidelity
    from swarmnode.bench.fidelity.page import write_page

    findings = []
    for finding in bench_fidelity.run_fidelity(only, is_quick=quick):
        findings.append(finding)
        click.echo(bench_fidelity.format_finding(finding), err=as_json)
        if page is not None:  # at once: what comes after may fail
            write_page(page, [finding])
    if as_json:
        print_json(bench_fidelity.as_json(findings))
    return 0 if quick or all(finding.holds for finding in findings) else 1


@bench.command()
@click.option("--nodes", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--steps", type=click.IntRange(20), default=1200, show_default=True)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of text to train on.")
@click.option("--strategy", help="Another one than the default of create.")
@click.option("--settings", default="{}", metavar="JSON", help="Of the strategy.")
@click.option("--seeds", default="1", show_default=True, metavar="N,N,...")
@click.option(
    "--engine", type=click.Choice(["daemons", "lab"]), default="daemons", show_default=True
)
@json_option
def learning(
    nodes: int,
    steps: int,
    data: Path | None,
    strategy: str | None,
    settings: str,
    seeds: str,
    engine: Literal["daemons", "lab"],
    as_json: bool,
) -> None:
    """How much of the gain of data parallelism over one node alone a swarm keeps.

    Real daemons, or strategy objects in virtual time; both baselines at the best of three learning
    rates, in the same run.
    """
    from swarmnode.bench.learning import outcome, run
    from swarmnode.bench.learning.plan import Plan

    folder = check_data(data, "bytes-lm")
    plan = Plan(
        nodes=nodes,
        steps=steps,
        strategy=strategy or "",
        settings=_json_object(settings, "--settings"),
        data=folder,
    )
    found = run.run_learning_bench(
        plan, _seeds(seeds), engine, lambda line: click.echo(line, err=as_json)
    )
    if as_json:
        print_json(outcome.as_json(found))
    else:
        click.echo(outcome.format_outcome(found))


def _seeds(text: str) -> list[int]:
    """Read seeds such as ``1,2,3``."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words) or len(set(words)) < len(words):
        raise ConfigError(f"--seeds: expected different whole numbers like 1,2,3, got {text!r}")
    return [int(word) for word in words]


def _json_object(text: str, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{option}: expected a JSON object, got {text[:100]!r}")
    return found


def _report(name: str, *settings: Any, as_json: bool, **named: Any) -> None:
    """Run ``swarmnode.bench.NAME`` and print its figures.

    Each has ``run_NAME_bench(...)``, which returns them, and ``format_NAME_bench(figures)``. None
    is imported before it is wanted: some load what others do without.
    """
    bench = import_module(f"swarmnode.bench.{name}")
    figures = getattr(bench, f"run_{name}_bench")(*settings, **named)
    if as_json:
        print_json(figures)
    else:
        click.echo(getattr(bench, f"format_{name}_bench")(figures))


def _bytes(text: str) -> int:
    """Read a size such as ``256M``."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or (unit and unit not in _UNITS) or int(number) < 1:
        raise ConfigError(
            f"--size: expected a number of bytes like 1048576, 64M or 1G, got {text!r}"
        )
    return int(number) * _UNITS.get(unit, 1)
