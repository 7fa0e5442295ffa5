"""A real node whose control socket is held by clients that say nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.config import Paths
from swarmnode.net.web.http import HTTP_RECEIVE_DEADLINE_S
from tests.kits.daemon_kit import Daemon, make_home, new_swarm, swarmnode

FREED_S_MAX = 5.0
BUSY_S = 5.0  # other work on the machine that runs the tests


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Daemon]:
    swarm = new_swarm()
    home = tmp_path / "keeper"
    make_home(home, swarm)
    daemon = Daemon(home, str(swarm.link()), "--role", "keeper")
    try:
        daemon.wait(lambda status: status["state"] == "serving", "a keeper at work")
        yield daemon
    finally:
        daemon.kill()


@pytest.mark.parametrize("n", [limits.HTTP_CONNECTIONS_MAX, 200])
def test_silent_clients_keep_no_verb_from_its_answer(keeper: Daemon, n: int) -> None:
    path = str(Paths(keeper.home).control_socket)
    with contextlib.ExitStack() as stack:
        began_s = time.monotonic()
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(n)]
        for each in silent:
            each.connect(path)
            each.settimeout(FREED_S_MAX + BUSY_S)
        assert keeper.status()["state"] == "serving"
        assert time.monotonic() - began_s < HTTP_RECEIVE_DEADLINE_S  # they all held on
        assert swarmnode(keeper.home, "peers").code == 0
        assert silent[0].recv(1) == b""
        assert time.monotonic() - began_s < FREED_S_MAX + BUSY_S
