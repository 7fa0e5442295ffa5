"""``swarmnode doctor``: is this machine fit for a node, and if not, what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from swarmnode.cli.doctor import checks as doctor_checks
from swarmnode.cli.doctor.checks import Finding
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import given, home_option, json_option
from swarmnode.config import NodeConfig, Paths, load_config, resolve_home
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.processes.client import ControlClient

_MODULE = "swarmnode.worker.tools.doctor"


@click.command()
@home_option
@click.option("--torch/--no-torch", "with_torch", default=True, help="Try torch too, or not.")
@json_option
def doctor(home: Path | None, with_torch: bool, as_json: bool) -> int:
    """Check whether this machine is fit for a node; each line says what to do.

    Looks at versions, settings, the home and its keys, disk, memory, clock, ports and limits, and
    lets torch calculate on the CPU and on each GPU. Ends with 1 if a line says FAIL.
    """
    findings = []
    for finding in examine(home, with_torch=with_torch):
        findings.append(finding)
        if not as_json:
            _print(finding)
    n_failed = sum(finding.level == "FAIL" for finding in findings)
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings], "failed": n_failed})
    return 1 if n_failed else 0


def examine(home: Path | None, *, with_torch: bool) -> Iterator[Finding]:
    """Yield all findings about this machine and a home."""
    flags = given(home=home and str(home))
    paths = Paths(resolve_home(home, os.environ))
    yield from doctor_checks.check_versions()
    yield from doctor_checks.check_rendezvous()
    yield from doctor_checks.check_config(flags, os.environ)
    yield from doctor_checks.check_home(paths)
    node, status = doctor_checks.check_node(paths)
    yield node
    if status is not None:
        yield doctor_checks.check_line(ControlClient(paths), status)
    yield from doctor_checks.check_disk(paths)
    yield from doctor_checks.check_memory()
    yield from doctor_checks.check_clock(status, doctor_checks.clock_state())
    config = _config(flags)
    if config is not None:
        yield from doctor_checks.check_ports(config, is_running=status is not None)
    allowed = doctor_checks.process_limits()
    if allowed is not None:
        yield doctor_checks.check_limits(allowed)
    if with_torch:
        yield from check_torch(config)


def check_torch(config: NodeConfig | None) -> Iterator[Finding]:
    """Let torch calculate, in a process of its own."""
    from swarmnode.processes.worker_tools import stream_offline

    try:
        for found in stream_offline(module=_MODULE):
            yield Finding(**found)
    except ConfigError as error:  # it is missing, or cannot be imported
        needs_torch = config is None or config.role == "trainer"
        yield Finding(
            "torch",
            "FAIL" if needs_torch else "OK",
            str(error),
            "Install it, or take another role: keeper and monitor do without."
            if needs_torch
            else "",
        )
    except SwarmNodeError as error:
        yield Finding("torch", "FAIL", str(error), "Install torch anew: docs/install.md.")


def _config(flags: dict[str, Any]) -> NodeConfig | None:
    try:
        return load_config(flags, os.environ)
    except ConfigError:
        return None  # said already


def _print(finding: Finding) -> None:
    colour = {"OK": "green", "WARN": "yellow", "FAIL": "red"}[finding.level]
    level = click.style(f"{finding.level:<4}", fg=colour)
    click.echo(f"{level} {finding.check:<18} {plain(finding.said)}")
    if finding.advice:
        click.echo(f"{'':23} {plain(finding.advice)}")
