"""Lines that are broken in one way each, between a node and all others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

from swarmnode import limits
from swarmnode.ipc.spawn import worker_command
from tests.kits.daemon_kit import environment
from tests.lab import namespaces
from tests.lab.broken.world import PORT, Condition, World


def _dead_bootstrap(world: World) -> None:
    world.hint("pub0")
    world.start("c0")


def _silent_bootstrap(world: World) -> None:
    world.hint("pub0")
    world.nft("pub0", "table ip off { chain i { type filter hook input priority 0; drop\n}\n}")
    world.start("c0")


def _gone_bootstrap(world: World) -> None:
    world.hint("pub0", address="11.11.11.77")  # no machine has it, and the router says so
    world.start("c0")


def _web_only(world: World) -> None:
    world.hint("pub0", PORT)
    world.public("keeper")
    world.start("c0")


def _black_hole(world: World) -> None:
    """Smaller packets from here on, and no router says so."""
    world.other = "pub0"
    world.hint("pub0")
    world.public()
    router = world.lab.router_of("c0")
    hole = "chain o { type filter hook output priority 0; ip protocol icmp drop; }"
    world.nft(router, f"table ip hole {{ {hole}\n}}")
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
    world.nft("pub1", f"table ip vpn {{ {masquerade}\n}}")
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
    world.hint("pub0", PORT)
    world.public("keeper", SWARMNODE_RELAY="false")
    world.start("c1")
    world.start("c0")


def _relays_full(world: World) -> None:
    """Others behind the same router have all the places that one address gets."""
    world.other = "pub0"
    world.hint("pub0", PORT)
    world.public("keeper")
    occupants = world.lab.popen(
        "c0b",
        worker_command(
            "tests.lab.broken.occupant",
            world.ids["pub0"],
            f"{world.lab.ip('pub0')}:{PORT}",
            str(limits.RELAY_RESERVATIONS_PER_HOST_MAX),
        ),
        stdout=subprocess.PIPE,
        env=environment(Path("/nonexistent")),
    )
    assert occupants.stdout is not None
    assert occupants.stdout.readline() == b"full\n"
    world.start("c0")


def two_behind_nats(world: World) -> None:
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
    world.hint("pub0", PORT)
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
    world.nft("r0", f"table ip dpi {{ {box}\n}}")
    two_behind_nats(world)


def _only_proxy(world: World, password: str = "", user: str = "") -> None:
    """An office: nothing gets out but to the HTTP proxy, and out of that only to port 443."""
    world.other = world.other or "pub0"
    world.hint("pub0")
    world.public()
    if world.other != "pub0":
        world.start(world.other)
    proxy, port = world.lab.ip("pub1"), "3128"
    command = worker_command("tests.kits.connect_proxy", proxy, port, password)
    running = world.lab.popen(
        "pub1", command, stdout=subprocess.PIPE, env=environment(Path("/nonexistent"))
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    for rule in (f"ip daddr != {proxy}", "meta l4proto != tcp", f"tcp dport != {port}"):
        world.filter("r0", "forward", f'iifname "lan" {rule} drop')
    world.start("c0", SWARMNODE_PROXY=f"http://{user}{proxy}:{port}")


def _proxy_wants_password(world: World) -> None:
    _only_proxy(world, "ann:swordfish")


def _proxy_and_relay(world: World) -> None:
    world.other = "c1"
    _only_proxy(world)


def _proxy_knows_password(world: World) -> None:
    _only_proxy(world, "ann:swordfish", "ann:swordfish@")


def _own_firewall(world: World) -> None:
    """The kill switch of a VPN that is not connected."""
    world.hint("pub0")
    world.public()
    chain = 'chain o { type filter hook output priority 0; oifname "eth0" drop\n}'
    world.nft("c0", f"table ip own {{ {chain}\n}}")
    world.start("c0")


LINES: dict[str, Condition] = {
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
        two_behind_nats,
        "carrier NAT",
        ("cgnat", "port-restricted"),
        expected="punched-tcp",
        is_fail=False,
        forbidden="forward TCP port",
    ),
    "ipv6-homes": Condition(
        two_behind_nats,
        "Connected",
        ("symmetric", "symmetric"),
        expected="punched-tcp",
        is_fail=False,
        lab={"ipv6": True},
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
    "only-proxy": Condition(
        _only_proxy, "through the proxy 11.11.11.20:3128", expected="direct", is_fail=False
    ),
    "proxy-password": Condition(
        _proxy_knows_password,
        "through the proxy 11.11.11.20:3128",
        expected="direct",
        is_fail=False,
        forbidden="swordfish",
    ),
    "proxy-and-relay": Condition(
        _proxy_and_relay,
        "through the proxy 11.11.11.20:3128",
        ("port-restricted", "symmetric"),
        expected="relay",
        is_fail=False,
    ),
    "proxy-wants-password": Condition(
        _proxy_wants_password, "407 Proxy Authentication Required: it wants a user and a password"
    ),
    "symmetric-relayed": Condition(
        two_behind_nats,
        "only through relays",
        ("symmetric", "symmetric"),
        expected="relay",
        is_fail=False,
    ),
}
