"""Muon: what a step is, and that its two halves are one optimizer."""

import copy

import pytest
import torch

from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.muon import Muon, orthogonal

_SMALL = {"dim": 16, "layers": 2, "heads": 2, "context": 16, "batch": 2}


def _made(lr: float = 0.02) -> tuple[torch.nn.Module, torch.optim.Optimizer, BytesLM]:
    task = BytesLM({**_SMALL, "lr": lr})
    torch.manual_seed(1)
    model = task.build_model(1)
    return model, task.build_optimizer(model), task


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, task: BytesLM) -> None:
    task.loss(model, next(task.batches(3))).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def test_singular_values_come_near_to_one_and_directions_stay() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = [(48, 48), (144, 48), (48, 192), (5, 9), (1, 7)]
    matrices = [torch.randn(shape, generator=generator) * 1e-3 for shape in shapes]
    for matrix, found in zip(matrices, orthogonal(matrices), strict=True):
        assert found.shape == matrix.shape
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        turned = left.mT @ found @ right.mT
        diagonal = turned.diagonal()
        assert float((turned - diagonal.diag()).abs().max()) < 1e-3
        large = diagonal[values > 0.05 * values.norm()]
        assert 0.65 < float(large.min()) <= float(large.max()) < 1.25


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("decades", [0, 4, 8])
def test_on_a_gpu_no_direction_is_taken_far_beyond_one(decades: int) -> None:
    """Gradients have singular values of many sizes; TF32 brought the largest to 2.2."""
    from swarmnode.worker.model.device import choose_device

    choose_device("cuda")  # lets products be TF32
    generator = torch.Generator().manual_seed(3)
    for shape in [(192, 64), (64, 64), (64, 256)]:
        left, values, right = torch.linalg.svd(
            torch.randn(shape, generator=generator), full_matrices=False
        )
        matrix = left @ torch.logspace(0, -decades, len(values)).diag() @ right
        (on_cpu,), (found,) = orthogonal([matrix]), orthogonal([matrix.cuda()])
        assert float(torch.linalg.matrix_norm(found, 2)) < 1.3
        cosine = float((found.cpu() * on_cpu).sum() / on_cpu.norm() / found.norm())
        assert cosine > 0.97


def test_each_matrix_is_turned_for_itself() -> None:
    generator = torch.Generator().manual_seed(2)
    matrices = [torch.randn(shape, generator=generator) for shape in [(6, 8), (8, 6), (3, 4)]]
    for matrix, found in zip(matrices, orthogonal(matrices), strict=True):
        torch.testing.assert_close(found, orthogonal([matrix])[0])
    assert torch.equal(orthogonal([torch.zeros(3, 4)])[0], torch.zeros(3, 4))


def test_a_step_of_a_matrix_is_as_long_as_one_of_adamw() -> None:
    model, optimizer, task = _made(lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _step(model, optimizer, task)
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - before[name]).square().mean().sqrt()
        if name.startswith("blocks") and parameter.ndim == 2:
            assert 0.1 * 0.01 < float(moved) < 0.3 * 0.01, name
        else:
            assert float(moved) < 1.01 * 0.01, name


def test_matrices_have_one_moment_and_the_rest_those_of_adamw() -> None:
    model, optimizer, task = _made()
    _step(model, optimizer, task)
    for name, parameter in model.named_parameters():
        is_matrix = name.startswith("blocks") and parameter.ndim == 2
        assert ("momentum_buffer" in optimizer.state[parameter]) == is_matrix, name
        assert ("exp_avg" in optimizer.state[parameter]) != is_matrix, name


def test_a_learning_rate_that_is_set_is_that_of_both_halves() -> None:
    model, optimizer, task = _made()
    _step(model, optimizer, task)
    for group in optimizer.param_groups:
        group["lr"] = group["weight_decay"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    _step(model, optimizer, task)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_saved_state_goes_on_where_it_was() -> None:
    model, optimizer, task = _made()
    for _ in range(3):
        _step(model, optimizer, task)
    other, fresh, _ = _made(lr=0.5)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(2):
        _step(model, optimizer, task)
        _step(other, fresh, task)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_parameters_without_a_gradient_stay() -> None:
    matrix = torch.nn.Parameter(torch.eye(3))
    vector = torch.nn.Parameter(torch.ones(3))
    optimizer = Muon([matrix], [vector], lr=0.1, weight_decay=0.1)
    vector.grad = torch.ones(3)
    assert optimizer.step(lambda: 2.5) == pytest.approx(2.5)
    assert torch.equal(matrix, torch.eye(3))
    assert not torch.equal(vector, torch.ones(3))
