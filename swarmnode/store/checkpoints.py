"""The snapshots of a worker as the daemon sees them: found, and checked without torch.

The worker alone writes here (``worker/snapshots/snapshot.py``), and may remove an old one at any
moment. A keeper checks what it has fetched, and what has lain on its disk for long.

All calls block for as long as the disk does; a Trio caller uses a thread.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from swarmnode import limits
from swarmnode.store.files import storage_errors
from swarmnode.tensor.snapshot_format import find_snapshots, read_entry, read_header

_ASIDE = "aside"


@dataclass(frozen=True)
class CheckpointInfo:
    """What a snapshot says about itself, once it is known to be as it was written."""

    step: int
    tokens: int
    task: str
    layout_hash: bytes
    n_tensors: int
    size_bytes: int


def newest(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of the snapshots in ``folder``, newest first, not checked.

    Step 0 is one that was fetched from a peer: it tells its own step.

    Raises:
        StorageError: the folder cannot be read.
    """
    with storage_errors(folder, "read"):
        return find_snapshots(folder)


def has_fresh(folder: Path, now_unix_s: float) -> bool:
    """Return whether one in ``folder`` is younger than SNAPSHOT_STALE_S. Raises StorageError."""
    ages_s = [now_unix_s - path.stat().st_mtime for _, path in newest(folder)]
    return min(ages_s, default=limits.SNAPSHOT_STALE_S) < limits.SNAPSHOT_STALE_S


def set_aside(folder: Path) -> None:
    """Move all that is in ``folder`` beside it, where a person finds the last that was moved.

    Raises:
        StorageError: as the disk says; nothing was moved.
    """
    aside = folder.with_name(f"{folder.name}-{_ASIDE}")
    with storage_errors(folder, "move"):
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def verify_checkpoint(path: Path) -> CheckpointInfo:
    """Read a whole snapshot and check every byte of it, in constant memory.

    Raises:
        CorruptRecord: it is not what was written; the message names the tensor.
        StorageError: it cannot be read, or is gone.
    """
    with storage_errors(path, "read"), path.open("rb") as file:
        header = read_header(file, path)
        piece = memoryview(bytearray(limits.SNAPSHOT_PIECE_BYTES))
        for entry in header.entries:
            read_entry(file, entry, header, piece, path)
        size_bytes = os.fstat(file.fileno()).st_size
    about = header.about
    return CheckpointInfo(
        step=about.step,
        tokens=about.tokens,
        task=about.task,
        layout_hash=bytes.fromhex(about.layout_hash),
        n_tensors=len(header.entries),
        size_bytes=size_bytes,
    )
