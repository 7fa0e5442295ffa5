"""What the worker does for a merge of all nodes' models: its share, and what comes of it.

Numbers go through files, as they may be several times the model: slots are for exchanges. Training
is held up for as long as copying them and evaluating twice takes, and goes on as if nothing had
happened.

The merged parameters are the same bits on all nodes, and :attr:`Merged.digest` proves it. What is
not in the flat vector is made here: running statistics of BatchNorm are not averages of other
nodes' ones, they are measured anew for the merged weights, on data of this node.

Source for the rule on BatchNorm, and for a merge at the very end: "On the surprising effectiveness
of a single global merging in decentralized learning", 2025 (arXiv 2507.06542).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swarmnode.errors import ConfigError, StorageError, SwarmNodeError
from swarmnode.ipc.control import GiveShare, MergeFailed, MergeWeighed, ShareGiven, WeighMerge
from swarmnode.strategies.merge import merge_of, share
from swarmnode.tasks.base import seed_of
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.snapshots.atoms import MODEL, about, weights
from swarmnode.worker.snapshots.restore import export_weights
from swarmnode.worker.snapshots.tensorfile import Tensors

Answer = ShareGiven | MergeWeighed | MergeFailed

_RECALIBRATION_BATCHES = 32  # a cumulative mean over so many is within a few percent

_BatchNorm = torch.nn.modules.batchnorm._BatchNorm  # what all kinds of it inherit


class Merges:
    """Borrows: the state, which is left as it was."""

    def __init__(self, state: TrainState, send: Callable[[Answer], None]) -> None:
        self._state = state
        self._send = send

    def obey(self, message: GiveShare | WeighMerge) -> None:
        """Do what is asked, and answer; whatever goes wrong is no reason to stop training."""
        try:
            if isinstance(message, GiveShare):
                answer: Answer = self._give(message)
            else:
                answer = self._weigh(message)
        except (SwarmNodeError, OSError, torch.OutOfMemoryError) as error:
            answer = MergeFailed(message.request, str(error))
        self._send(answer)

    def _give(self, message: GiveShare) -> ShareGiven:
        state = self._state
        own = state.applied.exported
        if not bool(torch.isfinite(own).all()):
            raise ConfigError("the parameters of this node are not finite")
        numbers = share(message.rule, own, state.arena.layout)
        numbers.numpy().tofile(message.path)
        return ShareGiven(message.request, numbers.numel(), state.step, state.tokens)

    def _weigh(self, message: WeighMerge) -> MergeWeighed:
        state = self._state
        mean_share = torch.from_numpy(np.fromfile(message.path, np.float32))
        if not bool(torch.isfinite(mean_share).all()):
            raise StorageError("expected finite numbers as the mean of all nodes, got others")
        merged = merge_of(message.rule, mean_share, state.arena.layout, message.n)
        # The same batches on every node: what is measured anew is as equal as machines allow.
        found = evaluate_merge(state, merged, seed_of(f"{state.swarm_seed}/finalize"))
        path = ""
        if message.folder:
            path = str(export_weights(found.tensors, about(state), Path(message.folder)))
        return MergeWeighed(message.request, found.digest, found.loss, found.own_loss, path)


@dataclass(frozen=True)
class Merged:
    """A merged model, with the losses on the task's probe that speak for it or against it.

    Attributes:
        tensors: parameters and buffers by their names, memory of their own.
        digest: SHA-256 of the merged parameters as little-endian float32.
        loss, own_loss: of the merged model and of this node's, on the task's probe.
    """

    tensors: Tensors
    digest: bytes
    loss: float
    own_loss: float


def evaluate_merge(state: TrainState, merged: torch.Tensor, shard_seed: int) -> Merged:
    """Return what ``merged`` [numel] is worth; ``state`` is left as it was.

    ``shard_seed`` is of the batches on which BatchNorm is recalibrated.
    """
    own = state.arena.flat.clone()
    on_device = merged.to(own.device, own.dtype)
    with _buffers_kept(state.model):
        try:
            state.arena.flat.copy_(state.applied.exported)
            own_loss = state.evaluate()
            state.arena.flat.copy_(on_device)
            recalibrate_batch_norm(state, state.task.batches(shard_seed))
            loss = state.evaluate()
            named = {MODEL + name: t for name, t in weights(state.model).items()}
            whole = state.gathered(named)
            tensors = {name.removeprefix(MODEL): whole[name].clone() for name in named}
        finally:
            state.arena.flat.copy_(own)
    octets = merged.detach().cpu().to(torch.float32).numpy().tobytes()
    digest = hashlib.sha256(octets).digest()
    return Merged(tensors, digest, loss, own_loss)


def recalibrate_batch_norm(state: TrainState, batches: Iterator[Any]) -> int:
    """Measure the running statistics of every BatchNorm anew; return how many there are.

    ``num_batches_tracked`` and the momentum stay as they are, as does everything else.
    """
    norms = _norms(state.model)
    if not norms:
        return 0
    counts = [_count(norm).clone() for norm in norms]
    momenta = [norm.momentum for norm in norms]
    was_training = state.model.training
    state.model.eval()  # no dropout
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
        norm.train()
    try:
        with torch.no_grad(), state.device.autocast():
            for batch in islice(batches, _RECALIBRATION_BATCHES):
                state.task.loss(state.model, state.device.move(batch))
    finally:
        for norm, momentum, count in zip(norms, momenta, counts, strict=True):
            norm.momentum = momentum
            _count(norm).copy_(count)
        state.model.train(was_training)
    return len(norms)


def _norms(model: torch.nn.Module) -> list[_BatchNorm]:
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]


def _count(norm: _BatchNorm) -> torch.Tensor:
    count = norm.num_batches_tracked
    assert count is not None, "torch counts wherever it has running statistics"
    return count


@contextlib.contextmanager
def _buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
