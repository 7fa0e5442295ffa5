"""Two machines on one LAN, as two network namespaces on one bridge: they meet.

How soon is asked on a virtual clock (``tests/unit/net/test_lan.py``); how long it took here is
printed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.wire.connect.beacon import Beacon
from tests.conftest import HANGS_S, ROOT
from tests.kits.daemon_kit import wait_until
from tests.kits.lan_kit import NETWORK, beacon, identity, signed_by

ROUNDS = 3  # newcomers
SWITCH, LEFT, RIGHT = (f"snlan{os.getpid()}-{part}" for part in ("sw", "a", "b"))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=HANGS_S)


def _is_forwarding(port: str) -> bool:
    shown = subprocess.run(
        ["ip", "-n", SWITCH, "-d", "-o", "link", "show", "dev", port],
        check=True, capture_output=True, text=True, timeout=HANGS_S,
    )  # fmt: skip
    return "state forwarding" in shown.stdout


class Machine:
    """A namespace with an interface on the switch, and a process in it that takes commands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._events: list[dict[str, Any]] = []
        self._rest = b""
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "tests.process.net.lan_node"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def plug(self, *addresses: str, multicast: bool = True, ipv6: bool = False) -> None:
        """Give it a new interface with these addresses, and the link-local one with ``ipv6``."""
        port = f"p-{self.name[-1]}"
        subprocess.run(["ip", "-n", self.name, "link", "del", "eth0"], capture_output=True)
        ip("link", "add", "eth0", "netns", self.name,
           "type", "veth", "peer", "name", port, "netns", SWITCH)  # fmt: skip
        self._sysctl("disable_ipv6", int(not ipv6))
        self._sysctl("accept_dad", 0)
        ip("-n", SWITCH, "link", "set", port, "master", "br0", "up")
        for address in addresses:
            ip("-n", self.name, "addr", "add", address, "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "multicast", "on" if multicast else "off", "up")
        # Until the switch has noticed the carrier, up to a second on, it drops what is sent.
        wait_until(lambda: _is_forwarding(port), f"{port}: a port that forwards", HANGS_S)
        if ipv6:  # the kernel makes the address when it has noticed the carrier, up to a second on
            wait_until(self._has_link_local, f"{self.name}: a link-local address", HANGS_S)

    def _has_link_local(self) -> bool:
        """Whether it can send from such an address: not while it is looked for duplicates of."""
        shown = subprocess.run(
            ["ip", "-n", self.name, "-6", "-o", "addr", "show", "dev", "eth0",
             "scope", "link", "-tentative"],
            check=True, capture_output=True, text=True, timeout=HANGS_S,
        )  # fmt: skip
        return "inet6" in shown.stdout

    def _sysctl(self, name: str, value: int) -> None:
        setting = f"net.ipv6.conf.eth0.{name}={value}"
        ip("netns", "exec", self.name, "sysctl", "-qw", setting)

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode("ascii") + b"\n")
        self._process.stdin.flush()

    def wait(self, event: str, **fields: str) -> Any:
        """Return the first event like this that was not returned yet; others stay."""
        wanted = {"event": event, **fields}
        deadline = time.monotonic() + HANGS_S
        while True:
            for found in self._events:
                if wanted.items() <= found.items():
                    self._events.remove(found)
                    return found
            self._read(wanted, deadline)

    def _read(self, wanted: dict[str, str], deadline: float) -> None:
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(source, 65536) if ready else b""
        assert data, f"{self.name}: expected {wanted}, have {self._events}"
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._events += [json.loads(line) for line in whole]

    def run(self, seed: int) -> Any:
        """Start a beacon; return what it said when it began."""
        self._events.clear()
        self.tell(f"run {seed}")
        return self.wait("running")

    def stop(self) -> None:
        self.tell("stop")
        self.wait("stopped")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # ends it
        try:
            self._process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    names = (SWITCH, LEFT, RIGHT)
    running: list[Machine] = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("-n", SWITCH, "link", "add", "br0", "type", "bridge", "forward_delay", "0",
               "mcast_snooping", "0")  # fmt: skip
            ip("-n", SWITCH, "link", "set", "br0", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            pytest.skip(f"cannot make network namespaces here (root and iproute2): {reason}")
        for name in (LEFT, RIGHT):
            running.append(Machine(name))
        for machine in running:
            machine.wait("ready")
        yield running[0], running[1]
    finally:
        for machine in running:
            machine.close()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def meet(old: Machine, new: Machine, seed: int) -> float:
    """Let a newcomer start; return the seconds until both know each other and can connect."""
    began: float = new.run(seed)["at_s"]
    met = [old.wait("met", peer=name_of(seed)), new.wait("met", peer=name_of(1))]
    for machine, meeting in zip((old, new), met, strict=True):
        assert meeting["swarms"] == 1
        machine.wait("reached", address=meeting["address"])
    last: float = max(meeting["at_s"] for meeting in met)
    return last - began


def name_of(seed: int) -> str:
    return str(identity(seed).peer_id)


@dataclass(frozen=True)
class Way:
    """Addresses of both machines, and what their interfaces can."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    multicast: bool = True
    ipv6: bool = False


# None of them has a default route, or one to the groups.
WAYS = {
    "everything": Way(("192.0.2.1/24",), ("192.0.2.2/24",), ipv6=True),
    # A network of two has no broadcast address.
    "multicast-only": Way(("192.0.2.0/31",), ("192.0.2.1/31",)),
    "broadcast-only": Way(("192.0.2.1/24",), ("192.0.2.2/24",), multicast=False),
    "ipv6-only": Way((), (), ipv6=True),
}


@pytest.mark.parametrize("name", WAYS)
def test_two_machines_meet(machines: tuple[Machine, Machine], name: str) -> None:
    way = WAYS[name]
    old, new = machines
    old.plug(*way.old, multicast=way.multicast, ipv6=way.ipv6)
    new.plug(*way.new, multicast=way.multicast, ipv6=way.ipv6)
    old.run(1)
    assert old.wait("started")["interfaces"] == ["lo", "eth0"]
    seconds = []
    for seed in range(2, 2 + ROUNDS):
        seconds.append(meet(old, new, seed))
        new.stop()
    old.stop()
    print(f"{name}: met after", *(f"{each * 1000:.0f} ms" for each in sorted(seconds)))


def refused_by(machine: Machine, reasons: set[str]) -> dict[str, int]:
    """Return the counters once there is one for each of these reasons."""
    deadline = time.monotonic() + HANGS_S
    while True:
        machine.tell("statistics")
        refused: dict[str, int] = machine.wait("statistics")["refused"]
        if refused.keys() >= reasons or time.monotonic() > deadline:
            return refused


def test_bad_beacons_are_refused(machines: tuple[Machine, Machine]) -> None:
    victim, attacker = machines
    victim.plug("192.0.2.0/31")
    attacker.plug("192.0.2.1/31")
    victim.run(1)
    victim.wait("started")
    genuine, older = beacon(2, 5), beacon(2, 4)
    bad = {
        "forged": beacon(2, 6)[:-1] + b"\x00",
        "foreign": beacon(3, network=bytes(32)),
        "replayed": older,
        "oversized": bytes(limits.LAN_BEACON_BYTES_MAX + 1),
        "malformed": signed_by(identity(3), Beacon(NETWORK, 1, 1, 65_536, ())),
    }
    for data in (genuine, *bad.values()):
        attacker.tell(f"raw {data.hex()}")
        attacker.wait("sent")
    assert refused_by(victim, set(bad)) == dict.fromkeys(bad, 1)
    met = victim.wait("met")
    assert (met["peer"], met["address"]) == (name_of(2), "192.0.2.1:7337")
    victim.tell("statistics")
    assert victim.wait("statistics")["peers"] == 1
    victim.stop()


def test_an_address_of_another_network_is_refused(machines: tuple[Machine, Machine]) -> None:
    """It may be any host's: a node that believed it would dial where a stranger points."""
    victim, attacker = machines
    victim.plug("192.0.2.1/24")
    attacker.plug("198.51.100.2/24")
    victim.run(1)
    victim.wait("started")
    attacker.tell(f"raw {beacon(2).hex()}")
    attacker.wait("sent")
    assert refused_by(victim, {"off-link"}) == {"off-link": 1}
    victim.tell("statistics")
    assert victim.wait("statistics")["peers"] == 0
    victim.stop()


def test_two_nodes_on_a_machine_without_a_network_meet(
    machines: tuple[Machine, Machine],
) -> None:
    first, _ = machines
    subprocess.run(["ip", "-n", first.name, "link", "del", "eth0"], capture_output=True)
    second = Machine(first.name)
    try:
        second.wait("ready")
        first.run(1)
        assert first.wait("started")["interfaces"] == ["lo"]
        meet(first, second, 2)
        first.stop()
    finally:
        second.close()
