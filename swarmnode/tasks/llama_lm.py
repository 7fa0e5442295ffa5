"""``llama-lm``: a Llama over tokens, of a folder of this node or a data set of Hugging Face's hub.

The model is small: RMS norms, rotary positions, gated MLPs, no biases, tied embeddings.

Where the data has a ``tokenizer.json`` beside it, texts are tokens of that; else they are bytes.
All nodes of a swarm must have the same one: its hash is part of that of the data.

Documents are streamed, never held in memory whole. An epoch deals them out: shard s takes every
n-th document (``tasks/documents.py``), cut into windows side by side, a last short one left out.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import (
    DataError,
    PositiveFloat,
    PositiveInt,
    Recipe,
    Task,
    TaskConfig,
)
from swarmnode.tasks.documents import Documents, conversation, open_documents
from swarmnode.tasks.language import (
    adamw,
    language_recipe,
    next_token_loss,
    part_of_probe,
    unigram_entropy,
    write_on,
)
from swarmnode.tasks.tokens import Tokenizer, find_tokenizer

_EMBEDDING_STD = 0.02
_ROTARY_BASE = 10_000.0
_NORM_EPS = 1e-5

# So many batches of windows are shuffled together: neighbours are often of one document.
_SHUFFLED_BATCHES = 16


class LlamaBlock(nn.Module):
    """Causal attention, then a gated MLP, each on a normalised residual stream."""

    def __init__(self, dim: int, heads: int, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.RMSNorm(dim, eps=_NORM_EPS)
        self.query_key_value = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.project = nn.Linear(heads * head_dim, dim, bias=False)
        self.norm_mlp = nn.RMSNorm(dim, eps=_NORM_EPS)
        self.gate_and_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Map x: float [batch, time, dim] to the same shape; ``turn``: [2, time, head_dim]."""
        batch, time, _ = x.shape
        heads = self.query_key_value(self.norm_attention(x)).view(batch, time, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # [batch, heads, time, head_dim]
        mixed = functional.scaled_dot_product_attention(
            rotate(query, turn), rotate(key, turn), value, is_causal=True
        )
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, time, -1))
        gate, up = self.gate_and_up(self.norm_mlp(x)).chunk(2, dim=-1)
        refined: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return refined


class Llama(nn.Module):
    """Predict the next of ``vocabulary`` tokens."""

    def __init__(
        self, *, vocabulary: int, dim: int, layers: int, heads: int, head_dim: int, hidden: int
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.tokens_in = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(LlamaBlock(dim, heads, head_dim, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=_NORM_EPS)
        self.tokens_out = nn.Linear(dim, vocabulary, bias=False)
        self.tokens_out.weight = self.tokens_in.weight
        nn.init.normal_(self.tokens_in.weight, std=_EMBEDDING_STD)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens: int64 [batch, time] to logits: float [batch, time, vocabulary]."""
        turn = rotary_turn(tokens.shape[1], self.head_dim, tokens.device)
        x = self.tokens_in(tokens)
        for block in self.blocks:
            x = block(x, turn)
        logits: torch.Tensor = self.tokens_out(self.norm(x))
        return logits


def rotary_turn(time: int, head_dim: int, device: torch.device) -> torch.Tensor:
    """Return cosines and sines of the positions: float32 [2, time, head_dim]."""
    half = torch.arange(0, head_dim, 2, device=device) / head_dim
    angles = torch.outer(torch.arange(time, device=device), _ROTARY_BASE**-half)
    both = torch.cat((angles, angles), dim=-1)  # [time, head_dim]
    return torch.stack((both.cos(), both.sin()))


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + head_dim / 2) of x: [..., time, head_dim] by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = turn.to(x.dtype)
    turned: torch.Tensor = x * cos + torch.cat((-second, first), dim=-1) * sin
    return turned


class TokensTask(Task):
    """Next-token prediction on documents; batches are int64 [batch, context + 1].

    Its settings name ``context`` and ``batch``, ``lr`` and ``weight_decay``, and the data as those
    of ``LlamaLM`` do.
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
            f" all, besides {self.config.held_out} that are held out; add text, or set held_out"
        )


class LlamaLM(TokensTask):
    """Next-token prediction by a Llama of our own."""

    name = "llama-lm"
    version = 1

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

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Bytes, or what lies beside the data."""
        return find_tokenizer(self.data_dir, self.config.vocabulary)
