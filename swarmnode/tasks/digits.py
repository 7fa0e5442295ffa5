"""``digits``: an MLP on scikit-learn's 1,797 handwritten digits; learns in a second of CPU."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cached_property

import torch
from torch.nn import functional

from swarmnode.tasks.base import DataError, PositiveFloat, PositiveInt, Task, TaskConfig
from swarmnode.tasks.deal import deal, shard_count

_PIXELS = 64
_CLASSES = 10
_TRAIN_EXAMPLES = 1400
# One fixed order: the file is sorted by writer, and both parts need all of them.
_SPLIT_SEED = 1797

_PROBE_EXAMPLES = 128  # of those that are held out

Examples = tuple[torch.Tensor, torch.Tensor]


class Digits(Task):
    """Classification; batches are (pixels float32 [batch, 64] in 0..1, labels int64 [batch])."""

    name = "digits"
    version = 1
    exchange_every_steps = 32  # its steps take well under a millisecond

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """The MLP, its batches and its learning rate."""

        hidden: PositiveInt = 64
        batch: PositiveInt = 32
        lr: PositiveFloat = 3e-3

    config: Config

    @property
    def tokens_per_batch(self) -> int:
        return self.config.batch

    def build_model(self, seed: int) -> torch.nn.Module:
        del seed  # torch's generator has it
        hidden = self.config.hidden
        return torch.nn.Sequential(
            torch.nn.Linear(_PIXELS, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, _CLASSES)
        )

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.config.lr)

    def batches(self, seed: int) -> Iterator[Examples]:
        pixels, labels = self._examples
        generator = torch.Generator().manual_seed(seed)
        while True:
            chosen = torch.randint(_TRAIN_EXAMPLES, (self.config.batch,), generator=generator)
            yield pixels[chosen], labels[chosen]

    @property
    def shards_per_epoch(self) -> int:
        return shard_count(_TRAIN_EXAMPLES, self.config.batch, self.batches_per_shard)

    def shard_batches(self, epoch_seed: int, shard: int, n_shards: int) -> Iterator[Examples]:
        pixels, labels = self._examples
        batch = self.config.batch
        for chosen in deal(
            _TRAIN_EXAMPLES, batch, epoch_seed=epoch_seed, shard=shard, n_shards=n_shards
        ):
            yield pixels[chosen], labels[chosen]

    def loss(self, model: torch.nn.Module, batch: Examples) -> torch.Tensor:
        pixels, labels = batch
        return functional.cross_entropy(model(pixels), labels)

    def evaluate(self, model: torch.nn.Module) -> float:
        device = next(model.parameters()).device
        held_out = [part[_TRAIN_EXAMPLES:].to(device) for part in self._examples]
        return float(self.loss(model, (held_out[0], held_out[1])))

    def public_probe(self) -> Examples:
        pixels, labels = self._examples
        chosen = slice(_TRAIN_EXAMPLES, _TRAIN_EXAMPLES + _PROBE_EXAMPLES)
        return pixels[chosen], labels[chosen]

    def trivial_loss(self) -> float:
        return math.log(_CLASSES)

    def data_hash(self) -> str:
        digest = hashlib.sha256()
        for part in self._examples:
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def _examples(self) -> Examples:
        """(pixels, labels) of all examples, training ones first."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError(
                "task digits needs scikit-learn: pip install '.[digits]' in the clone of swarmnode"
            ) from error
        pixels, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        return torch.tensor(pixels).float()[order] / 16, torch.tensor(labels).long()[order]
