"""Processes that sleep, as with a laptop's lid closed, or die: sessions over real TCP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.transport.network import Network
from swarmnode.net.session import Session
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import Daemon, wait_until
from tests.process.life_kit import Party
from tests.process.net.resume_peer import ECHO, identity_of, make_network

SLEEP_S = 20.0  # longer than SILENCE_S


@asynccontextmanager
async def sleepers() -> AsyncIterator[tuple[Network, dict[str, trio.Process]]]:
    """Give a network and two processes with a session to it: it dialled "b", and "c" dialled it."""
    network = make_network("a")
    network.keepers.append(lambda _peer: True)
    processes: dict[str, trio.Process] = {}
    where: dict[str, str] = {}
    network.addresses_of = lambda peer: tuple(
        where[letter] for letter in where if identity_of(letter).peer_id == peer
    )
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(network.run, "127.0.0.1:0")
        for letter, dials in (("b", ()), ("c", (str(identity_of("a").peer_id), bound))):
            command = [sys.executable, "-m", "tests.process.net.resume_peer", letter, *dials]
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            processes[letter] = process
            assert process.stdout is not None
            with trio.fail_after(HANGS_S):
                where[letter] = (await process.stdout.receive_some()).decode().strip()
        await network.connect(identity_of("b").peer_id, (where["b"],))
        try:
            yield network, processes
        finally:
            for process in processes.values():
                process.kill()
                await process.wait()
                assert process.stdout is not None
                await process.stdout.aclose()
            nursery.cancel_scope.cancel()


async def talk(session: Session, done: trio.Event) -> int:
    """Send messages until told to stop; return how many came back, each once and in order."""
    number = 0
    async with await session.open_stream(ECHO) as stream:
        while not done.is_set():
            header, payload = number.to_bytes(4, "big"), os.urandom(100_000)
            await stream.send_message(header, payload)
            received = await stream.receive_message(limits.MIB)
            assert (received[0], bytes(received[1])) == (header, payload)
            number += 1
            await trio.sleep(0.02)
    return number


async def test_a_process_that_sleeps_goes_on_where_it_was() -> None:
    async with sleepers() as (network, processes), trio.open_nursery() as nursery:
        sessions = dict(network.sessions)
        assert {session.outbound for session in sessions.values()} == {True, False}
        done, both_ended = trio.Event(), trio.Event()
        counts: list[int] = []

        async def count(session: Session) -> None:
            counts.append(await talk(session, done))
            if len(counts) == len(sessions):
                both_ended.set()

        for session in sessions.values():
            nursery.start_soon(count, session)
        await trio.sleep(1)
        for process in processes.values():
            process.send_signal(signal.SIGSTOP)
        await trio.sleep(SLEEP_S)
        assert all(session.is_suspended for session in sessions.values())
        for process in processes.values():
            process.send_signal(signal.SIGCONT)
        with trio.fail_after(limits.RESUME_HANDSHAKE_S + HANGS_S):
            for session in sessions.values():
                await session.wait_for_channel()
        await trio.sleep(1)
        done.set()
        with trio.fail_after(HANGS_S):
            await both_ended.wait()
        assert min(counts) > 20
        assert network.sessions == sessions
        assert [session.resumed for session in sessions.values()] == [1, 1]


async def test_a_process_that_dies_is_gone_soon() -> None:
    async with sleepers() as (network, processes):
        sessions = list(network.sessions.values())
        for process in processes.values():
            process.kill()
        with trio.fail_after(HANGS_S):  # 1.5 on a machine that does nothing else
            for session in sessions:
                await session.wait_closed()


def wait_for_more(node: Daemon) -> None:
    before = node.status()["exchanges_committed"]
    node.wait(lambda status: status["exchanges_committed"] > before + 2, "more exchanges")


def test_a_daemon_that_sleeps_exchanges_again(tmp_path: Path) -> None:
    party = Party(tmp_path)
    try:
        creator = party.join("creator")
        other = party.join("other", via=creator)
        for node in (creator, other):
            node.wait(lambda s: s["exchanges_committed"] > 2, "a few exchanges")
        os.kill(other.pid, signal.SIGSTOP)
        wait_until(lambda: "session lost its channel" in creator.log, "its silence is noticed")
        os.kill(other.pid, signal.SIGCONT)
        wait_until(lambda: "session goes on" in creator.log, "the session goes on")
        wait_until(lambda: "session goes on" in other.log, "the session goes on")
        for node in (creator, other):
            wait_for_more(node)
            assert node.log.count("session goes on") == 1
    finally:
        party.close()
