"""What memory a training state takes, and what there is where it lives."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from swarmnode.memory import main_memory
from swarmnode.quantities import show_bytes
from swarmnode.strategies.parts import StatePart
from swarmnode.worker.model.state import TrainState


def state_bytes(state: TrainState, strategy: StatePart) -> int:
    """Return what weights, gradients, optimizer and strategy take once the first step is done."""
    trained = [p for p in state.model.parameters() if p.requires_grad]
    held = [*state.model.parameters(), *state.model.buffers(), *strategy.buffers().values()]
    held += [state.applied.ema] if state.applied.ema is not None else []
    return _bytes(held) + _bytes(trained) + max(_kept_bytes(state), _expected_bytes(state))


def needs_words(state: TrainState, strategy: StatePart) -> str:
    """Say what is needed and what is there, for a person who has to find a larger machine."""
    needed = show_bytes(state_bytes(state, strategy))
    return (
        f"model, gradients, optimizer and strategy need {needed}, and each example more;"
        f" {_present(state.device.torch_device)}; use another device or machine"
    )


def _present(device: torch.device) -> str:
    if device.type == "cuda":
        free, whole = map(show_bytes, torch.cuda.mem_get_info(device))
        return f"{free} of {whole} of the GPU are free beside that"
    memory = main_memory()
    if memory is None:
        return "this system does not say how much memory is free"
    available, total = show_bytes(memory.available_bytes), show_bytes(memory.total_bytes)
    return f"{available} of {total} of main memory are free beside that"


def _kept_bytes(state: TrainState) -> int:
    return _bytes(
        value
        for kept in state.optimizer.state.values()
        for value in kept.values()
        if isinstance(value, torch.Tensor)
    )


def _expected_bytes(state: TrainState) -> int:
    """Return what the optimizer will keep, by the settings that name its moments."""
    defaults = state.optimizer.defaults
    n_moments = 2 if "betas" in defaults else int(bool(defaults.get("momentum")))
    return n_moments * state.arena.flat.nbytes


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
