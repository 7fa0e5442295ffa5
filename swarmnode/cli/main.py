"""The ``swarmnode`` command: one small file per group of verbs, loaded when it is used.

Exit codes: 0 ok, 1 failed, 2 wrong usage or setting, 3 no daemon runs, 4 refused
(trust or a limit). An error is one line on stderr; with ``--json`` it is an object
``{"error", "exit_code"}`` on stdout.

Managers of services that start again whatever failed, and know no exceptions (launchd, Docker), set
``SWARMNODE_SUCCESS_EXIT_STATUS="2 4"``: `join` ends with 0 instead of these.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import sys
from importlib import import_module
from typing import Any

import click

from swarmnode import __version__
from swarmnode.closest import closest
from swarmnode.errors import SwarmNodeError
from swarmnode.processes import stopping

# verb -> (module, one line of help); nothing below is imported until its verb is used.
_VERBS = {
    "backup": ("node.backup", "Write the keys, settings and models of this home to one file."),
    "bench": ("bench", "Measure the codecs, a link or an exchange on this machine."),
    "chaos": ("chaos", "Let faults hit real nodes on this machine, and check what they promise."),
    "config": ("node.control", "Look at the settings of a node."),
    "create": ("swarm.create", "Create a swarm and print its link."),
    "dashboard": ("node.dashboard", "Print where the page about the running node is, or open it."),
    "demo": (
        "demo.command",
        "Train a language model with four nodes on this machine; kill one midway.",
    ),
    "doctor": ("doctor.command", "Check whether this machine is fit for a node."),
    "export": ("model.export", "Write the trained model as safetensors with a model card."),
    "extend": ("swarm.extend", "Let a swarm train on, up to a target that lies further."),
    "finalize": ("model.export", "Merge the models of all members into one."),
    "generate": ("model.generate", "Generate text from an exported model."),
    "invite": ("swarm.invite", "Let people into a closed swarm, and take that back."),
    "join": ("swarm.join", "Join a swarm by its link or name and train until Ctrl-C."),
    "leave": ("node.control", "Tell the running node to leave its swarm and stop."),
    "link": ("swarm.link", "Print the link to a swarm, with peers that are there now."),
    "netcheck": ("node.netcheck", "Show how this node reaches others, and what would help."),
    "metrics": ("node.metrics", "Print what Prometheus sees of the running node."),
    "finish": ("node.volunteer", "Let exchanges that run complete, then leave and stop."),
    "limits": ("node.volunteer", "Show what this node may take of the machine, and what holds it."),
    "pause": ("node.volunteer", "Stop training until `resume`, or for a time such as 2h."),
    "restore": ("node.backup", "Make a home out of what `backup` wrote."),
    "push": ("model.push", "Publish the trained model on the Hugging Face hub."),
    "resume": ("node.volunteer", "Go on training after `pause`."),
    "paths": ("node.control", "Show where this node keeps its files."),
    "peers": ("node.control", "List the peers of the running node."),
    "service": ("service.command", "Run a node as a service of this machine."),
    "simulate": ("simulate", "Run thousands of simulated nodes and check what they promise."),
    "status": ("node.control", "Show what the running node is doing, and why."),
    "support-bundle": (
        "doctor.support_bundle",
        "Write a zip file, without secrets, for who helps you.",
    ),
    "swarms": ("swarm.swarms", "List the swarms of this home, of the local network, and by name."),
    "top": ("node.top", "Watch the swarm in the terminal, until q."),
    "trust": ("trust.command", "Show what a swarm is and asks for, before joining it."),
    "version": ("node.control", "Show the version and the native code in use."),
}
SUCCESS_VARIABLE = "SWARMNODE_SUCCESS_EXIT_STATUS"  # as systemd's SuccessExitStatus=
_COMPLETES = "_SWARMNODE_COMPLETE"
# An older click prints the help by itself.
_NO_VERB: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class _LazyVerbs(click.Group):
    """A group whose verbs are imported on first use: ``status`` must answer at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = import_module(f"swarmnode.cli.{_VERBS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        if _COMPLETES in os.environ:  # the shell asks: no other call pays for it
            from swarmnode.cli.options import offer_names

            return offer_names(command, cmd_name)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in sorted(_VERBS.items())])


@click.group(cls=_LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="swarmnode")
def cli() -> None:
    """Train a neural network together with strangers, with no server in the middle.

    Volunteers run `swarmnode join LINK`; researchers `swarmnode create NAME --task TASK`.
    Everything one node owns lies in SWARMNODE_HOME.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if arguments is None:
        arguments = _usual_order(sys.argv[1:])
        stopping.install(functools.partial(_say_last, arguments))
    else:
        arguments = _usual_order(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know less than UTF-8
    try:
        exit_code = _run(arguments)
    finally:
        stopping.end_started()  # a benchmark that failed must not leave its nodes behind
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        exit_code = exit_code or _fail(arguments, _system_line(error), 1)
    sys.exit(_as_asked(arguments, exit_code))


def _as_asked(arguments: list[str], exit_code: int) -> int:
    """Return what a manager is told of a node; other verbs in its surroundings say what is so."""
    is_success = str(exit_code) in os.environ.get(SUCCESS_VARIABLE, "").split()
    return 0 if is_success and arguments[:1] == ["join"] else exit_code


def _run(arguments: list[str]) -> int:
    """Run a verb; whatever it raises becomes one line and an exit code."""
    try:
        code = _run_verb(arguments)
    except BaseException:  # what breaks while a verb is ended, like a killed node, is no news
        if not stopping.reason():
            raise
        code = 1
    return _fail(arguments, stopping.reason(), 1) if stopping.reason() else code


def _run_verb(arguments: list[str]) -> int:
    try:
        code = cli.main(args=arguments, prog_name="swarmnode", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _fail(arguments, "stopped by Ctrl-C", 1)
    except _NO_VERB as error:  # `swarmnode bench` alone
        return 0 if say(error.format_message()) else 1
    except click.ClickException as error:
        return _fail(arguments, _usage_line(error), 2)
    except SwarmNodeError as error:
        return _fail(arguments, str(error), error.exit_code)
    except OSError as error:
        return _fail(arguments, _system_line(error), 1)
    return code if isinstance(code, int) else 0


def plain(text: str) -> str:
    """Return ``text`` without what could move a terminal's cursor: some of it is from peers."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _usual_order(arguments: list[str]) -> list[str]:
    """Let ``--json`` stand before the verb too, and show the help where there is none."""
    if arguments[:1] == ["--json"]:
        arguments = [*arguments[1:], "--json"]
    return arguments or ["--help"]


def _usage_line(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    if context is not None and isinstance(context.command, click.Group):
        wrong = re.match(r"No such command '([^']*)'", error.format_message())
        verbs = context.command.list_commands(context)
        if wrong is not None and (close := closest(wrong[1], verbs)) is not None:
            return f"{wrong[0]}: did you mean {close!r}?{hint}"
    return error.format_message().rstrip(".") + hint


def _system_line(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"the system refused: {where}{error.strerror or error}"


def _fail(arguments: list[str], message: str, exit_code: int) -> int:
    """Say why it ended, if that has not been said; return the exit code."""
    if stopping.reason():
        if not stopping.may_say():
            return 1
        message, exit_code = stopping.reason(), 1
    line = plain(" ".join(message.split()))
    is_said = "--json" in arguments and say(json.dumps({"error": line, "exit_code": exit_code}))
    if not is_said:
        click.echo(f"swarmnode: {line}", err=True)
    return exit_code


def _say_last(arguments: list[str], message: str) -> None:
    """Say why it ended from a place where the streams may be in use."""
    text, descriptor = f"swarmnode: {message}", 2
    if "--json" in arguments:
        text, descriptor = json.dumps({"error": message, "exit_code": 1}), 1
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{text}\n".encode())


def say(line: str) -> bool:
    """Print a line at once; False if it cannot be written: a closed terminal, a full disk."""
    try:
        print(line, flush=True)
    except OSError:
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    """Let no later code try again: Python would when it exits, and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    """Print one line of JSON, at once: a program may be reading it from a pipe."""
    print(json.dumps(value, allow_nan=False), flush=True)
