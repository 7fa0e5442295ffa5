"""Programs that train with a Trainer and take part in a swarm: ``hf|lightning create|train ...``.

They are processes of their own, as a user's would be: each prints one JSON object. A program trains
until it has exchanged, and then until the other one has too.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from typing import Any

import torch

from swarmnode.integrations.swarm import create_swarm
from tests.integrations.kit import SETTINGS, at

STEPS_MAX = 4000
STEPS_MIN = 120
EXCHANGES_MIN = 3
LOOK_EVERY_STEPS = 20
VOCABULARY, CONTEXT, BATCH = 32, 16, 8
STEP_S = 0.01  # a real model's step is longer, and messages have the time of some


def tokens(seed: int, n: int = 2000) -> torch.Tensor:
    """Return sequences that count up: int64 [n, CONTEXT]."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(VOCABULARY, (n, 1), generator=generator)
    return (starts + torch.arange(CONTEXT)) % VOCABULARY


class Until:
    """Whether this program has exchanged enough, and whether the other one has."""

    def __init__(self, own: Path, other: Path) -> None:
        self.own, self.other = own, other
        self.status: dict[str, Any] = {}
        self.losses: list[float] = []

    def note(self, node: Any, loss: float) -> bool:
        """Take a step into account; return whether to end."""
        self.losses.append(loss)
        select.select([], [], [], STEP_S)
        if len(self.losses) % LOOK_EVERY_STEPS == 0:
            self.status = node.status()
            enough = (
                self.status["exchanges_committed"] >= EXCHANGES_MIN
                and self.status["eval_loss"] is not None  # heartbeats come once a second
            )
            if enough and len(self.losses) >= STEPS_MIN:
                self.own.touch()
        return self.own.exists() and self.other.exists()

    def report(self) -> dict[str, Any]:
        first, last = self.losses[:10], self.losses[-10:]
        return {
            "peer": self.status["peer"],
            "exchanges": self.status["exchanges_committed"],
            "tokens_per_step": self.status["tokens"] / self.status["step"],
            "status_loss": self.status["loss"],
            "eval_loss": self.status["eval_loss"],
            "steps": len(self.losses),
            "first": sum(first) / len(first),
            "last": sum(last) / len(last),
        }


# --- transformers -------------------------------------------------------------------------


def hf_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def hf_train(home: Path, link: str, where: str, until: Until) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from swarmnode.integrations.hf import SwarmCallback

    swarm = SwarmCallback(link, home=home, **at(where))

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            loss = kwargs["logs"].get("loss")
            if loss is not None and until.note(swarm.node, float(loss)):
                control.should_training_stop = True

    data = [{"input_ids": row, "labels": row} for row in tokens(seed=hash(home.name) % 1000)]
    arguments = TrainingArguments(
        output_dir=str(home / "trainer"),
        max_steps=STEPS_MAX,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=40,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=hf_model(),
        args=arguments,
        train_dataset=data,
        eval_dataset=data[:16],
        callbacks=[swarm, Watch()],
    )
    trainer.train()
    assert not swarm.agent.is_taking_part


# --- lightning ----------------------------------------------------------------------------


def lightning_module() -> Any:
    import lightning.pytorch as pl
    from torch.nn import functional

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(VOCABULARY, 32)
            self.out = torch.nn.Linear(32, VOCABULARY)

        def loss(self, batch: Any) -> torch.Tensor:
            (rows,) = batch
            logits = self.out(torch.tanh(self.embed(rows[:, :-1])))
            return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.loss(batch)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.loss(batch))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    torch.manual_seed(0)
    return Module()


def lightning_train(home: Path, link: str, where: str, until: Until) -> None:
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    from swarmnode.integrations.lightning import SwarmCallback

    swarm = SwarmCallback(link, home=home, **at(where))

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *batch: Any) -> None:
            if trainer.global_step and until.note(swarm.node, float(outputs["loss"])):
                trainer.should_stop = True

    data = TensorDataset(tokens(seed=hash(home.name) % 1000))
    trainer = pl.Trainer(
        max_steps=STEPS_MAX,
        max_epochs=-1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        val_check_interval=100,
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[swarm, Watch()],
    )
    loader = DataLoader(data, batch_size=BATCH)
    trainer.fit(lightning_module(), loader, DataLoader(data, batch_size=BATCH))
    assert not swarm.agent.is_taking_part


MODELS = {"hf": hf_model, "lightning": lightning_module}
TRAIN = {"hf": hf_train, "lightning": lightning_train}


def main(kind: str, verb: str, home: str, where: str, *rest: str) -> None:
    if verb == "create":
        model = MODELS[kind]()
        link = create_swarm(
            "mine", model, home=home, about=kind, strategy_settings=SETTINGS, **at(where)
        )
        print(json.dumps({"link": link}))
        return
    link, own, other = rest
    until = Until(Path(own), Path(other))
    TRAIN[kind](Path(home), link, where, until)
    print(json.dumps(until.report()))


if __name__ == "__main__":
    main(*sys.argv[1:])
