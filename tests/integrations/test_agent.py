"""A plain PyTorch loop as the worker of a node: it exchanges, is paused, leaves and comes back."""

from __future__ import annotations

import math
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import swarmnode
from swarmnode.errors import ConfigError, DeadlineExceeded, Refused, SpecMismatch, WorkerError
from swarmnode.integrations.agent import SwarmAgent
from swarmnode.integrations.swarm import create_swarm
from tests.integrations.kit import (
    QUIET,
    SETTINGS,
    WIDTH,
    address,
    build_model,
    committed_on_both,
    target,
)
from tests.kits.daemon_kit import DEADLINE_S, free_port, make_home, new_swarm, wait_until

STEP_S = 0.002  # else so small a model takes thousands of steps between two messages


class Loop:
    """A user's own training loop."""

    def __init__(self, seed: int = 0) -> None:
        self.model = build_model(seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.generator = torch.Generator().manual_seed(time.monotonic_ns())
        self.losses: list[float] = []
        # Of the first steps it would not do: the partner may be far, and exchange in between.
        self.begin_loss = sum(self.loss().item() for _ in range(20)) / 20

    def loss(self) -> torch.Tensor:
        x = torch.randn(16, WIDTH, generator=self.generator)
        return (self.model(x) - target(x)).square().mean()

    def step(self) -> float:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        select.select([], [], [], STEP_S)
        return self.losses[-1]

    def fell(self) -> bool:
        return sum(self.losses[-20:]) / 20 < 0.7 * self.begin_loss


def create(home: Path, model: torch.nn.Module | None = None, **changes: Any) -> tuple[str, Any]:
    where = address()
    options = {"strategy_settings": SETTINGS, **where, **changes}
    return create_swarm("mine", model or build_model(), home=home, **options), where


def until_exchanged(node: Any, agent: SwarmAgent, loop: Loop, meet: threading.Barrier) -> Any:
    """Train until both nodes have committed some exchanges."""
    until = time.monotonic() + DEADLINE_S
    status: dict[str, Any] = {}
    while time.monotonic() < until:
        for _ in range(100):
            assert agent.step(loop.step(), tokens=16)
        status = node.status()
        if status["exchanges_committed"] >= 5 and len(loop.losses) >= 600:
            break
    meet.wait(DEADLINE_S)  # the first to leave must not leave the other alone before
    return status


def test_two_loops_exchange_and_learn(tmp_path: Path) -> None:
    homes = [tmp_path / "a", tmp_path / "b"]
    link, where = create(homes[0], about="a sine of a sum")
    meet = threading.Barrier(2)

    def part(home: Path, settings: dict[str, Any], loop: Loop) -> tuple[Any, Loop]:
        with (
            swarmnode.Node.join(link, home=home, **settings) as node,
            SwarmAgent(node, loop.model, loop.optimizer) as agent,
        ):
            agent.note_evaluation(0.5)
            status = until_exchanged(node, agent, loop, meet)
            assert status["step"] <= agent.steps
        assert not agent.is_taking_part
        assert not agent.step(1.0)
        return status, loop

    with ThreadPoolExecutor(2) as pool:
        # Built one after the other: torch's own generator, which is seeded, is the threads' all.
        parts = list(pool.map(part, homes, [where, address()], [Loop(), Loop()]))
    for status, loop in parts:
        assert status["state"] == "training"
        assert status["exchanges_committed"] >= 5
        assert status["loss"] is not None
        assert status["eval_loss"] == 0.5
        assert status["tokens"] == 16 * status["step"]
        assert loop.fell()
    peers = [status["peer"] for status, _ in parts]
    assert committed_on_both(dict(zip(peers, homes, strict=True))) >= 5
    # A hundred steps apart at most, of models that began to meet every four.
    first, second = (torch.nn.utils.parameters_to_vector(p[1].model.parameters()) for p in parts)
    assert (first - second).norm() < 0.5 * first.norm()


def test_a_pause_holds_the_loop_and_a_second_life_goes_on(tmp_path: Path) -> None:
    link, where = create(tmp_path / "home")
    loop = Loop()
    with swarmnode.Node.join(link, home=tmp_path / "home", **where) as node:
        assert node.wait_ready(DEADLINE_S)["reason"].startswith("waiting for the program")
        with SwarmAgent(node, loop.model, loop.optimizer) as agent:
            for _ in range(50):
                agent.step(loop.step())
            node.pause()
            stepper = threading.Thread(target=lambda: [agent.step(loop.step()) for _ in range(200)])
            stepper.start()
            wait_until(lambda: node.status()["state"] == "paused", "it is paused")
            held = agent.steps
            assert held < 250
            saved = node.model_state()  # answered while the loop is held
            assert torch.equal(saved["0.weight"], loop.model[0].weight)
            assert agent.steps == held
            node.resume()
            stepper.join(DEADLINE_S)
            assert agent.steps == 250
        wait_until(lambda: "has gone" in node.status()["reason"], "it noticed")
        other = Loop(seed=0)
        with SwarmAgent(node, other.model, other.optimizer) as agent:
            assert agent.steps == 250  # restored, weights and optimizer
            assert torch.equal(other.model[0].weight, loop.model[0].weight)
            agent.step(None)
            agent.note_loss(0.25)
            assert agent.steps == 251
            node.leave()
            wait_until(lambda: not agent.step(0.1), "the loop is told")


def test_what_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    link, where = create(tmp_path / "home")
    with pytest.raises(Refused, match="has a swarm named 'mine' already"):
        create(tmp_path / "home")
    with swarmnode.Node.join(link, home=tmp_path / "home", **where) as node:
        other = Loop(seed=1)
        with pytest.raises(SpecMismatch, match="begins from other weights than the swarm's"):
            SwarmAgent(node, other.model, other.optimizer)
        model = torch.nn.Linear(3, 3)
        with pytest.raises(SpecMismatch, match="other parameters than this program's"):
            SwarmAgent(node, model, torch.optim.SGD(model.parameters()))
        loop = Loop()
        with SwarmAgent(node, loop.model, loop.optimizer) as agent:
            with pytest.raises(DeadlineExceeded, match="waiting until the node wants a program"):
                SwarmAgent(node, loop.model, loop.optimizer, deadline_s=0.3)
            assert all(agent.step(math.nan) for _ in range(4))
            with pytest.raises(WorkerError, match="the loss was nan in 5 steps in a row"):
                agent.step(math.nan)
        wait_until(lambda: "has gone" in node.status()["reason"], "it noticed")


def test_a_strategy_that_takes_the_steps_is_refused(tmp_path: Path) -> None:
    link, where = create(tmp_path / "home", strategy="one-byte", strategy_settings={})
    with swarmnode.Node.join(link, home=tmp_path / "home", **where) as node:
        loop = Loop()
        with pytest.raises(ConfigError, match="takes the local steps itself"):
            SwarmAgent(node, loop.model, loop.optimizer)


def test_a_swarm_that_trains_by_itself_takes_no_program(tmp_path: Path) -> None:
    make_home(tmp_path / "home", new_swarm())
    where = {"listen": f"127.0.0.1:{free_port()}", **QUIET}
    with swarmnode.Node.join("demo", home=tmp_path / "home", **where) as node:
        loop = Loop()
        with pytest.raises(ConfigError, match="train by themselves, a program cannot take part"):
            SwarmAgent(node, loop.model, loop.optimizer)
