"""The flat arena: every trained parameter is a view of one vector, of float32 or float64.

A strategy does its vector math on :attr:`Arena.flat`, and the model sees it at once. Tied
parameters appear once. What is not trained stays outside: frozen parameters (each node
builds the same ones) and buffers (never averaged, kept in snapshots).
"""

from __future__ import annotations

import torch

from swarmnode.errors import ConfigError
from swarmnode.tensor.layout import Layout

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class Arena:
    """Owns: ``flat``, [numel], where ``model``'s trained parameters are, ``trained``."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Move the parameters of ``model`` into one storage on the device where they are.

        Raises:
            ConfigError: nothing to train, or parameters that are not all float32 or all float64.
        """
        trained, self.layout = trained_of(model)
        dtype = next(iter(trained.values())).dtype
        self.names = tuple(trained)
        self.trained = tuple(trained.values())
        device = next(iter(trained.values())).device
        self.flat = torch.empty(self.layout.numel, dtype=dtype, device=device)
        for parameter, offset in zip(trained.values(), self.layout.offsets, strict=True):
            view = self.flat[offset : offset + parameter.numel()].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view

    @property
    def numel(self) -> int:
        """How many numbers are in the arena."""
        return self.flat.numel()

    def views_of(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what of ``vector`` [numel] belongs to each parameter, by its name and shape."""
        return {
            name: vector[offset : offset + parameter.numel()].view(parameter.shape)
            for name, parameter, offset in zip(
                self.names, self.trained, self.layout.offsets, strict=True
            )
        }

    def gradient(self) -> torch.Tensor:
        """Return the gradients of all parameters, 0 where there is none: [numel], a copy."""
        found = torch.zeros_like(self.flat)
        for parameter, offset in zip(self.trained, self.layout.offsets, strict=True):
            if parameter.grad is not None:
                found[offset : offset + parameter.numel()] = parameter.grad.flatten()
        return found


def trained_of(model: torch.nn.Module) -> tuple[dict[str, torch.nn.Parameter], Layout]:
    """Return the trained parameters by name, and where they lie in a flat vector.

    Raises:
        ConfigError: nothing to train, or parameters that are not all float32 or all float64.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise ConfigError("the task's model has no parameter that requires a gradient")
    dtype = next(iter(trained.values())).dtype
    for name, parameter in trained.items():
        if parameter.dtype != dtype or dtype not in _DTYPES:
            raise ConfigError(
                f"parameter {name}: expected float32, got {parameter.dtype}; build the model "
                "in float32, autocast lowers the precision of the computation; or all of it in"
                " float64, for a convex task"
            )
    layout = Layout.of((name, each.shape, _DTYPES[dtype]) for name, each in trained.items())
    return trained, layout
