"""``bytes-lm``: a small GPT that learns to write, byte by byte. Needs no download.

The defaults suit a volunteer's CPU: a step of about 12 ms on one core, and batches small
enough that the noise of the gradient, which averaging with peers removes, is what limits
the loss. The GPT has pre-norm blocks, learnt positions and tied embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType
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
from swarmnode.tasks.deal import deal, shard_count
from swarmnode.tasks.language import (
    language_recipe,
    muon,
    next_token_loss,
    part_of_probe,
    unigram_entropy,
    write_on,
)
from swarmnode.tasks.text import corpus_hash, load_corpus, split

BYTE_VALUES = 256
# The usual 1.0 of torch with tied weights starts at 80 nats a byte; 0.02 starts at ln 256.
EMBEDDING_STD = 0.02


class Block(nn.Module):
    """Causal attention, then an MLP, each on a normalised residual stream."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.project = nn.Linear(dim, dim, bias=False)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x: float32 [batch, time, dim] to the same shape."""
        batch, time, dim = x.shape
        heads = self.query_key_value(self.norm_attention(x)).view(batch, time, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, time, dim))
        refined: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return refined


class ByteGPT(nn.Module):
    """Predict the next byte; ``context`` is the longest input."""

    def __init__(self, *, dim: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.bytes_in = nn.Embedding(BYTE_VALUES, dim)
        self.positions = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.bytes_out = nn.Linear(dim, BYTE_VALUES, bias=False)
        self.bytes_out.weight = self.bytes_in.weight
        for embedding in (self.bytes_in, self.positions):
            nn.init.normal_(embedding.weight, std=EMBEDDING_STD)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens: int64 [batch, time] to logits: float [batch, time, 256]."""
        positions = self.positions.weight[: tokens.shape[1]]
        x = self.bytes_in(tokens) + positions
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.bytes_out(self.norm(x))
        return logits


class BytesLM(Task):
    """Next-byte prediction; batches are int64 [batch, context + 1]."""

    name = "bytes-lm"
    version = 1
    compiles = True
    # Four nodes, 400 steps: nearly the loss of 8 (0.00 to 0.08 more) for half of the traffic.
    exchange_every_steps = 16
    # Four nodes, 1,200 steps in a loop without the rest of a node, on Python's modules, where one
    # alone comes to 1.792, data parallelism to 1.534, and one seed is good to .01. Rounds of 13 in
    # Q2B64, halves of the model in turn, come to 1.613 where the codec's error is lost, and to
    # 1.603 where it stays in the fast weights; rounds of 10 to 1.597, and of 8 in T3B320, for the
    # same bytes, to 1.589, of the whole model to 1.590, which is half as many rounds. Momentum .5
    # or .7 with as long a step in all, or half more or less learning rate, is .002 to .015 worse.
    # Rounds that grow spend the bytes where most is learnt. Docstrings, one alone 1.853, data
    # parallelism 1.654: 11 steps all along 1.706 at 1/114 of its bytes, 8 and growing from the 65th
    # mean on 1.701 at 1/104, 6 from the 45th on 1.699 at 1/111. Over 4,800 steps (1.640, 1.575): 22
    # all along 1.588 at 1/228, 11 from the 80th on 1.581 at 1/231. On a large text no difference
    # was seen, in one run each. Perl's modules, the task's own size: 11 steps all along 1.872, 6
    # from the 45th mean on 1.877; over 4,800 steps of real nodes 10 from the 80th on 1.745, 6 from
    # the 45th on 1.743, where from other first weights one alone comes to 1.794 and data
    # parallelism to 1.688. On the average a node sees what others learn after half a round and the
    # time that a mean takes, and each step of that costs as much wherever it comes from: .009 in
    # 600 steps of four nodes on Perl's modules, in virtual time, a 25th of the gain. So the first
    # rounds are about as short as an 80th of the bytes allows in 1,200 steps of eight nodes. Half
    # of the members call the others, which shortens them: where workers share cores by a step.
    group_settings = MappingProxyType(
        {
            "every": 7,
            "lengthen": 49,
            "fragments": 1,
            "momentum": 0.6,
            "beta": 0.8,
            "delta_codec": "T3B320",
        }
    )
    # Four nodes, 4,800 steps in such a loop on docstrings, where one alone comes to 1.640 and data
    # parallelism to 1.575, at a thousandth of its bytes: 64 of 4,096 every 18 steps and half of the
    # rest put back, 1.621; with all of it left in the own model, and momentum, 1.609; 300 of 4,096
    # every 45 steps so 1.591, 800 every 100 1.612.
    gather_settings = MappingProxyType(
        {"every": 50, "kept": 256, "lr": 0.8, "momentum": 0.6, "decay": 1.0, "own_share": 1.0}
    )

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """The GPT, its batches and its learning rate."""

        dim: PositiveInt = 64
        layers: PositiveInt = 2
        heads: PositiveInt = 4
        context: PositiveInt = 64
        batch: PositiveInt = 16
        lr: PositiveFloat = 0.02
        probe_windows: PositiveInt = 32

    config: Config

    def __init__(self, config: dict[str, Any], *, data_dir: str = "") -> None:
        super().__init__(config, data_dir=data_dir)
        if self.config.dim % self.config.heads:
            raise ConfigError(
                f"task bytes-lm: dim must be a multiple of heads, "
                f"got dim {self.config.dim} and heads {self.config.heads}"
            )

    @property
    def tokens_per_batch(self) -> int:
        return self.config.batch * self.config.context

    def build_model(self, seed: int) -> ByteGPT:
        del seed  # torch's generator has it
        config = self.config
        return ByteGPT(
            dim=config.dim, layers=config.layers, heads=config.heads, context=config.context
        )

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return muon(model, lr=self.config.lr, weight_decay=0.01)

    def recipe(self) -> Recipe:
        return language_recipe(self.tokens_per_batch)

    def batches(self, seed: int) -> Iterator[torch.Tensor]:
        text = self._text[0]
        generator = torch.Generator().manual_seed(seed)
        window = torch.arange(self.config.context + 1)
        starts_end = len(text) - self.config.context
        while True:
            starts = torch.randint(starts_end, (self.config.batch, 1), generator=generator)
            yield text[starts + window].long()

    @property
    def shards_per_epoch(self) -> int:
        n_windows = (len(self._text[0]) - 1) // self.config.context
        return shard_count(n_windows, self.config.batch, self.batches_per_shard)

    def shard_batches(self, epoch_seed: int, shard: int, n_shards: int) -> Iterator[torch.Tensor]:
        """Yield windows side by side, each once an epoch; each epoch cuts elsewhere."""
        context = self.config.context
        text = self._text[0]
        offset = epoch_seed % context
        n_windows = (len(text) - 1 - offset) // context
        dealt = deal(
            n_windows, self.config.batch, epoch_seed=epoch_seed, shard=shard, n_shards=n_shards
        )
        window = torch.arange(context + 1)
        for indices in dealt:
            starts = torch.from_numpy(offset + indices * context)
            yield text[starts[:, None] + window].long()

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return next_token_loss(model, batch)

    def evaluate(self, model: torch.nn.Module) -> float:
        device = next(model.parameters()).device
        return float(self.loss(model, self._probe.to(device)))

    def public_probe(self) -> torch.Tensor:
        return part_of_probe(self._probe)

    def trivial_loss(self) -> float:
        return unigram_entropy(self._probe)

    def generate(
        self, model: torch.nn.Module, prompt: str, n: int, *, temperature: float, seed: int
    ) -> str:
        begun = list(prompt.encode() or b"\n")
        context = self.config.context
        written = write_on(model, begun, n, context=context, temperature=temperature, seed=seed)
        return bytes(written).decode(errors="replace")

    def data_hash(self) -> str:
        return corpus_hash(self._corpus)

    @cached_property
    def _corpus(self) -> bytes:
        return load_corpus(self.data_dir)

    @cached_property
    def _text(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(training, held-out) as uint8 [n_bytes]. Raises DataError if one is too short."""
        needed = self.config.context + 1
        parts = split(self._corpus)
        for part in parts:
            if len(part) <= needed:
                raise DataError(
                    f"task bytes-lm: expected more than {needed} bytes to train on and as many "
                    f"held out, got {len(self._corpus)} bytes of text in all; add text"
                )
        train, held_out = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)
        return train, held_out

    @cached_property
    def _probe(self) -> torch.Tensor:
        """Windows spread evenly over the held-out text: int64 [probe_windows, context + 1]."""
        held_out = self._text[1]
        starts = torch.linspace(
            0, len(held_out) - self.config.context - 1, self.config.probe_windows
        ).long()
        return held_out[starts[:, None] + torch.arange(self.config.context + 1)].long()
