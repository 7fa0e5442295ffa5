"""Local steps as strategies want them, and what a worker refuses to begin with."""

import math

import pytest
import torch
from torch.profiler import profile

from swarmnode.errors import ConfigError
from swarmnode.ipc.control import Configure
from swarmnode.strategies.a2cid2 import A2CiD2
from swarmnode.strategies.base import Needs, TaskFacts
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker.model.prepare import facts_of, prepare_state, prepare_strategy
from swarmnode.worker.model.state import build_state
from swarmnode.worker.training.learn import local_step

DIM = 8


class Moved(PairAverage):
    """Notes what it is told of each step."""

    def __init__(self, x):
        super().__init__({}, x)
        self.told = []

    def local_update(self, v):
        self.told.append(v.clone())
        self.told_at = v.data_ptr()


class ByStep(Moved):
    needs = Needs.STEP


class ByGradient(Moved):
    needs = Needs.GRADIENT

    def local_update(self, v):
        super().local_update(v)
        self.x.sub_(v, alpha=0.5)


class ByLosses(Moved):
    def gradient_point(self):
        return self._probe

    def _probe(self, loss):
        self.told += [loss(), loss()]
        return self.told[-1]


@pytest.fixture
def state():
    return build_state(Synthetic({"dim": DIM}), swarm_seed=0, device="cpu")


def test_a_step_of_a2cid2_makes_no_copy_of_the_model(state):
    """x̃ keeps its distance to x, and the sum of both takes the step twice."""
    strategy = A2CiD2({}, state.arena.flat)
    distance = 0.25
    strategy.x_tilde.add_(distance)
    x = state.arena.flat.clone()
    with profile(profile_memory=True) as seen:
        strategy.before_update(state.arena.flat)
        state.arena.flat.sub_(0.5)
        strategy.after_update(state.arena.flat)
    assert max(event.cpu_memory_usage for event in seen.events()) < state.arena.flat.nbytes
    torch.testing.assert_close(strategy.x_tilde, x + distance - 0.5)
    local_step(state, strategy, batch_of(state))
    torch.testing.assert_close(strategy.x_tilde - state.arena.flat, torch.full((DIM,), distance))


def test_the_copy_for_a_strategy_that_wants_the_step_is_made_once(state):
    strategy = ByStep(state.arena.flat)
    copies = set()
    for _ in range(3):
        strategy.before_update(state.arena.flat)
        state.arena.flat.sub_(0.5)
        strategy.after_update(state.arena.flat)
        copies.add(strategy.told_at)
    assert len(copies) == 1
    assert all(torch.allclose(told, torch.full((DIM,), 0.5)) for told in strategy.told)


def batch_of(state):
    return next(state.batches(1))


def gradient_at(state, batch):
    """Return Aᵀ(A x − b) / n, what the gradient of the task's loss is by hand."""
    rows, labels = batch
    return rows.T @ (rows @ state.arena.flat - labels) / len(labels)


def test_a_strategy_that_wants_nothing_is_told_nothing(state):
    strategy = Moved(state.arena.flat)
    before = state.arena.flat.clone()
    assert math.isfinite(local_step(state, strategy, batch_of(state)))
    assert strategy.told == []
    assert not torch.equal(state.arena.flat, before)


def test_a_step_is_told_as_what_the_optimizer_took_away(state):
    strategy = ByStep(state.arena.flat)
    before = state.arena.flat.clone()
    local_step(state, strategy, batch_of(state))
    assert torch.equal(strategy.told[0], before - state.arena.flat)
    assert (state.step, state.tokens) == (1, 8)


def test_a_gradient_leaves_the_step_to_the_strategy(state):
    strategy = ByGradient(state.arena.flat)
    batch = batch_of(state)
    expected, before = gradient_at(state, batch), state.arena.flat.clone()
    local_step(state, strategy, batch)
    torch.testing.assert_close(strategy.told[0], expected)
    assert torch.equal(state.arena.flat, before - strategy.told[0] / 2), "and no optimizer's"
    assert all(parameter.grad is None for parameter in state.model.parameters())
    assert (state.step, state.tokens) == (1, 8)


def test_losses_are_measured_with_no_gradient_and_the_same_randomness():
    class WithDropout(Synthetic):
        def loss(self, model, batch):
            return super().loss(model, batch) * torch.rand(())

    state = build_state(WithDropout({"dim": DIM}), swarm_seed=0, device="cpu")
    strategy = ByLosses(state.arena.flat)
    before = state.arena.flat.clone()
    for _ in range(2):
        local_step(state, strategy, batch_of(state))
    first, again, next_step, _ = strategy.told
    assert first == again, "dropout is the same at both points"
    assert first != next_step, "and another in the next step"
    assert torch.equal(state.arena.flat, before)
    assert state.step == 2


@pytest.mark.parametrize("strategy_type", [Moved, ByStep, ByGradient, ByLosses])
def test_a_batch_that_overflows_is_no_step(state, strategy_type):
    strategy = strategy_type(state.arena.flat)
    rows, labels = batch_of(state)
    before = state.arena.flat.clone()
    assert not math.isfinite(local_step(state, strategy, (rows, labels * math.inf)))
    assert torch.equal(state.arena.flat, before)
    assert state.step == 0
    assert len(strategy.told) == (2 if strategy_type is ByLosses else 0), "losses that it asked for"
    assert not any(math.isfinite(loss) for loss in strategy.told)


def test_parameters_that_the_loss_does_not_touch_have_no_gradient():
    task = Synthetic({"dim": 2})
    state = build_state(task, swarm_seed=0, device="cpu")
    state.backward(batch_of(state))
    state.model.weight.grad = None
    assert state.arena.gradient().tolist() == [0.0, 0.0]


# --- what is refused ----------------------------------------------------------------------------


def configure(**changes):
    fields = {
        "task": "synthetic",
        "task_config": {},
        "strategy": "pair-average",
        "strategy_settings": {},
        "swarm_seed": 0,
        "shard_seed": 1,
        "snapshot_dir": "",
        "device": "cpu",
    }
    return Configure(**(fields | changes))


@pytest.mark.parametrize(
    ("strategy", "settings", "message"),
    [
        ("mean", {}, "expected a strategy among"),
        ("noloco", {"gamma": 1.9}, "expected gamma below"),
        ("dadao", {}, "expected a strongly convex task"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(strategy, settings, message):
    order = configure(strategy=strategy, strategy_settings=settings)
    with pytest.raises(ConfigError, match=message):
        prepare_strategy(order, prepare_state(order))


def test_a_convex_task_says_so_and_float32_is_refused_all_the_same(monkeypatch):
    monkeypatch.setattr(Synthetic, "strong_convexity", 0.5)
    monkeypatch.setattr(Synthetic, "smoothness", 2.0)
    order = configure(strategy="dadao")
    state = prepare_state(order)
    assert facts_of(state.task) == TaskFacts("synthetic", 0.5, 2.0)
    with pytest.raises(ConfigError, match=r"expected parameters of torch\.float64, got"):
        prepare_strategy(order, state)
