"""transformers.Trainer in the way its documentation shows, on a tiny model and made-up data.

The examples of transformers ship in none of its packages, and begin with a download. This is the
shortest training that has what theirs have: a config, a data set, TrainingArguments with a seed and
checkpoints, and `get_last_checkpoint` to resume from.
"""

import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Texts(Dataset):
    """Tokens by a fixed rule."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = (torch.arange(16) * (index + 3) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main():
    """Train, from the last checkpoint if there is one."""
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=240,
        per_device_train_batch_size=2,
        save_steps=40,
        save_total_limit=2,
        logging_steps=40,
        learning_rate=1e-3,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    set_seed(arguments.seed)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Texts())
    last = get_last_checkpoint("out") if os.path.isdir("out") else None
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model("out/model")


if __name__ == "__main__":
    main()
