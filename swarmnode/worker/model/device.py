"""Where the model lives, in which precision its forward pass is computed, and how views of it and
what came of them get from a GPU to the slots and back, beside the training.

A view is taken on the GPU, where it costs a fraction of a step, and copied into its slot by a
stream of its own while the next steps compute; a merge begins when what came is on the GPU whole.
Slots are locked in memory for it: copies from and to memory that is not are five times as slow, and
hold up the step. The handoff asks :meth:`Copied.is_done` between two steps.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.tasks.base import Task
from swarmnode.worker.model.microbatch import MicroBatches

if TYPE_CHECKING:
    from swarmnode.strategies.base import Exchange

# Whether bfloat16 pays on a CPU depends on its instructions and on the size of the products.
# Measured on an EPYC with AVX512-BF16: a GPT of 0.12 M parameters takes 1.7 times as long
# with it, one of 3.3 M parameters 0.43 times. So small models never try, large ones measure.
_BF16_NUMEL_MIN = 1_000_000
_BF16_GAIN_MIN = 1.2
_TRIALS = 2


@dataclass(frozen=True)
class Device:
    """A torch device; ``autocast_dtype`` is None where float32 is computed as it is."""

    torch_device: torch.device
    autocast_dtype: torch.dtype | None = None

    def __str__(self) -> str:
        return str(self.torch_device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a forward pass."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.torch_device.type, dtype=self.autocast_dtype)

    def move(self, batch: Any) -> Any:
        """Return ``batch``, a tensor, or a tuple or map of them, on this device."""
        if isinstance(batch, torch.Tensor):
            return batch.to(self.torch_device, non_blocking=True)
        if isinstance(batch, dict):
            return {name: self.move(part) for name, part in batch.items()}
        return tuple(self.move(part) for part in batch)


def choose_device(setting: str) -> Device:
    """Return the device for ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises:
        ConfigError: it is none of these, or this machine does not have it.
    """
    if setting == "auto":
        setting = _best_available()
    try:
        device = torch.device(setting)
    except RuntimeError as error:
        raise ConfigError(
            f"device: expected auto, cpu, cuda, cuda:N or mps, got {setting!r}"
        ) from error
    if device.type == "cuda":
        return _cuda(device)
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError("device: expected an Apple GPU for 'mps', found none; use auto")
        return Device(device)
    if device.type != "cpu":
        raise ConfigError(f"device: expected auto, cpu, cuda, cuda:N or mps, got {setting!r}")
    return Device(device)


def _best_available() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _cuda(device: torch.device) -> Device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise ConfigError(
            "device: expected an NVIDIA GPU that torch can use, found none; "
            "install a CUDA build of torch, or use device auto"
        )
    if (device.index or 0) >= count:
        raise ConfigError(f"device: expected cuda:0 to cuda:{count - 1}, got {device}")
    torch.set_float32_matmul_precision("high")
    # Since Ampere; torch.cuda.is_bf16_supported() also counts slow emulation.
    has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
    return Device(device, torch.bfloat16 if has_bf16 else None)


def limit_gpu_memory(bytes_max: int) -> None:
    """Let this process take no more of each GPU that it sees; 0 is no limit.

    A model that needs more fails as it would on a GPU of that size: out of memory.
    """
    if not bytes_max or not torch.cuda.is_available():
        return
    for index in range(torch.cuda.device_count()):
        total_bytes = torch.cuda.get_device_properties(index).total_memory
        ours_bytes = max(0, bytes_max - limits.GPU_CONTEXT_BYTES)
        torch.cuda.set_per_process_memory_fraction(min(1.0, ours_bytes / total_bytes), index)


def with_fastest_precision(
    device: Device, task: Task, model: torch.nn.Module, batch_parts: int = 1
) -> Device:
    """Return ``device`` with bfloat16 autocast if it is a CPU on which that pays.

    Runs a few forward and backward passes of ``model``, which is on ``device``, over the first
    of the parts of a batch; leaves no gradient behind. Cost: about six steps.
    """
    numel = sum(parameter.numel() for parameter in model.parameters())
    if device.torch_device.type != "cpu" or numel < _BF16_NUMEL_MIN:
        return device
    candidate = replace(device, autocast_dtype=torch.bfloat16)
    batch = next(task.batches(0))
    micro = MicroBatches(task, batch_parts)

    def pass_times_s() -> list[float]:
        part, _ = micro.cut(batch)[0]
        return [_pass_time_s(option, task, model, part) for option in (device, candidate)]

    plain_s, bf16_s = micro.run(pass_times_s)
    return candidate if plain_s > _BF16_GAIN_MIN * bf16_s else device


def _pass_time_s(device: Device, task: Task, model: torch.nn.Module, batch: Any) -> float:
    """Return the shortest of a few passes; the first, which warms caches up, rarely wins."""
    times_s = []
    for _ in range(1 + _TRIALS):
        started = time.perf_counter()
        with device.autocast():
            loss = task.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        times_s.append(time.perf_counter() - started)
        model.zero_grad(set_to_none=True)
    return min(times_s)


# --- between a GPU and the slots --------------------------------------------------------------


class Copied(Protocol):
    """A copy that may be under way."""

    def is_done(self) -> bool:
        """Whether all of it is there."""

    def wait(self) -> None:
        """Return when it is."""


class CopiedView(Copied, Protocol):
    """That of a view."""

    def sum(self) -> float:
        """Return the sum of its elements, once it is done."""


class Staging(Protocol):
    """What of the handoff is otherwise where the model is on a GPU."""

    def lock(self, memory: torch.Tensor) -> None:
        """Keep memory of the host in its place, as far as the system lets this process."""

    def room(self, numel: int) -> torch.Tensor | None:
        """Return where a view of so many elements is taken; None: there is too little memory."""

    def down(self, view: torch.Tensor, out: torch.Tensor) -> CopiedView:
        """Begin to copy a view into a slot."""

    def up(self, exchange: Exchange) -> tuple[Exchange, Copied] | None:
        """Begin to copy what was sent and came; None: there is too little memory."""


def staging_of(vector: torch.Tensor) -> Staging | None:
    """Return that of a model in ``vector``; None: it is where the slots are."""
    return GpuStaging(vector) if vector.is_cuda else None


class GpuStaging:
    """See :class:`Staging`. Owns: a stream, and the locks until the process ends."""

    def __init__(self, vector: torch.Tensor) -> None:
        """For a model in ``vector``."""
        self._device, self._dtype = vector.device, vector.dtype
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._locked: set[int] = set()

    def lock(self, memory: torch.Tensor) -> None:
        """See :class:`Staging`."""
        if memory.numel() and memory.data_ptr() not in self._locked:
            self._locked.add(memory.data_ptr())
            # Refused where a process may lock little: then copies are slow, and right.
            with contextlib.suppress(RuntimeError):
                runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)

    def room(self, numel: int) -> torch.Tensor | None:
        """See :class:`Staging`."""
        try:
            return torch.empty(numel, dtype=self._dtype, device=self._device)
        except torch.OutOfMemoryError:
            return None

    def down(self, view: torch.Tensor, out: torch.Tensor) -> CopiedView:
        """See :class:`Staging`."""
        total = view.sum()
        on_host = torch.empty((), dtype=total.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for source, target in ((view, out), (total, on_host)):
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)  # its memory is in use until then
            return _Recorded(self._stream.record_event(), on_host)

    def up(self, exchange: Exchange) -> tuple[Exchange, Copied] | None:
        """See :class:`Staging`."""
        training = torch.cuda.current_stream(self._device)

        def copy(values: torch.Tensor) -> torch.Tensor:
            found = values.to(self._device, non_blocking=True)
            found.record_stream(training)
            return found

        try:
            with torch.cuda.stream(self._stream):
                return exchange.mapped(copy), _Recorded(self._stream.record_event())
        except torch.OutOfMemoryError:
            return None


_NO_SUM = torch.zeros(())


@dataclass(frozen=True)
class _Recorded:
    event: torch.cuda.Event
    total: torch.Tensor = _NO_SUM

    def is_done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def sum(self) -> float:
        return float(self.total)
