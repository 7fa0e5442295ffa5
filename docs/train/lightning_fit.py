"""A small network, trained by the Trainer of Lightning."""

import sys

import lightning.pytorch as pl
import torch
from torch.nn import functional


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        )

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        (x,) = batch
        return functional.mse_loss(self.net(x), x[:, :4].sum(dim=1, keepdim=True).sin())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def build_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return Module()


def main(steps: int) -> None:
    model = build_model()
    torch.seed()  # other data in each run
    data = torch.utils.data.TensorDataset(torch.randn(64_000, 16))
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=64))
    print(f"steps {trainer.global_step}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
