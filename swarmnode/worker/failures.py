"""Why a worker ends: from an exception to one kind, one line and one exit status.

Free of torch, because "torch is missing" is one of the reasons.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from swarmnode.errors import (
    ConfigError,
    MalformedMessage,
    SpecMismatch,
    StorageFull,
    SwarmNodeError,
    WorkerError,
)
from swarmnode.tasks.base import DataError
from swarmnode.tasks.registry import UnknownTask

TORCH_MISSING = "this task needs torch: pip install '.[torch]' in the clone of swarmnode"

# 1 and 2 are what Python itself exits with on an exception and on bad arguments.
EXIT_STATUS = {
    "crash": 1,
    "torch-missing": 10,
    "task-unknown": 11,
    "config": 12,
    "layout": 13,
    "data": 14,
    "out-of-memory": 15,
    "disk-full": 16,
    "diverged": 17,
    "too-little-memory": 18,
    "snapshot": 19,
}

_LINE_CHARACTERS_MAX = 500


class SnapshotUnfit(WorkerError):
    """What was fetched from a peer is nothing to begin with; the daemon may fetch another."""


# What torch says besides its own class for it, in a RuntimeError: on a CPU, when C++ or cuBLAS
# finds no memory, by the driver, and on a Mac.
_MEMORY_WORDS = (
    "DefaultCPUAllocator",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "MPS backend out of memory",
)


class RankFailed(WorkerError):
    """Another rank of this worker has ended; ``kind`` is one of ``ipc.names.FAILURE_KINDS``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Diverged(WorkerError):
    """The loss is no number any more."""


class TooLittleMemory(WorkerError):
    """Not even the smallest part of a batch can be trained here."""


def classify(error: BaseException) -> tuple[str, str]:
    """Return (kind, message); kind is one of ``ipc.names.FAILURE_KINDS``."""
    match error:
        case ModuleNotFoundError(name="torch"):
            return "torch-missing", TORCH_MISSING
        case ImportError():
            return "config", f"a library that the task needs cannot be imported: {_line(error)}"
        case UnknownTask():
            return "task-unknown", _line(error)
        case DataError():
            return "data", _line(error)
        case ConfigError() | MalformedMessage():
            return "config", _line(error)
        case SpecMismatch():
            return "layout", _line(error)
        case StorageFull():
            return "disk-full", _line(error)
        case SnapshotUnfit():
            return "snapshot", _line(error)
        case Diverged():
            return "diverged", _line(error)
        case TooLittleMemory():
            return "too-little-memory", _line(error)
        case RankFailed():
            return error.kind, _line(error)
    if is_out_of_memory(error):
        return "out-of-memory", f"out of memory; use a smaller batch or model: {_line(error)}"
    if isinstance(error, SwarmNodeError):
        return "crash", _line(error)  # it was written for a person
    return "crash", f"{type(error).__name__}: {_line(error)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Know torch's own error for a GPU, Python's, and the RuntimeErrors of torch."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    gpu_error = getattr(torch, "OutOfMemoryError", MemoryError)
    if isinstance(error, gpu_error):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and any(words in said for words in _MEMORY_WORDS)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_LINE_CHARACTERS_MAX]


def answer(lines: Iterator[dict[str, Any]]) -> int:
    """Say what a question's answer is, one JSON object a line; return the exit status."""
    try:
        for line in lines:
            print(json.dumps(line, allow_nan=False), flush=True)
    except Exception as error:  # noqa: BLE001 -- of one question: its answer says what went wrong
        kind, message = classify(error)
        print(json.dumps({"failed": kind, "message": message}), flush=True)
        return EXIT_STATUS[kind]
    return 0
