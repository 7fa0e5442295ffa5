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
@click.argument("link", required=False)
@home_option
@click.option("--torch/--no-torch", "with_torch", default=True, help="Try torch too, or not.")
@json_option
def doctor(link: str | None, home: Path | None, with_torch: bool, as_json: bool) -> int:
    """Check whether this machine is fit for a node, or for the swarm of a LINK or NAME.

    Each line says what to do. With a LINK the swarm's manifest is fetched, and a step of its task
    tried: what memory, disk and traffic it takes here, and what share of the work that would be.

    Looks at versions, settings, the home and its keys, disk, memory, clock, ports and limits, and
    lets torch calculate on the CPU and on each GPU. Ends with 1 if a line says FAIL.
    """
    findings = []
    for finding in examine(home, with_torch=with_torch, link=link):
        findings.append(finding)
        if not as_json:
            _print(finding)
    n_failed = sum(finding.level == "FAIL" for finding in findings)
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings], "failed": n_failed})
    return 1 if n_failed else 0


def examine(home: Path | None, *, with_torch: bool, link: str | None = None) -> Iterator[Finding]:
    """Yield all findings about this machine and a home, and about a swarm if one is named."""
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
    if link is not None and config is not None:
        yield from check_swarm(link, config)


def check_swarm(link: str, config: NodeConfig) -> Iterator[Finding]:
    """Say what a swarm takes of this machine, and what keeps it from joining."""
    from swarmnode.cli.trust.report import look_at, traffic_words

    try:
        found, report = look_at(link, None, config, lambda _: None, may_ask=False)
    except SwarmNodeError as error:
        yield Finding("swarm", "FAIL", str(error), "Is the link whole, and a member there?")
        return
    yield Finding("swarm", "OK", f"{found.name}: task {report.task}, {report.parameters:,} numbers")
    for obstacle in report.obstacles:
        yield Finding("swarm", "FAIL", obstacle, "Join once that is settled.")
    for check, fits, said in (
        ("swarm memory", report.memory.fits, report.memory.sentence()),
        ("swarm disk", report.disk.fits, report.disk.sentence()),
    ):
        advice = "" if fits else "End something else, free some, or take another machine."
        yield Finding(check, "OK" if fits else "FAIL", said, advice)
    for line in traffic_words(report.traffic):
        yield Finding("swarm traffic", "OK", line)
    yield Finding("swarm share", "OK", report.share.sentence())
    for line in report.environment:
        yield Finding("swarm asks for", "OK", line)


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
