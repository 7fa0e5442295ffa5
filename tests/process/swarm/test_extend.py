"""Real nodes reach the target of their swarm, are finished, and go on when its creator says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmnode.wire.recipe import Recipe
from tests.kits.daemon_kit import Daemon, swarmnode, wait_until
from tests.process.life_kit import NAME, Party, on_disk

MORE_TOKENS = 40_000  # seconds, of two nodes


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    recipe = Recipe(warmup_tokens=1000, clip_norm=10.0, ema_share=0.05)
    party = Party(tmp_path, strategy="pair-average", strategy_settings={"every": 8}, recipe=recipe)
    try:
        yield party
    finally:
        party.close()


def extend(node: Daemon, tokens: int) -> Any:
    return swarmnode(node.home, "extend", NAME, "--tokens", str(tokens), "--json")


def wait_finished(nodes: list[Daemon], tokens: int) -> None:
    """Return when all are; that they were before, they say until their worker has heard of more."""
    for node in nodes:
        node.wait(
            lambda s: s["state"] == "finished" and s["swarm_tokens"] >= tokens,
            f"finished after {tokens:,} tokens",
        )
        assert node.status()["target_tokens"] == tokens


def test_a_swarm_is_finished_at_its_target_and_goes_on_when_it_is_extended(party: Party) -> None:
    creator = party.join("creator")
    creator.wait_training(20)
    other = party.join("second", via=creator)
    keeper = party.keeper("keeper", via=creator)
    trainers = [creator, other]
    for node in trainers:
        status = node.wait_training(20)
        assert (status["target_tokens"], status["lr_factor"]) == (0, pytest.approx(1, abs=0.999))
    creator.wait(lambda s: s["peers_connected"] == 2, "both others")

    first = creator.status()["swarm_tokens"] + MORE_TOKENS
    refused = extend(other, first)
    assert refused.code == 4
    assert "only the machine has that created it" in refused.json["error"]
    assert extend(creator, first).json["target_tokens"] == first
    wait_finished(trainers, first)
    steps = [node.status()["step"] for node in trainers]
    model = on_disk(keeper).final_model
    wait_until(model.exists, "the model that the keeper writes out")
    assert [node.status()["step"] for node in trainers] == steps
    assert creator.status()["swarm_tokens"] >= first

    back = extend(creator, first - 1)
    assert back.code == 4
    assert "which the swarm has trained" in back.json["error"]
    second = first + MORE_TOKENS
    assert extend(creator, second).json["before"] == first
    wait_finished(trainers, second)
    assert all(node.status()["step"] > before for node, before in zip(trainers, steps, strict=True))

    creator.kill()
    creator.start()
    creator.wait(lambda s: s["state"] == "finished", "what it knew before")
    assert creator.status()["target_tokens"] == second
