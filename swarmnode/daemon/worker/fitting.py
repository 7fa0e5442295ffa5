"""How batches are cut so that the worker fits into memory; it outlives each of the workers.

A worker that notices that memory is short cuts its batches itself, and says so. One that dies of
it, or that the kernel kills for it, is started again with parts of half the size: a death of that
kind is not what the budget of restarts is for, as long as there is something left to cut.

===================================  ===================================================
the worker failed: out-of-memory     it died of it, outside of what it can cut itself
SIGKILL, and the kernel has counted  the kernel's OOM killer
SIGKILL, and memory was short        another such killer (earlyoom), or one that is not counted
===================================  ===================================================

Here is also why a worker has died: what is counted, what another model to begin with mends, and
what another worker could not.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Protocol

import msgspec
import trio

from swarmnode.errors import ConfigError, SpecMismatch, WorkerCrashed, WorkerError, WorkerHung
from swarmnode.ipc.control import BatchFit, Configure, Progress, WorkerFailed
from swarmnode.ipc.names import FAILURE_KINDS, FATAL_KINDS
from swarmnode.memory import MainMemory, main_memory, oom_kills
from swarmnode.quantities import show_bytes
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.worker")


# earlyoom kills when a tenth is left, the kernel when nothing is: a worker that was killed with so
# little left, as seen a second before, was most likely killed for that.
_SHORT_SHARE = 0.1
# Times in a row that a worker may fail for want of memory before any batch was seen. A GPU or a
# machine can be full of what another process is about to give back; a model that does not fit
# never will.
_UNSEEN_DEATHS_MAX = 3
# A batch of more examples than this is none that could be cut one by one in sensible time.
_PARTS_MAX = 2**20


_UNSEEN = BatchFit(size=0, examples=0)  # no batch was seen yet


class Fitting:
    """See the module.

    Args:
        look: what main memory there is now.
        kills: how often the kernel has killed for want of memory.
    """

    def __init__(
        self,
        look: Callable[[], MainMemory | None] = main_memory,
        kills: Callable[[], int] = oom_kills,
    ) -> None:
        self._look, self._kills = look, kills
        self._parts = 1
        self._fit = _UNSEEN
        self._kills_before = 0
        self._least: MainMemory | None = None  # the least that was available in this life
        self._unseen_deaths = 0

    def begin(self, configure: Configure) -> Configure:
        """A worker is about to start: return what it is told."""
        self._kills_before, self._least = self._kills(), None
        return msgspec.structs.replace(configure, batch_parts=self._parts)

    def take(self, fit: BatchFit) -> None:
        """The worker has said how it cuts batches."""
        is_news = fit.parts > 1 and fit.size != self._fit.size
        self._fit, self._parts = fit, fit.parts
        self._unseen_deaths = 0
        if is_news:
            _log.warning("batches are cut", why=self.words().removeprefix("; "))

    def watch(self) -> None:
        """Note how much memory there is while the worker trains."""
        known = [each for each in (self._least, self._look()) if each is not None]
        self._least = min(known, default=None)

    def words(self) -> str:
        """Return what the status says of it, "" while batches are whole."""
        fit = self._fit
        if fit.size >= fit.examples:
            return ""
        n_parts = -(-fit.examples // fit.size)
        return f"; micro-batch {fit.size} of {fit.examples} (out of memory), accumulating {n_parts}"

    def died(self, error: WorkerError, failed: WorkerFailed) -> bool:
        """A worker is gone: return whether another one with smaller parts can mend it.

        ``failed`` is what it said last, or SAID_NOTHING.

        Raises:
            WorkerError: it died for want of memory, and there is nothing left to cut.
        """
        if not self._is_of_memory(error, failed):
            return False
        fit = self._fit
        if fit == _UNSEEN:
            if not failed.kind:  # it was killed: perhaps over its very first batch
                self._parts = min(2 * self._parts, _PARTS_MAX)
                return False
            self._unseen_deaths += 1
            if self._unseen_deaths >= _UNSEEN_DEATHS_MAX:
                raise WorkerError(f"{error}; {self._present()}") from error
            return False  # the budget of restarts sees to the pauses
        if fit.is_smallest or self._parts >= _PARTS_MAX:
            raise WorkerError(
                "too little memory to train even one example at a time here: expected a worker of"
                f" this swarm to fit into main memory, {self._present()}; use another machine"
                f" ({error})"
            ) from error
        before = fit.size
        while -(-fit.examples // self._parts) >= before:
            self._parts *= 2
        self.take(
            msgspec.structs.replace(
                fit, size=-(-fit.examples // self._parts), parts=self._parts, is_smallest=False
            )
        )
        return True

    def _is_of_memory(self, error: WorkerError, failed: WorkerFailed) -> bool:
        if failed.kind:
            return failed.kind == "out-of-memory"
        if not isinstance(error, WorkerCrashed):
            return False
        if self._kills() > self._kills_before and error.signal_number in (None, signal.SIGKILL):
            return True  # None: a service manager has started it, and does not tell us the signal
        return error.signal_number == signal.SIGKILL and self._was_short()

    def _was_short(self) -> bool:
        least = self._least
        return least is not None and least.available_bytes < _SHORT_SHARE * least.total_bytes

    def _present(self) -> str:
        seen = self._least or self._look()
        if seen is None:
            return "and this system does not say how much memory there is"
        return (
            f"{show_bytes(seen.available_bytes)} of {show_bytes(seen.total_bytes)} of main memory"
            " were free"
        )


class Models(Protocol):
    """Models of other members, for a worker to begin with."""

    async def mend(self, failed: WorkerFailed) -> bool:
        """Make good what ended the worker, if it can: no death that the budget is for.

        Given is what the worker said last, or SAID_NOTHING. Raises StorageError.
        """

    async def begin_anew(self) -> None:
        """Let the next worker begin with one, or from the seed. Raises StorageError."""

    def complaint(self, progress: Progress) -> str:
        """Return what is wrong with the one that it began with, by what it says; else ""."""


class NoModels:
    """Where there are no others."""

    async def mend(self, _failed: WorkerFailed) -> bool:
        """Not so."""
        return False

    async def begin_anew(self) -> None:
        """Do nothing. Checkpoint: yes."""
        await trio.lowlevel.checkpoint()

    def complaint(self, _progress: Progress) -> str:
        """Have none."""
        return ""


def death_kind(error: WorkerError, failed: WorkerFailed) -> str:
    """Return one of WORKER_FAILURES; ``failed`` is what the worker said last, or SAID_NOTHING."""
    if failed.kind in FAILURE_KINDS:
        return failed.kind
    if isinstance(error, WorkerHung):
        return "hung"
    if isinstance(error, WorkerCrashed) and error.signal_number:
        return "killed"
    return "crash"


def raise_if_fatal(error: WorkerError, failed: WorkerFailed) -> None:
    """Raise what ends the node if the worker has said that a restart mends nothing.

    Raises:
        ConfigError, SpecMismatch: something is missing here, or does not fit the swarm.
        WorkerError: there is too little memory.
    """
    if failed.kind not in FATAL_KINDS:
        return
    if failed.kind == "layout":
        raise SpecMismatch(failed.message) from error
    if failed.kind == "too-little-memory":
        raise WorkerError(failed.message) from error
    raise ConfigError(failed.message) from error
