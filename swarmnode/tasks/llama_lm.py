"""``llama-lm``: a Llama over tokens, of a folder of this node or a data set of Hugging Face's hub.

Where the data has a ``tokenizer.json`` beside it, texts are tokens of that; else they are bytes.
All nodes of a swarm must have the same one: its hash is part of that of the data.

Documents are streamed, never held in memory whole. An epoch deals them out: shard s takes every
n-th document (``tasks/documents.py``), cut into windows side by side, a last short one left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import torch

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import (
    DataError,
    PositiveFloat,
    PositiveInt,
    Recipe,
    Task,
    TaskConfig,
)
from swarmnode.tasks.documents import Documents, open_documents
from swarmnode.tasks.language import adamw, language_recipe, next_token_loss, write_on
from swarmnode.tasks.llama import Llama
from swarmnode.tasks.tokens import Tokenizer, find_tokenizer

# So many batches of windows are shuffled together: neighbours are often of one document.
_SHUFFLED_BATCHES = 16


class LlamaLM(Task):
    """Next-token prediction; batches are int64 [batch, context + 1]."""

    name = "llama-lm"
    version = 1
    exchange_every_steps = 32

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """The model, its batches, its learning rate, and its data.

        ``dataset``, ``subset``, ``split``: a data set of the Hugging Face hub, streamed; empty:
        `--data`, or the texts that come with Python. ``text_field``: where a record has its text.
        ``held_out``: so many documents from the beginning are the probe, and not trained on.
        """

        vocabulary: PositiveInt = 256
        dim: PositiveInt = 64
        layers: PositiveInt = 2
        heads: PositiveInt = 4
        head_dim: PositiveInt = 16
        hidden: PositiveInt = 176
        context: PositiveInt = 64
        batch: PositiveInt = 16
        lr: PositiveFloat = 3e-3
        weight_decay: float = 0.1
        dataset: str = ""
        subset: str = ""
        split: str = "train"
        text_field: str = "text"
        held_out: PositiveInt = 16
        probe_windows: PositiveInt = 32

    config: Config

    def __init__(self, config: dict[str, Any], *, data_dir: str = "") -> None:
        super().__init__(config, data_dir=data_dir)
        if self.config.head_dim % 2:
            raise ConfigError(
                f"task llama-lm: head_dim must be even, for positions, got {self.config.head_dim}"
            )

    @property
    def tokens_per_batch(self) -> int:
        return self.config.batch * self.config.context

    def build_model(self, seed: int) -> Llama:
        del seed  # torch's generator has it
        config = self.config
        return Llama(
            vocabulary=config.vocabulary,
            dim=config.dim,
            layers=config.layers,
            heads=config.heads,
            head_dim=config.head_dim,
            hidden=config.hidden,
        )

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return adamw(model, lr=self.config.lr, weight_decay=self.config.weight_decay)

    def recipe(self) -> Recipe:
        return language_recipe(self.tokens_per_batch)

    def batches(self, seed: int) -> Iterator[torch.Tensor]:
        """Yield batches of shards in an order of this node's own, for ever."""
        rng = random.Random(seed)
        while True:
            shards = list(range(self.shards_per_epoch))
            rng.shuffle(shards)
            n_batches = 0
            for shard in shards:
                for batch in self.shard_batches(rng.getrandbits(32), shard, len(shards)):
                    n_batches += 1
                    yield batch
            if not n_batches:
                raise self._too_short()

    @property
    def shards_per_epoch(self) -> int:
        return self._documents.n_shards

    def shard_batches(self, epoch_seed: int, shard: int, n_shards: int) -> Iterator[torch.Tensor]:
        """Yield the windows of the shard's documents, shuffled among their neighbours."""
        rng = random.Random(f"{epoch_seed}/{shard}")
        windows = self._windows(self._documents.shard(shard, n_shards, self.config.held_out))
        size = self.config.batch
        while chunk := list(islice(windows, _SHUFFLED_BATCHES * size)):
            rng.shuffle(chunk)
            for begin in range(0, len(chunk), size):
                yield torch.tensor(chunk[begin : begin + size])

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return next_token_loss(model, batch)

    def evaluate(self, model: torch.nn.Module) -> float:
        device = next(model.parameters()).device
        probe, size = self._probe.to(device), self.config.batch
        sums = [
            float(self.loss(model, part)) * len(part)
            for part in (probe[begin : begin + size] for begin in range(0, len(probe), size))
        ]
        return sum(sums) / len(probe)

    def generate(
        self, model: torch.nn.Module, prompt: str, n: int, *, temperature: float, seed: int
    ) -> str:
        begun = self._tokenizer.encode(prompt) or [self._tokenizer.end]
        context = self.config.context
        written = write_on(model, begun, n, context=context, temperature=temperature, seed=seed)
        return self._tokenizer.decode(written)

    def data_hash(self) -> str:
        return self._documents.fingerprint(self._tokenizer.fingerprint)

    # --- data ----------------------------------------------------------------------------

    def _windows(self, texts: Iterator[str]) -> Iterator[list[int]]:
        """Cut documents, each with an end, into windows of context + 1 that share an end."""
        context = self.config.context
        tokens: list[int] = []
        for text in texts:
            tokens += self._tokenizer.encode(text)
            tokens.append(self._tokenizer.end)
            begin = 0
            while begin + context < len(tokens):
                yield tokens[begin : begin + context + 1]
                begin += context
            tokens = tokens[begin:]

    @cached_property
    def _documents(self) -> Documents:
        config = self.config
        return open_documents(
            self.data_dir,
            dataset=config.dataset,
            subset=config.subset,
            split=config.split,
            text_field=config.text_field,
        )

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return find_tokenizer(self.data_dir, self.config.vocabulary)

    @cached_property
    def _probe(self) -> torch.Tensor:
        """Windows of the documents that are held out: int64 [up to probe_windows, context + 1]."""
        held_out = self._documents.first(self.config.held_out)
        windows = list(islice(self._windows(held_out), self.config.probe_windows))
        if not windows:
            raise self._too_short()
        return torch.tensor(windows)

    def _too_short(self) -> DataError:
        return DataError(
            f"task llama-lm: expected documents of more than {self.config.context} tokens in all,"
            f" besides {self.config.held_out} that are held out; add text, or set held_out"
        )
