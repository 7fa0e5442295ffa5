"""The runs of ``bench learning``, small: real models and text, real strategy objects."""

import msgspec
import pytest
import torch

from swarmnode.bench.learning.jobs import Job
from swarmnode.errors import ConfigError
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.testing.lab.descent import AdamW, TaskOptimizer, cosine
from swarmnode.testing.lab.isolation import isolated
from swarmnode.testing.lab.text import TextTask
from swarmnode.testing.learning.runs import train
from swarmnode.worker.model.arena import Arena

_SMALL = {"dim": 16, "layers": 1, "heads": 2, "context": 16, "batch": 2}
_GROUP = {"every": 4, "fragments": 2}


def _job(kind: str, nodes: int, **more: object) -> Job:
    return Job(
        kind=kind, nodes=nodes, steps=60, lr=0.02, seed=1, model_seed=1, config=_SMALL, **more
    )  # type: ignore[arg-type]


def test_the_rate_warms_up_and_decays_to_nothing() -> None:
    rate = cosine(0.01, 100)
    rates = [rate(k) for k in range(100)]
    assert rates[0] == pytest.approx(0.002)
    assert rates[4] == max(rates) == pytest.approx(0.01)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 1e-5


def test_adamw_is_that_of_torch() -> None:
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(5))
    x = parameter.detach().clone()[None].repeat(2, 1)
    theirs = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    ours = AdamW(x, lambda _: 0.01, (0.9, 0.95), 0.1)
    for _ in range(20):
        gradient = torch.randn(5)
        parameter.grad = gradient.clone()
        theirs.step()
        x -= ours.steps([0, 1], gradient.repeat(2, 1))
    torch.testing.assert_close(x[1], parameter.detach())


def test_each_node_of_the_laboratory_has_the_optimizer_of_the_task() -> None:
    task = BytesLM(_SMALL)
    torch.manual_seed(1)
    state = TextTask(task, 2, seed=1, model_seed=1)
    model = task.build_model(1)
    real = task.build_optimizer(model)
    arena = Arena(model)
    arena.flat.copy_(state.x[1])
    ours = TaskOptimizer(task, state.x, lambda k: 0.01 * (k + 1))
    for k in range(3):
        _, gradients = state.gradients([0, 1])
        for parameter, gradient in zip(
            arena.trained, arena.views_of(gradients[1]).values(), strict=True
        ):
            parameter.grad = gradient.clone()
        for group in real.param_groups:
            group["lr"] = 0.01 * (k + 1)
        real.step()
        state.x -= ours.steps([0, 1], gradients)
    torch.testing.assert_close(state.x[1], arena.flat)
    ours.forget(1)
    one = ours.steps([1], torch.ones_like(state.x[:1]))
    assert one.abs().sum() > 0


def test_the_mean_gradient_is_the_mean_of_the_nodes() -> None:
    each = TextTask(BytesLM(_SMALL), 3, seed=1, model_seed=1)
    together = TextTask(BytesLM(_SMALL), 3, seed=1, model_seed=1)
    _, gradients = each.gradients([0, 1, 2])
    torch.testing.assert_close(gradients.mean(0), together.mean_gradient(together.x[0]))


def test_a_swarm_ends_between_nodes_that_never_meet_and_data_parallelism() -> None:
    data_parallel = train(_job("data-parallel", 4))
    swarm = train(_job("laboratory", 4, strategy="streaming", settings=_GROUP))
    with isolated():
        apart = train(_job("laboratory", 4, strategy="streaming", settings=_GROUP))
    assert data_parallel.mean_loss < swarm.own_loss < apart.own_loss
    assert swarm.committed == pytest.approx(2 * 60 / 4, abs=2)
    assert swarm.exchange_bytes > 0
    assert apart.exchange_bytes == apart.committed == 0


def test_a_rate_too_high_is_no_best_one() -> None:
    lost = train(msgspec.structs.replace(_job("data-parallel", 1), lr=1e6))
    assert lost.mean_loss > 10


def test_strategies_for_convex_tasks_are_refused() -> None:
    with pytest.raises(ConfigError):
        train(_job("laboratory", 4, strategy="dadao"))
