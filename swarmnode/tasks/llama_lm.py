"""``llama-lm``: a Llama over tokens, of a folder of this node or a data set of Hugging Face's hub.

The model is small: RMS norms, rotary positions, gated MLPs, no biases, tied embeddings.

Where the data has a ``tokenizer.json`` beside it, texts are tokens of that; else they are bytes.
All nodes of a swarm must have the same one: its hash is part of that of the data.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import PositiveFloat, PositiveInt
from swarmnode.tasks.hub_files import NEEDS, save_model
from swarmnode.tasks.token_lm import DocumentsConfig, TokensTask
from swarmnode.tasks.tokens import BYTES, TOKENIZER_FILE, Bytes, Tokenizer, find_tokenizer

_EMBEDDING_STD = 0.02
_ROTARY_BASE = 10_000.0
_NORM_EPS = 1e-5
# What each weight of a block is in LlamaForCausalLM, in parts of one length.
_PARTS_OF_A_BLOCK = {
    "norm_attention.weight": ("input_layernorm.weight",),
    "query_key_value.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "project.weight": ("self_attn.o_proj.weight",),
    "norm_mlp.weight": ("post_attention_layernorm.weight",),
    "gate_and_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down.weight": ("mlp.down_proj.weight",),
}


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


def hub_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of a ``Llama`` as LlamaForCausalLM has them, but for the tied output."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        _, _, rest = name.partition("blocks.")
        number, _, part = rest.partition(".")
        parts = _PARTS_OF_A_BLOCK.get(part, ())
        for theirs, piece in zip(parts, tensor.chunk(len(parts) or 1), strict=False):
            found[f"model.layers.{number}.{theirs}"] = piece
    found["model.embed_tokens.weight"] = tensors["tokens_in.weight"]
    found["model.norm.weight"] = tensors["norm.weight"]
    return found


class LlamaLM(TokensTask):
    """Next-token prediction by a Llama of our own."""

    name = "llama-lm"
    version = 1
    compiles = True

    class Config(DocumentsConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """The model, its batches and its learning rate."""

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

    def save_pretrained(self, model: torch.nn.Module, folder: str, *, adapter: bool) -> None:
        if adapter:
            raise ConfigError("task llama-lm: all of the model was trained: there is no adapter")
        try:
            import transformers
        except ImportError as error:
            raise ConfigError(f"--format: {NEEDS.format('the library transformers')}") from error
        config, end = self.config, self.tokenizer.end
        if isinstance(self.tokenizer, Bytes) and config.vocabulary != BYTES:
            raise ConfigError(
                f"task llama-lm: the model has {config.vocabulary} tokens, and the folder of its"
                f" data, which has their {TOKENIZER_FILE}, is not known here: export it where"
                " `swarmnode join` got it by --data"
            )
        settings = transformers.LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.dim,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            head_dim=config.head_dim,
            intermediate_size=config.hidden,
            max_position_embeddings=config.context,
            rms_norm_eps=_NORM_EPS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
        )
        theirs = transformers.LlamaForCausalLM(settings)
        found = theirs.load_state_dict(hub_names(model.state_dict()), strict=False)
        assert found.missing_keys == ["lm_head.weight"], found  # tied, so it is there
        assert not found.unexpected_keys, found
        save_model(theirs, folder)
        self.tokenizer.save(Path(folder))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Bytes, or what lies beside the data."""
        return find_tokenizer(self.data_dir, self.config.vocabulary)
