"""Lines that are broken in one way each, and what a node on them says of it.

``python tests/lab/matrix.py --conditions all --json`` runs them. On each line a light node (a
keeper without torch) is started on the host c0, with others on pub0 and c1 as the condition says.
``netcheck`` is asked on c0 until its first sentence names the condition, for TELL_S at most.

    expected   the best path from c0 to the other member that the condition leaves; "none"
    path       what came of it
    exchanged  whether c0 has a session with the other member: keepers exchange no models
    seconds    from the start of c0 to the sentence
    told       the sentence, and the advice after "->"
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmnode.ids import PeerId
from swarmnode.ipc.spawn import worker_command
from swarmnode.protocol.swarm import Hint
from tests.kits.daemon_kit import environment, make_home, new_swarm, wait_until, without_torch
from tests.lab import namespaces
from tests.lab.lab_daemon import LabDaemon
from tests.lab.natlab import NatLab

TELL_S = 30.0
_PATH_S = 15.0
_PORT = 7337
_CLOCK = """
import os, time
_real, _ahead_s = time.time, float(os.environ.get("LAB_CLOCK_AHEAD_S", "0"))
time.time = lambda: _real() + _ahead_s
"""


class World:
    """A lab with a swarm: light nodes on its hosts."""

    def __init__(self, lab: NatLab, folder: Path) -> None:
        self.lab = lab
        self.other = ""  # the member that c0 should reach
        self._folder = folder
        self._light = without_torch(folder / "no-torch")
        with (folder / "no-torch" / "sitecustomize.py").open("a") as file:
            file.write(_CLOCK)
        self._swarm = new_swarm()
        signed = self._swarm.signed()
        hosts = [f"pub{n}" for n in range(2)] + list(lab.kinds)
        self.ids = {
            host: str(make_home(folder / host, self._swarm, signed).peer_id) for host in hosts
        }
        self._hints: list[Hint] = []
        self.daemons: dict[str, LabDaemon] = {}

    def hint(self, host: str, port: int = 443, address: str = "") -> None:
        """Put a node into the link."""
        at = f"{address or self.lab.ip(host)}:{port}"
        self._hints.append(Hint(PeerId.parse(self.ids[host]), at))

    def start(self, host: str, role: str = "keeper", **settings: str) -> LabDaemon:
        """Start a node with the link as it is now."""
        link = str(self._swarm.link(*self._hints))
        env = self._light | settings
        daemon = LabDaemon(self.lab, host, self._folder, link, "--role", role, port=_PORT, env=env)
        self.daemons[host] = daemon
        return daemon

    def public(self, role: str = "relay", host: str = "pub0", **settings: str) -> None:
        """Start a public node, and wait until it is there."""
        self.start(host, role, **settings).wait(lambda s: s["state"] == "serving", host)

    def netcheck(self, host: str) -> tuple[list[dict[str, Any]], int]:
        """Return the findings of one ``netcheck`` on a host, and its exit code."""
        command = ["ip", "netns", "exec", self.lab.namespace(host)]
        done = subprocess.run(
            [*command, *worker_command("swarmnode", "netcheck", "--json")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(self._folder / host, self._light),
            stdin=subprocess.DEVNULL,
        )
        findings = json.loads(done.stdout) if done.stdout else []
        return (findings if isinstance(findings, list) else []), done.returncode

    def path(self) -> str:
        """Return the path from c0 to the other member, "none" without one."""
        found = self.daemons["c0"].path_to(self.ids[self.other]) if self.other else ""
        return found or "none"

    def close(self) -> None:
        """End all nodes."""
        for daemon in self.daemons.values():
            with contextlib.suppress(Exception):
                daemon.kill()


@dataclass(frozen=True)
class Condition:
    """``prepare`` breaks the line and starts the nodes; c0 is the last of them.

    ``says``: words that the sentence has to have; ``is_fail``: whether ``netcheck`` ends with 1.
    """

    prepare: Callable[[World], None]
    says: str
    sites: tuple[str, ...] = ("port-restricted",)
    expected: str = "none"
    is_fail: bool = True
    forbidden: str = "\0"  # words that may be in no line
    lab: Mapping[str, Any] = field(default_factory=dict)
    after: Callable[[World], None] | None = None  # mends the line: the path comes then


def measure(name: str, condition: Condition) -> dict[str, Any]:
    """Build the lab of one condition, and return what the node on it has said."""
    with (
        tempfile.TemporaryDirectory(prefix="swarmnode-conditions-") as folder,
        NatLab(condition.sites, **{"public": 2} | dict(condition.lab)) as lab,
    ):
        world = World(lab, Path(folder))
        try:
            condition.prepare(world)
            return {"name": name, "expected": condition.expected} | _watch(world, condition)
        finally:
            world.close()


def _watch(world: World, condition: Condition) -> dict[str, Any]:
    begin = time.monotonic()
    told, is_right = "", False
    while time.monotonic() < begin + TELL_S and not is_right:
        findings, code = world.netcheck("c0")
        if not findings:
            continue
        first = findings[0]
        told = f"{first['verdict']}: {first['text']}"
        told += f" -> {first['advice']}" if first["advice"] else ""
        texts = json.dumps(findings)
        is_right = (
            condition.says in told
            and bool(code) is condition.is_fail
            and condition.forbidden not in texts
        )
    seconds = time.monotonic() - begin
    if condition.after is not None:
        condition.after(world)
    with contextlib.suppress(AssertionError):
        wait_until(lambda: world.path() == condition.expected, "the path", _PATH_S)
    path = world.path()
    return {
        "path": path,
        "exchanged": path != "none",
        "seconds": round(seconds, 1),
        "told": told,
        "is_right": is_right and path == condition.expected,
    }


# --- what is broken -------------------------------------------------------------------------------


def _nft(world: World, host: str, text: str) -> None:
    world.lab.run(host, "nft", "-f", "-", stdin=text + "\n")


def _dead_bootstrap(world: World) -> None:
    world.hint("pub0")
    world.start("c0")


def _silent_bootstrap(world: World) -> None:
    world.hint("pub0")
    _nft(world, "pub0", "table ip off { chain i { type filter hook input priority 0; drop\n}\n}")
    world.start("c0")


def _gone_bootstrap(world: World) -> None:
    world.hint("pub0", address="11.11.11.77")  # no machine has it, and the router says so
    world.start("c0")


def _web_only(world: World) -> None:
    world.hint("pub0", _PORT)
    world.public("keeper")
    world.start("c0")


def _black_hole(world: World) -> None:
    """Smaller packets from here on, and no router says so."""
    world.other = "pub0"
    world.hint("pub0")
    world.public()
    router = world.lab.router_of("c0")
    hole = "chain o { type filter hook output priority 0; ip protocol icmp drop; }"
    _nft(world, router, f"table ip hole {{ {hole}\n}}")
    for device in ("wan", "lan"):
        name = world.lab.namespace(router)
        namespaces.run("ip", "-n", name, "link", "set", device, "mtu", "1280")
    world.start("c0")


def _no_names(world: World) -> None:
    world.hint("pub0", address="relay.example.org")
    world.public()
    world.start("c0")


def _wrong_clock(world: World) -> None:
    world.other = "pub0"
    world.hint("pub0")
    world.public()
    world.start("c0", LAB_CLOCK_AHEAD_S="10800")


def _vpn(world: World) -> None:
    """All packets of c0 go to pub1 through a tunnel, and leave from there."""
    world.other = "pub0"
    world.hint("pub0")
    world.public()
    inner, outer = world.lab.namespace("c0"), world.lab.namespace("pub1")
    for name, own in ((inner, "10.8.0.2"), (outer, "10.8.0.1")):
        namespaces.run("ip", "-n", name, "tuntap", "add", "dev", "tun0", "mode", "tun")
        namespaces.run("ip", "-n", name, "addr", "add", f"{own}/24", "dev", "tun0")
        namespaces.run("ip", "-n", name, "link", "set", "tun0", "up")
    namespaces.run("ip", "-n", inner, "route", "replace", "default", "via", "10.8.0.1")
    world.lab.run("pub1", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    masquerade = 'chain p { type nat hook postrouting priority 100; oifname "eth0" masquerade\n}'
    _nft(world, "pub1", f"table ip vpn {{ {masquerade}\n}}")
    ends = [_open_tun(name) for name in (inner, outer)]
    for source, target in (ends, ends[::-1]):
        threading.Thread(target=_carry, args=(source, target), daemon=True).start()
    world.start("c0")


def _open_tun(name: str) -> int:
    """Return a descriptor that reads and writes the packets of tun0; see ``open_tap``."""
    with namespaces.inside(name):
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        tun_without_header, set_interface = 0x0001 | 0x1000, 0x400454CA
        fcntl.ioctl(descriptor, set_interface, struct.pack("16sH14x", b"tun0", tun_without_header))
        return descriptor


def _carry(source: int, target: int) -> None:
    with contextlib.suppress(OSError):  # the lab is gone
        while True:
            os.write(target, os.read(source, 65536))


def _no_relay(world: World) -> None:
    world.other = "c1"
    world.hint("pub0", _PORT)
    world.public("keeper", SWARMNODE_RELAY="false")
    world.start("c1")
    world.start("c0")


def _relays_full(world: World) -> None:
    """Eight others behind the same router have the places that one address gets."""
    world.other = "pub0"
    world.hint("pub0")
    world.public()
    occupants = world.lab.popen(
        "c0b",
        worker_command(
            "tests.lab.broken.occupant", world.ids["pub0"], f"{world.lab.ip('pub0')}:443", "8"
        ),
        stdout=subprocess.PIPE,
        env=environment(Path("/nonexistent")),
    )
    assert occupants.stdout is not None
    assert occupants.stdout.readline() == b"full\n"
    world.start("c0")


def _two_behind_nats(world: World) -> None:
    world.other = "c1"
    world.hint("pub0")
    world.public()
    world.start("c1")
    world.start("c0")


def _ipv6_only(world: World) -> None:
    name = world.lab.namespace("c0")
    namespaces.run("ip", "-n", name, "-4", "addr", "flush", "dev", "eth0")
    world.hint("pub0", address=f"[{world.lab.ip6('pub0')}]")
    world.other = "pub0"
    world.public()
    world.start("c0")


def _one_public_peer(world: World) -> None:
    world.other = "pub0"
    world.hint("pub0", _PORT)
    world.public("keeper")
    world.start("c0")


def _no_network(world: World) -> None:
    world.other = "pub0"
    world.hint("pub0")
    world.public()
    namespaces.run("ip", "-n", world.lab.namespace("c0"), "link", "set", "eth0", "down")
    world.start("c0")


def _plug_in(world: World) -> None:
    name, address = world.lab.namespace("c0"), world.lab.ip("c0")
    namespaces.run("ip", "-n", name, "link", "set", "eth0", "up")
    router = address.rpartition(".")[0] + ".1"
    namespaces.run("ip", "-n", name, "route", "replace", "default", "via", router)


def _other_program(world: World) -> None:
    """A login page where the link says that a node is."""
    world.hint("pub0", 80)
    with world.lab.inside("pub0"):
        server = socket.create_server((world.lab.ip("pub0"), 80))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(5)
                    with contextlib.suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        connection.recv(65536)

    threading.Thread(target=serve, daemon=True).start()
    world.start("c0")


def _only_tls(world: World) -> None:
    """A box resets what of ours does not begin as TLS does: a relayed connection may do so."""
    begins = "{ 0x72656c6179, 0x7768657265, 0x737761726d }"  # relay, where, swarm
    other = f'iifname "lan" tcp dport {{ 80, 443 }} @ih,0,40 {begins} reject with tcp reset'
    box = f"chain f {{ type filter hook forward priority filter - 6; {other}\n}}"
    _nft(world, "r0", f"table ip dpi {{ {box}\n}}")
    _two_behind_nats(world)


def _own_firewall(world: World) -> None:
    """The kill switch of a VPN that is not connected."""
    world.hint("pub0")
    world.public()
    chain = 'chain o { type filter hook output priority 0; oifname "eth0" drop\n}'
    _nft(world, "c0", f"table ip own {{ {chain}\n}}")
    world.start("c0")


CONDITIONS: dict[str, Condition] = {
    "dead-bootstrap": Condition(_dead_bootstrap, "no node runs on it"),
    "silent-bootstrap": Condition(_silent_bootstrap, "Nothing at all comes back"),
    # Or "nothing comes back", where the dial ends before the kernel has given up on the neighbour.
    "gone-bootstrap": Condition(_gone_bootstrap, "that machine is off"),
    "only-443": Condition(_web_only, "only web pages out", ("tcp-443",)),
    "pmtu-black-hole": Condition(
        _black_hole, "Large packets get lost", expected="direct", is_fail=False
    ),
    "no-dns": Condition(_no_names, "cannot be looked up"),
    "wrong-clock": Condition(_wrong_clock, "clock is", expected="direct"),
    "vpn": Condition(_vpn, "through a VPN (tun0)", expected="direct", is_fail=False),
    "symmetric-no-relay": Condition(
        _no_relay, "no relay has a place", ("symmetric", "symmetric"), expected="none"
    ),
    "relays-full": Condition(
        _relays_full,
        "says that it has no room",
        ("symmetric*2",),
        expected="direct",
        is_fail=False,
    ),
    "cgnat": Condition(
        _two_behind_nats,
        "carrier NAT",
        ("cgnat", "port-restricted"),
        expected="punched-tcp",
        is_fail=False,
        forbidden="forward TCP port",
    ),
    "ipv6-only": Condition(
        _ipv6_only, "ok: Connected", expected="direct", is_fail=False, lab={"ipv6": True}
    ),
    "one-public-peer": Condition(
        _one_public_peer, "ok: Connected", expected="direct", is_fail=False
    ),
    "no-network": Condition(_no_network, "has no network", expected="direct", after=_plug_in),
    "other-program": Condition(_other_program, "Another program answers"),
    "own-firewall": Condition(_own_firewall, "This machine itself forbids"),
    "only-tls": Condition(
        _only_tls,
        "only through relays",
        ("tcp-443", "symmetric"),
        expected="relay",
        is_fail=False,
    ),
    "symmetric-relayed": Condition(
        _two_behind_nats,
        "only through relays",
        ("symmetric", "symmetric"),
        expected="relay",
        is_fail=False,
    ),
}


def measure_all(names: list[str], tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield the result of each condition."""
    for name in names:
        result = measure(name, CONDITIONS[name])
        tell(f"{name:20} {result['path']:12} {result['seconds']:5.1f} s  {result['told'][:150]}")
        yield result
