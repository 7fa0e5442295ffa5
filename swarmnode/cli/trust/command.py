"""``swarmnode trust``: what a swarm is and asks for, before joining it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import given, home_option, json_option, key_option, network_options
from swarmnode.config import NodeConfig, load_config

if TYPE_CHECKING:
    from swarmnode.cli.trust.report import TrustReport
    from swarmnode.protocol.swarm import SwarmLink

_SETTINGS_CHARACTERS_MAX = 300
_ACCESS = {
    "open": "every node that has the link, or finds the name, may join",
    "member": "you are a member",
    "invited": "the link has an invite",
    "invite ended": "the invite in the link has ended",
    "invite not begun": "the invite in the link does not count yet",
    "no invite": "the link has no invite",
}


@click.command()
@click.argument("link")
@key_option
@network_options
@home_option
@json_option
def trust(
    link: str,
    key: str | None,
    bootstrap: tuple[str, ...],
    lan: bool | None,
    network: str | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Show what the swarm of a LINK or NAME is and asks for, without joining it.

    Its manifest is fetched from a member, and its signature checked against the key in the
    link. What a step takes is what members say, where this home's node knows them; else the task,
    if it is installed here, is tried for some seconds in a process without a network. Nothing is
    written.
    """
    flags = given(home=home and str(home), network=network, bootstrap=bootstrap, lan=lan)
    config = load_config(flags, os.environ)
    from swarmnode.cli.swarm.named import is_interactive
    from swarmnode.cli.trust.report import look_at

    def tell(text: str) -> None:
        if not as_json:
            click.echo(f"swarmnode: {plain(text)}", err=True)

    asks_daemon = not (network or bootstrap or lan is not None)
    may_ask = not as_json and is_interactive()
    found, report = look_at(link, key, config, tell, may_ask=may_ask, asks_daemon=asks_daemon)
    if as_json:
        print_json({**msgspec.to_builtins(report), "link": str(found.public)})
        return
    for line in _lines(report, _how_to_join(report, found, config, home)):
        click.echo(plain(line))


def _how_to_join(
    report: TrustReport, link: SwarmLink, config: NodeConfig, home: Path | None
) -> str:
    from swarmnode.store.swarms import stored_link

    what = link.name
    if stored_link(link.name, config.paths) is None:
        what = "THE LINK" if link.invite else str(link.public)  # an invite is a secret
    flags = ["--home", str(home)] if home else []
    command = shlex.join(["swarmnode", "join", what, *flags])
    return f"to join once that is settled: {command}" if report.obstacles else f"to join: {command}"


# --- words ------------------------------------------------------------------------------------


def _lines(report: TrustReport, how_to_join: str) -> Iterator[str]:
    from swarmnode.cli.trust.report import traffic_words  # with all that a report is made of

    expires = f"until {_date(report.expires_at)}" if report.expires_at else "without end"
    until = f" (until {_date(report.access_until)})" if report.access_until else ""
    yield f"swarm {report.name}, as its key has signed it"
    rows = (
        ("key", report.key),
        ("created", f"{_date(report.created_at)}; takes newcomers {expires}"),
        ("admission", f"{report.admission}: {_ACCESS[report.access]}{until}"),
        ("task", f"{report.task}, version {report.task_version}; {_installed(report)}"),
        ("settings", _settings(report.task_settings)),
        ("strategy", _strategy(report)),
        ("recipe", report.recipe),
        ("model", f"{report.parameters:,} parameters, sent as {report.codec}"),
        *(("traffic", text) for text in traffic_words(report.traffic)),
        ("memory", report.memory.sentence()),
        ("disk", report.disk.sentence()),
        ("share", report.share.sentence()),
        *(("asks for", text) for text in report.environment),
        (
            "version",
            f"wants swarmnode >= {report.min_version}, this is {report.version}:"
            f" {'good' if report.version_ok else 'too old'}",
        ),
    )
    for name, value in rows:
        yield f"  {name:<10} {value}"
    for title, sentences in (
        ("what others can see", report.others_see),
        ("what cannot happen", report.cannot_happen),
        ("what keeps this machine from joining", report.obstacles),
    ):
        if sentences:
            yield f"{title}:"
            yield from (f"  - {sentence}" for sentence in sentences)
    yield how_to_join


def _installed(report: TrustReport) -> str:
    if not report.task_installed:
        package = f"; its creator has it from {report.task_package}" if report.task_package else ""
        return f"not installed here{package}"
    version = report.task_installed_version
    which = "which version shows at the start" if version is None else f"version {version}"
    return f"installed here by {report.task_installed} ({which})"


def _strategy(report: TrustReport) -> str:
    text = f"{report.strategy}, version {report.strategy_version}"
    topology = f"; on the graph {report.topology[:80]}" if report.topology else ""
    return f"{text}; {_settings(report.strategy_settings)}{topology}"


def _settings(settings: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    is_long = len(text) > _SETTINGS_CHARACTERS_MAX
    return f"{text[:_SETTINGS_CHARACTERS_MAX]}…" if is_long else text or "no settings"


def _date(unix_s: int) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"{unix_s} s after 1970"
