"""How near adapters come to training all of a model, at a tenth of the bytes.

``python -m tests.integrations.lora_loss [--seeds 3] [--task little|near|far] [--text PACKAGE...]``:
a Llama learns the source code of Python's library, byte by byte, and goes on with texts that it has
not seen: all of it, and adapters for it, at the same tokens.

near: it goes on with 64 KiB of another package's source code, as people tune a model on little text
of a kind that it knows. Both ways stop where the loss on a validation part is best, which is on
neither side of what they are compared by. Rates are from ``--text email --tune --seeds 1``: whole
1.4106, 1.4215 and 1.4553, adapters 1.4377, 1.4396 and 1.4446, the lowest rate the best of both, and
no lower one was tried. Adapters are 1.9 % worse there. Seeds are of batches and adapters: all of
them go on from one model.

little: a larger model that was trained for longer goes on with 16 KiB, of the same files that it is
compared by. Rates are from ``--text email --tune --seeds 1``: whole 1.4942, 1.4449, 1.3968, 1.3621
and 1.3582, the highest rate the best, adapters 1.4727, 1.4249, 1.3944, 1.3875 and 1.3943, where
without either it is 1.6218. So adapters are 2.2 % worse there. Of another first training, with 400
steps in place of 160, at half of these rates, it is 1.3709 and 1.3962; then lm_head among the
targets makes 1.4145 of the latter, embeddings too 1.4270, eight times the rate for B (S. Hayou et
al., "LoRA+", 2024) 1.3988, magnitudes apart (S.-Y. Liu et al., "DoRA", 2024) 1.4023, and the first
singular vectors as a beginning (F. Meng et al., "PiSSA", 2024) 1.4053: one seed each, by programs
that are not here. Neither more steps, twice the rank nor singular vectors of the first gradient as
a beginning bring them nearer: of another first training, on another machine, 1.3415 with all of the
model, 1.3725 with adapters; 320 steps 1.3417 (8e-4) and 1.3810, 640 steps 1.3648 (8e-4) and 1.3872
(4e-3), rank 26 1.3689, those vectors 1.3715 to 1.3736; one seed each. On texts that no rate is
from, three seeds each, adapters are worse by 1.5 % (asyncio, standard error .1), .4 % (http, .02;
all of the model gains but 2 % there) and 1.4 % (xml, .5). Above the highest rate all of the model
is worse: 1.3833 at 3.2e-3 where it is 1.3415 at 1.6e-3.

far: it goes on with Python's texts for ``help``, prose of which it knows little, for as long as
its first training was: that is more like a second pretraining. Each seed has a model of its own.

Each line is JSON: the share of the parameters, and so of the bytes of an exchange, the loss on
held-out text, and how much better it is than before, without which being near says little; at the
end of a text, the mean over seeds of how much worse a way is, and its standard error. One process,
no peers: what averaging the factors of adapters costs besides is not in it. With another Python the
texts are others.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from swarmnode.tasks.hub_lm import Logits
from swarmnode.tasks.language import adamw, next_token_loss
from swarmnode.tasks.text import load_corpus, split

CONTEXT, BATCH = 64, 16
WARMUP_STEPS = 20
LR_FINAL = 0.01
PRETRAINING_LR = 3e-3
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Ways:
    """A task: the model, what it learns, and the ways that are compared, with learning rates.

    ``stop_every``: so many steps apart the validation part is looked at; 0: the last step counts.
    ``batch``: of what is compared; the first training's is BATCH. ``kib``: of a package for
    training, validation and comparison, of which each of ``blocks`` parts of it has its share.
    ``tuned_*``: what --tune tries.
    """

    dim: int
    layers: int
    rank: int
    pretrain_steps: int
    steps: int
    batch: int
    stop_every: int
    whole_lrs: tuple[float, ...]
    adapter_lrs: tuple[float, ...]
    targets: dict[str, list[str]]
    tuned_whole_lrs: tuple[float, ...] = (2e-4, 4e-4, 1e-3)
    tuned_adapter_lrs: tuple[float, ...] = (2e-3, 4e-3, 1e-2)
    kib: tuple[int, int, int] = (64, 24, 48)
    blocks: int = 1


TASKS = {
    "little": Ways(
        192, 2, 13, 3000, 160, 8, 20, (1.6e-3,), (8e-3,), {"all-linear": LINEAR},
        (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3), (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2), (16, 8, 32), 8,
    ),
    "near": Ways(128, 2, 9, 2000, 600, BATCH, 20, (2e-4,), (2e-3,), {"all-linear": LINEAR}),
    "far": Ways(
        64, 2, 4, 1200, 300, BATCH, 0, (3e-3, 1e-2), (1e-2, 3e-2),
        {"all-linear": LINEAR, "and embeddings": [*LINEAR, "lm_head", "embed_tokens"]},
    ),
}  # fmt: skip
REPORTED = ["asyncio", "http", "xml"]  # none of them the one that rates are from
KIB = 1024
# Of the library: what is gone on with, and what is no source code written by hand.
LEFT_OUT = frozenset(
    {"site-packages", "test", "email", "asyncio", "idlelib", "http", "logging", "multiprocessing"}
    | {"xml", "pydoc_data", "distutils", "encodings", "lib2to3"}
)
# Of the far task, which is as it was when its figures were taken.
FAR_CODE, FAR_HELD_OUT_WINDOWS = ("*.py", "asyncio/*.py", "email/*.py"), 256


class Texts(NamedTuple):
    """What is trained on after the first training, watched, and compared by."""

    train: torch.Tensor
    validate: torch.Tensor
    held_out: torch.Tensor


def tokens_of(text: bytes) -> torch.Tensor:
    return torch.tensor(list(text), dtype=torch.long)


def source_code(task: str) -> bytes:
    """Return what a model is trained on first."""
    library = Path(sysconfig.get_path("stdlib"))
    if task == "far":
        text = joined(path for each in FAR_CODE for path in sorted(library.glob(each)))
        return text[: int(len(text) * 0.95)]
    paths = sorted(library.rglob("*.py"))
    return joined(path for path in paths if path.relative_to(library).parts[0] not in LEFT_OUT)


def joined(paths: Iterable[Path]) -> bytes:
    return b"\n".join(path.read_bytes() for path in paths)


def texts_of(task: str, ways: Ways, package: str) -> Texts:
    if task == "far":
        train, held_out = map(tokens_of, split(load_corpus("")))
        held_out = held_out[: FAR_HELD_OUT_WINDOWS * (CONTEXT + 1)]
        return Texts(train, held_out, held_out)
    folder = Path(sysconfig.get_path("stdlib"), package)
    tokens = tokens_of(joined(sorted(folder.rglob("*.py"))))
    n_wanted = sum(ways.kib) * KIB
    assert len(tokens) >= n_wanted, f"{package}: expected {n_wanted} bytes, it has {len(tokens)}"
    blocks = tokens[:n_wanted].view(ways.blocks, -1)
    shares = blocks.split([each * KIB // ways.blocks for each in ways.kib], dim=1)
    return Texts(*(share.flatten() for share in shares))


def batches(tokens: torch.Tensor, batch: int, seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        places = torch.randint(0, len(tokens) - CONTEXT - 1, (batch,), generator=generator)
        yield torch.stack([tokens[at : at + CONTEXT + 1] for at in places])


def held_out_loss(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    windows = tokens[: len(tokens) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    parts = windows.split(64)
    model.eval()
    with torch.no_grad():
        loss = sum(float(next_token_loss(model, part)) for part in parts) / len(parts)
    model.train()
    return loss


def train(
    model: torch.nn.Module, tokens: torch.Tensor, batch: int, steps: int, lr: float, seed: int
) -> Iterator[int]:
    """Train; yield after each step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = adamw(model, lr=lr, weight_decay=0.0)
    found = batches(tokens, batch, seed)
    for step in range(steps):
        cosine = LR_FINAL + (1 - LR_FINAL) * (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (step + 1) / WARMUP_STEPS) * cosine
        optimizer.zero_grad()
        next_token_loss(model, next(found)).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        yield step + 1


def best(
    model: torch.nn.Module, texts: Texts, ways: Ways, lr: float, seed: int
) -> tuple[float, int]:
    """Train; return the loss on held-out text, and after how many steps it was so."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    least, stopped, kept = math.inf, 0, [parameter.detach() for parameter in trained]
    for step in train(model, texts.train, ways.batch, ways.steps, lr, seed):
        if step == ways.steps or (ways.stop_every and step % ways.stop_every == 0):
            validated = held_out_loss(model, texts.validate) if ways.stop_every else 0.0
            if validated < least:
                least, stopped = validated, step
                kept = [parameter.detach().clone() for parameter in trained]
    with torch.no_grad():
        for parameter, value in zip(trained, kept, strict=True):
            parameter.copy_(value)
    return held_out_loss(model, texts.held_out), stopped


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


def pretrained(task: str, ways: Ways, seed: int) -> torch.nn.Module:
    """Return the model that each way goes on from."""
    base = build(ways.dim, ways.layers, 1 + seed)
    code, steps = tokens_of(source_code(task)), ways.pretrain_steps
    for _ in train(Logits(base), code, BATCH, steps, PRETRAINING_LR, 5 + seed):
        pass
    return base


def measure(base: torch.nn.Module, ways: Ways, texts: Texts, seed: int) -> Iterator[dict[str, Any]]:
    """Yield how well each way does."""
    n_whole = numel(base)
    said = {"seed": seed, "parameters": n_whole}
    before = held_out_loss(Logits(base), texts.held_out)
    yield said | {"way": "before", "loss": round(before, 4)}
    tried = [("whole", lr) for lr in ways.whole_lrs]
    tried += [(named, lr) for named in ways.targets for lr in ways.adapter_lrs]
    whole = math.inf
    for way, lr in tried:
        model = copy.deepcopy(base)
        if way != "whole":
            model = adapted(model, ways.rank, ways.targets[way], seed)
        share = numel(model) / n_whole
        loss, step = best(Logits(model), texts, ways, lr, 7 + seed)
        whole = min(whole, loss) if way == "whole" else whole
        about = {"way": way, "lr": lr, "share": round(share, 4), "step": step}
        compared = {"loss": round(loss, 4), "worse": round(loss / whole - 1, 4)}
        gained = {"better_than_before": round(1 - loss / before, 4)}
        gained["gain"] = round((before - loss) / (before - whole), 3)
        yield said | about | compared | gained


def means(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the mean over seeds, and its standard error, of how much worse each way is."""
    for way, lr in dict.fromkeys((line["way"], line["lr"]) for line in lines if "lr" in line):
        worse = [line["worse"] for line in lines if (line["way"], line.get("lr")) == (way, lr)]
        error = statistics.stdev(worse) / math.sqrt(len(worse)) if len(worse) > 1 else None
        said = {"worse": round(statistics.mean(worse), 4), "seeds": len(worse)}
        yield {"mean_of": way, "lr": lr} | said | {"standard_error": error and round(error, 4)}


def main() -> None:
    """Print what was measured, a line for each."""
    parser = argparse.ArgumentParser(description="adapters beside a whole model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, default="near")
    parser.add_argument(
        "--text", nargs="+", default=REPORTED, help="packages to go on with, one by one; not far"
    )
    parser.add_argument("--tune", action="store_true", help="try more learning rates")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task, ways = arguments.task, TASKS[arguments.task]
    if arguments.tune:
        ways = replace(ways, whole_lrs=ways.tuned_whole_lrs, adapter_lrs=ways.tuned_adapter_lrs)
    bases = cache(partial(pretrained, task, ways))
    for package in arguments.text if task != "far" else [""]:
        said, lines = {"task": task, "text": package}, []
        for seed in range(arguments.seeds):
            base = bases(seed if task == "far" else 0)
            for line in measure(base, ways, texts_of(task, ways, package), seed):
                lines.append(line)
                print(json.dumps(said | line), flush=True)
        for line in means(lines):
            print(json.dumps(said | line), flush=True)


if __name__ == "__main__":
    main()
