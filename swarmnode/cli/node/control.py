"""Verbs that ask the running node, or need no node at all, as its settings. Loads nothing heavy."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from swarmnode import __version__
from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import given, home_option, json_option
from swarmnode.config import Paths, Setting, explain_config, resolve_home
from swarmnode.errors import DeadlineExceeded
from swarmnode.processes.client import ControlClient
from swarmnode.quantities import show_duration

# A node needs less than two seconds, a worker that hangs ten more.
LEAVE_DEADLINE_S = 15.0
_LEAVE_POLL_S = 0.05
_BOOTSTRAPS_SHOWN = 3
_ERROR_CHARACTERS = 120


def client_for(home: Path | None) -> ControlClient:
    """Return the client of the daemon that owns a home."""
    return ControlClient(Paths(resolve_home(home, os.environ)))


@click.command()
@home_option
@json_option
def status(home: Path | None, as_json: bool) -> None:
    """Show what the running node is doing, and why."""
    answer = client_for(home).get("/status?mixing=1" if as_json else "/status")
    if as_json:
        print_json(answer)
        return
    for name, value in status_lines(answer):
        click.echo(f"{name:<11} {plain(value)}")


@click.command()
@home_option
@json_option
def peers(home: Path | None, as_json: bool) -> None:
    """List the peers of the running node; their numbers are what they say themselves.

    Trust is what this node has measured of them, and heard: 0.50 is neutral.
    """
    answer = client_for(home).get("/peers")
    if as_json:
        print_json(answer)
        return
    row = "{:<16} {:<18} {:<8} {:<9} {:<24} {:>8} {:>9} {:>8} {:>6}  {}"
    heads = ("peer", "name", "role", "state", "path", "step", "loss", "rtt ms", "trust", "version")
    click.echo(row.format(*heads))
    for peer in answer:
        click.echo(
            row.format(
                peer["peer"][:15] + "…",
                _cut(plain(peer["name"]), 18),
                plain(peer["role"]),
                peer["state"] + ("?" if peer["alive"] == "suspect" else ""),
                plain(peer["way"] or "not connected"),
                peer["step"],
                _number(peer["eval_loss"], ".4f"),
                _number(peer["rtt_s"] and peer["rtt_s"] * 1e3, ".1f"),
                _number(peer["trust"], ".2f"),
                plain(peer["version"]),
            )
        )
        if peer["error"]:
            click.echo(plain(f"{'':<17}not reached: {peer['error']}"))


@click.command()
@home_option
@json_option
def leave(home: Path | None, as_json: bool) -> None:
    """Tell the running node to leave its swarm, and wait until it has stopped."""
    client = client_for(home)
    status = client.get("/status")
    client.post("/leave")
    wait_process(status["pid"])
    if as_json:
        print_json({"left": True, "swarm": status["swarm"], "pid": status["pid"]})
    else:
        click.echo(f"left swarm {status['swarm']}; `swarmnode join {status['swarm']}` goes on")


@click.command()
@home_option
@json_option
def paths(home: Path | None, as_json: bool) -> None:
    """Show where this node keeps its files."""
    own = Paths(resolve_home(home, os.environ))
    where = {
        "home": own.home,
        "config": own.config_file,
        "node_key": own.node_key,
        "control_socket": own.control_socket,
        "exchanges": own.history,
        "swarms": own.swarms,
    }
    if as_json:
        print_json({name: str(path) for name, path in where.items()})
        return
    for name, path in where.items():
        missing = "" if os.path.lexists(path) else "  (not there yet)"
        click.echo(f"{name:<15} {plain(str(path))}{missing}")


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version and the native code in use."""
    from swarmnode.tensor.codec import active_isa, available_isas

    facts = {"version": __version__, "native_isa": active_isa(), "isas": list(available_isas())}
    if as_json:
        print_json(facts)
    else:
        click.echo(f"swarmnode {__version__}, native code: {facts['native_isa']}")


def wait_process(pid: int, deadline_s: float = LEAVE_DEADLINE_S) -> None:
    """Return once the process has ended: its home is free for the next one then.

    Raises:
        DeadlineExceeded: it is still there after ``deadline_s``.
    """
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                has_ended, _, _ = select.select([descriptor], [], [], deadline_s)
            finally:
                os.close(descriptor)
            if not has_ended:
                raise DeadlineExceeded(f"waiting for process {pid} to stop", deadline_s)
        return
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        select.select([], [], [], _LEAVE_POLL_S)
    raise DeadlineExceeded(f"waiting for process {pid} to stop", deadline_s)


def status_lines(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what `status` shows, line by line: (what it is about, the words)."""
    sent, received = sum(answer["sent_bytes"].values()), sum(answer["received_bytes"].values())
    alarm = [("ALARM", answer["alarm"])] if answer["alarm"] else []
    data = [("data", answer["data"])] if answer["data"] else []
    data += [("worker", answer["sandbox"])] if answer.get("sandbox") else []
    return [
        *alarm,
        (
            "swarm",
            f"{answer['swarm']}: {answer['peers_alive'] + 1} members, {answer['swarm_steps']:,}"
            f" steps, {answer['swarm_tokens']:,} tokens",
        ),
        ("state", f"{answer['state']}: {answer['reason']}"),
        ("line", f"{answer['connectivity']['state']}: {answer['connectivity']['why']}"),
        *bootstrap_lines(answer["bootstraps"]),
        ("name", answer["node_name"]),
        ("peer", answer["peer"]),
        ("address", ", ".join(answer["addresses"]) or answer["address"]),
        (
            "training",
            f"step {answer['step']:,}, {answer['tokens']:,} tokens,"
            f" {_number(answer['step_time_s'] and answer['step_time_s'] * 1e3, '.1f')} ms a step",
        ),
        *data,
        *_recipe_line(answer),
        (
            "loss",
            f"{_number(answer['loss'], '.4f')} training,"
            f" {_number(answer['eval_loss'], '.4f')} held out,"
            f" swarm {_number(answer['swarm_loss'], '.4f')}",
        ),
        (
            "peers",
            f"{answer['peers_connected']} connected, {answer['peers_alive']} alive,"
            f" {answer['peers_known']} known; {answer['dht_contacts']} contacts in the DHT",
        ),
        (
            "exchanges",
            f"{answer['exchanges_committed']} committed, {answer['exchanges_aborted']} aborted,"
            f" {answer['exchanges_declined']} declined, {answer['exchanges_in_doubt']} in doubt,"
            f" {answer['payloads_refused']} payloads refused",
        ),
        ("traffic", f"{sent / 1e6:.1f} MB sent, {received / 1e6:.1f} MB received"),
        ("on the line", line_words(answer)),
        ("given", _given(answer["totals"])),
        ("snapshot", _snapshot(answer)),
        (
            "process",
            f"pid {answer['pid']}, worker {answer['worker_pid'] or '-'},"
            f" {answer['worker_restarts']} restarts, up {answer['uptime_s']:.0f} s",
        ),
    ]


def _snapshot(answer: dict[str, Any]) -> str:
    """What it has written itself; who does not train copies those of others."""
    if answer["snapshot_path"]:
        return f"step {answer['snapshot_step']}"
    if answer["role"] == "trainer":
        return "none yet"
    held = answer.get("held_step")  # the version before does not say it
    copied = "" if held is None else f"; of others that of step {held:,} of the swarm"
    return f"none of its own, as it does not train{copied}"


def _recipe_line(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """How far the swarm is on its way, and what its recipe makes of the learning rate."""
    if answer["lr_factor"] is None:
        return []
    factor, target = f"learning rate × {answer['lr_factor']:.3g}", answer["target_tokens"]
    if not target:
        return [("recipe", f"{factor}, no end yet")]
    share = min(1.0, answer["swarm_tokens"] / target)
    return [("recipe", f"{factor}, {share:.1%} of {target:,} tokens")]


def bootstrap_lines(bootstraps: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return lines of addresses that the node was given and that do not answer; the first few."""
    failing = [each for each in bootstraps if each["error"] and not each["is_connected"]]
    lines = [
        ("not reached", f"{each['address']}: {_cut(plain(each['error']), _ERROR_CHARACTERS)}")
        for each in failing[:_BOOTSTRAPS_SHOWN]
    ]
    more = len(failing) - len(lines)
    return [*lines, ("", f"and {more} more: `netcheck` names them")] if more > 0 else lines


def line_words(answer: Mapping[str, Any]) -> str:
    """Return what the line carried, by what it was for, and how long exchanges take on it."""
    sent = (f"{name} {n / 1e6:.1f} MB" for name, n in answer["line_sent_bytes"].items())
    took_s = answer["exchange_s_mean"]
    took = "" if took_s is None else f"; an exchange takes {took_s:.3g} s, the next waits for it"
    follows = answer.get("follows_line", "")  # the version before does not say it
    follows = f"; {follows}" if follows else ""
    return f"sent {', '.join(sent)}{took}{follows}"


def _given(totals: dict[str, Any]) -> str:
    """What this node gave so far, in words."""
    n_swarms = len(totals["swarms"])
    swarms = "1 swarm" if n_swarms == 1 else f"{n_swarms} swarms"
    return (
        f"{totals['steps']:,} steps, {totals['tokens']:,} tokens,"
        f" {totals['exchanges_committed']:,} exchanges, {totals['sent_bytes'] / 1e6:.1f} MB sent,"
        f" {totals['received_bytes'] / 1e6:.1f} MB received,"
        f" {show_duration(totals['trained_s'])} of training, in {swarms}"
    )


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


@click.group()
def config() -> None:
    """Look at the settings of a node."""


@config.command()
@home_option
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value comes from.")
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@json_option
def show(home: Path | None, with_origin: bool, changed: bool, as_json: bool) -> None:
    """Show the settings that a node of this home would have, in the words of config.toml.

    A setting that cannot be used is an error that names its line: this checks the file too.
    """
    settings = explain_config(given(home=home and str(home)), os.environ)
    shown = [one for one in settings if not (changed and one.origin == "default")]
    if as_json:
        print_json(as_records(shown))
        return
    for setting in shown:
        line = f"{setting.name} = {toml_value(setting.shown)}"
        click.echo(plain(f"{line:<48} # {setting.origin}" if with_origin else line))


def as_records(settings: list[Setting]) -> dict[str, Any]:
    """Return settings as plain data: name to value and origin."""
    return {
        one.name: {"value": msgspec.to_builtins(_plain(one.shown)), "origin": one.origin}
        for one in settings
    }


def toml_value(value: Any) -> str:
    """Return a value as TOML has it; of what settings can be, JSON is the same."""
    return msgspec.json.encode(_plain(value)).decode()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
