"""Real nodes merge their models: all agree on the hash, no member's training notices."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode.ipc.spawn import worker_command
from swarmnode.worker.snapshots.tensorfile import read_tensors
from tests.kits.daemon_kit import DEADLINE_S, Daemon, environment, swarmnode, wait_until
from tests.process.life_kit import Party, on_disk


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    party = Party(tmp_path, strategy="pair-average", strategy_settings={"every": 8})
    try:
        yield party
    finally:
        party.close()


def three(party: Party) -> list[Daemon]:
    """Return three nodes that train and know each other."""
    nodes = [party.join("creator")]
    nodes += [party.join(name, via=nodes[0]) for name in ("second", "third")]
    for node in nodes:
        node.wait_training(20)
        node.wait(lambda s: s["peers_connected"] == 2, "two peers")
    return nodes


def test_three_nodes_agree_on_one_model_and_train_on(party: Party, tmp_path: Path) -> None:
    nodes = three(party)
    # They hear of each other's state now and then.
    wait_until(
        lambda: all(peer["state"] == "training" for peer in nodes[0].peers()), "peers that train"
    )
    out = tmp_path / "merged.safetensors"
    answer = swarmnode(nodes[0].home, "finalize", "--merge", "tokens", "--out", str(out), "--json")
    found = answer.json
    assert (found["agreed"], found["members"], found["contributors"]) == (3, 3, 3)
    assert found["left_out"] == {}
    assert (found["problem"] == "") == (answer.code == 0)
    assert found["loss"] > 0
    tensors, about = read_tensors(out)
    assert about.task == "synthetic"
    digest = hashlib.sha256(tensors["weight"].numpy().tobytes()).hexdigest()
    assert found["digest"] == digest
    for node in nodes:
        status = node.wait_training(node.status()["step"] + 20)
        assert status["worker_restarts"] == 0
        assert not [
            path for path in (on_disk(node).directory / "merge").glob("*") if path.is_file()
        ]

    answer = swarmnode(nodes[0].home, "finalize")
    assert answer.code == 4
    assert "the last merge has only just been: try again in" in answer.line
    answer = swarmnode(nodes[0].home, "finalize", "--out", str(out))
    assert answer.code == 2
    assert "is there already" in answer.line


def test_an_export_can_be_of_all_models(party: Party, tmp_path: Path) -> None:
    nodes = three(party)
    for node in nodes:
        node.ask("/pause")
    for node in nodes:
        node.wait(lambda s: s["state"] == "paused", "paused")
    wait_until(
        lambda: all(peer["state"] == "paused" for peer in nodes[0].peers()), "peers that rest"
    )
    folder = tmp_path / "export"
    answer = swarmnode(nodes[0].home, "export", str(folder), "--merge", "mean", "--json")
    assert answer.code == 0, answer.err
    facts = json.loads((folder / "config.json").read_text())
    assert facts["merge"]["agreed"] == facts["merge"]["contributors"] == 3
    tensors, _ = read_tensors(folder / "model.safetensors")
    digest = hashlib.sha256(tensors["weight"].numpy().tobytes()).hexdigest()
    assert facts["merge"]["digest"] == digest
    assert (
        f"came to the parameters with the SHA-256 `{digest}`" in (folder / "README.md").read_text()
    )


def test_a_member_that_is_killed_midway_does_not_stop_the_others(party: Party) -> None:
    nodes = three(party)
    wait_until(
        lambda: all(peer["state"] == "training" for peer in nodes[0].peers()), "peers that train"
    )
    asking = subprocess.Popen(
        worker_command("swarmnode", "finalize", "--json"),
        env=environment(nodes[0].home),
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    victim = on_disk(nodes[2]).directory / "merge" / "own"
    wait_until(lambda: victim.exists() or asking.poll() is not None, "the merge")
    nodes[2].kill()
    out, _ = asking.communicate(timeout=DEADLINE_S)
    found = json.loads(out)
    assert found["members"] == 3
    assert found["agreed"] >= 2, found
    assert found["contributors"] in (2, 3)
