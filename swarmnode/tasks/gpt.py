"""A small GPT over bytes: pre-norm blocks, learnt positions, tied embeddings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

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
