"""What memory training a swarm takes, from its manifest alone, and what this machine has.

What the examples of a batch take on top depends on the task, and only a step of it tells:
``swarmnode trust`` tries one. The numbers of whole models that a strategy keeps are those of its
``buffers()``; a test compares.
"""

from __future__ import annotations

import msgspec

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.volunteer.machine import gpu_memory
from swarmnode.memory import main_memory
from swarmnode.quantities import parse_bytes, show_bytes
from swarmnode.wire.swarm import Manifest

_NUMBER_BYTES = 4  # float32, as every number that is trained
_STATE_COPIES = 4  # weights, gradients, and the two moments of Adam: most optimizers keep fewer
_COPIED = 3  # of those: a snapshot is written from a copy, which has no gradients
_SLOTS = 2  # of SLOTS_PER_WORKER in use at a time; untouched ones cost nothing
_PROCESS_BYTES = 300_000_000  # Python and torch before any model: 240 to 290 MB measured
# (buffers, elements of half a slot) in whole models; what is not known here counts as the most.
_KEPT = {
    "a2cid2": (1.0, 1.0),
    "dadao": (5.0, 1.0),
    "diloco": (2.0, 2.0),
    "noloco": (2.0, 2.0),
    "one-byte": (0.0, 0.0),
    "pair-average": (0.0, 1.0),
    "streaming": (3.0, 1.0),
}
_KEPT_UNKNOWN = (5.0, 2.0)
ASSUMPTION = "an optimizer with two moments such as Adam, and no examples"


class Footprint(msgspec.Struct, frozen=True):
    """Bytes; those of a GPU are 0 where none is used."""

    main_bytes: int
    gpu_bytes: int
    how: str  # measured or computed, in words
    is_measured: bool
    main_free_bytes: int | None  # None: this system does not say
    main_total_bytes: int | None
    gpu_free_bytes: int | None = None  # None: there is no GPU, or none that says
    gpu_total_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether what is needed is there, as far as this machine says."""
        return not (
            (self.main_free_bytes is not None and self.main_bytes > self.main_free_bytes)
            or (self.gpu_free_bytes is not None and self.gpu_bytes > self.gpu_free_bytes)
        )

    def sentence(self) -> str:
        """Say what is needed and what is there, in one line."""
        least = "" if self.is_measured else "at least "
        text = f"needs {least}{show_bytes(self.main_bytes)} of main memory"
        if self.main_free_bytes is not None and self.main_total_bytes is not None:
            text += f" ({_of(self.main_free_bytes, self.main_total_bytes)} are free)"
        if self.gpu_bytes:
            text += f" and {least}{show_bytes(self.gpu_bytes)} of the GPU's"
            if self.gpu_free_bytes is not None and self.gpu_total_bytes is not None:
                text += f" ({_of(self.gpu_free_bytes, self.gpu_total_bytes)} are free)"
        too_much = "" if self.fits else "; that is more than there is"
        return f"{text}; {self.how}{too_much}"


def computed(manifest: Manifest, config: NodeConfig, device: str = "auto") -> Footprint:
    """Return what a worker of this swarm needs at least, without its examples."""
    gpu = gpu_memory(config.gpus) if device == "auto" or device.startswith("cuda") else None
    model = _NUMBER_BYTES * manifest.numel
    buffers, payload = _KEPT.get(manifest.strategy, _KEPT_UNKNOWN)
    mean = 1 if manifest.recipe and manifest.recipe.ema_share else 0  # of the weights
    trained = round((_STATE_COPIES + buffers + mean) * model)
    apart = round((_COPIED + buffers + 2 * _SLOTS * payload) * model) + _PROCESS_BYTES
    on_gpu = gpu is not None
    return Footprint(
        main_bytes=apart + (0 if on_gpu else trained),
        gpu_bytes=trained + limits.GPU_CONTEXT_BYTES if on_gpu else 0,
        how=f"computed for {manifest.numel:,} parameters, {ASSUMPTION}",
        is_measured=False,
        **_present(config, on_gpu=on_gpu),
    )


def before_joining(manifest: Manifest, config: NodeConfig, device: str) -> str:
    """Return the line that `join` prints before it begins."""
    found = computed(manifest, config, device)
    advice = "" if found.fits else ": expect it to end for want of memory, or use another machine"
    return f"training here {found.sentence()}{advice}"


def measured(main_bytes: int, gpu_bytes: int, how: str, config: NodeConfig) -> Footprint:
    """Return what a worker took that was tried here."""
    present = _present(config, on_gpu=gpu_bytes > 0)
    return Footprint(main_bytes, gpu_bytes, how, is_measured=True, **present)


def _present(config: NodeConfig, *, on_gpu: bool) -> dict[str, int | None]:
    """Return what there is, and what the owner of this node allows of it."""
    main = main_memory()
    gpu = gpu_memory(config.gpus) if on_gpu else None
    return {
        "main_free_bytes": _allowed(main.available_bytes if main else None, config.ram),
        "main_total_bytes": main.total_bytes if main else None,
        "gpu_free_bytes": _allowed(gpu.free_bytes if gpu else None, config.gpu_memory),
        "gpu_total_bytes": gpu.total_bytes if gpu else None,
    }


def _allowed(free_bytes: int | None, limit: str) -> int | None:
    if free_bytes is None or not limit:
        return free_bytes
    return min(free_bytes, parse_bytes(limit))


def _of(free_bytes: int, total_bytes: int) -> str:
    return f"{show_bytes(free_bytes)} of {show_bytes(total_bytes)}"
