"""What tasks that learn to write have in common, whatever their tokens are."""

from __future__ import annotations

import torch
from torch.nn import functional

from swarmnode.ipc.lr_schedule import MEMBERS_EXPONENT, MEMBERS_MAX
from swarmnode.tasks.muon import Muon
from swarmnode.wire.recipe import Recipe

# Batches, by which AdamW knows the size of gradients; a short training has less, see `create`.
_WARMUP_BATCHES = 100
_LR_FINAL = 0.01
_CLIP_NORM = 1.0
_EMA_SHARE = 0.05
# Predictions of the public probe. It is evaluated twice an exchange: as many again would cost as
# much as they add, and 100 is what rules need that no attacker can fit (docs/threat-model.md).
_PROBE_PREDICTIONS = 256


def next_token_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of each token after those before it.

    Args:
        batch: int64 [batch, context + 1].
    """
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def part_of_probe(windows: torch.Tensor) -> torch.Tensor:
    """Return some of the windows that are held out, evenly spread: int64 [n, context + 1]."""
    wanted = max(2, -(-_PROBE_PREDICTIONS // (windows.shape[1] - 1)))
    chosen = torch.linspace(0, len(windows) - 1, min(wanted, len(windows))).long()
    return windows[chosen]


def unigram_entropy(windows: torch.Tensor) -> float:
    """Return the loss, in nats, of a model that knows how often each token comes, and no more."""
    counts = torch.unique(windows[:, 1:], return_counts=True)[1].double()
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())


def adamw(model: torch.nn.Module, *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return the optimizer of small language models, fused where the device can."""
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=lr,
        betas=(0.9, 0.95),
        weight_decay=weight_decay,
        fused=next(model.parameters()).device.type in ("cpu", "cuda"),
    )


def muon(model: torch.nn.Module, *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return Muon for the weights of linear layers, AdamW for embeddings, norms and biases.

    An output layer that shares its weight with an embedding counts as that.
    """
    embedded = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    hidden = [
        module.weight
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and id(module.weight) not in embedded
    ]
    is_hidden = {id(weight) for weight in hidden}
    others = [p for p in model.parameters() if id(p) not in is_hidden]
    return Muon(hidden, others, lr=lr, weight_decay=weight_decay)


def language_recipe(tokens_per_batch: int) -> Recipe:
    """Return what is right for small language models.

    Measured on bytes-lm over 1,200 steps, see ``ipc/lr_schedule.py``. The cosine ends near zero:
    after the last mean each member goes its own way for the rest of a round, and at a twentieth of
    the learning rate under Muon that way cost its model half a percent against the mean.

    Where there is no end the learning rate never falls, and much of what a model lacks is noise of
    its last steps: after 1,500 of them one node alone comes to 1.40, and the mean of its weights
    over the last twentieth to 1.30 to 1.32; four nodes to 1.28, and to 1.20 and 1.22 (runs of
    `swarmnode demo`). A swarm with an end needs none, and saves the memory.
    """
    return Recipe(
        schedule="cosine",
        warmup_tokens=_WARMUP_BATCHES * tokens_per_batch,
        lr_final=_LR_FINAL,
        members_exponent=MEMBERS_EXPONENT,
        members_max=MEMBERS_MAX,
        clip_norm=_CLIP_NORM,
        ema_share=_EMA_SHARE,
    )


def write_on(
    model: torch.nn.Module,
    written: list[int],
    n: int,
    *,
    context: int,
    temperature: float,
    seed: int,
) -> list[int]:
    """Return ``written``, which is not empty, and ``n`` tokens that the model adds to it.

    Each follows from the last ``context``; temperature 0 takes the likeliest.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    written = list(written)
    for _ in range(n):
        tokens = torch.tensor([written[-context:]], device=device)
        logits = model(tokens)[0, -1].float().cpu()
        if temperature > 0:
            weights = torch.softmax(logits / temperature, dim=0)
            written.append(int(torch.multinomial(weights, 1, generator=generator)))
        else:
            written.append(int(logits.argmax()))
    return written
