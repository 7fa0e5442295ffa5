"""``swarmnode netcheck``: how the running node reaches others, and what its owner can do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import click

from swarmnode import limits
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.node.control import client_for
from swarmnode.cli.node.line import Seen, headline, of_bootstraps
from swarmnode.cli.node.probes import Probes
from swarmnode.cli.options import home_option, json_option
from swarmnode.processes.client import ControlClient

_INDENT = 23
_WIDTH = 100


@click.command()
@home_option
@json_option
def netcheck(home: Path | None, as_json: bool) -> int:
    """Show how the running node reaches others and is reached, and what would help.

    The first line says what matters most. Peers are asked what its NAT does, and addresses that do
    not answer are looked at, which takes up to twenty seconds. Ends with 1 if a line says fail.
    """
    findings = check_line(client_for(home))
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            for line in _lines(finding):
                click.echo(line)
    return 1 if any(finding["verdict"] == "fail" for finding in findings) else 0


def check_line(client: ControlClient) -> list[dict[str, Any]]:
    """Return all findings, the one sentence first. Raises SwarmNodeError: no node answers."""
    probes = _probes_for(client.get("/status"))
    beyond = probes.beyond()
    path = f"/netcheck?beyond={beyond}" if beyond else "/netcheck"
    findings = client.get(path, deadline_s=limits.NETCHECK_S + 2)
    peers = client.get("/peers")
    # Asked again: what the node knows now, it may not have known when the probes began.
    seen = Seen(client.get("/status"), probes.result(), findings, peers)
    return [headline(seen).finding(), *of_bootstraps(seen), *findings]


def _probes_for(status: Mapping[str, Any]) -> Probes:
    boots: Sequence[Mapping[str, Any]] = status["bootstraps"]
    hosts = [each["address"].rpartition(":")[0] for each in boots]
    return Probes(
        (each["address"] for each in boots if not each["is_connected"]),
        target=next(filter(_is_ipv4, hosts), ""),
    )


def _is_ipv4(host: str) -> bool:
    try:
        return IPv4Address(host).is_global
    except ValueError:
        return False


def _lines(finding: dict[str, Any]) -> Iterator[str]:
    head = f"{finding['verdict']:<8} {finding['topic']:<13} "
    yield from _wrapped(head, plain(finding["text"]))
    if finding["advice"]:
        yield from _wrapped(f"{'':{_INDENT}}-> ", plain(finding["advice"]))


def _wrapped(head: str, text: str) -> list[str]:
    """Return lines of _WIDTH characters; an address is never broken."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * max(_INDENT, len(head)),
        break_long_words=False,
        break_on_hyphens=False,
    )
