"""How near adapters come to training all of a model, at a tenth of the bytes.

``python -m tests.integrations.lora_loss [--seeds 3]``: a Llama learns the source code of Python's
library, byte by byte, and then Python's texts for ``help``: all of it, and adapters with various
targets and learning rates. Each line is JSON: the share of the parameters, and so of the bytes of
an exchange, and the loss on the last tenth of those texts. One process, no peers: what averaging
the factors of adapters costs besides is not in it. With another Python the texts are others.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from swarmnode.tasks.language import adamw, next_token_loss
from swarmnode.tasks.text import load_corpus, split

CONTEXT, BATCH = 64, 16
WARMUP_STEPS = 20
LR_FINAL = 0.01
PRETRAINING_LR = 3e-3
HELD_OUT_WINDOWS = 256
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Of each way, the learning rates to try; alpha is twice the rank, as `create --lora` has it.
WHOLE_LRS, ADAPTER_LRS = (3e-3, 1e-2), (1e-2, 3e-2)
TARGETS = {"all-linear": LINEAR, "and embeddings": [*LINEAR, "lm_head", "embed_tokens"]}


class Logits(torch.nn.Module):
    """A model of transformers, from tokens to logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits.float()


def tokens_of(text: bytes) -> torch.Tensor:
    return torch.tensor(list(text), dtype=torch.long)


def source_code() -> bytes:
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for each in ("*.py", "asyncio/*.py", "email/*.py")
             for path in sorted(library.glob(each))]  # fmt: skip
    return b"\n".join(path.read_bytes() for path in paths)


def batches(tokens: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        places = torch.randint(0, len(tokens) - CONTEXT - 1, (BATCH,), generator=generator)
        yield torch.stack([tokens[at : at + CONTEXT + 1] for at in places])


def held_out_loss(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    windows = tokens[: len(tokens) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    parts = windows[:HELD_OUT_WINDOWS].split(64)
    model.eval()
    with torch.no_grad():
        loss = sum(float(next_token_loss(model, part)) for part in parts) / len(parts)
    model.train()
    return loss


def train(model: torch.nn.Module, tokens: torch.Tensor, steps: int, lr: float, seed: int) -> None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = adamw(model, lr=lr, weight_decay=0.0)
    found = batches(tokens, seed)
    for step in range(steps):
        cosine = LR_FINAL + (1 - LR_FINAL) * (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (step + 1) / WARMUP_STEPS) * cosine
        optimizer.zero_grad()
        next_token_loss(model, next(found)).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()


def build(dim: int, layers: int, seed: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=dim,
        intermediate_size=int(dim * 2.5) // 16 * 16,
        num_hidden_layers=layers,
        max_position_embeddings=2 * CONTEXT,
        tie_word_embeddings=False,
        **heads,
        **ends,
    )
    return LlamaForCausalLM(config)


def adapted(model: torch.nn.Module, rank: int, targets: list[str], seed: int) -> torch.nn.Module:
    import peft

    torch.manual_seed(seed)
    settings = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM"
    )
    found: torch.nn.Module = peft.get_peft_model(model, settings)
    return found


def numel(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def measure(arguments: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """Yield how well each way does, from one pretrained model."""
    code, (texts, held_out) = source_code(), map(tokens_of, split(load_corpus("")))
    base = build(arguments.dim, arguments.layers, 1 + seed)
    known = tokens_of(code[: int(len(code) * 0.95)])
    train(Logits(base), known, arguments.pretrain, PRETRAINING_LR, 5 + seed)
    n_whole = numel(base)
    said = {"seed": seed, "parameters": n_whole}
    yield said | {"way": "before", "loss": round(held_out_loss(Logits(base), held_out), 4)}
    ways = [("whole", lr) for lr in WHOLE_LRS]
    ways += [(named, lr) for named in TARGETS for lr in ADAPTER_LRS]
    for way, lr in ways:
        model = copy.deepcopy(base)
        if way != "whole":
            model = adapted(model, arguments.rank, TARGETS[way], seed)
        share = numel(model) / n_whole
        train(Logits(model), texts, arguments.steps, lr, 7 + seed)
        loss = held_out_loss(Logits(model), held_out)
        yield said | {"way": way, "lr": lr, "share": round(share, 4), "loss": round(loss, 4)}


def main() -> None:
    """Print what was measured, a line for each."""
    parser = argparse.ArgumentParser(description="adapters beside a whole model")
    for option, default in (
        ("--seeds", 3), ("--dim", 64), ("--layers", 2), ("--rank", 4), ("--pretrain", 1200),
        ("--steps", 300),
    ):  # fmt: skip
        parser.add_argument(option, type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(arguments.seeds):
        for found in measure(arguments, seed):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
