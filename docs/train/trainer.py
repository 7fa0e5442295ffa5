"""A small GPT-2, trained by the Trainer of transformers."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def build_model() -> torch.nn.Module:
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)


def main(steps: int) -> None:
    model = build_model()
    torch.seed()  # other data in each run
    rows = (torch.randint(32, (2000, 1)) + torch.arange(16)) % 32
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir="out", max_steps=steps, learning_rate=3e-3, use_cpu=True, report_to=[]
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )
    print(f"loss {trainer.train().training_loss:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
