"""A loss is compiled for large models on a GPU, and taken only where it is faster."""

import pytest
import torch

from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker.model.prepare import (
    compile_where_it_pays,
    is_large_on_gpu,
    time_of_a_pass_s,
)
from swarmnode.worker.model.state import build_state

SMALL = {"dim": 16, "layers": 2, "heads": 2, "context": 16, "batch": 4}


class Compiled:
    """What the compiler made of a loss."""

    def __init__(self, loss):
        self._loss = loss
        self.calls = 0

    def __call__(self, model, batch):
        self.calls += 1
        return self._loss(model, batch)


class Compiler:
    """Compiles for any machine; ``compiled_s`` is how long a pass takes then, instead of 1 s."""

    def __init__(self, compiled_s):
        self.compiled_s = compiled_s
        self.made = []

    def __call__(self, loss):
        self.made.append(Compiled(loss))
        return self.made[-1]

    def pass_time_s(self, state, loss, part):
        assert len(part) == 4
        return self.compiled_s if isinstance(loss, Compiled) else 1.0


def state_of(task):
    return build_state(task, swarm_seed=1, device="cpu")


def always(_state):
    return True


@pytest.mark.parametrize(("compiled_s", "is_taken"), [(0.9, True), (0.99, False), (1.5, False)])
def test_it_is_taken_where_it_is_faster(compiled_s, is_taken):
    compiler = Compiler(compiled_s)
    state = state_of(BytesLM(SMALL))
    compile_where_it_pays(state, always, compiler, compiler.pass_time_s)
    loss = state.take_step(next(state.task.batches(1)))
    assert [each.calls for each in compiler.made] == [1 if is_taken else 0]
    again = state_of(BytesLM(SMALL))
    assert loss == again.take_step(next(again.task.batches(1)))


def test_measuring_leaves_no_gradient_and_moves_nothing():
    compiler = Compiler(1.0)
    state = state_of(BytesLM(SMALL))
    before = state.arena.flat.clone()
    compile_where_it_pays(state, always, compiler)
    assert compiler.made[0].calls > 1
    assert torch.equal(state.arena.flat, before)
    assert all(parameter.grad is None for parameter in state.model.parameters())
    assert time_of_a_pass_s(state, state.task.loss, next(state.task.batches(1))) > 0


@pytest.mark.parametrize("task", [Synthetic({"dim": 4}), Synthetic({"dim": 20_000_000})])
def test_a_task_that_does_not_say_that_it_can_be_compiled_never_is(task):
    compiler = Compiler(0.1)
    compile_where_it_pays(state_of(task), always, compiler, compiler.pass_time_s)
    assert compiler.made == []


def test_a_model_on_a_cpu_never_is():
    state = state_of(Synthetic({"dim": 20_000_000}))
    assert not is_large_on_gpu(state)
    compiler = Compiler(0.1)
    compile_where_it_pays(state_of(BytesLM(SMALL)), compiled=compiler)
    assert compiler.made == []


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_compiled_steps_are_those_of_the_task():
    def losses(state):
        batches = state.task.batches(1)
        return [state.take_step(next(batches)) for _ in range(10)]

    task = BytesLM({"dim": 512, "layers": 4, "heads": 8, "context": 128, "batch": 16, "lr": 0.002})
    state = build_state(task, swarm_seed=1, device="cuda")
    assert is_large_on_gpu(state)
    compile_where_it_pays(state)
    print("compiled:", state.training_loss is not task.loss)
    plain = build_state(task, swarm_seed=1, device="cuda")
    assert losses(state) == pytest.approx(losses(plain), rel=0.02)
