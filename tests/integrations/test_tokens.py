"""What a step of a user's own loop counts for: tokens of its real batches, not examples."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmnode.integrations.taps import TokenTap, tokens_in
from tests.integrations.programs import CONTEXT, VOCABULARY, hf_model, lightning_module, tokens

STEPS, BATCH = 10, 8


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"input_ids": torch.zeros(8, 64, dtype=torch.int64)}, 512),
        # Several documents in one row, without padding.
        ({"position_ids": torch.zeros(7), "input_ids": torch.zeros(300, dtype=torch.int32)}, 300),
        ({"inputs_embeds": torch.zeros(4, 10, 32)}, 40),
        ((torch.zeros(4, 16, dtype=torch.int64), torch.zeros(4)), 64),
        ([torch.zeros(4, 16, dtype=torch.int64)], 64),
        ({"pixel_values": torch.zeros(5, 3, 8, 8), "labels": torch.zeros(5, 20).int()}, 5),
        ((torch.zeros(6, 3), torch.zeros(6, dtype=torch.int64)), 6),
        ({"name": "no tensor"}, 0),
        (None, 0),
        ((), 0),
    ],
)
def test_tokens_of_a_batch(batch: Any, expected: int) -> None:
    assert tokens_in(batch) == expected


def test_evaluation_counts_for_nothing() -> None:
    model, tap = torch.nn.Embedding(8, 4), TokenTap()
    rows = torch.zeros(2, 5, dtype=torch.int64)
    with tap.of(model):
        model(rows)
        model(input=rows)
        model.eval()
        model(rows)
    assert tap.take() == 20
    model.train()
    model(rows)  # the tap is closed
    assert tap.take() == 0


class FakeAgent:
    """Notes what each step counted for, instead of taking part."""

    def __init__(self, node: Any, model: Any, optimizer: Any) -> None:
        del node, model, optimizer
        self.counted: list[int] = []
        self.is_taking_part = True
        self.has_recipe = False

    def __enter__(self) -> FakeAgent:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.is_taking_part = False

    def step(self, loss: float | None = None, *, tokens: int = 1) -> bool:
        del loss
        self.counted.append(tokens)
        return True

    def note_loss(self, loss: float) -> None:
        """Part of an agent."""

    note_evaluation = note_loss


class FakeNode:
    @classmethod
    def join(cls, link: str, **settings: Any) -> FakeNode:
        del link, settings
        return cls()

    __enter__ = FakeAgent.__enter__

    def __exit__(self, *exc_info: object) -> None:
        """Part of a node."""


def offline(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "SwarmAgent", FakeAgent)
    monkeypatch.setattr(module, "Node", FakeNode)
    return module.SwarmCallback


def needs(package: str, extra: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install '.[{extra}]' in the clone of swarmnode")


@pytest.mark.filterwarnings("ignore")  # of a library of others
@pytest.mark.parametrize("given", [0, 7])
def test_transformers_counts_tokens_of_padded_batches(
    given: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("transformers", "hf")
    from transformers import Trainer, TrainingArguments

    from swarmnode.integrations import hf

    callback = offline(hf, monkeypatch)("swarm:x", tokens_per_step=given)
    lengths = [1 + n % CONTEXT for n in range(STEPS * 2 * BATCH)]
    data = [row[:length] for row, length in zip(tokens(0, len(lengths)), lengths, strict=True)]
    Trainer(
        model=hf_model(),
        args=TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2,
            train_sampling_strategy="sequential",
            eval_strategy="steps",
            eval_steps=3,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=data,
        eval_dataset=data[:5],
        data_collator=padded,
        callbacks=[callback],
    ).train()
    assert callback.agent is not None
    # Two batches of 8 a step, each as long as its longest: 8 and 16 tokens.
    assert callback.agent.counted == [given or BATCH * (8 + 16)] * STEPS


def padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "labels": ids}


@pytest.mark.filterwarnings("ignore")  # of a library of others
def test_lightning_counts_tokens_of_all_batches_of_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needs("lightning", "lightning")
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader

    from swarmnode.integrations import lightning

    callback = offline(lightning, monkeypatch)("swarm:x")
    rows = torch.randint(VOCABULARY, (4, CONTEXT))
    loader = [(rows[:, :8],), (rows,), (rows[:2],)]  # the last step of an epoch has one batch
    pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[callback],
    ).fit(lightning_module(), DataLoader(loader, batch_size=None))
    assert callback.agent is not None
    assert callback.agent.counted == [4 * 8 + 4 * 16, 2 * 16] * 2
