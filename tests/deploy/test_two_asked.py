"""Prometheus asks two nodes under one name: one list without doubles, and either may die."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.deploy.kit import needs
from tests.deploy.prometheus_kit import SCRAPE_S, Prometheus
from tests.kits.daemon_kit import free_port, wait_until, without_torch
from tests.process.life_kit import Party, peer_of

pytestmark = [
    needs("prometheus"),
    needs("unshare"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a hosts file of its own"),
    pytest.mark.slow,
]

NAME = "swarm-metrics"
HOSTS = ("127.0.0.2", "127.0.0.3")
SWARM = '{job="swarmnode", swarm="demo"}'
WATCHED_S = 3 * SCRAPE_S


class _OwnHosts(Prometheus):
    """To it, the name is that of all these addresses, as it is where a DNS server says so."""

    def __init__(self, folder: Path, metrics_port: int, *addresses: str) -> None:
        self._hosts = folder.parent / "hosts"
        self._hosts.write_text("".join(f"{each} {NAME}\n" for each in addresses))
        super().__init__(folder, metrics_port, NAME)

    def start(self, *command: str, log: BinaryIO) -> subprocess.Popen[bytes]:
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return super().start(
            "unshare", "--mount", "sh", "-c", script, str(self._hosts), *command, log=log
        )


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    party = Party(tmp_path)
    try:
        yield party
    finally:
        party.close()


@pytest.fixture
def watched(party: Party, tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Start two keepers with their pages at one port, and a Prometheus that knows some of them."""
    begun: list[Prometheus] = []
    port = free_port()
    creator = party.join("creator")
    for home, address in zip(("one", "two"), HOSTS, strict=True):
        # A page that is open to others answers under any name.
        env = {"SWARMNODE_METRICS_ALLOW_REMOTE": "true"} | without_torch(party.folder / "none")
        flags = ("--role", "keeper", "--metrics", f"{address}:{port}")
        party.join(home, *flags, via=creator, **env)

    def begin(*addresses: str) -> Prometheus:
        begun.append(_OwnHosts(tmp_path / "prometheus", port, *addresses))
        return begun[-1]

    try:
        yield begin
    finally:
        for each in begun:
            each.close()


def _watch(seconds: float) -> None:
    begin = time.monotonic()
    wait_until(lambda: time.monotonic() > begin + seconds, "scrapes for a while")


def test_either_of_two_asked_nodes_may_die(
    party: Party, watched: Callable[..., Prometheus]
) -> None:
    prometheus = watched(*HOSTS)
    nodes = {peer_of(node).short: node for node in party.nodes}
    everybody = dict.fromkeys(nodes, 1.0)
    each_once = dict.fromkeys(nodes, 1.0)
    prometheus.wait(f"up{SWARM}", everybody)
    for asked in party.nodes[1:]:
        name = peer_of(asked).short
        asked.kill()
        killed = time.time()
        prometheus.wait(f"up{SWARM}", everybody | {name: 0.0})
        _watch(WATCHED_S)
        lost = {
            other: [at - killed for at, value in samples if not value and at > killed]
            for other, samples in prometheus.history(f"up{SWARM}").items()
            if other != name
        }
        print(f"{asked.home.name} killed; the others were up 0 at {lost} s")
        assert all(not times for times in lost.values())
        prometheus.wait(f"count by (instance) (up{SWARM})", each_once)
        asked.start()
        prometheus.wait(f"up{SWARM}", everybody)


def test_with_one_asked_node_all_are_down_with_it(
    party: Party, watched: Callable[..., Prometheus]
) -> None:
    """What the second address is for."""
    prometheus = watched(HOSTS[0])
    nodes = [peer_of(node).short for node in party.nodes]
    prometheus.wait(f"up{SWARM}", dict.fromkeys(nodes, 1.0))
    party.nodes[1].kill()
    prometheus.wait(f"up{SWARM}", dict.fromkeys(nodes, 0.0))
