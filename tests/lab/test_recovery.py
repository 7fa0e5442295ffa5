"""What breaks on the way of two nodes that train together, and how soon they go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarmnode.protocol.swarm import Hint
from tests.kits.daemon_kit import make_home, new_swarm, wait_until
from tests.lab.lab_daemon import LabDaemon
from tests.lab.matrix import PORT, RELAY_PORT
from tests.lab.natlab import NatLab

BACK_S = 15.0


@dataclass
class World:
    """Two nodes behind NATs, and the relays between them."""

    lab: NatLab
    nodes: tuple[LabDaemon, LabDaemon]
    relays: dict[str, LabDaemon]  # by its id
    ids: dict[str, str]

    def path(self) -> str:
        return self.nodes[0].path_to(self.ids["c1"])

    def way(self) -> str:
        found = [each for each in self.nodes[0].peers() if each["peer"] == self.ids["c1"]]
        return str(found[0]["way"]) if found else ""

    def committed(self) -> list[int]:
        return [node.wait(bool, "its status")["exchanges_committed"] for node in self.nodes]

    def back_s(self, break_it: Callable[[], None]) -> float:
        """Break something; return how long it then takes until both have exchanged again."""
        break_it()
        broken_at, before = time.monotonic(), self.committed()
        wait_until(
            lambda: all(now > then for now, then in zip(self.committed(), before, strict=True)),
            "another exchange",
            60,
        )
        return time.monotonic() - broken_at

    def check_whole(self) -> None:
        for node in self.nodes:
            assert node.wait(bool, "its status")["exchanges_half_applied"] == 0


@pytest.fixture
def world(able: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Two nodes of the kinds in ``request.param``, and two relays."""
    kinds: list[str] = list(request.param)
    swarm = new_swarm()
    hosts = ("pub0", "pub1", "c0", "c1")
    ids = {host: make_home(tmp_path / host, swarm).peer_id for host in hosts}
    with NatLab(kinds, public=2) as lab:
        hints = [Hint(ids[host], f"{lab.ip(host)}:{RELAY_PORT}") for host in ("pub0", "pub1")]
        link = str(swarm.link(*hints))
        started: list[LabDaemon] = []
        try:
            for host in ("pub0", "pub1"):
                started.append(LabDaemon(lab, host, tmp_path, link, "--role", "relay", port=PORT))
                started[-1].wait(lambda s: s["state"] == "serving", "the relay")
            for host in ("c0", "c1"):
                started.append(LabDaemon(lab, host, tmp_path, link, port=PORT))
            relays = {str(ids["pub0"]): started[0], str(ids["pub1"]): started[1]}
            names = {host: str(peer) for host, peer in ids.items()}
            world = World(lab, (started[2], started[3]), relays, names)
            wait_until(lambda: min(world.committed()) > 0, "a first exchange")
            yield world
        finally:
            for daemon in started:
                daemon.kill()


@pytest.mark.parametrize("world", [("port-restricted", "cgnat")], indirect=True)
def test_a_punched_way_that_breaks(world: World) -> None:
    """Routers forget, a cable is pulled for five seconds."""
    wait_until(lambda: world.path() == "punched-tcp", "a punched way", 30)

    def unplug() -> None:
        world.lab.set_uplink("c0", is_up=False)
        began_at = time.monotonic()
        wait_until(lambda: time.monotonic() > began_at + 5, "5 s", 10)
        world.lab.set_uplink("c0", is_up=True)

    flushed_s = world.back_s(world.lab.flush)
    wait_until(lambda: world.path() == "punched-tcp", "a punched way again", 60)
    replugged_s = world.back_s(unplug)
    print(f"after a flush {flushed_s:.1f} s, after 5 s without a cable {replugged_s:.1f} s")
    assert max(flushed_s, replugged_s) < BACK_S
    world.check_whole()


@pytest.mark.parametrize("world", [("symmetric", "symmetric")], indirect=True)
def test_a_relay_is_killed(world: World) -> None:
    """The session goes on through the other one."""
    assert world.path() == "relay"
    way = world.way()
    used = next(relay for relay in world.relays if relay[: len("sn1") + 9] in way)
    back_s = world.back_s(world.relays[used].kill)
    assert world.path() == "relay"
    assert world.way() != way
    print(f"after its relay was killed {back_s:.1f} s")
    assert back_s < BACK_S
    world.check_whole()
