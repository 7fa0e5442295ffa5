"""Batches in parts: the same gradient, the same data, and what is said when memory is short."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from swarmnode.ipc.control import BatchFit
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.base import Task, TaskConfig, split_batch
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.digits import Digits
from swarmnode.worker.failures import TooLittleMemory, classify
from swarmnode.worker.model.needs import needs_words, state_bytes
from swarmnode.worker.model.state import TrainState, build_state
from swarmnode.worker.training.learn import local_step

SMALL_LM = {"dim": 16, "layers": 1, "heads": 2, "context": 16, "batch": 8, "probe_windows": 4}


def state_of(task: Task, parts: int = 1) -> TrainState:
    return build_state(task, swarm_seed=1, device="cpu", batch_parts=parts)


def short_of_memory(task: type[Task], examples_max: int) -> type[Task]:
    """Return the task with a loss that has no memory for more examples, after the forward pass."""

    class Short(task):  # type: ignore[misc,valid-type]
        def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
            value: torch.Tensor = super().loss(model, batch)
            first = batch[0] if isinstance(batch, tuple) else batch
            if len(first) > examples_max:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return value

    return Short


@pytest.mark.parametrize(
    "task", [BytesLM(SMALL_LM), Digits({"batch": 8}), Digits({"batch": 5})], ids=["lm", "8", "5"]
)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_gradient_is_that_of_the_whole_batch(task: Task, parts: int) -> None:
    whole, cut = state_of(task), state_of(task, parts)
    batch = next(task.batches(3))
    losses = [state.backward(batch) for state in (whole, cut)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    gradients = [state.arena.gradient() for state in (whole, cut)]
    assert gradients[0].abs().max() > 1e-3
    assert (gradients[0] - gradients[1]).abs().max() < 1e-6
    assert cut.micro.fit.parts == parts


def test_out_of_memory_halves_the_micro_batch_and_goes_on() -> None:
    task = BytesLM(SMALL_LM)
    free, short = state_of(task), state_of(short_of_memory(BytesLM, 3)(SMALL_LM))
    said: list[BatchFit] = []
    short.micro.say = said.append
    batches = [next(task.batches(seed)) for seed in range(4)]
    for batch in batches:
        assert short.take_step(batch) == pytest.approx(free.take_step(batch), rel=1e-5)
    assert said == [BatchFit(8, 8), BatchFit(4, 8, 2), BatchFit(2, 8, 4)]
    assert (short.step, short.tokens) == (free.step, free.tokens) == (4, 4 * 8 * 16)
    assert (short.arena.flat - free.arena.flat).abs().max() < 1e-3  # Adam divides by small numbers


def test_what_was_summed_up_before_memory_ran_out_does_not_count() -> None:
    """The second half is the one that fails: the gradient of the first must not count twice."""
    calls: list[int] = []

    class Short(Digits):
        def loss(self, model: torch.nn.Module, part: Any) -> torch.Tensor:
            calls.append(len(part[1]))
            if len(calls) == 2:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
            return super().loss(model, part)

    task = Digits({"batch": 8})
    free, short = state_of(task), state_of(Short({"batch": 8}), 2)
    batch = next(task.batches(3))
    free.backward(batch)
    short.backward(batch)
    assert calls == [4, 4, 2, 2, 2, 2]
    assert (short.arena.gradient() - free.arena.gradient()).abs().max() < 1e-6


def test_not_even_one_example() -> None:
    state = state_of(short_of_memory(Digits, 0)({"batch": 4}))
    strategy = PairAverage({}, state.arena.flat)
    state.micro.needs = lambda: needs_words(state, strategy)
    with pytest.raises(TooLittleMemory) as caught:
        local_step(state, strategy, next(state.batches(0)))
    kind, message = classify(caught.value)
    assert kind == "too-little-memory"
    assert "too little memory to train one example here: model, gradients, optimizer" in message
    assert "of main memory are free" in message
    assert "Tried to allocate 2.00 GiB" in message
    assert state.micro.fit == BatchFit(1, 4, 4, is_smallest=True)
    # Four vectors: weights, gradients, and Adam's two moments.
    assert state_bytes(state, strategy) == 4 * state.arena.flat.nbytes


def test_another_error_is_none_of_memory() -> None:
    class Wrong(Digits):
        def loss(self, *_: Any) -> torch.Tensor:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    state = state_of(Wrong({}))
    with pytest.raises(RuntimeError, match="mat1"):
        state.backward(next(state.batches(0)))
    assert state.micro.fit.parts == 1


def test_a_loss_that_is_not_finite_leaves_no_gradient() -> None:
    state = state_of(Digits({"batch": 4}), 2)
    pixels, labels = next(state.batches(0))
    pixels[3] = math.nan
    assert math.isnan(state.take_step((pixels, labels)))
    assert state.step == 0
    assert not state.arena.gradient().any()


# --- tasks whose batches are of another kind ------------------------------------------------


class Paired(Task):
    """A map of tensors; ``whole`` says that its loss is of the whole batch."""

    name = "paired"
    version = 1
    tokens_per_batch = 6

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Nothing to set."""

    def build_model(self, seed: int) -> torch.nn.Module:
        del seed
        return torch.nn.Linear(3, 1)

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def batches(self, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield {
                "x": torch.randn(6, 3, generator=generator),
                "y": [torch.randn(6, generator=generator)],
            }

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch["x"]).squeeze(-1) - batch["y"][0]).square().mean()

    def evaluate(self, model: torch.nn.Module) -> float:
        return float(self.loss(model, next(self.batches(0))))


class Columns(Paired):
    """Examples lie along the second dimension."""

    def batches(self, seed: int) -> Any:
        for batch in super().batches(seed):
            yield batch["x"].T

    def split(self, batch: Any, examples_max: int) -> list[tuple[Any, int]]:
        return [(part.T, n) for part, n in split_batch(batch.T, examples_max)]

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return model(batch.T).square().mean()


class Contrastive(Paired):
    """The examples of a batch are compared with each other."""

    loss_is_mean = False


@pytest.mark.parametrize("task", [Paired({}), Columns({})], ids=["map", "columns"])
def test_maps_and_other_shapes_are_cut(task: Task) -> None:
    whole, cut = state_of(task), state_of(task, 4)
    batch = next(task.batches(3))
    assert whole.backward(batch) == pytest.approx(cut.backward(batch), rel=1e-6)
    assert (whole.arena.gradient() - cut.arena.gradient()).abs().max() < 1e-6
    assert cut.micro.fit == BatchFit(2, 6, 4)


def test_a_loss_of_the_whole_batch_is_never_cut() -> None:
    sizes: list[int] = []

    class Short(Contrastive):
        def loss(self, _model: torch.nn.Module, batch: Any) -> torch.Tensor:
            sizes.append(len(batch["x"]))
            raise torch.OutOfMemoryError("CUDA out of memory")

    state = state_of(Short({}), 4)
    with pytest.raises(TooLittleMemory, match="a batch, which cannot be cut"):
        state.backward(next(state.batches(0)))
    assert sizes == [6]


def test_tensors_that_do_not_agree_are_left_whole() -> None:
    with pytest.raises(ValueError, match=r"got lengths \[2, 3\]"):
        split_batch((torch.zeros(2), torch.zeros(3)), 1)
    with pytest.raises(ValueError, match=r"got lengths \[0\]"):
        split_batch(torch.zeros(()), 1)
