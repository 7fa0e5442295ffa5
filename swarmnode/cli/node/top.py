"""``swarmnode top``: the swarm in a terminal, once a second, from the control socket."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swarmnode.cli.main import print_json
from swarmnode.cli.node.control import client_for
from swarmnode.cli.options import home_option, json_option
from swarmnode.errors import SwarmNodeError
from swarmnode.processes.client import ControlClient

if TYPE_CHECKING:
    from swarmnode.cli.node.top_view import Screen

_REFRESH_S = 1.0
_DEADLINE_S = 3.0  # of a question to the node: keys wait meanwhile
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_QUIT = ("q", "Q", "\x03", "\x04")  # Ctrl-C and Ctrl-D, where they come as letters


@click.command()
@click.option("--once", is_flag=True, help="Print one frame and end.")
@home_option
@json_option
def top(once: bool, home: Path | None, as_json: bool) -> None:
    """Watch the swarm in the terminal, until q: members, losses, exchanges, snapshots.

    `p` pauses this node, or lets it go on. Without a terminal one frame is printed, and with
    --json what it is made of.
    """
    client = client_for(home)
    if as_json:
        print_json(client.get("/overview"))
        return
    screen = _make_screen()
    screen.show(client.get("/overview"), client.get("/history"))
    if once or not sys.stdout.isatty():
        screen.print_once()
        return
    with _stops() as stops, _keys() as keys, screen.live():
        while _wait_key(screen, client, stops, keys):
            _look(screen, client)


def _make_screen() -> Screen:
    try:
        from swarmnode.cli.node.top_view import Screen
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        raise SwarmNodeError(
            "`swarmnode top` draws with rich, which the extra `tui` brings: in the clone run"
            f" {shlex.quote(sys.executable)} -m pip install '.[tui]'"
        ) from error
    return Screen()


def _look(screen: Screen, client: ControlClient) -> None:
    try:
        screen.show(client.get("/overview", deadline_s=_DEADLINE_S))
    except SwarmNodeError as error:  # it may come back: what was known stays on the screen
        screen.say(str(error))


def _wait_key(screen: Screen, client: ControlClient, stops: int, keys: int | None) -> bool:
    """Wait until the next look is due, and do what keys ask for; return False for the end."""
    until = time.monotonic() + _REFRESH_S
    watched = [stops] if keys is None else [stops, keys]
    while (left_s := until - time.monotonic()) > 0:
        ready, _, _ = select.select(watched, [], [], left_s)
        if stops in ready:
            return False
        if keys is None or keys not in ready:
            continue
        key = os.read(keys, 1).decode("ascii", "replace")
        if key in ("", *_QUIT):
            return False
        if key in ("p", "P"):
            _toggle(screen, client)
            return True
    return True


def _toggle(screen: Screen, client: ControlClient) -> None:
    try:
        client.post("/resume" if screen.is_paused else "/pause", deadline_s=_DEADLINE_S)
    except SwarmNodeError as error:
        screen.say(str(error))


@contextlib.contextmanager
def _stops() -> Iterator[int]:
    """Give a descriptor that can be read once Ctrl-C or SIGTERM came.

    They do not raise meanwhile: in the middle of drawing, the terminal would stay as it was then.
    """
    reads, writes = socket.socketpair()
    with reads, writes:
        writes.setblocking(False)
        before = [(number, signal.signal(number, _ignore)) for number in _SIGNALS]
        wakeup = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
        try:
            yield reads.fileno()
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before:
                signal.signal(number, handler)


def _ignore(number: int, frame: object) -> None:
    """Leave it to the descriptor."""


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Let single keys be read, unechoed, and put the terminal back; None: there is no keyboard."""
    try:
        import termios  # not on Windows, where Ctrl-C ends it
        import tty
    except ModuleNotFoundError:
        yield None
        return
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
