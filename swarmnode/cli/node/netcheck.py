"""``swarmnode netcheck``: how the running node reaches others, and what its owner can do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.node.control import client_for
from swarmnode.cli.node.line import check_line
from swarmnode.cli.options import home_option, json_option

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
