"""What the worker does for a merge of all nodes' models: its share, and what comes of it.

Numbers go through files, as they may be several times the model: slots are for exchanges. Training
is held up for as long as copying them and evaluating twice takes, and goes on as if nothing had
happened.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from swarmnode.errors import ConfigError, StorageError, SwarmNodeError
from swarmnode.ipc.control import GiveShare, MergeFailed, MergeWeighed, ShareGiven, WeighMerge
from swarmnode.strategies.merge import merge_of, share
from swarmnode.tasks.base import seed_of
from swarmnode.worker.exchange.finalize import evaluate_merge
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.snapshots.atoms import about
from swarmnode.worker.snapshots.restore import export_weights

Answer = ShareGiven | MergeWeighed | MergeFailed


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
