"""A real node whose control socket is held by clients that say nothing."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.config import Paths
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import Daemon, make_home, new_swarm, swarmnode


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
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(n)]
        for each in silent:
            each.connect(path)
            each.settimeout(HANGS_S)
        assert keeper.status()["state"] == "serving"
        assert swarmnode(keeper.home, "peers").code == 0
        assert silent[0].recv(1) == b""
