"""The presets: how large they are, and that each takes a step on a CPU."""

from __future__ import annotations

import math

import pytest
import torch

from swarmnode.tasks.installed import PRESETS, resolve_preset
from swarmnode.tasks.registry import load_task
from swarmnode.worker.model.device import Device
from swarmnode.worker.model.state import TrainState, build_state

NUMEL = {"gpt-tiny": 120_064, "gpt-15m": 14_944_640, "llama-150m": 150_148_992}


def state_of(name: str, **changes: object) -> TrainState:
    task, config = resolve_preset(name, dict(changes))
    return build_state(load_task(task)(config), swarm_seed=0, device="cpu")


@pytest.mark.parametrize("name", NUMEL)
def test_their_sizes_are_what_their_names_say(name: str) -> None:
    task_name, config = resolve_preset(name, {})
    with torch.device("meta"):  # no memory, no time
        model = load_task(task_name)(config).build_model(0)
    assert sum(p.numel() for p in model.parameters()) == NUMEL[name]


def take_a_step(state: TrainState) -> tuple[float, float]:
    """Return the loss on one batch before and after a step on it."""
    batch = next(state.batches(1))
    before = state.take_step(batch)
    with torch.no_grad(), state.device.autocast():
        after = float(state.task.loss(state.model, state.device.move(batch)))
    return before, after


def test_the_tiny_one_takes_a_step() -> None:
    before, after = take_a_step(state_of("gpt-tiny"))
    assert before == pytest.approx(math.log(256), abs=0.3)
    assert after < before


@pytest.fixture
def in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in bfloat16, without trying first whether that is faster here: six steps less."""
    from swarmnode.worker.model import state as module

    monkeypatch.setattr(
        module,
        "with_fastest_precision",
        lambda device, _task, _model: Device(device.torch_device, torch.bfloat16),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("in_bfloat16")
def test_the_one_of_15_m_takes_a_step() -> None:
    state = state_of("gpt-15m", batch=2, context=64)
    before, after = take_a_step(state)
    assert after < before
    assert state.tokens == 128


@pytest.mark.slow
@pytest.mark.usefixtures("in_bfloat16")
def test_the_one_of_150_m_takes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a batch of one short sequence, and plain SGD: Adam's state is 1.2 GB."""
    from swarmnode.tasks.llama_lm import LlamaLM

    monkeypatch.setattr(
        LlamaLM, "build_optimizer", lambda _, model: torch.optim.SGD(model.parameters(), lr=0.1)
    )
    state = state_of("llama-150m", batch=1, context=32)
    assert state.arena.numel == NUMEL["llama-150m"]
    before, after = take_a_step(state)
    assert before == pytest.approx(math.log(32_000), abs=1.0)
    assert after < before


def test_what_is_set_comes_on_top() -> None:
    assert resolve_preset("llama-150m", {"batch": 1})[1]["batch"] == 1
    assert PRESETS["llama-150m"].config["batch"] == 16
    assert resolve_preset("digits", {"batch": 1}) == ("digits", {"batch": 1})
