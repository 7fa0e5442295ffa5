"""Three real nodes share one pass over the data: no part twice, and a dead one's is taken over."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from swarmnode.protocol.swarm import Hint, parse_link
from tests.kits.daemon_kit import LOOPBACK, Daemon, swarmnode, wait_until
from tests.process.life_kit import NAME, peer_of

N_SHARDS = 12
# 64 batches of 32 windows of 64 bytes are a shard: a second or two on a busy core.
SHARD_BYTES = 64 * 32 * 64
SETTINGS = ("batch=32", "context=64", "dim=64", "layers=1", "heads=2")
WORDS = ("gradient", "peer", "shard", "swarm", "loss", "epoch", "of", "the", "and", "a", "to")
SHARD_LINE = re.compile(r"shard (taken|done|given back) epoch=(\d+) shard=(\d+)")
Shard = tuple[int, int]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Daemon]]:
    data = tmp_path / "data"
    data.mkdir()
    rng = random.Random(7)
    text = " ".join(rng.choice(WORDS) for _ in range(N_SHARDS * SHARD_BYTES))
    (data / "text.txt").write_text(text[: int(N_SHARDS * SHARD_BYTES * 1.15)])  # some held out
    env = {"SWARMNODE_NETWORK": f"test-{os.getpid()}-data", "SWARMNODE_LOG_LEVEL": "debug"}
    flags = [flag for setting in SETTINGS for flag in ("--set", setting)]
    made = swarmnode(tmp_path / "creator", "create", NAME, "--task", "bytes-lm", *flags,
                     "--data", str(data), "--json", env=env)  # fmt: skip
    creator = Daemon(tmp_path / "creator", NAME, "--data", str(data), env=env)
    started = [creator]
    try:
        hint = Hint(peer_of(creator), f"{LOOPBACK}:{creator.port}")
        link = str(replace(parse_link(made.json["link"]), hints=(hint,)))
        for home in ("second", "third"):
            started.append(Daemon(tmp_path / home, link, "--data", str(data), env=env))
        yield started
    finally:
        for node in started:
            node.kill()
            print(f"--- {node.home.name}", node.log, sep="\n")


def shards(node: Daemon, what: str) -> list[Shard]:
    """Return the shards of which a node has said this, in order."""
    return [(int(e), int(i)) for said, e, i in SHARD_LINE.findall(node.log) if said == what]


def begun(node: Daemon) -> set[Shard]:
    """Return what a node has in hand now."""
    over = {*shards(node, "done"), *shards(node, "given back")}
    return set(shards(node, "taken")) - over


@pytest.mark.slow
def test_each_part_of_the_data_is_trained_once_and_a_dead_ones_again(nodes: list[Daemon]) -> None:
    victim = nodes[2]
    for node in nodes:
        node.wait_training()

    def has_begun() -> set[Shard]:
        return begun(victim) if len(shards(victim, "done")) > 1 else set()

    wait_until(has_begun, "a shard in hand", 90.0)
    assert f" of={N_SHARDS}\n" in victim.log
    os.kill(victim.status()["worker_pid"], signal.SIGKILL)
    victim.kill()
    orphans = begun(victim)
    assert orphans
    last = max(epoch for epoch, _ in orphans)
    everything = {(epoch, index) for epoch in range(last + 1) for index in range(N_SHARDS)}
    wait_until(
        lambda: {s for n in nodes for s in shards(n, "done")} >= everything, "the epoch", 120
    )
    done = [shard for node in nodes for shard in shards(node, "done") if shard in everything]
    twice = {shard for shard in done if done.count(shard) > 1}
    # It may have trained one to its end, and died before it could say so.
    assert twice <= set(shards(victim, "done"))
    assert len(twice) <= 1
    assert orphans <= {s for node in nodes[:2] for s in shards(node, "done")}
