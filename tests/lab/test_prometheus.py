"""One Prometheus asks one node, and sees the whole swarm: half of it is behind NATs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from swarmnode.protocol.swarm import Hint
from tests.deploy.kit import needs
from tests.deploy.prometheus_kit import SCRAPE_S, Prometheus, Samples
from tests.kits.daemon_kit import LOOPBACK, make_home, new_swarm, wait_until, without_torch
from tests.lab.lab_daemon import LabDaemon
from tests.lab.matrix import PORT, RELAY_PORT
from tests.lab.natlab import NatLab

pytestmark = needs("prometheus")

# The operator's node is the one that Prometheus asks; a swarm of two trainers is one of eight.
PUBLIC = {"pub0": "monitor", "pub1": "relay", "pub2": "trainer", "pub3": "keeper"}
BEHIND_NATS = {
    "port-restricted": "trainer",
    "symmetric": "keeper",
    "cgnat": "keeper",
    "udp-blocked": "keeper",
}
VICTIM = "c1"
METRICS_PORT = 7338
WATCHED_SCRAPES = 3  # with everybody up
UP = 'up{job="swarmnode", swarm="demo"}'


class LabPrometheus(Prometheus):
    """It runs on a host of the lab, and is asked there."""

    def __init__(self, lab: NatLab, host: str, folder: Path) -> None:
        self._lab, self._host = lab, host
        with lab.inside(host):
            super().__init__(folder, METRICS_PORT)

    def start(self, *command: str, log: BinaryIO) -> subprocess.Popen[bytes]:
        return self._lab.popen(
            self._host, command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def get(self, path: str, **parameters: str) -> Any:
        with self._lab.inside(self._host):
            return super().get(path, **parameters)


@dataclass
class World:
    """Eight nodes of one swarm, by host, and the Prometheus of the first."""

    prometheus: Prometheus
    nodes: dict[str, LabDaemon]
    names: dict[str, str]  # under which Prometheus knows them

    def everybody(self, **otherwise: float) -> Samples:
        return {name: otherwise.get(host, 1.0) for host, name in self.names.items()}


@pytest.fixture
def world(able: None, tmp_path: Path) -> Iterator[World]:
    """All nodes are started at once; none has been waited for."""
    roles = PUBLIC | {f"c{place}": role for place, role in enumerate(BEHIND_NATS.values())}
    swarm = new_swarm()
    ids = {host: make_home(tmp_path / host, swarm).peer_id for host in roles}
    light = without_torch(tmp_path / "no_torch")
    with NatLab(list(BEHIND_NATS), public=len(PUBLIC)) as lab:
        link = str(swarm.link(Hint(ids["pub1"], f"{lab.ip('pub1')}:{RELAY_PORT}")))
        nodes: dict[str, LabDaemon] = {}
        prometheus: Prometheus | None = None
        try:
            for host, role in roles.items():
                flags = ["--role", role]
                if host == "pub0":
                    flags += ["--metrics", f"{LOOPBACK}:{METRICS_PORT}"]
                env = {} if role == "trainer" else light
                nodes[host] = LabDaemon(lab, host, tmp_path, link, *flags, port=PORT, env=env)
            prometheus = LabPrometheus(lab, "pub0", tmp_path / "prometheus")
            yield World(prometheus, nodes, {host: peer.short for host, peer in ids.items()})
        finally:
            for node in nodes.values():
                node.kill()
            if prometheus:
                prometheus.close()


def test_one_target_shows_all_eight(world: World) -> None:
    """All are up; one behind a NAT is killed and seen down in two scrapes, then seen again."""
    began_at = time.monotonic()
    world.prometheus.wait(UP, world.everybody())
    print(f"8 of 8 up after {time.monotonic() - began_at:.1f} s")
    _check_all_are_seen(world)
    _check_death_and_return(world)
    print(world.prometheus.scrape_times('{job="swarmnode"}'))


def _check_all_are_seen(world: World) -> None:
    """Each has its own page, with its own words on it, scrape after scrape."""
    began_at = time.time()
    wait_until(lambda: time.time() > began_at + WATCHED_SCRAPES * SCRAPE_S, "pages for a while")
    seen = world.prometheus.history(UP)
    assert seen.keys() == world.everybody().keys()
    for name, samples in seen.items():
        values = [value for at, value in samples if at > began_at]
        assert values == [1.0] * len(values), name
        assert len(values) >= WATCHED_SCRAPES - 1
    said = world.prometheus.get("query", query="swarmnode_node_info")["result"]
    roles = {each["metric"]["instance"]: each["metric"]["role"] for each in said}
    wanted = [*PUBLIC.values(), *BEHIND_NATS.values()]
    assert roles == dict(zip(world.names.values(), wanted, strict=True))


def _check_death_and_return(world: World) -> None:
    victim, name = world.nodes[VICTIM], world.names[VICTIM]
    victim.kill()
    killed_at = time.time()
    world.prometheus.wait(UP, world.everybody(**{VICTIM: 0.0}))
    after = [value for at, value in world.prometheus.history(UP)[name] if at > killed_at]
    assert 0.0 in after[:2], f"scrapes since it was killed: {after}"
    down_s = time.time() - killed_at
    victim.start()
    started_at = time.monotonic()
    world.prometheus.wait(UP, world.everybody())
    print(f"down {down_s:.1f} s after kill -9, up {time.monotonic() - started_at:.1f} s after")
