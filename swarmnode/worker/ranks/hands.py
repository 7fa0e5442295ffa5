"""What one rank holds of the model: all of it (DDP), or its part of each tensor (FSDP2).

Under DDP the flat vector of each rank is the storage of its model. Under FSDP2 there is one whole
vector a node, in memory that all ranks map: each brings its rows there when the strategy looks at
the vector, and takes them when the strategy has changed it. So no rank gathers the model, and a
strategy is the same code as in a worker of one process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from swarmnode.errors import ConfigError, InvariantViolation
from swarmnode.worker.model.arena import Arena, trained_of

_Tensor = torch.Tensor
# Of a tensor, what says nothing of its numbers.
_FACTS = frozenset(
    [getattr(_Tensor, name).__get__ for name in ("shape", "dtype", "device", "is_cuda", "nbytes")]
    + [_Tensor.numel, _Tensor.element_size, _Tensor.size, _Tensor.dim]
)


class Hands(Protocol):
    """What a rank holds, and how it comes to what rank 0 has.

    Attributes:
        forward: the model as the loss of a training step calls it.
        is_whole: rank 0 has all of the model, and can evaluate alone.
        is_stale: the flat vector of rank 0 is not what the ranks have.
    """

    forward: torch.nn.Module
    is_whole: bool
    is_stale: bool

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a part of a batch after which others follow."""

    def push(self) -> None:
        """Take what rank 0 has in its flat vector; all ranks do so at once."""

    def pull(self) -> None:
        """Bring it up to date; all ranks do so at once."""


class Replica:
    """All of the model: DistributedDataParallel; see ``Hands``."""

    is_whole = True

    def __init__(self, model: torch.nn.Module, arena: Arena) -> None:
        self._flat = arena.flat
        self.is_stale = False
        on_gpu = self._flat.is_cuda
        self.forward: torch.nn.Module = _Replicated(
            model, device_ids=[self._flat.device.index] if on_gpu else None
        )

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        """Sum gradients up here, and over all ranks only with the last part of a batch."""
        assert isinstance(self.forward, _Replicated)
        return self.forward.no_sync()

    def push(self) -> None:
        """See ``Hands``."""
        dist.broadcast(self._flat, src=0)

    def pull(self) -> None:
        """The vector of rank 0 is the storage of its model."""


class _Replicated(DistributedDataParallel):
    """What a task looks for in its model is found there."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Part:
    """A part of each tensor, along its first dimension: FSDP2; see ``Hands``."""

    is_whole = False

    def __init__(self, model: torch.nn.Module, fd: int, device: torch.device) -> None:
        """Share the model out, which is whole and on the CPU, and lay ``fd`` out for all of it.

        Raises:
            ConfigError: a parameter cannot be shared out.
        """
        for name, parameter in model.named_parameters():
            if not parameter.ndim:
                raise ConfigError(
                    f"parameter {name}: expected a dimension to share out over the ranks, it is a"
                    " single number; use --parallel ddp"
                )
        rank, size = dist.get_rank(), dist.get_world_size()
        layout = trained_of(model)[1]
        self.room = _mapped(fd, layout.numel)
        if rank == 0:
            with torch.no_grad():
                for parameter, begin in zip(
                    trained_of(model)[0].values(), layout.offsets, strict=True
                ):
                    self.room[begin : begin + parameter.numel()].copy_(parameter.flatten())
        self.is_stale = False
        mesh = init_device_mesh(device.type, (size,))
        for module in reversed(list(model.modules())):  # inner ones first
            if isinstance(module, torch.nn.ModuleList):  # the blocks of a transformer
                for block in module:
                    fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.forward: torch.nn.Module = model
        self._rows = list(self._places(trained_of(model)[0], layout.offsets, rank, size))

    def _places(
        self, trained: dict[str, torch.nn.Parameter], offsets: tuple[int, ...], rank: int, size: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (the rows that this rank has of a parameter, where they lie in the room)."""
        for parameter, offset in zip(trained.values(), offsets, strict=True):
            begin, end = rows_of(parameter.shape[0], rank, size)
            width = parameter.numel() // max(1, parameter.shape[0])
            place = self.room[offset + begin * width : offset + end * width]
            assert isinstance(parameter, DTensor)
            local = parameter.to_local().detach()
            assert local.numel() == place.numel(), (local.shape, begin, end)
            if local.numel():
                yield local, place.view(local.shape)

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        """Whole gradients are kept no longer than a module's backward pass takes."""
        return contextlib.nullcontext()

    def push(self) -> None:
        """See ``Hands``."""
        for rows, place in self._rows:
            rows.copy_(place)

    def pull(self) -> None:
        """See ``Hands``."""
        for rows, place in self._rows:
            place.copy_(rows)
        meet()


def rows_of(length: int, rank: int, size: int) -> tuple[int, int]:
    """Return which rows of a tensor a rank has, as FSDP2 shares them out."""
    each = -(-length // size)
    return min(length, rank * each), min(length, (rank + 1) * each)


def part_of(own: torch.Tensor, found: torch.Tensor, rank: int) -> torch.Tensor:
    """Return of ``found``, which is whole, what ``rank`` has of it, where it has a part."""
    if not isinstance(own, DTensor):
        return found
    begin, end = rows_of(own.shape[0], rank, dist.get_world_size())
    return found[begin:end]


def local_of(own: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor, in the same memory."""
    return own.to_local() if isinstance(own, DTensor) else own


def whole_of(own: torch.Tensor) -> torch.Tensor:
    """Return a tensor whole; all ranks do so at once."""
    return own.full_tensor() if isinstance(own, DTensor) else own


def meet() -> None:
    """Return when all ranks have come here."""
    dist.all_reduce(torch.zeros(1))


class PartArena(Arena):
    """The whole vector of a node, ``flat``, while each rank has a part of each parameter."""

    def __init__(self, model: torch.nn.Module, part: Part, pull: Callable[[], None]) -> None:
        """``pull`` brings the vector up to date, before anything looks at it."""
        trained, self.layout = trained_of(model)
        self.names, self.trained = tuple(trained), tuple(trained.values())
        self.room = part.room
        self.flat = _looked_after(part.room, pull)

    def gradient(self) -> torch.Tensor:
        """No rank has it (``build.py`` refuses strategies that ask for it)."""
        raise InvariantViolation("the gradient of a model of which this rank has a part")


def _looked_after(room: torch.Tensor, before: Callable[[], None]) -> torch.Tensor:
    """Return ``room`` as a tensor that calls ``before`` whenever its numbers are asked for."""

    class Drawn(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func not in _FACTS:
                before()
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    return room.as_subclass(Drawn)


def _mapped(fd: int, numel: int) -> torch.Tensor:
    size_bytes = numel * torch.float32.itemsize
    if os.fstat(fd).st_size < size_bytes:
        os.ftruncate(fd, size_bytes)  # every rank wants the same size
    return torch.frombuffer(mmap.mmap(fd, size_bytes), dtype=torch.float32)
