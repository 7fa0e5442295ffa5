"""Digits by nets whose first weights are each node's own: a task from outside, for test_strangers.

``evaluate`` is the share of held-out digits that a model takes for another one.
"""

from __future__ import annotations

import os
from typing import Literal

import torch

from swarmnode.tasks.base import PositiveInt, TaskConfig
from swarmnode.tasks.digits import Digits

_WIDTH, _LAYERS, _PIXELS, _SIDE, _CLASSES = 64, 6, 64, 8, 10
_CHANNELS, _STRIDES = (1, 8, 8, 16, 16), (1, 2, 1, 2)
_LR, _MOMENTUM = 0.05, 0.9  # of the paper's experiments, as in swarmnode/testing/fidelity


class Strangers(Digits):
    name = "strangers"
    version = 1

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        model: Literal["mlp", "conv"] = "mlp"
        batch: PositiveInt = 32

    config: Config

    def build_model(self, seed: int) -> torch.nn.Module:
        # The swarm's seed would make them equal.
        torch.manual_seed(os.getpid())
        return build_net(self.config.model)

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=_LR, momentum=_MOMENTUM)

    def evaluate(self, model: torch.nn.Module) -> float:
        pixels, labels = (part[1400:] for part in self._examples)
        return float((model(pixels).argmax(1) != labels).float().mean())


def build_net(model: str) -> torch.nn.Sequential:
    """Return six layers with tanh between them, or four convolutions and a linear layer."""
    parts: list[torch.nn.Module] = []
    if model == "mlp":
        for layer in range(_LAYERS):
            width = _CLASSES if layer == _LAYERS - 1 else _WIDTH
            parts += [torch.nn.Linear(_PIXELS if layer == 0 else _WIDTH, width), torch.nn.Tanh()]
        parts.pop()
    else:
        parts.append(torch.nn.Unflatten(1, (1, _SIDE, _SIDE)))
        for fan_in, fan_out, stride in zip(_CHANNELS, _CHANNELS[1:], _STRIDES, strict=False):
            parts += [torch.nn.Conv2d(fan_in, fan_out, 3, stride, 1), torch.nn.Tanh()]
        parts += [torch.nn.Flatten(), torch.nn.Linear(_CHANNELS[-1] * 4, _CLASSES)]
    net = torch.nn.Sequential(*parts)
    for parameter in net.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_normal_(parameter)
        else:
            torch.nn.init.zeros_(parameter)
    return net
