"""Verbs of the machine's owner: pause, resume, finish, and what holds. Loads nothing heavy."""

from __future__ import annotations

import time
from pathlib import Path

import click

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.node.control import LEAVE_DEADLINE_S, client_for, wait_process
from swarmnode.cli.options import home_option, json_option
from swarmnode.limits import FINISH_S
from swarmnode.quantities import parse_duration_s


@click.command()
@click.argument("duration", required=False)
@home_option
@json_option
def pause(duration: str | None, home: Path | None, as_json: bool) -> None:
    """Stop training until `resume`, or for a DURATION such as 2h, 90m or 1d.

    The node stays in its swarm. The pause also survives a restart of the node; nothing but
    `resume`, or the end of the DURATION, ends it.
    """
    length = f"?for={parse_duration_s(duration):.0f}s" if duration else ""
    answer = client_for(home).post(f"/pause{length}")
    if as_json:
        print_json(answer)
    else:
        click.echo(plain(answer["why"]))


@click.command()
@home_option
@json_option
def resume(home: Path | None, as_json: bool) -> None:
    """Go on training after `pause`, unless something else holds it."""
    answer = client_for(home).post("/resume")
    if as_json:
        print_json(answer)
    elif answer["paused"]:
        click.echo(f"no pause by hand any more, but: {plain(answer['why'])}")
    else:
        click.echo("training goes on")


@click.command()
@home_option
@json_option
def finish(home: Path | None, as_json: bool) -> None:
    """Let the exchanges that run complete, then leave the swarm and stop."""
    client = client_for(home)
    status = client.get("/status")
    client.post("/finish")
    wait_process(status["pid"], FINISH_S + LEAVE_DEADLINE_S)
    if as_json:
        print_json({"finished": True, "swarm": status["swarm"], "pid": status["pid"]})
    else:
        click.echo(f"finished and left; `swarmnode join {status['swarm']}` goes on")


@click.command()
@home_option
@json_option
def limits(home: Path | None, as_json: bool) -> None:
    """Show what this node may take of the machine, what it uses, and what holds it back."""
    answer = client_for(home).get("/limits")
    if as_json:
        print_json(answer)
        return
    click.echo("training" if answer["may_train"] else "paused")
    for hold in answer["holds"]:
        until = hold["until_unix_s"]
        end = f", until {time.strftime('%a %d %b %H:%M', time.localtime(until))}" if until else ""
        click.echo(f"  {hold['reason']:<10} {plain(hold['text'])}{end}")
    row = "{:<20} {:<28} {}"
    click.echo(row.format("setting", "allowed", "now"))
    for line in answer["limits"]:
        click.echo(row.format(line["setting"], plain(line["allowed"]), plain(line["used"])))
