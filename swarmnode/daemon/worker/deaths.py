"""Why a worker has died: what is counted, and what another one could not mend."""

from __future__ import annotations

from swarmnode.errors import ConfigError, SpecMismatch, WorkerCrashed, WorkerError, WorkerHung
from swarmnode.ipc.control import FAILURE_KINDS, FATAL_KINDS, WorkerFailed


def death_kind(error: WorkerError, failed: WorkerFailed | None) -> str:
    """Return one of WORKER_FAILURES; ``failed`` is what the worker said last, if it could."""
    if failed is not None and failed.kind in FAILURE_KINDS:
        return failed.kind
    if isinstance(error, WorkerHung):
        return "hung"
    if isinstance(error, WorkerCrashed) and error.signal_number:
        return "killed"
    return "crash"


def raise_if_fatal(error: WorkerError, failed: WorkerFailed | None) -> None:
    """Raise what ends the node if the worker has said that a restart mends nothing.

    Raises:
        ConfigError, SpecMismatch: something is missing here, or does not fit the swarm.
        WorkerError: there is too little memory.
    """
    if failed is None or failed.kind not in FATAL_KINDS:
        return
    if failed.kind == "layout":
        raise SpecMismatch(failed.message) from error
    if failed.kind == "too-little-memory":
        raise WorkerError(failed.message) from error
    raise ConfigError(failed.message) from error
