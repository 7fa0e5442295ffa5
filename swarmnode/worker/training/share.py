"""How much of the machine's time training takes: rests between steps that keep a share.

On a CPU it is the time of all threads of this process that counts, whatever they do: steps,
merges, evaluation. On a GPU it is the time that steps take.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from swarmnode.worker.model.device import Device

# A worker that uses more than its share rests at once; one that was starved catches up this much.
_CPU_SHARE_BURST_S = 0.5

_NO_REST_S = 1e-4  # nobody can sleep for so short a time


class MachineShare:
    """Says how long to rest so that no more than ``share`` of ``threads`` is used.

    Args:
        threads: what all of it would be; 1 for a GPU.
        by_steps: count the time of steps, not the time of the CPU.
    """

    def __init__(
        self,
        threads: int,
        *,
        by_steps: bool = False,
        cpu_s: Callable[[], float] = time.process_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.share = 1.0
        self._threads = 1 if by_steps else threads
        self._by_steps = by_steps
        self._cpu_s, self._now = cpu_s, now
        self._steps_s = 0.0
        self._left_s = 0.0  # of what may be used; negative: more was used
        self._looked_at_s = self._used_s = 0.0

    def keep(self, share: float) -> None:
        """Use at most this share from now on; 1 is all."""
        self.share = min(1.0, share)
        self._left_s = 0.0
        self._looked_at_s, self._used_s = self._now(), self._usage_s()

    def note_step(self, seconds: float) -> None:
        """A step took so long."""
        self._steps_s += seconds

    def rest_s(self) -> float:
        """Return how long not to step; 0: go on."""
        if self.share >= 1:
            return 0.0
        rate = self.share * self._threads
        now, used_s = self._now(), self._usage_s()
        self._left_s += rate * (now - self._looked_at_s) - (used_s - self._used_s)
        self._left_s = min(self._left_s, rate * _CPU_SHARE_BURST_S)
        self._looked_at_s, self._used_s = now, used_s
        rest_s = -self._left_s / rate
        return rest_s if rest_s > _NO_REST_S else 0.0

    def _usage_s(self) -> float:
        return self._steps_s if self._by_steps else self._cpu_s()


def share_of(device: Device) -> MachineShare:
    """Return what keeps a share of the device that training runs on, all of it so far."""
    is_cpu = device.torch_device.type == "cpu"
    return MachineShare(torch.get_num_threads(), by_steps=not is_cpu)
