"""What systemd is told: ready, status, watchdog, stopping; and that a hung loop is silent."""

import os
import signal
import socket

import pytest
import trio
from trio.testing import MockClock

from swarmnode.daemon.app.start import ServiceManager
from tests.kits.daemon_kit import DEADLINE_S, Daemon, make_home, new_swarm, wait_until


@pytest.fixture
def notify_socket(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(DEADLINE_S)
        yield sock


def messages(sock):
    """Return what has come so far."""
    found = []
    sock.setblocking(False)
    while True:
        try:
            found.append(dict(line.split("=", 1) for line in sock.recv(4096).decode().split("\n")))
        except BlockingIOError:
            sock.settimeout(DEADLINE_S)
            return found


def environment(sock, **more):
    return {"NOTIFY_SOCKET": sock.getsockname(), **more}


def test_without_a_manager_none_is_told():
    clock = MockClock(autojump_threshold=0)
    manager = ServiceManager({})
    trio.run(manager.follow, lambda: pytest.fail("asked in vain"), clock=clock)
    manager.tell(STOPPING=1)
    manager.close()


@pytest.mark.parametrize(("pid", "pings"), [("", True), ("own", True), ("1", False)])
def test_pings_come_three_times_in_the_watchdogs_time(notify_socket, pid, pings):
    pid = str(os.getpid()) if pid == "own" else pid
    environ = environment(notify_socket, WATCHDOG_USEC="30000000", WATCHDOG_PID=pid)
    manager = ServiceManager(environ)
    assert environ == {}, "what we start is not the service"

    async def main():
        with trio.move_on_after(35):
            await manager.follow(lambda: "training\nREADY=0\x1b[2J, step 7")

    trio.run(main, clock=MockClock(autojump_threshold=0))
    manager.close()
    said = messages(notify_socket)
    assert said[0] == {
        "READY": "1",
        "STATUS": "training READY=0 [2J, step 7",
        "MAINPID": str(os.getpid()),
    }
    assert said.count({"WATCHDOG": "1"}) == (4 if pings else 0)
    assert [one["STATUS"] for one in said[1:] if "STATUS" in one] == [said[0]["STATUS"]]


def test_an_abstract_address_and_a_manager_that_is_gone():
    name = f"@swarmnode-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:])
        manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "soon"})
        assert manager.watchdog_s is None
        manager.tell(STATUS="here")
        assert sock.recv(100) == b"STATUS=here"
    manager.tell(STATUS="nobody hears this")
    manager.close()


def test_a_daemon_tells_its_manager_and_a_hung_one_is_silent(tmp_path, notify_socket):
    swarm = new_swarm()
    make_home(tmp_path / "home", swarm)
    said = []

    def has_said(key):
        said.extend(messages(notify_socket))
        return any(key in one for one in said)

    daemon = Daemon(
        tmp_path / "home",
        str(swarm.link()),
        env=environment(notify_socket, WATCHDOG_USEC="600000", SWARMNODE_ROLE="monitor"),
    )
    try:
        wait_until(lambda: has_said("READY"), "ready")
        assert said[0]["MAINPID"] == str(daemon.pid)
        assert said[0]["STATUS"].startswith("demo: ")
        assert daemon.status(), "it answers once it is ready"
        wait_until(lambda: has_said("WATCHDOG"), "a ping")
        os.kill(daemon.pid, signal.SIGSTOP)
        messages(notify_socket)
        notify_socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            notify_socket.recv(100)
        os.kill(daemon.pid, signal.SIGCONT)
        code = daemon.signal(signal.SIGTERM)
        assert code == 0
        assert has_said("STOPPING")
        assert said[-1] != {"WATCHDOG": "0"}
    finally:
        daemon.kill()
