"""What tasks share that predict the next token of documents.

Documents are streamed, never held in memory whole. An epoch deals them out: shard s takes every
n-th document (``tasks/documents.py``), cut into windows side by side, a last short one left out.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

import torch

from swarmnode.tasks.base import DataError, PositiveInt, Recipe, Task, TaskConfig
from swarmnode.tasks.documents import DataSetName, Documents, conversation, open_documents
from swarmnode.tasks.language import (
    adamw,
    language_recipe,
    next_token_loss,
    part_of_probe,
    unigram_entropy,
    write_on,
)
from swarmnode.tasks.tokens import Tokenizer

# So many batches of windows are shuffled together: neighbours are often of one document.
_SHUFFLED_BATCHES = 16


class DocumentsConfig(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where documents are.

    ``dataset``, ``subset``, ``split``: a data set of the Hugging Face hub, streamed, by its name
    and commit, which `create` fills in; empty: `--data`, or the texts that come with Python.
    ``text_field``: where a record has its text. ``held_out``: so many documents from the beginning
    are the probe, and not trained on.
    """

    dataset: DataSetName = ""
    subset: str = ""
    split: str = "train"
    text_field: str = "text"
    held_out: PositiveInt = 16
    probe_windows: PositiveInt = 32


class TokensTask(Task):
    """Next-token prediction on documents; batches are int64 [batch, context + 1].

    Its settings are a :class:`DocumentsConfig` that names ``context`` and ``batch``, ``lr`` and
    ``weight_decay`` as well.
    """

    exchange_every_steps = 32

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of texts."""

    def render(self, messages: list[dict[str, str]]) -> str:
        """Return a conversation as one text; see ``tasks/documents.py``."""
        return conversation(messages)

    @property
    def tokens_per_batch(self) -> int:
        return int(self.config.batch * self.config.context)

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

    def public_probe(self) -> torch.Tensor:
        return part_of_probe(self._probe)

    def trivial_loss(self) -> float:
        return unigram_entropy(self._probe)

    def generate(
        self, model: torch.nn.Module, prompt: str, n: int, *, temperature: float, seed: int
    ) -> str:
        begun = self.tokenizer.encode(prompt) or [self.tokenizer.end]
        context = self.config.context
        written = write_on(model, begun, n, context=context, temperature=temperature, seed=seed)
        return self.tokenizer.decode(written)

    def data_hash(self) -> str:
        return self._documents.fingerprint(self.tokenizer.fingerprint)

    # --- data ----------------------------------------------------------------------------

    def _windows(self, texts: Iterator[str]) -> Iterator[list[int]]:
        """Cut documents, each with an end, into windows of context + 1 that share an end."""
        context = self.config.context
        tokens: list[int] = []
        for text in texts:
            tokens += self.tokenizer.encode(text)
            tokens.append(self.tokenizer.end)
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
            render=self.render,
        )

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
            f"task {self.name}: expected documents of more than {self.config.context} tokens in"
            f" all, besides {self.config.held_out} that are held out; a text file is one"
            " document: add some, or set held_out"
        )
