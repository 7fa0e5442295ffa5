"""The demo behind NATs: four nodes, each behind its own, and a relay without torch."""

from __future__ import annotations

import signal
from pathlib import Path

from swarmnode.config import Paths
from swarmnode.protocol.swarm import Hint
from swarmnode.store.files import make_private_dir
from swarmnode.store.keys import load_or_create_identity
from tests.kits.daemon_kit import swarmnode, without_torch
from tests.lab.lab_daemon import LabDaemon
from tests.lab.matrix import PORT, RELAY_PORT
from tests.lab.natlab import NatLab

KINDS = ("port-restricted", "symmetric", "cgnat", "udp-blocked")
TRAINED_S = 360.0  # on a busy machine workers took 92 s to start
EXCHANGES = 4


def test_strangers_behind_nats_train_together(able: None, tmp_path: Path) -> None:
    """Create, join, train, kill one -9, come back, leave: nothing half applied."""
    with NatLab(KINDS, public=1) as lab:
        home = tmp_path / "pub0"
        make_private_dir(home)
        relay_id = load_or_create_identity(Paths(home).node_key).peer_id
        first = str(Hint(relay_id, f"{lab.ip('pub0')}:{RELAY_PORT}"))
        created = swarmnode(
            tmp_path / "c0", "create", "mine", "--task", "bytes-lm", "--listen", f"*:{PORT}",
            "--json", "--set", "strategy.every=16", "--bootstrap", first,
        )  # fmt: skip
        link = created.json["link"]
        relay = LabDaemon(
            lab, "pub0", tmp_path, link, "--role", "relay", port=PORT,
            env=without_torch(tmp_path / "no_torch"),
        )  # fmt: skip
        nodes = [
            LabDaemon(lab, f"c{index}", tmp_path, link, port=PORT) for index in range(len(KINDS))
        ]
        try:
            _train(relay, nodes)
        finally:
            for daemon in (relay, *nodes):
                daemon.kill()


def _train(relay: LabDaemon, nodes: list[LabDaemon]) -> None:
    for node in nodes:
        node.wait(lambda s: s["exchanges_committed"] >= EXCHANGES, "some exchanges", TRAINED_S)
    victim, others = nodes[1], [nodes[0], *nodes[2:]]
    victim.kill()
    before = [node.wait(bool, "its status")["exchanges_committed"] for node in others]
    victim.start()
    victim.wait(lambda s: s["exchanges_committed"] >= 1, "an exchange after its return")
    for node, then in zip(others, before, strict=True):
        node.wait(lambda s, then=then: s["exchanges_committed"] > then, "exchanges meanwhile")  # type: ignore[misc]
    paths = {each["path"] for node in nodes for each in node.peers() if each["connected"]}
    assert paths <= {"direct", "punched-tcp", "rtc", "relay"}
    assert {"direct", "punched-tcp"} <= paths  # with the relay, and with each other
    losses = [node.wait(lambda s: s["eval_loss"], "its loss")["eval_loss"] for node in nodes]
    assert max(losses) < 5.0  # of 256 bytes: 5.5 to begin with
    assert relay.wait(bool, "its status")["role"] == "relay"
    for node in nodes:
        assert node.wait(bool, "its status")["exchanges_half_applied"] == 0
        code = node.signal(signal.SIGINT)
        assert code == 0, node.log
    print(f"held-out losses {[round(loss, 2) for loss in losses]}, ways {sorted(paths)}")
