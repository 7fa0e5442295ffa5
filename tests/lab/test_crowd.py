"""Several nodes that can punch nothing, behind one keeper: all train with all others in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmnode.config import Paths
from swarmnode.protocol.swarm import Hint
from swarmnode.store.files import read_history
from tests.kits.daemon_kit import make_home, new_swarm, wait_until
from tests.lab.lab_daemon import LabDaemon
from tests.lab.matrix import PORT
from tests.lab.natlab import NatLab
from tests.sim.relays.crowd import jain

N_NODES = 6
DEADLINE_S = 240.0


def partners(node: LabDaemon) -> set[str]:
    """Return the nodes that it has committed an exchange with."""
    entries = read_history(Paths(node.home).history)
    return {entry["peer"] for entry in entries if entry.get("outcome") == "committed"}


@pytest.mark.slow
def test_six_symmetric_nodes_behind_one_keeper_train_with_each_other(
    able: None, tmp_path: Path
) -> None:
    swarm = new_swarm()
    clients = [f"c{number}" for number in range(N_NODES)]
    ids = {host: make_home(tmp_path / host, swarm).peer_id for host in ("pub0", *clients)}
    with NatLab(["symmetric"] * N_NODES, public=1) as lab:
        link = str(swarm.link(Hint(ids["pub0"], f"{lab.ip('pub0')}:{PORT}")))
        started: list[LabDaemon] = []
        try:
            started.append(LabDaemon(lab, "pub0", tmp_path, link, "--role", "keeper", port=PORT))
            started[0].wait(lambda status: status["state"] == "serving", "the keeper")
            nodes = [LabDaemon(lab, host, tmp_path, link, port=PORT) for host in clients]
            started += nodes
            wait_until(
                lambda: min(len(partners(node)) for node in nodes) >= N_NODES - 2,
                "four partners each",
                DEADLINE_S,
            )
            assert jain(len(partners(node)) for node in nodes) >= 0.9
            ways = {each["path"] for node in nodes for each in node.peers() if each["connected"]}
            assert ways <= {"relay", "direct"}, "direct to the keeper, nothing could be punched"
        finally:
            for daemon in started:
                daemon.kill()
