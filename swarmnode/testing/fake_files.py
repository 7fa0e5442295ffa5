"""What a fake worker leaves in files and takes from them: snapshots, and its share of a merge.

Snapshots are real files of one vector, so that joiners fetch what they would. In a merge by
``mean``, shares and means are its parameters.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from swarmnode import limits
from swarmnode.ipc.control import GiveShare, MergeWeighed, ShareGiven, WeighMerge
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.tensor.snapshot_format import (
    FETCHED_NAME,
    About,
    encode_header,
    find_snapshots,
    lay_out,
    read_entry,
    read_header,
    snapshot_name,
)

Vector = npt.NDArray[np.float64]
_TENSOR = "model/x"


def write_snapshot(folder: Path, x: Vector, step: int) -> Path:
    """Write ``x``, float64 [numel], and remove what a real worker would not keep."""
    data = x.tobytes()
    about = About(
        task="fake",
        task_version=1,
        task_config={},
        layout_hash="00" * 32,
        step=step,
        tokens=step,
        hashes={_TENSOR: hashlib.sha256(data).hexdigest()},
    )
    path = folder / snapshot_name(step)
    make_private_dir(folder)
    write_atomic(path, encode_header(lay_out({_TENSOR: ("F64", x.shape)}), about) + data)
    own = [found for _, found in find_snapshots(folder) if found.name != FETCHED_NAME]
    for old in own[limits.SNAPSHOTS_KEPT :]:
        old.unlink()
    return path


def read_fetched(folder: Path) -> Vector | None:
    """Return what the daemon has fetched for a newcomer, None if it has fetched nothing."""
    path = folder / FETCHED_NAME
    if not path.exists():
        return None
    with path.open("rb") as file:
        header = read_header(file, path)
        (entry,) = header.entries
        x: Vector = np.empty(entry.shape, np.float64)
        read_entry(file, entry, header, x.data.cast("B"), path)
    return x


def answer_merge(order: GiveShare | WeighMerge, x: Vector, step: int) -> ShareGiven | MergeWeighed:
    """Do what the daemon asks for; the loss is the distance from (1, 1, ...)."""
    if isinstance(order, GiveShare):
        x.astype(np.float32).tofile(order.path)
        return ShareGiven(order.request, len(x), step, step)
    merged = np.fromfile(order.path, np.float32)
    digest = hashlib.sha256(merged.tobytes()).digest()
    model = merged.astype(np.float64)
    path = str(write_snapshot(Path(order.folder), model, step)) if order.folder else ""
    return MergeWeighed(order.request, digest, _loss(model), _loss(x), path)


def _loss(x: Vector) -> float:
    return float(np.linalg.norm(1.0 - x))
