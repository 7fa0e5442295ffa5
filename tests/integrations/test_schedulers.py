"""A Trainer's own scheduler keeps what was asked for, or is refused."""

from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR

from swarmnode.errors import ConfigError
from swarmnode.integrations.schedulers import take_over
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.model.state import AppliedRecipe


def test_a_schedule_of_steps_is_constant_once_it_is_taken_over():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = LambdaLR(optimizer, lambda step: step / 10)  # a warm-up from 0
    take_over([SimpleNamespace(scheduler=scheduler), None])
    applied = AppliedRecipe(Recipe(), optimizer, Arena(model))
    for _ in range(3):
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert not applied.is_fought


def test_another_one_is_refused_by_its_name():
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    with pytest.raises(ConfigError, match="got StepLR: train without it"):
        take_over([StepLR(optimizer, 10)])
