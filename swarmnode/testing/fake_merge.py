"""What the fake worker does in a merge by ``mean``: shares and means are its parameters."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from swarmnode.ipc.control import GiveShare, MergeWeighed, ShareGiven, WeighMerge
from swarmnode.testing.fake_snapshot import Vector, write_snapshot


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
