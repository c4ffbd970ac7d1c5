"""transformers.Trainer: gradient accumulation, evaluation and saves; its second run resumes."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from truth import Truth

attempt = int(sys.argv[1])
truth = Truth(attempt=attempt)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        time.sleep(0.3 if not self.training else 0.03)
        out = self.layer(x)
        return {"loss": out.sum(), "logits": out}


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(4), "labels": torch.ones(1)}


class Noting(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        truth.marks.setdefault("started", time.monotonic())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        truth.mark("last_step")
        if attempt == 0 and state.global_step == 15:
            truth.mark("killed")
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)


class Timed(Trainer):
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with truth.timed("waste.evaluation"):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with truth.timed("waste.checkpoint_block"):
            return super()._save_checkpoint(*args, **kwargs)


arguments = TrainingArguments(
    output_dir="out",
    max_steps=20,
    gradient_accumulation_steps=2,
    per_device_train_batch_size=1,
    save_strategy="steps",
    save_steps=10,
    eval_strategy="steps",
    eval_steps=12,
    per_device_eval_batch_size=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    logging_steps=1000,
)
trainer = Timed(Model(), arguments, train_dataset=Rows(60), eval_dataset=Rows(2))
trainer.add_callback(Noting())
resume = get_last_checkpoint("out") if Path("out").is_dir() else None
trainer.train(resume_from_checkpoint=resume)
