"""Real nodes fetch a model that takes a while: they are killed, holders are killed, bits flip."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from swarmnode.store.blobs import BlobStore
from tests.kits.daemon_kit import Daemon, wait_until
from tests.process.life_kit import Party, flip_bit, offer, on_disk, wait_copy, whole_blobs

DIM = 10_000_000  # 40 MB, 20 chunks
CHUNKS = 20
STAGES = (
    r"looking for the swarm: 127\.0\.0\.1:\d+",
    r"swarm demo: task synthetic, 10,000,000 parameters",
    r"in the swarm: \d others, \d connected",
    r"fetching the model at step [\d,]+ \(40\.0 MB\) from \d+ peer\(s\)",
    r"fetching the model: [1-9]0 %",
    r"the model is here \(\d+\.\d s\)",
    r"training on cpu, from step 0 on",
)


@dataclass
class Big:
    """A trainer that is paused, and a keeper: both hold its newest snapshot."""

    party: Party
    trainer: Daemon
    keeper: Daemon
    blob: str

    def join(self, home: str) -> Daemon:
        """Start a node that takes one step once it has the model."""
        return self.party.join(home, "--steps", "1", via=self.trainer)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Big]:
    party = Party(
        tmp_path_factory.mktemp("big"),
        dim=DIM,
        task_config={"dim": DIM, "batch": 1, "lr": 1e-9},
    )
    try:
        party.settings["SWARMNODE_SNAPSHOT_UPLOAD_BYTES_PER_S"] = "8000000"
        trainer = party.join("creator")
        keeper = party.keeper("keeper", via=trainer)
        trainer.wait_training()
        trainer.ask("/pause")
        trainer.wait(lambda s: s["state"] == "paused", "paused")
        blob = offer(trainer)
        wait_copy(keeper, blob)
        yield Big(party, trainer, keeper, blob)
    finally:
        party.close()


def chunks_on_disk(node: Daemon, blob: str) -> int:
    """Return how many good chunks a node that does not run has."""
    store = BlobStore(on_disk(node).blobs, bytes_max=2**32)
    try:
        part = store.open(bytes.fromhex(blob))
        return 0 if part is None else len(part.stored)
    finally:
        store.close()


def wait_percent(node: Daemon, percent: int) -> None:
    """Return when so much of the model has come."""

    def has_come() -> bool:
        said = re.findall(r"fetching the model: (\d+) %", node.log)
        return bool(said) and int(said[-1]) >= percent

    wait_until(has_come, f"{percent} % of the model")


def fetched(node: Daemon) -> tuple[int, int]:
    """Return (chunks, wasted bytes) of a fetch once it is over."""
    pattern = r"snapshot fetched blob=.* chunks=(\d+) .*wasted_bytes=(\d+)"
    chunks, wasted = wait_until(lambda: re.findall(pattern, node.log), "the end of the fetch")[-1]
    return int(chunks), int(wasted)


def test_a_joiner_killed_midway_goes_on_and_asks_for_no_chunk_twice(big: Big) -> None:
    joiner = big.join("joiner")
    wait_percent(joiner, 30)
    joiner.signal(signal.SIGKILL)
    before = chunks_on_disk(joiner, big.blob)
    assert 6 <= before < CHUNKS
    joiner.start()
    chunks, wasted = fetched(joiner)
    assert (before + chunks, wasted) == (CHUNKS, 0)
    joiner.wait(lambda s: s["state"] == "stopped", "its only step")
    at = -1
    for stage in STAGES:
        found = re.compile(stage).search(joiner.log, at + 1)
        assert found, f"{stage} after {at}:\n{joiner.log}"
        at = found.start()
    joiner.kill()


def test_a_holder_killed_midway_costs_nothing(big: Big) -> None:
    joiner = big.party.keeper("second", via=big.trainer)
    wait_percent(joiner, 30)
    big.keeper.signal(signal.SIGKILL)
    assert fetched(joiner) == (CHUNKS, 0)
    assert "holder is gone" in joiner.log
    joiner.kill()


@pytest.mark.slow
def test_chunks_that_rot_on_a_holders_disk_come_from_another(big: Big) -> None:
    big.keeper.kill()
    for blob in whole_blobs(big.keeper):
        for chunk in range(CHUNKS):
            flip_bit(blob, (chunk + 0.5) / CHUNKS)
    big.keeper.start()
    big.keeper.wait(lambda s: s["state"] == "serving", "the keeper")
    joiner = big.party.keeper("third", via=big.keeper)
    assert fetched(joiner) == (CHUNKS, 0)
    assert "chunk has rotted" in big.keeper.log
    joiner.kill()
