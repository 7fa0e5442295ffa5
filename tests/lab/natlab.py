"""A small internet out of network namespaces: public hosts, and clients behind NAT routers.

The machine's own network is never touched; what the lab made goes when it ends. Needs root,
iproute2 and nftables. Names in a lab::

    inet     the internet: a bridge, 11.11.11.0/24 and 2a00:f00d::/64
    pub0..   public hosts 11.11.11.10, .20, ... each with a second address .11, .21, ...
    r0..     router i: wan 11.11.11.(100+i), lan 192.168.(10+i).1/24
    g0..     carrier NAT in front of router i (cgnat, cgnat-sym): wan 11.11.11.(100+i),
             inside 100.64.i.1/24
    c0..     client i: 192.168.(10+i).2, or 11.11.11.(100+i) where there is no NAT
             ("TYPE*2" puts c1 and c1b behind one router; with a carrier NAT, c1 behind
             r1 and c1b behind r1b)

Types, mapping and filtering in the words of RFC 4787::

    none             no NAT
    firewall         a public address, but nothing comes in except answers
    full-cone        endpoint-independent mapping and filtering
    addr-restricted  endpoint-independent mapping, address-dependent filtering
    port-restricted  endpoint-independent mapping, address- and port-dependent filtering
    symmetric        address- and port-dependent mapping (random ports) and filtering
    cgnat            port-restricted behind a port-restricted carrier NAT
    cgnat-sym        port-restricted behind a symmetric carrier NAT
    udp-blocked      port-restricted, and all UDP is dropped
    tcp-443          only TCP to ports 80 and 443 gets out

full-cone and addr-restricted filter TCP by address and port, as most of such routers do.

Modifiers, joined with "+"::

    hairpin          the router loops what its LAN sends to its public address back
    input-accept     the router does not drop unsolicited packets to itself: they leave
                     connection state that disturbs hole punching
    upnp             the router runs miniupnpd: UPnP IGD, NAT-PMP and PCP

To look around, ``python -m tests.lab.natlab symmetric cgnat --delay-ms 10`` builds a lab, prints
its hosts, and removes it at the end of its input.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.lab import namespaces, rules
from tests.lab.namespaces import run
from tests.lab.shaper import Shape

ROOT = Path(__file__).parents[2]

NAT_TYPES = (
    "none",
    "firewall",
    "full-cone",
    "addr-restricted",
    "port-restricted",
    "symmetric",
    "cgnat",
    "cgnat-sym",
    "udp-blocked",
    "tcp-443",
)
MODIFIERS = ("hairpin", "input-accept", "upnp")
_WITHOUT_ROUTER = ("none", "firewall")
# They look like real ones (ipaddress.is_global) on purpose, for programs treat documentation
# ranges differently; nothing ever leaves the namespaces.
NET4 = "11.11.11"
NET6 = "2a00:f00d"
_GATEWAY = f"{NET4}.1"
_SUFFIXES = ("", "b", "c", "d", "e")  # of further clients behind one router
_CLIENTS_MAX = 100
_PUBLIC_MAX = 8
_PROCESS_END_S = 3.0
_numbers = itertools.count()  # of the labs of this process: there may be several at a time
_SETTINGS = Path("/proc/sys/net")  # of the namespace that the reader is in

_MINIUPNPD_PORT = 5000
# Any client may map any high port to itself.
_MINIUPNPD = """ext_ifname=wan
listening_ip=lan
enable_natpmp=yes
enable_upnp=yes
secure_mode=yes
system_uptime=yes
http_port=5000
upnp_table_name=upnp
upnp_nat_table_name=upnp
upnp_forward_chain=forward_upnp
upnp_nat_chain=pre_upnp
upnp_nat_postrouting_chain=post_upnp
uuid=00000000-0000-4000-8000-000000000001
allow 1024-65535 0.0.0.0/0 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


@dataclass(frozen=True)
class Site:
    """One client specification, such as ``symmetric+hairpin*2``."""

    kind: str
    modifiers: frozenset[str]
    clients: int

    @classmethod
    def parse(cls, text: str) -> Site:
        """Read one. Raises ValueError that names what is known."""
        match = re.fullmatch(r"([a-z0-9-]+)((?:\+[a-z-]+)*)(?:\*(\d))?", text)
        if not match or match[1] not in NAT_TYPES:
            raise ValueError(f"{text!r} is no NAT type; types: {', '.join(NAT_TYPES)}")
        site = cls(match[1], frozenset(match[2].split("+")) - {""}, int(match[3] or 1))
        if not site.modifiers <= set(MODIFIERS):
            raise ValueError(f"{text!r}: the modifiers are {', '.join(MODIFIERS)}")
        clients_max = 1 if site.kind in _WITHOUT_ROUTER else len(_SUFFIXES)
        if not 1 <= site.clients <= clients_max:
            raise ValueError(f"{text!r}: expected 1 to {clients_max} clients")
        return site


class NatLab:
    """Builds the lab on entry and removes it on exit."""

    def __init__(
        self,
        clients: Sequence[str],
        *,
        public: int = 1,
        ipv6: bool = False,
        shape: Shape | None = None,  # of every client's uplink: a round trip is 4 delays
        udp_timeout_s: int = 120,
    ) -> None:
        self._sites = [Site.parse(text) for text in clients]
        if len(self._sites) > _CLIENTS_MAX or not 0 <= public <= _PUBLIC_MAX:
            raise ValueError(f"at most {_CLIENTS_MAX} sites and {_PUBLIC_MAX} public hosts")
        self._public = public
        self._ipv6 = ipv6
        self._shape = shape or Shape()
        self._udp_timeout_s = udp_timeout_s
        self._prefix = f"{namespaces.own_prefix()}{next(_numbers)}-"
        self._made: list[str] = []
        self._links: list[tuple[str, str, str, str]] = []
        self._uplinks: dict[str, str] = {}  # host with a wan device to its port on the bridge
        self._processes: list[subprocess.Popen[Any]] = []
        self._miniupnpds: dict[str, subprocess.Popen[Any]] = {}
        self._cleanup = contextlib.ExitStack()
        self.addresses: dict[str, str] = {}
        self.addresses6: dict[str, str] = {}
        self.kinds: dict[str, str] = {}  # client name to NAT type

    def __enter__(self) -> NatLab:
        namespaces.remove_leftovers()
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove)
            self._build()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    # --- use ----------------------------------------------------------------------------------

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace."""
        return self._prefix + host

    def ip(self, host: str) -> str:
        """Return a host's own IPv4 address."""
        return self.addresses[host]

    def ip6(self, host: str) -> str:
        """Return a host's own IPv6 address."""
        return self.addresses6[host]

    def public_ip(self, client: str) -> str:
        """Return the IPv4 address that the internet sees a client at."""
        return f"{NET4}.{100 + int(re.sub('[^0-9]', '', client))}"

    def router_of(self, client: str) -> str:
        """Return the name of the router next to a client."""
        return (
            client.replace("c", "r", 1)
            if self.kinds[client].startswith("cgnat")
            else ("r" + re.sub("[^0-9]", "", client))
        )

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Sockets that are opened here are the host's, for as long as they live."""
        with namespaces.inside(self.namespace(host)):
            yield

    def popen(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host; it ends with the lab at the latest.

        So it does if this process is killed (to be exact, the thread that calls this): what is
        left behind then must not keep a machine busy until the next lab is built.
        """
        full = ["setpriv", "--pdeathsig", "KILL",
                "ip", "netns", "exec", self.namespace(host), *command]  # fmt: skip
        process = subprocess.Popen(full, **options)
        self._processes.append(process)
        return process

    def run(self, host: str, *command: str, stdin: str | None = None) -> str:
        """Run a program on a host to its end; return its output, RuntimeError if it fails."""
        return run("ip", "netns", "exec", self.namespace(host), *command, stdin=stdin)

    def flush(self) -> None:
        """Make every router forget all its mappings."""
        for host in self._routers():
            self.run(host, "nft", "-f", "-", stdin=rules.FORGET)
            with self.inside(host):
                namespaces.forget_connections()

    def restart_miniupnpd(self, router: str) -> None:
        """Make a router with the modifier ``upnp`` forget the ports that it has mapped."""
        _end(self._miniupnpds[router])
        self._start_miniupnpd(router)

    def set_uplink(self, client: str, *, is_up: bool) -> None:
        """Cut the way of a client's site to the internet, or mend it; no carrier is lost."""
        number = re.sub("[^0-9]", "", client)
        host = next(host for host in (f"g{number}", f"r{number}", client) if host in self._uplinks)
        inet, where = self.namespace("inet"), ["master", "br0"] if is_up else ["nomaster"]
        run("ip", "-n", inet, "link", "set", self._uplinks[host], *where)

    # --- building -----------------------------------------------------------------------------

    def _build(self) -> None:
        inet = self._add_namespace("inet")
        run("ip", "-n", inet, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        # The gateway of everything public forwards nothing: packets to private or unknown
        # addresses vanish as on the real internet.
        self._add_addresses(inet, "br0", f"{_GATEWAY}/24")
        for number in range(self._public):
            tens = 10 + 10 * number
            extra = f"{NET4}.{tens + 1}/24"
            self._add_public(f"pub{number}", tens, Shape(), extra)
        for number, site in enumerate(self._sites):
            if site.kind in _WITHOUT_ROUTER:
                self._add_public(f"c{number}", 100 + number, self._shape)
                self.kinds[f"c{number}"] = site.kind
                if site.kind == "firewall":
                    self.run(f"c{number}", "nft", "-f", "-", stdin=rules.FIREWALL)
            elif site.kind.startswith("cgnat"):
                self._add_carrier(number, site)
            else:
                self._add_home(number, site)
        self._route_ipv6()
        if self._links:
            self._start_shaper()

    def _remove(self) -> None:
        for process in self._processes:
            _end(process)
        self._processes.clear()
        for name in self._made:
            namespaces.remove(name)
        self._made.clear()
        self._cleanup.close()

    def _routers(self) -> list[str]:
        hosts = [name.removeprefix(self._prefix) for name in self._made]
        return [host for host in hosts if re.match(r"[rg]\d", host)]

    def _add_namespace(self, host: str) -> str:
        name = self.namespace(host)
        run("ip", "netns", "add", name)
        self._made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        if self._ipv6:
            self._set(host, ipv6__conf__all__accept_dad=0, ipv6__conf__default__accept_dad=0)
        else:
            self._set(host, ipv6__conf__all__disable_ipv6=1, ipv6__conf__default__disable_ipv6=1)
        return name

    def _set(self, host: str, **settings: int) -> None:
        """Write settings of the host's network; dots of their names are double underscores."""
        with self.inside(host):
            for name, value in settings.items():
                path = _SETTINGS / name.replace("__", "/")
                path.write_text(str(value), encoding="ascii")

    def _add_addresses(self, namespace: str, device: str, *addresses: str) -> None:
        for address in addresses:
            if ":" not in address:
                run("ip", "-n", namespace, "addr", "add", address, "dev", device)
            elif self._ipv6:
                run("ip", "-n", namespace, "addr", "add", address, "dev", device, "nodad")
        run("ip", "-n", namespace, "link", "set", device, "up")

    def _add_bridge(self, namespace: str, device: str) -> None:
        run("ip", "-n", namespace, "link", "add", device, "type", "bridge", "forward_delay", "0")

    def _add_cable(self, first: str, first_device: str, second: str, second_device: str) -> None:
        run("ip", "link", "add", first_device, "netns", first,
            "type", "veth", "peer", "name", second_device, "netns", second)  # fmt: skip

    def _add_uplink(self, host: str, device: str, shape: Shape) -> None:
        """Connect a device of a host to the internet's bridge."""
        inet, name, port = self.namespace("inet"), self.namespace(host), f"p-{host}"
        if shape.is_plain:
            self._add_cable(name, device, inet, port)
        else:
            for namespace, tap in ((name, device), (inet, port)):
                run("ip", "-n", namespace, "tuntap", "add", "dev", tap, "mode", "tap")
                run("ip", "-n", namespace, "link", "set", tap, "txqueuelen", "2000")
            self._links.append((name, device, inet, port))
        run("ip", "-n", inet, "link", "set", port, "master", "br0", "up")
        self._uplinks[host] = port

    def _add_public(self, host: str, number: int, shape: Shape, *extra: str) -> None:
        name = self._add_namespace(host)
        ipv4, ipv6 = f"{NET4}.{number}", f"{NET6}::{number}"
        self._add_uplink(host, "eth0", shape)
        self._add_addresses(name, "eth0", f"{ipv4}/24", f"{ipv6}/64", *extra)
        run("ip", "-n", name, "route", "add", "default", "via", _GATEWAY)
        self.addresses[host] = ipv4
        if self._ipv6:
            self.addresses6[host] = ipv6

    def _add_home(self, number: int, site: Site) -> None:
        """A home router on the internet, and its clients."""
        host, wan_ip = f"r{number}", f"{NET4}.{100 + number}"
        name = self._add_namespace(host)
        self._add_uplink(host, "wan", self._shape)
        self._add_addresses(name, "wan", f"{wan_ip}/24", f"{NET6}::{100 + number}/64")
        run("ip", "-n", name, "route", "add", "default", "via", _GATEWAY)
        router = rules.Router(
            site.kind, site.modifiers, wan_ip, f"192.168.{10 + number}.0/24", self._udp_timeout_s
        )
        self._add_lan(host, number, router, range(site.clients), site.kind)

    def _add_carrier(self, number: int, site: Site) -> None:
        """A carrier NAT on the internet, and for each subscriber a router and a client."""
        host, wan_ip, within = f"g{number}", f"{NET4}.{100 + number}", f"100.64.{number}"
        name = self._add_namespace(host)
        self._add_uplink(host, "wan", self._shape)
        self._add_addresses(name, "wan", f"{wan_ip}/24")
        run("ip", "-n", name, "route", "add", "default", "via", _GATEWAY)
        self._add_bridge(name, "lan")
        self._add_addresses(name, "lan", f"{within}.1/24")
        kind = "symmetric" if site.kind == "cgnat-sym" else "port-restricted"
        carrier = rules.Router(kind, site.modifiers, wan_ip, f"{within}.0/24", self._udp_timeout_s)
        self._configure_router(host, carrier)
        for subscriber in range(site.clients):
            self._add_subscriber(number, subscriber, site, within)

    def _add_subscriber(self, number: int, subscriber: int, site: Site, within: str) -> None:
        host = f"r{number}{_SUFFIXES[subscriber]}"
        name, carrier = self._add_namespace(host), self.namespace(f"g{number}")
        wan_ip, port = f"{within}.{2 + subscriber}", f"s{subscriber}"
        self._add_cable(name, "wan", carrier, port)
        run("ip", "-n", carrier, "link", "set", port, "master", "lan", "up")
        self._add_addresses(name, "wan", f"{wan_ip}/24")
        run("ip", "-n", name, "route", "add", "default", "via", f"{within}.1")
        router = rules.Router(
            "port-restricted",
            site.modifiers - {"hairpin"},
            wan_ip,
            f"192.168.{10 + number}.0/24",
            self._udp_timeout_s,
        )
        self._add_lan(host, number, router, [subscriber], site.kind)

    def _add_lan(
        self, host: str, number: int, router: rules.Router, clients: Iterable[int], kind: str
    ) -> None:
        """The private network of one router, with its clients."""
        name, lan = self.namespace(host), f"192.168.{10 + number}"
        lan6 = f"{NET6}:{100 + number}:"
        self._add_bridge(name, "lan")
        self._add_addresses(name, "lan", f"{lan}.1/24", f"{lan6}:1/64")
        self._configure_router(host, router)
        if "upnp" in router.modifiers:
            self._start_miniupnpd(host)
        for place in clients:
            client = f"c{number}{_SUFFIXES[place]}"
            inner = self._add_namespace(client)
            self._add_cable(inner, "eth0", name, f"l{place}")
            run("ip", "-n", name, "link", "set", f"l{place}", "master", "lan", "up")
            self.addresses[client], self.kinds[client] = f"{lan}.{2 + place}", kind
            self._add_addresses(inner, "eth0", f"{lan}.{2 + place}/24")
            run("ip", "-n", inner, "route", "add", "default", "via", f"{lan}.1")
            if self._ipv6 and not kind.startswith("cgnat"):  # such sites have no IPv6
                self.addresses6[client] = f"{lan6}:{2 + place}"
                self._add_addresses(inner, "eth0", f"{self.addresses6[client]}/64")
                run("ip", "-n", inner, "-6", "route", "add", "default", "via", f"{lan6}:1")

    def _configure_router(self, host: str, router: rules.Router) -> None:
        """Set up forwarding and NAT of a router whose devices exist."""
        self._set(
            host,
            ipv4__ip_forward=1,
            ipv4__conf__all__rp_filter=0,
            ipv4__conf__default__rp_filter=0,
        )
        if self._ipv6:
            self._set(host, ipv6__conf__all__forwarding=1)
        self.run(host, "nft", "-f", "-", stdin=rules.router_rules(router))
        self._set(
            host,
            netfilter__nf_conntrack_udp_timeout=min(30, self._udp_timeout_s),
            netfilter__nf_conntrack_udp_timeout_stream=self._udp_timeout_s,
        )

    def _start_miniupnpd(self, host: str) -> None:
        """Start the port mapping service of a router, with no mappings."""
        self.run(host, "nft", "-f", "-", stdin="table inet upnp\ndelete table inet upnp\n")
        self.run(host, "nft", "-f", "-", stdin=rules.UPNP)
        folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory()))
        settings = folder / "miniupnpd.conf"
        settings.write_text(_MINIUPNPD, encoding="ascii")
        self._miniupnpds[host] = self.popen(
            host,
            ["miniupnpd", "-d", "-f", str(settings), "-P", str(folder / "pid")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait_for_port(host, _MINIUPNPD_PORT)

    def _wait_for_port(self, host: str, port: int) -> None:
        deadline = time.monotonic() + namespaces.COMMAND_S
        while f":{port} " not in self.run(host, "ss", "-Hltn"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing listens on port {port} of {host}")

    def _route_ipv6(self) -> None:
        """Tell every host on the internet how to reach the routed IPv6 networks."""
        if not self._ipv6:
            return
        homes = [host for host in self._uplinks if host.startswith("r")]
        for host in self._uplinks:
            for router in homes:
                if host == router or host.startswith("g"):
                    continue
                number = 100 + int(router[1:])
                run("ip", "-n", self.namespace(host), "-6", "route", "add",
                    f"{NET6}:{number}::/64", "via", f"{NET6}::{number}")  # fmt: skip

    def _start_shaper(self) -> None:
        settings = json.dumps({"links": self._links, "shape": asdict(self._shape)})
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.shaper", settings],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("the traffic shaper did not start")


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process that we started and close what leads to it."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_PROCESS_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def main() -> int:
    """Build a lab and hold it until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.natlab", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("clients", nargs="+", metavar="TYPE[+MODIFIER][*N]")
    parser.add_argument("--public", type=int, default=1)
    parser.add_argument("--ipv6", action="store_true")
    for name in ("delay-ms", "jitter-ms", "loss-percent", "rate-mbit"):
        parser.add_argument(f"--{name}", type=float, default=0)
    wanted = parser.parse_args()
    shape = Shape(wanted.delay_ms, wanted.jitter_ms, wanted.loss_percent, wanted.rate_mbit)
    reason = namespaces.why_not()
    if reason:
        sys.exit(reason)
    with NatLab(wanted.clients, public=wanted.public, ipv6=wanted.ipv6, shape=shape) as lab:
        for host, address in lab.addresses.items():
            ipv6 = lab.addresses6.get(host, "")
            kind = lab.kinds.get(host, "public host")
            print(f"ip netns exec {lab.namespace(host):16} {address:16} {ipv6:20} {kind}")
        print("end of input (Ctrl-D) removes it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
