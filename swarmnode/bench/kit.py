"""What benches that run whole nodes have in common: a folder, a swarm without a task of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

from swarmnode.config import Paths
from swarmnode.processes.stopping import run_async
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import sign_manifest
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Manifest

SWARM = "bench"
_T = TypeVar("_T")


def run_in_folder(main: Callable[..., Awaitable[_T]], *arguments: object) -> _T:
    """Do what ``run_async`` does, with a new folder as the first argument, and remove that."""
    folder = Path(tempfile.mkdtemp(prefix="swarmnode-bench-"))
    try:
        return run_async(main, folder, *arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def swarm_identity() -> Identity:
    """Return the key of the swarm, the same in every process of a benchmark."""
    return Identity.from_seed(b"b" * 32)


def write_manifest(homes: Iterable[Path], *, numel: int = 1, codec: str = "RAW32") -> None:
    """Let these homes have the manifest of a swarm of ``numel`` float32. Raises StorageError."""
    swarm = swarm_identity()
    manifest = Manifest(
        name=SWARM,
        swarm_key=swarm.public_key,
        task="synthetic",
        task_version=1,
        task_config={},
        numel=numel,
        layout_hash=bytes(32),
        data_hash=b"",
        strategy="pair-average",
        strategy_settings={},
        codec=codec,
        seed=0,
        admission="open",
        min_version="0",
        created_at=0,
        expires_at=0,
    )
    signed = encode_record(sign_manifest(manifest, swarm))
    for home in homes:
        path = Paths(home).swarm(SWARM).manifest
        make_private_dir(path.parent)
        write_atomic(path, signed)
