"""Looks for swarms in the network, and lets a person choose one of several."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote

import click
import msgspec
import trio

from swarmnode import limits
from swarmnode.cli.swarm.named import (
    KEY_LETTERS_MIN,
    KEY_LETTERS_SHOWN,
    can_ask,
    check_key,
    known_here,
)
from swarmnode.config import NodeConfig
from swarmnode.daemon.discovery.lookup import (
    Findings,
    FoundSwarm,
    Visitor,
    check_names,
    in_words,
    visit,
)
from swarmnode.daemon.transport.reach import reachable_addresses
from swarmnode.env import real_env
from swarmnode.errors import ConfigError, NotRunning, Refused, SwarmNodeError, one_error
from swarmnode.ids import PeerId
from swarmnode.net.proxy import find_proxy
from swarmnode.net.tcp import TcpTransport
from swarmnode.processes.client import ControlClient
from swarmnode.processes.stopping import run_async
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.telemetry.logs import configure_logging

# Between two visits, each of which takes seconds itself.
_LOOKUP_AGAIN_S = 1.0

_ANSWER_S = limits.LOOKUP_DHT_S + 2
_SHOWN_MAX = 8  # in one line; `swarmnode swarms NAME` shows all
_ROW = "{:>3}  {:<15} {:>9}  {:<17} {}"
_AnswerT = TypeVar("_AnswerT")
Say = Callable[[str], None]


def resolve(
    text: str,
    key: str | None,
    config: NodeConfig,
    say: Say,
    *,
    may_ask: bool,
    asks_daemon: bool,
) -> SwarmLink:
    """Return the link to the swarm that a person means, looked up if this home does not know it.

    Arguments and errors are those of :func:`known_here` and of :func:`look_up`.
    """
    known = known_here(text, key, config, say)
    return known or look_up(text, key, config, say, may_ask=may_ask, asks_daemon=asks_daemon)


def look_up(
    name: str,
    key: str | None,
    config: NodeConfig,
    say: Say,
    *,
    may_ask: bool,
    asks_daemon: bool,
    wait_s: float = 0.0,
) -> SwarmLink:
    """Return the link to a swarm of that name that others know.

    Args:
        key: of the swarm, in base32, or at least KEY_LETTERS_MIN letters of it.
        say: told what is being done, and what was found.
        may_ask: whether a person can be asked to choose one of several.
        asks_daemon: whether what a daemon of this home knows will do.
        wait_s: how long a name that no node knows is looked for: a member may be starting.

    Raises:
        ConfigError: it is no name, no key; or no such swarm was found.
        Refused: there are several.
    """
    wanted = check_key(key) if key else ""
    findings = find((name,), config, say, asks_daemon=asks_daemon, key=wanted, wait_s=wait_s)
    swarm = choose(name, wanted, findings, may_ask=may_ask)
    say(f"found swarm {name}: {describe(swarm, time.time())}")
    return swarm.link()


def choose(name: str, wanted: str, findings: Findings, *, may_ask: bool) -> FoundSwarm:
    """Return the swarm of this name whose key begins with ``wanted``.

    Raises:
        ConfigError: there is none.
        Refused: there are several, and no person to ask which is meant.
    """
    named = [swarm for swarm in findings.swarms if swarm.name == name]
    if not named:
        raise ConfigError(
            f"this home knows no swarm named {name!r}, and none was found"
            f" {in_words(findings.searched)}: check the name, join by the link (swarm:{name}?k=…),"
            " or name a node of the swarm's network with --bootstrap PEER@HOST:PORT"
        )
    fitting = [swarm for swarm in named if swarm.key.startswith(wanted)]
    if not fitting:
        raise ConfigError(
            f"--key: no swarm named {name!r} has a key that starts with {wanted};"
            f" found: {_one_line(named)}"
        )
    if len(fitting) == 1:
        return fitting[0]
    if may_ask:
        return _ask_which(name, fitting)
    raise Refused(
        f"{len(fitting)} swarms are named {name!r}: {_one_line(fitting)};"
        f" repeat with --key and the first {KEY_LETTERS_MIN} letters or more of the one you mean"
    )


def describe(swarm: FoundSwarm, now_unix_s: float) -> str:
    """Return the key, size and age of a swarm, as people tell swarms apart."""
    size = "1 member" if swarm.members == 1 else f"{members(swarm)} members"
    return (
        f"key {swarm.key[:KEY_LETTERS_SHOWN]}…, {size}, {age(swarm.created_at, now_unix_s)}"
        f" ({', '.join(swarm.via)})"
    )


def members(swarm: FoundSwarm) -> str:
    """Return how many members it says to have."""
    return "?" if swarm.members is None else f"{swarm.members:,}"


def age(created_at: int | None, now_unix_s: float) -> str:
    """Return how long ago something was made, in the largest unit that makes sense."""
    if created_at is None:
        return "of unknown age"
    seconds = now_unix_s - created_at
    for unit, unit_s in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= unit_s:
            count = int(seconds // unit_s)
            return f"{count:,} {unit}{'s' if count > 1 else ''} old"
    return "just made"


def find(
    names: Iterable[str],
    config: NodeConfig,
    say: Say,
    *,
    asks_daemon: bool,
    key: str = "",
    wait_s: float = 0.0,
) -> Findings:
    """Return what the LAN and the DHT know, asked by the daemon of this home or by a visitor.

    Args:
        wait_s: how long to go on until one of the names is found, with a key that begins so.

    Raises:
        ConfigError: a name is none, or they are too many.
        SwarmNodeError: a daemon runs here and does not answer.
    """
    names = check_names(names)
    if asks_daemon:
        with suppress(NotRunning):
            path = f"/swarms?names={quote(','.join(names), safe='')}"
            answer = ControlClient(config.paths).get(path, deadline_s=_ANSWER_S)
            return msgspec.convert(answer, Findings)

    async def look() -> Findings:
        return await _visit_once(config, say, lambda visitor: visitor.find_swarms(names))

    if not can_ask(config):
        wait_s = 0.0  # there is no node to wait for
    wanted = f"a member of swarm {', '.join(names)}"
    return _run(config, lambda: look_until_found(look, names, key, wait_s, say, wanted=wanted))


async def look_until_found(
    look: Callable[[], Awaitable[Findings]],
    names: tuple[str, ...],
    key: str,
    wait_s: float,
    say: Say,
    *,
    wanted: str,
) -> Findings:
    """Look again and again, for ``wait_s`` at most, until a swarm is found that is meant."""
    until = trio.current_time() + wait_s
    findings = await look()
    is_said = False
    while not any(each.name in names and each.key.startswith(key) for each in findings.swarms):
        if trio.current_time() + _LOOKUP_AGAIN_S >= until:
            break
        if not is_said:
            say(
                f"no node {in_words(findings.searched)} knows {wanted} yet: waiting up to"
                f" {wait_s:.0f} s for one to come up (Ctrl-C ends that, --wait says how long)"
            )
            is_said = True
        await trio.sleep(_LOOKUP_AGAIN_S)
        findings = await look()
    return findings


def look_around(
    config: NodeConfig,
    say: Say,
    ask: Callable[[Visitor], Awaitable[_AnswerT]],
    *,
    also: Iterable[Hint] = (),
) -> _AnswerT:
    """Visit the network and return what ``ask`` found out."""

    return _run(config, lambda: _visit_once(config, say, ask, also=also))


async def _visit_once(
    config: NodeConfig,
    say: Say,
    ask: Callable[[Visitor], Awaitable[_AnswerT]],
    *,
    also: Iterable[Hint] = (),
) -> _AnswerT:
    env = real_env(trio.current_time, trio.to_thread.run_sync)
    transport = TcpTransport(find_proxy(config.proxy, os.environ))
    visiting = visit(config, transport=transport, env=env, also=also, on_event=say)
    async with visiting as visitor:
        return await ask(visitor)


def _run(config: NodeConfig, main: Callable[[], Awaitable[_AnswerT]]) -> _AnswerT:
    configure_logging(config.log_format, "error", log_file=config.log_file)
    with one_error():
        return run_async(main)


def own_node(config: NodeConfig) -> tuple[Hint, ...]:
    """Return where the daemon of this home is reached; nothing if none answers."""
    with suppress(SwarmNodeError):
        status = ControlClient(config.paths).get("/status")
        peer = PeerId.parse(status["peer"])
        return tuple(Hint(peer, address) for address in reachable_addresses(status["address"]))
    return ()


def _one_line(swarms: Sequence[FoundSwarm]) -> str:
    now_unix_s = time.time()
    shown = [describe(swarm, now_unix_s) for swarm in swarms[:_SHOWN_MAX]]
    more = len(swarms) - len(shown)
    return "; ".join([*shown, f"and {more} smaller ones"] if more else shown)


def _ask_which(name: str, swarms: Sequence[FoundSwarm]) -> FoundSwarm:
    """Let a person choose; Ctrl-C ends the command."""
    click.echo(f"{len(swarms)} swarms are named {name}; members and ages are what members say")
    click.echo(_ROW.format("", "key", "members", "age", "seen by"))
    now_unix_s = time.time()
    for number, swarm in enumerate(swarms, 1):
        shown = f"{swarm.key[:KEY_LETTERS_SHOWN]}…"
        row = (shown, members(swarm), age(swarm.created_at, now_unix_s), ", ".join(swarm.via))
        click.echo(_ROW.format(number, *row))
    number = click.prompt("which one", type=click.IntRange(1, len(swarms)))
    return swarms[number - 1]
