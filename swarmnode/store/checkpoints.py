"""The snapshots of a worker as the daemon sees them: found, and checked without torch.

The worker alone writes here (``worker/snapshots/snapshot.py``), and may remove an old one at any
moment. A keeper checks what it has fetched, and what has lain on its disk for long.

All calls block for as long as the disk does; a Trio caller uses a thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from swarmnode import limits
from swarmnode.store.files import storage_errors
from swarmnode.tensor.snapshot_format import find_snapshots, read_entry, read_header


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
