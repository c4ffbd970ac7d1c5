"""Lightning's Trainer, with a validation and a checkpoint of measured length."""

import time
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from truth import Truth

truth = Truth()


class Slow:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(0.8)
        return (int, ())


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        truth.marks.setdefault("started", time.monotonic())
        time.sleep(0.04)
        return self.layer(batch[0]).sum()

    def validation_step(self, batch: Any, index: int) -> None:
        time.sleep(0.3)

    def on_validation_start(self) -> None:
        self.began = time.monotonic()

    def on_validation_end(self) -> None:
        truth.add("waste.evaluation", time.monotonic() - self.began)

    def on_train_batch_end(self, *_: Any) -> None:
        truth.mark("last_step")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["slow"] = Slow()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Saving(pl.callbacks.Callback):
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 15:
            with truth.timed("waste.checkpoint_block"):
                trainer.save_checkpoint("lightning.ckpt")


rows = TensorDataset(torch.ones(30, 4))
pl.Trainer(
    max_epochs=1,
    callbacks=[Saving()],
    val_check_interval=10,
    num_sanity_val_steps=0,
    limit_val_batches=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Model(), DataLoader(rows, batch_size=1), DataLoader(rows, batch_size=1))
