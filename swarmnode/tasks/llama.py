"""A small Llama: RMS norms, rotary positions, gated MLPs, no biases, tied embeddings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_EMBEDDING_STD = 0.02
_ROTARY_BASE = 10_000.0
_NORM_EPS = 1e-5


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
