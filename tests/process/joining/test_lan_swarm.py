"""Two whole nodes on one LAN, with no router and no hint: one knows the name of a swarm only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarmnode.ipc.spawn import worker_command
from tests.kits.daemon_kit import DEADLINE_S, Daemon, environment
from tests.process.life_kit import NAME, Party, ended

SWITCH, LEFT, RIGHT = (f"snlife{os.getpid()}-{part}" for part in ("sw", "a", "b"))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)


class Neighbour(Daemon):
    """A node on a machine of its own, as far as the network is concerned."""

    def __init__(self, namespace: str, home: Path, *flags: str, env: dict[str, str]) -> None:
        self._namespace = namespace
        super().__init__(home, NAME, *flags, env=env)

    def start(self) -> None:
        command = worker_command("swarmnode", "join", NAME, "--metrics", "off", *self._flags)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.home, self.env),
                start_new_session=True,
            )


@dataclass
class Lan:
    """Two machines, and the swarm that one of them has created."""

    party: Party

    def join(self, namespace: str, home: str, *flags: str) -> Neighbour:
        """Start a node by the name of the swarm."""
        env = {"SWARMNODE_NETWORK": self.party.network, "SWARMNODE_LAN": "true"}
        node = Neighbour(namespace, self.party.folder / home, *flags, env=env)
        self.party.nodes.append(node)
        return node


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    party = Party(tmp_path)
    try:
        try:
            ip("netns", "add", SWITCH)
            ip("-n", SWITCH, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            ip("-n", SWITCH, "link", "set", "br0", "up")
            for number, name in enumerate((LEFT, RIGHT), 1):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                ip("link", "add", "eth0", "netns", name,
                   "type", "veth", "peer", "name", f"p{number}", "netns", SWITCH)  # fmt: skip
                ip("-n", SWITCH, "link", "set", f"p{number}", "master", "br0", "up")
                ip("-n", name, "addr", "add", f"192.168.7.{number}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            pytest.skip(f"cannot make network namespaces here (root and iproute2): {reason}")
        yield Lan(party)
    finally:
        party.close()
        for name in (SWITCH, LEFT, RIGHT):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_the_name_is_enough_on_a_lan_and_nothing_is_found_without_it(lan: Lan) -> None:
    creator = lan.join(LEFT, "creator")
    creator.wait_training()

    code, line = ended(lan.join(RIGHT, "blind", "--no-lan"), DEADLINE_S)
    assert code == 2
    assert "this home knows no swarm named 'demo', and none was found" in line

    newcomer = lan.join(RIGHT, "newcomer")
    newcomer.wait_training()
    assert "found swarm demo: key " in newcomer.log
    assert "1 member, " in newcomer.log
    assert "(lan, dht)" in newcomer.log
    newcomer.wait(lambda s: s["exchanges_applied"] > 0, "an exchange")
    (peer,) = creator.peers()
    assert peer["addresses"] == ["192.168.7.2:7337"]
    assert "looking for peers on the LAN: lo, eth0" in newcomer.log
